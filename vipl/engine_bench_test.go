package vipl_test

import (
	"testing"

	"viaxdp/vipl"
)

// BenchmarkEngine is a round trip of 64 bytes over a wire in memory, both ends
// in one goroutine: what the engine, and the fake NIC, cost without a kernel.
func BenchmarkEngine(b *testing.B) {
	n := newMemoryNet(b, memoryConfig{})
	va, vb := connect(b, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
	xa, xb := newBox(b, n.a.Nic, 4, 64), newBox(b, n.b.Nic, 4, 64)
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
