package vianet

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// aNIC returns a NIC that is connected with no other.
func aNIC(t testing.TB) *vipl.NIC {
	t.Helper()
	return memorynic.Alone(t, memorynic.Config{Queue: xdpnictest.Config{RxChunks: 64}, Arena: 2 << 20})
}

// noDrivers returns a stack over such a NIC whose drivers do not run, so that they take nothing off the queues.
func noDrivers(t testing.TB) *Stack {
	t.Helper()
	nic := aNIC(t)
	s := &Stack{nic: nic, o: Options{Buffers: 1024, BufferSize: 320}, conns: make(map[*Conn]bool)}
	nstest.Must(t, s.o.complete())
	var errs [3]error
	s.regs, errs[0] = newRegistry(nic, 0)
	s.arrivals, errs[1] = newDriver(s)
	s.sends, errs[2] = newDriver(s)
	nstest.Must(t, errors.Join(errs[:]...))
	t.Cleanup(func() { nstest.Check(t, s.release()) })
	return s
}

func newTestRegistry(t testing.TB, limit int) (r *registry, tag *vipl.Ptag) {
	t.Helper()
	nic := aNIC(t)
	r, err := newRegistry(nic, limit)
	nstest.Must(t, err)
	tag, err = nic.CreatePtag()
	nstest.Must(t, err)
	return r, tag
}

func mustLease(t testing.TB, r *registry, b []byte, tag *vipl.Ptag, a access) *lease {
	t.Helper()
	l, err := r.lease(b, tag, a)
	nstest.Must(t, err)
	return l
}

// For any order of leases: a lease names its bytes, peers can access no others, no two leases share a region, and the
// registry knows all that is registered.
func TestLeasesAtRandom(t *testing.T) {
	const limit = 100_000
	r, tag := newTestRegistry(t, limit)
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 50_000)
	out := map[uint32]*lease{} // by the handle
	for range 5000 {
		if len(out) > 0 && rnd.IntN(2) == 0 {
			for handle, l := range out { // any
				l.end()
				delete(out, handle)
				break
			}
		} else {
			at := rnd.IntN(10) * 5000
			b, a := buf[at:at+1000+rnd.IntN(4)*1000], access(rnd.IntN(4))
			l := mustLease(t, r, b, tag, a)
			handle := uint32(l.region.Handle())
			nstest.FatalIf(t, out[handle] != nil, "two leases of one region")
			out[handle] = l
			got, err := l.region.Query()
			if err != nil || got != attributes(tag, a) || &l.buf[0] != &b[0] || len(l.buf) != len(b) || l.remote().Data != addressOf(b) {
				t.Fatalf("%d bytes at %d: %d at %+v, %+v, %v", len(b), at, len(l.buf), l.remote(), got, err)
			}
			all := len(l.region.Bytes())
			nstest.FatalIf(t, a > copied && all != len(b), "the peer gets at %d bytes instead of %d", all, len(b))
		}
		idle := 0
		for _, l := range r.known {
			if l.place != nil {
				idle += len(l.all)
			}
		}
		if n := r.nic.Status().Mem.Regions; len(r.known) != n || r.order.Len()+len(out) != n || idle != r.bytes || idle > limit {
			t.Fatalf("%d regions: %d known, %d idle of %d and %d bytes, %d leased", n, len(r.known), r.order.Len(), idle, r.bytes, len(out))
		}
	}
	for _, l := range out {
		l.end()
	}
	nstest.Check(t, r.close())
	nstest.Equal(t, "registrations that are known", len(r.known), 0)
}

// In any order, Alloc's memory is recognized to its last byte until it is freed, and the memory beside it is not.
func TestAllocated(t *testing.T) {
	s := noDrivers(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	var bufs [][]byte
	for range 1000 {
		if len(bufs) == 0 || len(bufs) < 50 && rnd.IntN(2) == 0 {
			buf, err := s.Alloc(1 + rnd.IntN(1000))
			nstest.Must(t, err)
			bufs = append(bufs, buf)
		} else {
			i := rnd.IntN(len(bufs))
			buf := bufs[i]
			nstest.FatalIf(t, len(buf) > 1 && s.Free(buf[1:]) == nil, "a part was freed")
			nstest.Must(t, s.Free(buf))
			if bufs = slices.Delete(bufs, i, i+1); s.allocated(buf) || s.allocated(buf[len(buf)-1:]) {
				t.Fatal("what was freed is allocated")
			}
		}
		for _, b := range bufs {
			nstest.FatalIf(t, !s.allocated(b) || !s.allocated(b[len(b)-1:]), "%d bytes are not allocated, of %d buffers", len(b), len(bufs))
		}
	}
	nstest.ErrorIf(t, s.allocated(make([]byte, 1)), "memory of the program")
}

// Above the limit, the least recently used memory is deregistered first. A buffer larger than the limit is not kept
// at all.
func TestLeaseLimit(t *testing.T) {
	r, tag := newTestRegistry(t, 3000)
	bufs := [][]byte{make([]byte, 1000), make([]byte, 1001), make([]byte, 1002), make([]byte, 3001)}
	for _, b := range append(bufs[:3:3], bufs[0], bufs[3]) {
		mustLease(t, r, b, tag, readable).end()
	}
	for i, want := range []bool{true, false, true, false} {
		nstest.Equal(t, fmt.Sprintf("buffer %d is kept", i), r.find(bufs[i], true) != nil, want)
	}
	nstest.ErrorIf(t, r.bytes != 2002, "%d bytes", r.bytes)
	nstest.Check(t, r.close())
}

// Staging buffers come from the arena as long as it lasts, and are reused.
func TestStages(t *testing.T) {
	r, tag := newTestRegistry(t, 0)
	var all []*lease
	for range maxStages + 3 { // more than the arena has
		l, err := r.stage(tag, writable)
		nstest.Must(t, err)
		nstest.FatalIf(t, len(l.buf) != stageSize || &l.region.Bytes()[l.off] != &l.buf[0], "%d bytes at %d", len(l.buf), l.off)
		all = append(all, l)
	}
	for _, l := range all {
		l.end()
	}
	nstest.ErrorIf(t, len(r.stages) != maxStages, "%d are kept", len(r.stages))
	l, err := r.stage(tag, closed)
	nstest.ErrorIf(t, err != nil || l != all[maxStages-1], "%v, not the one that was used last", err)
	l.end()
	nstest.Check(t, r.close())
}

// A staging buffer that the peer is to write has no bytes of another connection, also where this connection had it
// before for a transfer that it reads, which may be shorter.
func TestStageIsWiped(t *testing.T) {
	r, other := newTestRegistry(t, 0)
	tag, err := r.nic.CreatePtag()
	nstest.Must(t, err)
	use := func(tag *vipl.Ptag, a access, n int, fill byte) []byte {
		l, err := r.stage(tag, a)
		nstest.Must(t, err)
		had := bytes.Clone(l.buf)
		copy(l.buf, bytes.Repeat([]byte{fill}, n))
		l.end()
		return had
	}
	for _, before := range [][]access{{}, {writable}, {closed}, {writable, closed}} {
		use(other, closed, stageSize, 'x')
		for _, a := range before {
			use(tag, a, 1, 'y')
		}
		had := use(tag, writable, 1, 'y')
		nstest.ErrorIf(t, bytes.IndexByte(had, 'x') >= 0, "after %v the peer's buffer has another connection's bytes", before)
	}
	nstest.Check(t, errors.Join(tag.Destroy(), r.close()))
}
