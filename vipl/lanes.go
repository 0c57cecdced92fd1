package vipl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/kagent"
	"viaxdp/lane"
	"viaxdp/xdpnic"
)

// Connections with a VI on another queue of the interface, of this program or of
// another one. What one queue sends does not come back on another, so that the
// frames go through a lane (package lane), in the same form and through the same
// steps; the agent has made it and given it to both sides. A frame that finds it
// full stays where it is, as with a full ring. The other side is not trusted: a lane
// carries frames of its own connections only, and those of its connections come by
// no other way.

// portLane is a lane of a port, and how many connections use it.
type portLane struct {
	*lane.Lane
	id    uint64
	conns int
	buf   [1]xdpnic.Frame // a copy of the frame that arrives, so that it does not change
	wake  *os.File        // readable when the other side has rung, because this one sleeps
	bell  *os.File        // rings at the other side
	ring  int             // its descriptor
	left  chan struct{}   // closed with the last connection
}

var errNoLane = errors.New("the agent cannot join two queues of one interface: open both handles on one (WithQueue)")

// laneTo finds or makes the lane to the queue that VI peer is on. The connection
// counts as one of its users, until leaveLane.
func (v *VI) laneTo(peer uint32) (*portLane, error) {
	agent, ok := v.nic.agent.(kagent.Laner)
	if !ok {
		return nil, errNoLane
	}
	end, err := agent.Lane(peer)
	if err != nil {
		return nil, err
	}
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if v.gone.Load() || v.nic.closing() {
		end.Close()
		return nil, errClosed
	}
	return v.port.enterLane(end)
}

// enterLane finds or makes the port's part of a lane, for one more connection. Under
// the lock.
func (p *port) enterLane(end *kagent.LaneEnd) (*portLane, error) {
	for _, l := range p.allLanes() {
		if l.id == end.ID {
			end.Close()
			l.conns++
			return l, nil
		}
	}
	l, err := newPortLane(end)
	if err != nil {
		end.Close()
		return nil, err
	}
	l.conns = 1
	all := append(slices.Clone(p.allLanes()), l)
	p.lanes.Store(&all)
	p.nic.Wake() // who sleeps has not said so at this lane
	p.stopped.Add(1)
	go p.answerBell(l)
	return l, nil
}

func newPortLane(end *kagent.LaneEnd) (*portLane, error) {
	l := &portLane{
		id: end.ID, wake: end.Wake, bell: end.Bell, left: make(chan struct{}),
		buf: [1]xdpnic.Frame{{Data: make([]byte, lane.MaxFrame)}},
	}
	memory, err := descriptor(end.Memory)
	if err != nil {
		return nil, err
	}
	if l.ring, err = descriptor(end.Bell); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(memory, &st); err != nil || st.Size < lane.Size {
		return nil, fmt.Errorf("a lane of %d bytes, want %d (%w)", st.Size, lane.Size, err)
	}
	mem, err := unix.Mmap(memory, 0, lane.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if l.Lane, err = lane.New(mem, end.Side); err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	_ = end.Memory.Close() // the mapping stays
	// Who polls looks at the lane without a lock, perhaps just when it goes.
	runtime.AddCleanup(l, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return l, nil
}

// descriptor is the descriptor of a file, which is valid as long as the file.
func descriptor(f *os.File) (n int, err error) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	return n, err
}

// leaveLane gives up a connection's part; the last one lets go of the lane. Under
// the lock.
func (p *port) leaveLane(l *portLane) {
	if l.conns--; l.conns > 0 {
		return
	}
	all := slices.DeleteFunc(slices.Clone(p.allLanes()), func(x *portLane) bool { return x == l })
	p.lanes.Store(&all)
	if len(all) == 0 {
		p.lanes.Store(nil)
	}
	close(l.left)
	_ = l.wake.SetReadDeadline(time.Unix(1, 0)) // answerBell ends, and closes them
}

// allLanes are the port's. Any goroutine.
func (p *port) allLanes() []*portLane {
	if all := p.lanes.Load(); all != nil {
		return *all
	}
	return nil
}

// answerBell wakes who sleeps for the port when the other side has sent something.
// It closes the bell, since that may wait for a read to end, and nobody is to wait
// for it under the lock.
func (p *port) answerBell(l *portLane) {
	defer p.stopped.Done()
	b := make([]byte, 256)
	for {
		if _, err := l.wake.Read(b); err != nil {
			break
		}
		p.nic.Wake()
	}
	<-l.left // the other side may be gone before
	_ = l.wake.Close()
	_ = l.bell.Close()
}

var ringOnce = []byte{1}

// sendLane puts a frame on the way. Its chunk stays the sender's if it is retained,
// else it is given back at once. Under the lock.
func (p *port) sendLane(l *portLane, addr uint64, size int, retain bool) bool {
	sent, bell := l.Send(p.mem[addr : addr+uint64(size)])
	if !sent {
		return false
	}
	if bell {
		// It does not wait. Where there is no room the other side has been rung
		// already, and has not looked.
		_ = unix.Send(l.ring, ringOnce, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if !retain {
		p.nic.Release(addr)
	}
	return true
}

// receiveLanes takes what has arrived by lanes, a bounded number of frames. Under
// the lock.
func (p *port) receiveLanes(now int64) (came bool) {
	for _, l := range p.allLanes() {
		whole := l.buf[0].Data
		for range rxBatch {
			n, ok := l.Receive(whole)
			if !ok {
				break
			}
			came = true
			l.buf[0].Data = whole[:n]
			p.from = l
			p.receive(l.buf[:], now)
			p.from = nil
			l.buf[0].Data = whole
		}
	}
	return came
}

// arrived tells whether frames have, on the queue or by a lane. Any goroutine.
func (p *port) arrived() bool {
	return p.nic.Ready() || p.lanes.Load() != nil && p.laneReady()
}

func (p *port) laneReady() bool {
	for _, l := range p.allLanes() {
		if l.Ready() {
			return true
		}
		runtime.KeepAlive(l)
	}
	return false
}

// restLanes says at all lanes whether this side sleeps.
func (p *port) restLanes(on bool) {
	for _, l := range p.allLanes() {
		l.Sleep(on)
		runtime.KeepAlive(l)
	}
}

// stuckAlone says whether c, which has just come up in vain, waits for what others do
// not need: room in its lane, or more chunks at once, for a long frame, than there
// are. Then it is put aside for this turn: the port has room for others.
func (p *port) stuckAlone(c *conn) bool {
	last := len(p.ready) - 1
	if last < 0 || p.ready[last] != c || p.nic.TxFree() <= p.spare {
		return false
	}
	p.ready = p.ready[:last]
	p.stuck = append(p.stuck, c)
	return true
}
