package suite

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fabric"
	"viaxdp/internal/lab/fail"
)

// fabricGroups ask what VIs do to a network that they share, in a simulation: the engine is the real one, the network
// and the TCP flows are models. There is one run, which is longer the more turns there are: it would be the same again.
var fabricGroups = []group{{
	slow: true, name: "fabric-sharing", title: "Simulated: VIs that share a bottleneck, and one beside TCP of CUBIC and of BBR",
	turn: 8 * time.Second, run: runFabricSharing,
}, {
	slow: true, name: "fabric-web-search", title: "Simulated: 64 hosts with flow sizes of web search at load 0.6",
	turn: 14 * time.Second, run: func(s *session) *report.Group { return s.fabricMix(fabric.WebSearch) },
}, {
	slow: true, name: "fabric-data-mining", title: "Simulated: 64 hosts with flow sizes of data mining at load 0.6",
	turn: 8 * time.Second, run: func(s *session) *report.Group { return s.fabricMix(fabric.DataMining) },
}, {
	slow: true, name: "fabric-incast", title: "Simulated: messages of 64 KiB of many hosts to one at once",
	turn: 2 * time.Second, run: runFabricIncast,
}, {
	slow: true, name: "fabric-failure", title: "Simulated: a spine fails under load",
	turn: time.Second, run: runFabricFailure,
}}

// simulation says what the figures leave out.
const simulation = "Hosts run the engine of package vipl over NICs in memory, in virtual time, with frames of 1514 bytes. Links, switches and TCP are models: TCP has selective acknowledgement of each packet and tail loss probes, and no delayed acknowledgements; only BBR is paced, in bursts as by segmentation offload. Processors, interrupts and the NIC's own queue are left out: a host takes what has arrived within 2 us. The same run again has the same figures."

// fabricSeed is that of all simulated runs.
const fabricSeed = 1

// simulated makes a group of the figures of a run.
func (s *session) simulated(axis report.Axis, base string, run func(t *sheet), notes ...string) *report.Group {
	g := &report.Group{Axis: axis, Base: base, Notes: append(notes, simulation), Conditions: bench.Conditions{MTU: 1500, FrameBytes: 1514}}
	return s.gather(g, 1, func(t *sheet) { run(t) })
}

// next reports the next step, unless the run has ended.
func (s *session) next(format string, args ...any) {
	s.step(format, args...)
	fail.If(context.Cause(s.ctx))
}

// leafSpine is a network with a buffer of 1 MB in each switch, which marks above 65 frames.
func leafSpine(leaves, perLeaf, spines int, host, trunk float64) fabric.Shape {
	link := fabric.Link{Rate: host, Delay: fabric.Microsecond, Mark: 65 * 1514}
	up := link
	up.Rate = trunk
	return fabric.Shape{Leaves: leaves, PerLeaf: perLeaf, Spines: spines, Host: link, Trunk: up, Buffer: 1 << 20}
}

// fabricBottlenecks are those of fabric-sharing, at round trips below 0.1 ms.
var fabricBottlenecks = []struct {
	rate  float64
	queue int
	mark  int
}{{200e6, 50e3, 0}, {200e6, 150e3, 0}, {200e6, 1e6, 0}, {1e9, 300e3, 0}, {200e6, 1e6, 30e3}}

func runFabricSharing(s *session) *report.Group {
	rows := []struct {
		label string
		vis   int
		tcps  []fabric.TCPAlgorithm
		apart int64
	}{
		{"VI alone", 1, nil, 0},
		{"VI and TCP", 1, []fabric.TCPAlgorithm{fabric.Cubic}, 100 * fabric.Millisecond},
		{"VI and BBR", 1, []fabric.TCPAlgorithm{fabric.BBR}, 100 * fabric.Millisecond},
		{"two VIs, one late", 2, nil, 200 * fabric.Millisecond}, {"ten VIs", 10, nil, 0},
	}
	warm, long := int64(fabric.Second), int64(s.turns())*fabric.Second
	if s.Quick {
		warm, long = 50*fabric.Millisecond, 50*fabric.Millisecond
	}
	return s.simulated(report.Axis{Name: "bottleneck"}, "", func(t *sheet) {
		for _, row := range rows {
			for x, b := range fabricBottlenecks {
				if s.Quick && x%3 > 0 {
					continue
				}
				label, tcps := fmt.Sprintf("%.0f Mbit/s, %d KB", b.rate/1e6, b.queue/1000), row.tcps
				if b.mark > 0 {
					label += fmt.Sprintf(", marks above %d KB", b.mark/1000)
					if slices.Contains(tcps, fabric.BBR) {
						continue // its packets are not marked
					}
					if len(tcps) > 0 {
						tcps = []fabric.TCPAlgorithm{fabric.DCTCP}
					}
				}
				s.next("%s, %s", row.label, label)
				link := fabric.Link{Rate: b.rate, Delay: 20 * fabric.Microsecond, Limit: b.queue, Mark: b.mark}
				r := fail.Must(fabric.Sharing{
					Seed: fabricSeed, Bottleneck: link, VIs: row.vis, TCPs: tcps, Apart: row.apart, Warm: warm, Time: long,
				}.Run())
				at := t.at(row.label, float64(x))
				at.label = label
				at.put(report.LinkUsed, r.Used)
				at.put(report.FlowFairness, r.Jain)
				at.put(report.MeanQueue, r.Queue)
				if len(tcps) > 0 {
					at.put(report.FirstShare, r.OfVI)
				}
				at.n += int64(row.vis + len(tcps))
			}
		}
	}, "The round trip is 40 us. TCP is CUBIC, and DCTCP where the bottleneck marks frames (ECN). BBR is its first version. The late flow starts 0.1 or 0.2 s after the other.")
}

// fabricBins are sizes of flows in bytes: the last is all.
var fabricBins = []struct {
	label       string
	least, most int64
}{
	{"below 10 KB", 0, 10e3}, {"10 to 100 KB", 10e3, 100e3}, {"0.1 to 1 MB", 100e3, 1e6}, {"above 1 MB", 1e6, math.MaxInt64}, {"all", 0, math.MaxInt64},
}

func (s *session) fabricMix(z fabric.Sizes) *report.Group {
	shape, long := leafSpine(4, 16, 4, 10e9, 40e9), int64(s.turns())*4*fabric.Millisecond
	if s.Quick {
		shape, long = leafSpine(2, 4, 2, 10e9, 20e9), 2*fabric.Millisecond
	}
	return s.simulated(report.Axis{Name: "flow size"}, fabric.OverDCTCP.String(), func(t *sheet) {
		for _, over := range []fabric.Transport{fabric.OverVI, fabric.OverDCTCP} {
			s.next("%v", over)
			r := fail.Must(fabric.Mix{
				Seed: fabricSeed, Transport: over, Shape: shape, Host: fabric.HostConfig{RxChunks: 2048, TxChunks: 2048}, Sizes: z, Load: 0.6, Time: long,
			}.Run())
			for x, bin := range fabricBins {
				at := t.at(over.String(), float64(x))
				at.label = bin.label
				p50, n := fabric.Percentile(r.Flows, bin.least, bin.most, 0.5)
				p99, _ := fabric.Percentile(r.Flows, bin.least, bin.most, 0.99)
				if n > 0 {
					at.put(report.SlowdownP50, p50)
					at.put(report.SlowdownP99, p99)
				}
				at.n += int64(n)
				if bin.least == 0 && bin.most == math.MaxInt64 {
					at.put(report.MeanQueue, r.MeanQueue)
					at.put(report.FlowTimeouts, float64(r.Timeouts))
				}
			}
		}
	}, fmt.Sprintf("%d leaves with %d hosts of %.0f Gbit/s, %d spines, %.0f Gbit/s between them; 1 MB of buffer in each switch, marks above 65 frames. Flows begin at random times between random hosts, for %d ms, and load the hosts' links to 0.6. Slowdown is the time of a flow by that in an empty network. DCTCP opens a connection for each flow, without a handshake. A flow of VIs uses one that is idle, or a new one.",
		shape.Leaves, shape.PerLeaf, shape.Host.Rate/1e9, shape.Spines, shape.Trunk.Rate/1e9, long/fabric.Millisecond))
}

func runFabricIncast(s *session) *report.Group {
	senders := fewer(s.Quick, []int{4, 16, 32, 64}, 4)
	return s.simulated(report.Axis{Name: "senders", Log: true}, fabric.OverDCTCP.String(), func(t *sheet) {
		for _, over := range []fabric.Transport{fabric.OverVI, fabric.OverDCTCP} {
			for _, n := range senders {
				s.next("%v, senders: %d", over, n)
				shape := leafSpine(5, 16, 4, 25e9, 25e9)
				if s.Quick {
					shape = leafSpine(2, 4, 2, 25e9, 25e9)
				}
				r := fail.Must(fabric.Incast{Seed: fabricSeed, Transport: over, Shape: shape, Senders: n, Bytes: incastBytes, Rounds: s.turns()}.Run())
				at := t.at(over.String(), float64(n))
				p50, flows := fabric.Percentile(r.Flows, 0, math.MaxInt64, 0.5)
				p99, _ := fabric.Percentile(r.Flows, 0, math.MaxInt64, 0.99)
				at.put(report.LinkUsed, r.Goodput/shape.Host.Rate)
				at.put(report.SlowdownP50, p50)
				at.put(report.SlowdownP99, p99)
				at.put(report.MeanQueue, r.MeanQueue)
				at.put(report.FlowTimeouts, float64(r.Timeouts))
				at.n += int64(flows)
			}
		}
	}, "5 leaves with 16 hosts, 4 spines, all links 25 Gbit/s, 1 MB of buffer in each switch, marks above 65 frames. A round for each turn begins when the one before is over. The link is used by content, of at most 0.926. Slowdown is the time of a message by that of all messages from one host.")
}

func runFabricFailure(s *session) *report.Group {
	streams := fewer(s.Quick, []int{1, 2, 4, 8}, 2)
	return s.simulated(report.Axis{Name: "streams", Log: true}, "", func(t *sheet) {
		for _, n := range streams {
			s.next("streams: %d", n)
			shape := leafSpine(2, 8, 2, 25e9, 25e9)
			r := fail.Must(fabric.Failure{Seed: fabricSeed, Shape: shape, Streams: n, Before: 5 * fabric.Millisecond, After: 10 * fabric.Millisecond}.Run())
			if r.Recovered < 0 {
				fail.With("not recovered: %+v", r)
			}
			at := t.at("VI", float64(n))
			at.put(report.LinkUsed, r.After/shape.Host.Rate)
			at.put(report.Recovery, float64(r.Recovered)/fabric.Microsecond)
			at.n += int64(n)
		}
	}, "2 leaves with 8 hosts, 2 spines, all links 25 Gbit/s; the streams go from one leaf to the other. The leaves use the other spine at once; what is on its way through the one that fails is lost. Recovered is the time until all streams go on and have 0.9 of the rate that they have in the end; it is measured in steps of 100 us. The link is that of the spine that is left.")
}
