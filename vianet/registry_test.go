package vianet

import (
	"testing"

	"viaxdp/internal/memorynic"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// aNic is a NIC that nobody else is joined with.
func aNic(t *testing.T) *vipl.Nic {
	t.Helper()
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	agent := kagenttest.NewFabric(kagenttest.Faults{}).Agent("a")
	return memorynic.Open(t, wire, agent, memorynic.Config{Queue: xdpnictest.Config{RxChunks: 64}, Arena: 256 << 10}).Nic
}

func newTestRegistry(t *testing.T, limit int) (r *registry, tag *vipl.Ptag) {
	t.Helper()
	nic := aNic(t)
	r, err := newRegistry(nic, limit)
	if err != nil {
		t.Fatal(err)
	}
	if tag, err = nic.CreatePtag(); err != nil {
		t.Fatal(err)
	}
	return r, tag
}

func mustLease(t *testing.T, r *registry, b []byte, tag *vipl.Ptag, a access) *lease {
	t.Helper()
	l, err := r.lease(b, tag, a)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Memory that was leased before is not registered again; it has the tag and the
// rights of whoever has it, and none while nobody has.
func TestLeaseIsKept(t *testing.T) {
	r, tag := newTestRegistry(t, 1<<20)
	buf := make([]byte, 1000)
	for i, a := range []access{readable, writable, closed} {
		l := mustLease(t, r, buf, tag, a)
		got, err := l.region.Query()
		if want := attributes(tag, a); err != nil || got != want {
			t.Errorf("leased: %+v, %v, want %+v", got, err, want)
		}
		handle := l.region.Handle()
		l.end()
		if got, err = l.region.Query(); err != nil || got != attributes(r.home, closed) {
			t.Errorf("idle: %+v, %v", got, err)
		}
		again := mustLease(t, r, buf, tag, a)
		if again.region.Handle() != handle {
			t.Errorf("lease %d is registered anew", i)
		}
		again.end()
	}
	other := mustLease(t, r, buf[:999], tag, readable)
	if len(other.buf) != 999 || other.region.Remote(0).Data != r.lowest().Remote(0).Data {
		t.Errorf("other bytes: %d", len(other.buf))
	}
	other.end()
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// lowest is the region that has been idle for the longest time.
func (r *registry) lowest() *vipl.Region { return r.order.Back().Value.(*lease).region }

// A buffer that two connections use at once is registered twice, and kept once.
func TestLeaseTwice(t *testing.T) {
	r, tag := newTestRegistry(t, 1<<20)
	buf := make([]byte, 1000)
	one, two := mustLease(t, r, buf, tag, readable), mustLease(t, r, buf, tag, readable)
	if one.region.Handle() == two.region.Handle() {
		t.Error("two leases of one region")
	}
	one.end()
	two.end()
	if len(r.idle) != 1 || r.order.Len() != 1 || r.bytes != 1000 {
		t.Errorf("%d, %d idle, %d bytes", len(r.idle), r.order.Len(), r.bytes)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// What is above the limit goes, first what was not used for the longest time; and
// what is larger than all of it is not kept at all.
func TestLeaseLimit(t *testing.T) {
	r, tag := newTestRegistry(t, 3000)
	bufs := [][]byte{make([]byte, 1000), make([]byte, 1001), make([]byte, 1002), make([]byte, 3001)}
	for _, b := range append(bufs[:3:3], bufs[0], bufs[3]) {
		mustLease(t, r, b, tag, readable).end()
	}
	kept := func(b []byte) bool { return r.idle[spanOf(b)] != nil }
	if !kept(bufs[0]) || kept(bufs[1]) || !kept(bufs[2]) || kept(bufs[3]) {
		t.Errorf("kept: %v %v %v %v", kept(bufs[0]), kept(bufs[1]), kept(bufs[2]), kept(bufs[3]))
	}
	if r.bytes != 2002 {
		t.Errorf("%d bytes", r.bytes)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// Staging buffers come from the arena as long as it lasts, and serve again.
func TestStages(t *testing.T) {
	r, tag := newTestRegistry(t, 0)
	var all []*lease
	for range maxStages + 3 { // more than the arena has
		l, err := r.stage(tag, writable)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.buf) != stageSize || &l.region.Bytes()[l.off] != &l.buf[0] {
			t.Fatalf("%d bytes at %d", len(l.buf), l.off)
		}
		all = append(all, l)
	}
	for _, l := range all {
		l.end()
	}
	if len(r.stages) != maxStages {
		t.Errorf("%d are kept", len(r.stages))
	}
	l, err := r.stage(tag, closed)
	if err != nil || l != all[maxStages-1] {
		t.Errorf("%v, not the one that was used last", err)
	}
	l.end()
	if err := r.close(); err != nil {
		t.Error(err)
	}
}
