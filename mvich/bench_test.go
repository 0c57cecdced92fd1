package mvich_test

import (
	"fmt"
	"testing"

	"viaxdp/mvich"
)

// What a message costs in this package and those below, without a wire: both ranks
// are driven by one goroutine, on queues in memory. One operation is a message one
// way.
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
