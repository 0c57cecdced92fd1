package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"viaxdp/internal/lab/nstest"
)

// One run of a program on one frame, measured by the kernel. The run on a frame that the program does not read
// beyond Ethernet shows the cost of the measurement.
func BenchmarkPrograms(b *testing.B) {
	d := loadTestDemux(b)
	r := loadTestRedirect(b, RedirectConfig{Frags: true})
	nstest.Must(b, r.Register(0, rawSocket(b)))
	for _, c := range []struct {
		name    string
		program *ebpf.Program
		frame   []byte
		action  uint32
	}{
		{"demux/hit-IPv4", d.Program, good4().bytes(), xdpRedirect},
		{"demux/hit-IPv6", d.Program, good6().bytes(), xdpRedirect},
		{"demux/wrong-key", d.Program, with(good4(), func(f *frame) { f.key++ }), xdpDrop},
		{"demux/TCP", d.Program, with(good4(), func(f *frame) { f.next = 6 }), xdpPass},
		{"demux/ARP", d.Program, arp(), xdpPass},
		{"redirect/hit-IPv4", r.Program, good4().bytes(), xdpRedirect},
		{"foreign", foreign(b), good4().bytes(), xdpPass},
	} {
		b.Run(c.name, func(b *testing.B) {
			action, perRun, err := c.program.Benchmark(c.frame, b.N, b.ResetTimer)
			if err != nil || action != c.action {
				b.Fatalf("action %d, %v", action, err)
			}
			b.ReportMetric(float64(perRun.Nanoseconds()), "ns/run")
		})
	}
}
