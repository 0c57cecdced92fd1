package xdpnic

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/ordered"
)

// A ponger moves one frame there and back on a pair of queues; both forms
// below do the same work.
type ponger interface {
	send(template []byte) // one frame of 64 bytes
	recv() bool           // takes one frame if there is one
}

// queuePong uses Queue as the layer above does.
type queuePong struct {
	q      *Queue
	frames [32]Frame
}

func (p *queuePong) send(template []byte) {
	addr, buf, _ := p.q.Alloc()
	copy(buf, template)
	p.q.Send(addr, len(template), false)
	p.q.Flush()
}

func (p *queuePong) recv() bool {
	n := p.q.Receive(p.frames[:])
	if n == 0 {
		return false
	}
	for i := range n {
		p.q.Recycle(p.frames[i].Addr)
	}
	p.q.Refill()
	return true
}

// rawPong is the least code that does it: a chunk each way, no bookkeeping.
type rawPong struct {
	mem                []byte
	tx, rx, fill, comp ringView
	fd                 int
	chunk              uint64
}

type ringView struct {
	prod, cons *ordered.Uint32
	p, c       uint32
	desc       []Desc
	addr       []uint64
	mask       uint32
}

func newRawPong(q *Queue) *rawPong {
	p := q.pool
	addr, _, _ := q.Alloc()
	return &rawPong{
		mem: p.mem, fd: q.fd, chunk: addr,
		tx:   ringView{prod: q.tx.prod, cons: q.tx.cons, p: q.tx.head, desc: q.tx.desc, mask: q.tx.mask},
		rx:   ringView{prod: q.rx.prod, cons: q.rx.cons, c: q.rx.tail, desc: q.rx.desc, mask: q.rx.mask},
		fill: ringView{prod: p.fill.prod, cons: p.fill.cons, p: p.fill.head, addr: p.fill.addr, mask: p.fill.mask},
		comp: ringView{prod: p.comp.prod, cons: p.comp.cons, c: p.comp.tail, addr: p.comp.addr, mask: p.comp.mask},
	}
}

func (r *rawPong) send(template []byte) {
	copy(r.mem[r.chunk:], template)
	r.tx.desc[r.tx.p&r.tx.mask] = Desc{Addr: r.chunk, Len: uint32(len(template))}
	r.tx.p++
	r.tx.prod.Store(r.tx.p)
	unix.RawSyscall6(unix.SYS_SENDTO, uintptr(r.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	if n := r.comp.prod.Load(); n != r.comp.c {
		r.chunk = r.comp.addr[r.comp.c&r.comp.mask]
		r.comp.c = n
		r.comp.cons.Store(n)
	}
}

func (r *rawPong) recv() bool {
	n := r.rx.prod.Load()
	if n == r.rx.c {
		return false
	}
	for r.rx.c != n {
		d := r.rx.desc[r.rx.c&r.rx.mask]
		r.fill.addr[r.fill.p&r.fill.mask] = d.Addr &^ 2047
		r.fill.p++
		r.rx.c++
	}
	r.rx.cons.Store(n)
	r.fill.prod.Store(r.fill.p)
	return true
}

// pingPong measures one-way times, sorted.
func pingPong[P ponger](tb testing.TB, a, b P, ping, pong []byte, rounds int) []time.Duration {
	tb.Helper()
	var stop atomic.Bool
	done := make(chan struct{})
	pin := func(cpu int) func() {
		runtime.LockOSThread()
		var old, set unix.CPUSet
		_ = unix.SchedGetaffinity(0, &old)
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		return func() {
			_ = unix.SchedSetaffinity(0, &old)
			runtime.UnlockOSThread()
		}
	}
	go func() {
		defer close(done)
		defer pin(1)()
		for !stop.Load() {
			if b.recv() {
				b.send(pong)
			}
		}
	}()
	defer pin(0)()
	times := make([]time.Duration, 0, rounds)
	for range rounds {
		start := time.Now()
		a.send(ping)
		for spins := 0; !a.recv(); spins++ {
			if spins&(1<<24-1) == 1<<24-1 && time.Since(start) > waitLimit {
				stop.Store(true)
				<-done
				tb.Fatalf("%T: a frame was lost", a)
			}
		}
		times = append(times, time.Since(start)/2)
	}
	stop.Store(true)
	<-done
	slices.Sort(times)
	return times
}

// BenchmarkPingPong64 sends one frame of 64 bytes there and back over veth,
// with a thread spinning at each end, by Queue and by bare rings in turn, and
// reports half of the round trip.
func BenchmarkPingPong64(b *testing.B) {
	for _, generic := range []bool{true, false} {
		name := "generic"
		if !generic {
			name = "native"
		}
		b.Run(name, func(b *testing.B) {
			x, y := openPair(b, pairOptions{generic: generic})
			ping, pong := make([]byte, 64), make([]byte, 64)
			header(ping, y.ns, x.ns)
			header(pong, x.ns, y.ns)
			qx, qy := &queuePong{q: x.q}, &queuePong{q: y.q}
			// Bare rings come on a second pair: their indices are their own.
			u, v := openPair(b, pairOptions{generic: generic})
			ru, rv := newRawPong(u.q), newRawPong(v.q)
			rping, rpong := make([]byte, 64), make([]byte, 64)
			header(rping, v.ns, u.ns)
			header(rpong, u.ns, v.ns)
			const batch = 2000
			pingPong(b, qx, qy, ping, pong, batch)
			pingPong(b, ru, rv, rping, rpong, batch)
			var queue, raw []time.Duration
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				queue = append(queue, pingPong(b, qx, qy, ping, pong, batch)...)
				raw = append(raw, pingPong(b, ru, rv, rping, rpong, batch)...)
			}
			slices.Sort(queue)
			slices.Sort(raw)
			q50, r50 := queue[len(queue)/2], raw[len(raw)/2]
			b.ReportMetric(float64(q50), "queue-p50-ns")
			b.ReportMetric(float64(queue[len(queue)*99/100]), "queue-p99-ns")
			b.ReportMetric(float64(r50), "raw-p50-ns")
			b.ReportMetric(float64(q50)/float64(r50), "queue/raw")
			b.ReportMetric(0, "ns/op")
		})
	}
}
