package vipl_test

import (
	"errors"
	"slices"

	"viaxdp/vipl"
)

// The operations of random programs that move no data: connections, attributes,
// memory, completion queues, and what the library has to refuse.

const (
	modelVIs  = 3 // of each NIC
	modelCQs  = 2
	modelTags = 3
)

var modelMost = [...]int{vipl.MaxTransferSize, 20_000, 3000}

// newModel makes VIs, memory and completion queues on both NICs.
func newModel(t failer, net *memoryNet, levels []vipl.ReliabilityLevel, roll randomSource) *model {
	t.Helper()
	m := &model{t: t, randomSource: roll, net: net, levels: levels, ackDelay: modelLimit}
	for i, h := range []*memoryHost{net.a, net.b} {
		n := &refNIC{model: m, name: string(rune('a' + i)), host: h, writes: h.Counters().Writes}
		m.nics[i] = n
		for range modelTags {
			n.tags = append(n.tags, m.newTag(n))
		}
		for j := range 2 {
			n.homes = append(n.homes, m.registerHome(n, n.tags[j]))
		}
		for j := range dataRegions {
			n.data = append(n.data, m.register(n, j))
		}
		for range modelCQs {
			n.cqs = append(n.cqs, m.newCQ(n))
		}
		for range modelVIs {
			n.vis = append(n.vis, m.newVI(n))
		}
	}
	return m
}

func (m *model) newTag(n *refNIC) *refTag {
	tag, err := n.host.CreatePtag()
	m.noError("CreatePtag", err)
	return &refTag{tag}
}

func (m *model) newCQ(n *refNIC) *refCQ {
	c, err := n.host.CreateCQ(1 + m.randomSource("entries", 20))
	m.noError("CreateCQ", err)
	return &refCQ{nic: n, real: c}
}

// newVI makes a VI of any attributes. A third of the queues have no CQ.
func (m *model) newVI(n *refNIC) *refVI {
	v := &refVI{nic: n}
	m.drawAttributes(v)
	v.send, v.recv = refQueue{vi: v}, refQueue{vi: v, isRecv: true}
	var cqs [2]*vipl.CQ
	for i, q := range []*refQueue{&v.send, &v.recv} {
		if k := m.randomSource("CQ", modelCQs+1); k > 0 {
			q.cq = n.cqs[k-1]
			cqs[i] = q.cq.real
		}
	}
	var err error
	v.real, err = n.host.CreateVI(v.attributes(), cqs[0], cqs[1])
	m.noError("CreateVI", err)
	return v
}

func (m *model) drawAttributes(v *refVI) {
	v.level = m.levels[m.randomSource("level", len(m.levels))]
	v.most = modelMost[m.randomSource("most", len(modelMost))]
	v.write = m.randomSource("no RDMA write", 5) != 4
	v.read = m.randomSource("no RDMA read", 8) != 7 && v.reliable()
	v.tag = nil
	if k := m.randomSource("tag", 5); k > 2 {
		v.tag = v.nic.tags[k-3]
	}
}

// returns checks a refusal.
func (m *model) returns(what string, err, want error) {
	m.t.Helper()
	if !errors.Is(err, want) {
		m.differ("%s: %v, want %v", what, err, want)
	}
}

func isIdle(v *refVI) bool { return v.state == vipl.Idle }

// setVI changes attributes, which only an idle VI has done to it.
func (m *model) setVI() {
	v := m.anyVI(isIdle)
	was := v.refAttributes
	m.drawAttributes(v)
	a, err := v.attributes(), error(nil)
	var want vipl.Return
	switch {
	case v.state != vipl.Idle:
		want = vipl.ErrInvalidState
	case m.randomSource("wrong", 4) == 3:
		switch m.randomSource("how", 4) {
		case 0:
			a.Level, want = 3, vipl.ErrInvalidReliabilityLevel
		case 1:
			a.MaxTransferSize, want = vipl.MaxTransferSize+1, vipl.ErrInvalidMTU
		case 2:
			a.QoS, want = 1, vipl.ErrInvalidQoS
		default:
			a.Level, a.EnableRDMARead, want = vipl.UnreliableDelivery, true, vipl.ErrInvalidRDMARead
		}
	}
	m.note("%v gets attributes %+v", v, a)
	if err = v.real.SetAttributes(a); want == 0 {
		m.noError("SetAttributes", err)
	} else {
		m.returns("SetAttributes", err, want)
		v.refAttributes = was
	}
	s, err := v.real.Query()
	m.noError("Query", err)
	if s.Attributes != v.attributes() {
		m.differ("%v: attributes %+v, want %+v", v, s.Attributes, v.attributes())
	}
}

// destroyVI destroys a VI, if it is idle and empty, and makes another one.
func (m *model) destroyVI() {
	m.settle()
	v := m.anyVI(func(v *refVI) bool { return v.state == vipl.Idle && len(v.send.items)+len(v.recv.items) == 0 })
	m.note("destroy %v", v)
	if v.state != vipl.Idle || len(v.send.items)+len(v.recv.items) > 0 {
		m.returns("destroy a VI in use", v.real.Destroy(), vipl.ErrResource)
		return
	}
	m.destroy(v)
	v.nic.vis[slices.Index(v.nic.vis, v)] = m.newVI(v.nic)
}

// destroy destroys a VI. Its handlers are never called, its entries leave the
// CQs.
func (m *model) destroy(v *refVI) {
	m.noError("Destroy", v.real.Destroy())
	m.returns("destroy twice", v.real.Destroy(), vipl.ErrInvalidParameter)
	_, err := v.real.Query()
	m.returns("query a destroyed VI", err, vipl.ErrInvalidParameter)
	for _, q := range []*refQueue{&v.send, &v.recv} {
		if q.cq != nil {
			q.cq.entries = slices.DeleteFunc(q.cq.entries, func(e refEntry) bool { return e.vi == v.real })
		}
		if k := q.calls.len(); k > 0 {
			m.differ("%v: %d handlers are called when it is destroyed", q, k)
		}
	}
}

func (c *refCQ) bound() (k int) {
	for _, v := range c.nic.vis {
		for _, q := range []*refQueue{&v.send, &v.recv} {
			if q.cq == c {
				k++
			}
		}
	}
	return k
}

func (m *model) anyCQ() *refCQ {
	return m.nics[m.randomSource("NIC", 2)].cqs[m.randomSource("CQ", modelCQs)]
}

func (m *model) resizeCQ() {
	m.settle()
	c, entries := m.anyCQ(), 1+m.randomSource("entries", 40)
	m.note("resize a CQ with %d entries to %d", len(c.entries), entries)
	err := c.real.Resize(entries)
	if len(c.entries) > entries {
		m.returns("resize to less than waits", err, vipl.ErrResource)
		return
	}
	m.noError("Resize", err)
	if k := c.real.Entries(); k < entries {
		m.differ("a CQ of %d entries has %d", entries, k)
	}
}

func (m *model) destroyCQ() {
	c := m.anyCQ()
	if c.bound() > 0 {
		m.note("destroy a CQ in use")
		m.returns("destroy a CQ in use", c.real.Destroy(), vipl.ErrResource)
		return
	}
	m.note("destroy a CQ")
	m.noError("CQ.Destroy", c.real.Destroy())
	m.returns("destroy a CQ twice", c.real.Destroy(), vipl.ErrInvalidParameter)
	_, _, err := c.real.Done()
	m.returns("take from a destroyed CQ", err, vipl.ErrInvalidParameter)
	if k := c.calls.len(); k > 0 {
		m.differ("%d handlers of a CQ are called when it is destroyed", k)
	}
	c.real, c.armed, c.set, c.called = m.newCQ(c.nic).real, 0, 0, 0
}

// alter changes a receive that is posted.
func (m *model) alter() {
	m.settle()
	v := m.anyVI(func(v *refVI) bool { return v.recv.head() != nil })
	waiting := v.recv.items[v.recv.done:]
	if len(waiting) == 0 {
		return
	}
	d := waiting[m.randomSource("receive", len(waiting))]
	if len(d.flaws) > 0 || d.altered {
		return
	}
	m.note("change %v, posted on %v", d, v)
	d.altered = true
	switch m.randomSource("field", 3) {
	case 0:
		d.real.Length++
	case 1:
		d.real.Reserved = 7
	default:
		d.real.SegCount += 500
	}
}

// misPost posts what is no descriptor, or lies where it may not.
func (m *model) misPost() {
	m.settle()
	v := m.anyVI(isConnected)
	h := v.nic.homes[m.randomSource("home", 2)]
	if len(h.slots) == 0 {
		return
	}
	d, handle := h.slots[0], h.real.Handle()
	d.SegCount = 0
	switch m.randomSource("how", 4) {
	case 0:
		d = nil
	case 1:
		d = misaligned(h.real)
	case 2:
		handle = v.nic.data[0].real.Handle()
	default:
		if v.tag == nil || v.tag == h.tag {
			return
		}
	}
	post := v.real.PostSend
	if m.randomSource("queue", 2) == 1 {
		post = v.real.PostRecv
	}
	m.note("%v posts a wrong descriptor", v)
	m.returns("post a wrong descriptor", post(d, handle), vipl.ErrInvalidParameter)
	v.nic.errors = append(v.nic.errors, refError{v.real, vipl.ErrorPostDesc, d})
}

// look checks the state of a VI and a CQ when nothing is under way.
func (m *model) look() {
	m.settle()
	v := m.anyVI(isConnected)
	m.note("look at %v", v)
	s, err := v.real.Query()
	m.noError("Query", err)
	if s.State != v.state || s.SendEmpty != (len(v.send.items) == 0) || s.RecvEmpty != (len(v.recv.items) == 0) {
		m.differ("%v: %+v", v, s)
	}
	for _, q := range []*refQueue{&v.send, &v.recv} {
		done, wait, _ := q.takes()
		_, err := wait(0)
		switch {
		case q.cq != nil:
			m.returns("wait on a queue bound to a CQ", err, vipl.ErrInvalidParameter)
		case q.done > 0:
			m.check(q, q.items[0].real, err)
			continue
		default:
			m.returns("wait where nothing is done", err, vipl.ErrTimeout)
		}
		if q.done == 0 {
			want := vipl.ErrDescriptor
			if len(q.items) > 0 {
				want = vipl.ErrNotDone
			}
			d, err := done()
			if d != nil || err != want {
				m.differ("%v: %v %v, want %v", q, d, err, want)
			}
		}
	}
	for _, c := range v.nic.cqs {
		if len(c.entries) == 0 {
			_, _, err := c.real.Done()
			m.returns("take from an empty CQ", err, vipl.ErrNotDone)
		}
	}
}

// close ends everything that the model made: it can be ended.
func (m *model) close() {
	m.randomSource = func(string, int) int { return 0 }
	m.settle()
	m.note("end")
	for _, v := range m.allVIs(func(v *refVI) bool { return v.state == vipl.Error }) {
		m.disconnect(v)
	}
	for _, v := range m.allVIs(func(v *refVI) bool { return v.state == vipl.Idle && v.recv.head() != nil }) {
		p := m.newVI(v.nic)
		v.nic.vis = append(v.nic.vis, p)
		m.connect(v, p, 0)
	}
	for _, v := range m.allVIs(func(v *refVI) bool { return v.state != vipl.Idle }) {
		m.disconnect(v)
	}
	for _, n := range m.nics {
		for _, v := range n.vis {
			for _, q := range []*refQueue{&v.send, &v.recv} {
				done, _, _ := q.takes()
				for q.done > 0 { // also with an entry in a CQ
					d, err := done()
					m.check(q, d, err)
				}
			}
			m.destroy(v)
		}
		n.vis = nil
		for _, c := range n.cqs {
			if _, _, err := c.real.Done(); err != vipl.ErrNotDone || len(c.entries) > 0 {
				m.differ("a CQ has entries of VIs that are destroyed: %v", err)
			}
			m.noError("CQ.Destroy", c.real.Destroy())
		}
		n.cqs = nil
		for _, r := range append(n.data, n.homes...) {
			m.noError("Deregister", r.real.Deregister())
		}
		n.data = nil
		for _, tag := range n.tags {
			m.noError("Ptag.Destroy", tag.real.Destroy())
		}
	}
	m.settle()
}
