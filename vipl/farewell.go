package vipl

import (
	"sync"

	"viaxdp/internal/base/wire"
)

// Farewell ends the connections of a program that is about to exit. As with Disconnect, the data of completed sends
// is delivered first on reliable VIs, and peers learn of the end at once. Unlike Disconnect, it completes no
// descriptor and wakes no waiter, so the program's other threads notice nothing.
//
// It returns once the peers of reliable VIs have answered. It stops waiting for a peer that has been silent for 200
// ms, and waits for five seconds at most. It may be called concurrently. The handle must not be used afterwards.
func (n *NIC) Farewell() {
	p := n.port
	p.mu.Lock()
	var open []*conn
	for _, v := range p.vis.connected {
		if v == nil || v.nic != n || v.conn == nil || !v.conn.open {
			continue
		}
		// Skip VIs on which a call is under way, with two exceptions. A connect that has succeeded has a connection
		// to end. A Disconnect is to be waited for.
		if v.busy && (v.settled == nil || v.state == ConnectPending) && !v.conn.ending.begun {
			continue
		}
		c := v.conn
		c.stopCoalescing()
		p.pump(c, p.now())
		open = append(open, c)
	}
	p.flush()
	reliable := open[:0]
	for _, c := range open {
		c.beginClose()
		p.pump(c, p.now())
		if c.sender != nil {
			reliable = append(reliable, c)
			continue
		}
		// The peer's answer would break the connection visibly, with flushed descriptors.
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
