package mvich_test

import (
	"fmt"
	"testing"

	"viaxdp/mvich"
)

// What a message costs in this package and those below, without a wire: both ranks are driven by one goroutine, on
// queues in memory. One operation is a message one way.
func BenchmarkMessage(b *testing.B) {
	for _, bytes := range []int{8, 4096} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			j := newJob(b, 2, jobConfig{})
			comms := []*mvich.Comm{j.worlds[0].Comm(), j.worlds[1].Comm()}
			buf := make([]byte, bytes)
			j.run(b, func(c *mvich.Comm) error { return c.Barrier() })
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := comms[i%2].Send(buf, 1-i%2, 0); err != nil {
					b.Fatal(err)
				}
				if _, err := comms[1-i%2].Recv(buf, i%2, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What a long AllReduce of four ranks costs in this package and those below, on queues in memory.
func BenchmarkAllReduce(b *testing.B) {
	const ranks, bytes = 4, 1 << 20
	j := newJob(b, ranks, jobConfig{})
	var in, out [ranks][]float64
	for rank := range ranks {
		in[rank], out[rank] = make([]float64, bytes/8), make([]float64, bytes/8)
	}
	all := func() {
		each(b, ranks, func(rank int) error {
			return mvich.AllReduce(j.worlds[rank].Comm(), out[rank], in[rank], mvich.Sum)
		})
	}
	all()
	b.SetBytes(bytes)
	b.ReportAllocs()
	for b.Loop() {
		all()
	}
}
