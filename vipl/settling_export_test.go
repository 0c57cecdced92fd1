package vipl

// Settle completes the oldest receive of v as the engine does, for somebody who looks between
// its status and all else: beside runs at that moment, without the lock that the engine holds.
func (v *VI) Settle(beside func()) {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &v.recv
	n, cq := q.completed.Load(), q.cq
	e := q.at(n)
	q.settling.Store(n + 1)
	if cq != nil {
		cq.settling.Store(1)
	}
	e.desc.setStatus(StatusDone | e.op)
	beside()
	q.current++
	p.complete(v, q, e, 0)
}
