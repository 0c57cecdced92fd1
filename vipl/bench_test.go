package vipl_test

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// pin keeps the calling goroutine on one CPU until the returned function runs.
func pin(b *testing.B, cpu int) func() {
	runtime.LockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		b.Fatal(err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		b.Fatal(err)
	}
	return func() {
		unix.SchedSetaffinity(0, &old)
		runtime.UnlockOSThread()
	}
}

// receive posts x's descriptor i as a receive, polls for it, and returns false
// when the connection ended.
func poll(v *vipl.VI) bool {
	for {
		_, err := v.RecvDone()
		if err == nil {
			return true
		}
		if err == vipl.ErrDescriptor {
			return false
		}
	}
}

// BenchmarkPingPong64 is half of a round trip of 64 bytes, both ends spinning,
// each on a CPU of its own.
func BenchmarkPingPong64(b *testing.B) {
	// The two spinning goroutines must not wait for each other's processor
	// when the runtime or a background goroutine needs one.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, level := range []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception} {
		b.Run(level.String(), func(b *testing.B) {
			na, nb := ends(b, nstest.Options{})
			va, vb := connect(b, na, nb, level)
			xa, xb := newBox(b, na, 4, 64), newBox(b, nb, 4, 64)
			prime := func(v *vipl.VI, x *box) {
				for i := range 4 {
					x.desc[i].SetSegments(x.segs[i])
				}
				for i := range 2 {
					if err := v.PostRecv(x.desc[i], x.region.Handle()); err != nil {
						b.Fatal(err)
					}
				}
			}
			prime(va, xa)
			prime(vb, xb)
			end := make(chan struct{})
			go func() {
				defer close(end)
				defer pin(b, 1)()
				for i := 0; poll(vb); i++ {
					vb.PostRecv(xb.desc[i%2], xb.region.Handle())
					vb.PostSend(xb.desc[2+i%2], xb.region.Handle())
					vb.SendDone()
				}
			}()
			unpin := pin(b, 0)
			b.ResetTimer()
			start := time.Now()
			for i := range b.N {
				va.PostSend(xa.desc[2+i%2], xa.region.Handle())
				va.SendDone()
				if !poll(va) {
					b.Fatal("connection ended")
				}
				va.PostRecv(xa.desc[i%2], xa.region.Handle())
			}
			b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(b.N)/2, "ns/one-way")
			b.StopTimer()
			unpin()
			va.Disconnect()
			<-end
		})
	}
}

// BenchmarkEngine is a round trip of 64 bytes over a wire in memory, both ends
// in one goroutine: what the engine, and the fake NIC, cost without a kernel.
func BenchmarkEngine(b *testing.B) {
	n := newMemoryNet(b, memoryConfig{})
	va, vb := connect(b, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	xa, xb := newBox(b, n.a.NIC, 4, 64), newBox(b, n.b.NIC, 4, 64)
	for _, x := range []*box{xa, xb} {
		for i := range x.desc {
			x.desc[i].SetSegments(x.segs[i])
		}
	}
	for i := range 2 {
		va.PostRecv(xa.desc[i], xa.region.Handle())
		vb.PostRecv(xb.desc[i], xb.region.Handle())
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		va.PostSend(xa.desc[2+i%2], xa.region.Handle())
		va.SendDone()
		if !poll(vb) {
			b.Fatal("connection ended")
		}
		vb.PostSend(xb.desc[2+i%2], xb.region.Handle())
		vb.SendDone()
		vb.PostRecv(xb.desc[i%2], xb.region.Handle())
		if !poll(va) {
			b.Fatal("connection ended")
		}
		va.PostRecv(xa.desc[i%2], xa.region.Handle())
	}
	b.StopTimer()
	va.Disconnect()
}
