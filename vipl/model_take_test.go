package vipl_test

import "viaxdp/vipl"

// The operations of random programs that take completions.

// takeSome takes completions off a queue, in one of the ways that it has.
func (m *model) takeSome() {
	v := m.anyVi(func(v *refVI) bool { return v.send.done+v.recv.done > 0 })
	q := &v.send
	if v.send.done == 0 || v.recv.done > 0 && m.dice("queue", 2) == 1 {
		q = &v.recv
	}
	if q.done == 0 {
		return
	}
	m.collect(q) // what handlers got comes first
	count, how := 1+m.dice("count", q.done), m.dice("how", 4)
	if how == 1 && count > 1 && m.dice("wait often", 4) != 3 {
		how = 0 // a sleeping wait for each costs time
	}
	m.note("take %d from %v, way %d", count, q, how)
	for range count {
		m.steps++
		if q.cq != nil && how < 3 {
			m.takeFromCQ(q.cq, how)
		} else {
			m.takeFrom(q, how)
		}
	}
	m.collect(q)
}

func (m *model) takeFrom(q *refQueue, how int) {
	v := q.vi.real
	done, wait, notify := v.SendDone, v.SendWait, v.SendNotify
	if q.isRecv {
		done, wait, notify = v.RecvDone, v.RecvWait, v.RecvNotify
	}
	var d *vipl.Descriptor
	var err error
	switch how {
	case 0, 3: // also past the CQ, of which an entry stays
		m.until(func() string {
			if d, err = done(); err == vipl.ErrNotDone {
				return "a descriptor is not done"
			}
			return ""
		})
	case 1:
		m.meanwhile(func() { d, err = wait(modelPatience) })
	default:
		m.handle(q, notify)
		return
	}
	m.check(q, d, err)
}

func (m *model) takeFromCQ(c *refCQ, how int) {
	m.collectCQ(c)
	if len(c.entries) == 0 {
		return
	}
	var v *vipl.VI
	var recv bool
	var err error
	switch how {
	case 0:
		m.until(func() string {
			if v, recv, err = c.real.Done(); err == vipl.ErrNotDone {
				return "a CQ has no entry"
			}
			return ""
		})
	case 1:
		m.meanwhile(func() { v, recv, err = c.real.Wait(modelPatience) })
	default:
		m.armCQ(c)
		m.collectCQ(c)
		return
	}
	m.noError("take from CQ", err)
	m.takeEntry(c, v, recv)
}

func (m *model) armCQ(c *refCQ) {
	c.handlers++
	number := c.handlers
	m.noError("CQ.Notify", c.real.Notify(func(v *vipl.VI, recv bool) { c.calls.add(call{v, recv, nil, number}) }))
	c.armed++
}

// arm sets handlers, some of them for completions that are still to come.
func (m *model) arm() {
	v := m.anyVi(isConnected)
	q, notify := &v.send, v.real.SendNotify
	if m.dice("queue", 2) == 1 {
		q, notify = &v.recv, v.real.RecvNotify
	}
	m.note("handler for %v", q)
	if q.cq != nil {
		m.returns("handler of a queue that is bound to a CQ", notify(func(*vipl.VI, *vipl.Descriptor) {}), vipl.ErrInvalidParameter)
		if q.cq.armed < 4 {
			m.armCQ(q.cq)
		}
		return
	}
	if q.armed > 4 {
		return
	}
	m.handle(q, notify)
}

// handle sets a handler for a work queue without a CQ.
func (m *model) handle(q *refQueue, notify func(func(*vipl.VI, *vipl.Descriptor)) error) {
	q.handlers++
	number := q.handlers
	m.noError("Notify", notify(func(v *vipl.VI, d *vipl.Descriptor) { q.calls.add(call{v, q.isRecv, d, number}) }))
	if q.done > 0 {
		q.handed = append(q.handed, q.pop())
		return
	}
	q.armed++
}
