package vipl

import (
	"sync"

	"viaxdp/wire"
)

// Farewell ends the connections of a program that is about to exit. As with
// Disconnect, the data of completed sends is delivered first, on reliable VIs, and
// peers learn of the end at once. Unlike with Disconnect, nothing completes here and
// nobody who waits wakes up: the program's other threads notice nothing until they
// are gone.
//
// It returns once the peers of reliable VIs have answered; it does not wait for one
// that has been silent for 200 ms, and for none longer than five seconds. It may be
// called concurrently. The handle is of no use afterwards.
func (n *Nic) Farewell() {
	p := n.port
	p.mu.Lock()
	var open []*conn
	for _, v := range p.vis {
		if v == nil || v.nic != n || v.conn == nil || !v.conn.open {
			continue
		}
		// Of what is under way only a connect that has come about has something to end, and a Disconnect
		// something to wait for.
		if v.busy && (v.settled == nil || v.state == ConnectPending) && !v.conn.closing {
			continue
		}
		c := v.conn
		c.hurry = true
		p.pump(c, p.now())
		open = append(open, c)
	}
	p.flush()
	reliable := open[:0]
	for _, c := range open {
		c.closing, c.answers = true, nil
		p.pump(c, p.now())
		if c.sender != nil {
			reliable = append(reliable, c)
			continue
		}
		// The peer's answer would break the connection for all to see.
		p.control(c, wire.KindClose, c.seq, 0)
		p.abandon(c)
	}
	p.finish(p.now(), true)
	p.mu.Unlock()
	var wait sync.WaitGroup
	for _, c := range reliable {
		wait.Go(c.linger)
	}
	wait.Wait()
}
