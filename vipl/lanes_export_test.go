package vipl

import (
	"viaxdp/kagent"
	"viaxdp/xdpnic"
)

// ArriveByLane is the arrival of a frame by a lane that no connection uses.
func (n *Nic) ArriveByLane(frame []byte) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from = new(portLane)
	p.receive([]xdpnic.Frame{{Data: frame}}, p.now())
	p.from = nil
}

// EnterLane is enterLane. send sends a frame of n bytes, and leave is leaveLane.
func (n *Nic) EnterLane(end *kagent.LaneEnd) (send func(n int) bool, leave func(), err error) {
	p := n.port
	p.mu.Lock()
	l, err := p.enterLane(end)
	p.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	return func(size int) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			addr, _, ok := p.nic.Alloc()
			return ok && p.sendLane(l, addr, size, false)
		}, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.leaveLane(l)
		}, nil
}

// MoveToLane makes a connection use a lane from now on.
func (n *Nic) MoveToLane(t interface{ Fatal(...any) }, v *VI, end *kagent.LaneEnd) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.enterLane(end)
	if err != nil {
		t.Fatal(err)
	}
	v.conn.lane = l
}

// ComesUp has a VI looked at next.
func (n *Nic) ComesUp(v *VI) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receiveAll(p.now()) // others come up, and
	for i, c := range p.ready {
		if c == v.conn {
			p.ready = append(append(p.ready[:i:i], p.ready[i+1:]...), c)
		}
	}
	p.finish(p.now(), false)
}
