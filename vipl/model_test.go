package vipl_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/vipl"
)

// rapidTB lets helpers for a testing.TB fail a rapid.T, so that it shrinks.
type rapidTB struct {
	testing.TB
	r        *rapid.T
	cleanups []func()
}

func (r *rapidTB) Helper()                   { r.r.Helper() }
func (r *rapidTB) Error(a ...any)            { r.r.Error(a...) }
func (r *rapidTB) Errorf(f string, a ...any) { r.r.Errorf(f, a...) }
func (r *rapidTB) Fatal(a ...any)            { r.r.Fatal(a...) }
func (r *rapidTB) Fatalf(f string, a ...any) { r.r.Fatalf(f, a...) }
func (r *rapidTB) Logf(f string, a ...any)   { r.r.Logf(f, a...) }
func (r *rapidTB) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *rapidTB) run() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// modelEnd is a VI as the rules have it: its state and the receives posted.
type modelEnd struct {
	v     *vipl.VI
	x     *box
	state vipl.State
	recvs []modelRecv
	next  int // descriptor to use
}

type modelRecv struct{ index, room int }

type model struct {
	t     *rapidTB
	level vipl.ReliabilityLevel
	net   *memoryNet
	ends  [2]*modelEnd
	count int // messages
}

const modelBuffer = 3000

// take gives the next descriptor; there are more than can be posted at a time.
func (e *modelEnd) take() int {
	e.next = (e.next + 1) % len(e.x.desc)
	return e.next
}

func (m *model) flushAll(e *modelEnd) {
	for range e.recvs {
		received(m.t, e.v, vipl.StatusFlushed)
	}
	e.recvs = nil
}

func (m *model) broken() {
	for _, e := range m.ends {
		stateIs(m.t, e.v, vipl.Error)
		e.state = vipl.Error
		m.flushAll(e)
	}
}

func (m *model) postRecv(e *modelEnd, room int) {
	i := e.take()
	postRecv(m.t, e.v, e.x, i, room)
	if e.state == vipl.Error {
		received(m.t, e.v, vipl.StatusFlushed)
		return
	}
	e.recvs = append(e.recvs, modelRecv{i, room})
}

func (m *model) postSend(from, to *modelEnd, size int, immediate bool) {
	m.count++
	i := from.take()
	fillPattern(from.x.buf[i][:size], m.count)
	from.x.prepare(i, size)
	if immediate {
		from.x.desc[i].SetImmediate(uint32(m.count))
	}
	if err := from.v.PostSend(from.x.desc[i], from.x.region.Handle()); err != nil {
		m.t.Fatal(err)
	}
	if from.state != vipl.Connected {
		sent(m.t, from.v, vipl.StatusFlushed)
		return
	}
	reliable := m.level != vipl.UnreliableDelivery
	failed := func(s vipl.Status) {
		if m.level != vipl.ReliableReception {
			s = 0
		}
		if reliable {
			m.broken()
		}
		sent(m.t, from.v, s)
	}
	if len(to.recvs) == 0 {
		failed(vipl.StatusRemoteDescError)
		return
	}
	r := to.recvs[0]
	to.recvs = to.recvs[1:]
	if size > r.room {
		received(m.t, to.v, vipl.StatusLengthError)
		failed(vipl.StatusLengthError)
		return
	}
	want := vipl.Status(0)
	if immediate {
		want = vipl.StatusImmediate
	}
	d := received(m.t, to.v, want)
	if d != to.x.desc[r.index] || int(d.Length) != size || immediate && d.ImmediateData != uint32(m.count) {
		m.t.Fatalf("message of %d bytes: another descriptor, or %d bytes, immediate %d", size, d.Length, d.ImmediateData)
	}
	checkPattern(m.t, to.x.buf[r.index][:size], m.count)
	sent(m.t, from.v, 0)
}

func (m *model) disconnect(e, peer *modelEnd) {
	if err := e.v.Disconnect(); err != nil {
		m.t.Fatal(err)
	}
	if e.state == vipl.Connected {
		m.flushAll(e)
		stateIs(m.t, peer.v, vipl.Error)
		peer.state = vipl.Error
		m.flushAll(peer)
	}
	e.state = vipl.Idle
}

func (m *model) connect() {
	a, b := m.ends[0], m.ends[1]
	if a.state != vipl.Idle || b.state != vipl.Idle {
		return
	}
	join(m.t, m.net.a.Nic, a.v, m.net.b.Nic, b.v)
	a.state, b.state = vipl.Connected, vipl.Connected
}

func (m *model) check() {
	for i, e := range m.ends {
		s := stateIs(m.t, e.v, e.state)
		if !s.SendEmpty || s.RecvEmpty != (len(e.recvs) == 0) {
			m.t.Fatalf("end %d: queues empty: %v %v, %d receives posted", i, s.SendEmpty, s.RecvEmpty, len(e.recvs))
		}
		for _, done := range []func() (*vipl.Descriptor, error){e.v.SendDone, e.v.RecvDone} {
			if d, _ := done(); d != nil {
				m.t.Fatalf("end %d: a descriptor too many is done: %v", i, d.Status())
			}
		}
	}
}

// Random programs of posts, connects and disconnects give what the rules say.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tb := &rapidTB{TB: t, r: r}
		defer tb.run()
		m := &model{t: tb, level: rapid.SampledFrom(levels).Draw(r, "level"), net: newMemoryNet(tb, memoryConfig{})}
		for i, h := range []*memoryHost{m.net.a, m.net.b} {
			m.ends[i] = &modelEnd{v: newVI(tb, h.Nic, m.level), x: newBox(tb, h.Nic, 32, modelBuffer)}
		}
		sizes := rapid.OneOf(rapid.IntRange(0, modelBuffer), rapid.SampledFrom([]int{0, 1, 1423, 1424, 1425, 2848, modelBuffer}))
		for step := range rapid.IntRange(1, 25).Draw(r, "steps") {
			i := rapid.IntRange(0, 1).Draw(r, "end")
			e, peer := m.ends[i], m.ends[1-i]
			switch op := rapid.SampledFrom([]string{
				"connect", "connect", "recv", "recv", "recv", "recv", "send", "send", "send", "disconnect",
			}).Draw(r, fmt.Sprintf("op %d", step)); op {
			case "connect":
				m.connect()
			case "recv":
				if len(e.recvs) < 16 {
					m.postRecv(e, max(sizes.Draw(r, "room"), sizes.Draw(r, "room too")))
				}
			case "send":
				m.postSend(e, peer, sizes.Draw(r, "size"), rapid.Bool().Draw(r, "immediate"))
			case "disconnect":
				m.disconnect(e, peer)
			}
			m.check()
		}
	})
}
