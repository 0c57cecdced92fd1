package suite

import (
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// basicGroups are MyVIA's two tests, and all transports side by side.
var basicGroups = []group{
	myVIA(publishedLatency, part{latency: true, least: 1000}).
		group("pingpong", "MyVIA's pingpong: half of a round trip, by message size", 14*time.Second),

	myVIA(publishedBandwidth, part{bandwidth: true, least: 2000}).
		group("window", "MyVIA's window: messages one way, by message size", 12*time.Second),

	experiment{
		axis: alongSizes, base: rawRings,
		notes: []string{
			loneKernelPair,
			besideLabel + ": the same transport on the pair that AF_XDP uses, while via-xdp's program is attached at both ends. It takes offloads of the kernel away.",
		},
		parts: func(quick bool) []part {
			beside := row{Row: bench.Row{Label: besideLabel, Name: tcpSpin, Beside: true}}
			return []part{exchange(
				slices.Concat(plain(bench.Names()...), []row{beside}),
				fewer(quick, bench.DefaultSizes(), 64, 4096),
			)}
		},
	}.group("baselines", "All transports side by side", 17*time.Second),
}

// loneKernelPair is how the kernel's transports are measured.
const loneKernelPair = "The kernel's TCP and UDP run on a pair of their own that never has an XDP program."

// myVIA is one of MyVIA's two tests, with its transports: the floor, three levels, RDMA, and the kernel. Messages have 4
// bytes to 1 MiB.
func myVIA(published string, p part) experiment {
	p.rows, p.place = plain(rawRings, rawCopy, unreliable, delivery, reception, rdmaWrite, tcpSpin, udpSpin), bySize
	return experiment{
		axis: alongSizes, base: rawRings, notes: []string{published, loneKernelPair},
		parts: func(quick bool) []part {
			p := p
			p.sizes = fewer(quick, powers(4, 4, 1<<20), 64, 4096)
			return []part{p}
		},
	}
}

// Published figures of VIA systems on the hardware of their time, for comparison with
// the plots.
const (
	publishedLatency = "Published one-way latencies of short messages: MyVIA on Myrinet LANai9 8.46 us; M-VIA on Fast Ethernet 22 us; " +
		"cLAN on Windows NT 14.2 us, TCP on it 84 us; SOVIA, sockets on VIA over cLAN, 10.5 us."
	publishedBandwidth = "Published bandwidths: MyVIA on Myrinet LANai9 250 MB/s at 4 KiB, 96 % of the link, where Berkeley VIA needs 32 KiB for as much; " +
		"on LANai4 76.2 MB/s, Berkeley VIA 47.46 MB/s; M-VIA 11.6 MB/s on Fast Ethernet, 59.7 MB/s on GNIC-II; " +
		"cLAN on Windows NT 87.7 MB/s, TCP on it 37.6 MB/s; SOVIA 101.75 MB/s (814 Mbit/s)."
)

// vibeGroups are VIBe's tests of data transfer: what each feature of a VI
// costs, one at a time.
var vibeGroups = []group{
	experiment{
		axis: alongSizes,
		notes: []string{
			"CPU time is that of the process: in a ping-pong the client's while one message is on its way, in a stream each side's for one message. A VI that polls uses a whole CPU.",
		},
		parts: func(quick bool) []part {
			p := exchange(plain(delivery, waiting), fewer(quick, powers(4, 4, 1<<16), 64, 4096))
			p.apart = true
			return []part{p}
		},
	}.group("vibe-base", "Latency, bandwidth and CPU time, polling and waiting", 3*time.Second),

	alongOption("vibe-reuse", "Reuse of buffers", 3*time.Second, report.Axis{Name: "buffer reuse", Unit: "%"},
		[]string{"So many messages in a hundred are sent from and received into one buffer, the others at the next place of a region of 32 MiB."},
		option{"% reuse", []int{0, 25, 50, 75, 100}, []int{0, 100}, func(o *bench.VIOptions, n int) { o.Reuse = &n }},
		[]int{64, 4096, 65536}, 64, 4096),

	bySizes("vibe-memory", "Data in the arena, and in memory of the program", 3*time.Second,
		[]string{"Data lies in the NIC's arena, whose bytes the kernel reads in long frames, or in memory of the program that was registered, which is copied into frames."},
		plain(delivery), with(delivery+" from the program's memory", delivery, bench.VIOptions{Register: true})),

	bySizes("vibe-cq", "Completion queue", 5*time.Second,
		[]string{"With a completion queue, both work queues of the VI are bound to it."},
		plain(delivery), with(delivery+" with a CQ", delivery, bench.VIOptions{CQ: true}),
		plain(waiting)[0], with(waiting+" with a CQ", waiting, bench.VIOptions{CQ: true})),

	alongOption("vibe-vis", "Number of open VIs", 9*time.Second, report.Axis{Name: "open VIs", Log: true},
		[]string{"All VIs are open and connected, one of them carries the messages. The others exchange keepalives, four times in 1.6 seconds each."},
		option{"VIs", powers(2, 1, bench.MaxVIs), []int{1, 16}, func(o *bench.VIOptions, n int) { o.VIs = n }},
		[]int{64, 4096}, 64, 4096),

	alongOption("vibe-segments", "Data segments of a descriptor", 6*time.Second, report.Axis{Name: "segments", Log: true},
		[]string{"The message is cut into so many equal pieces, by the descriptors of the sender and of the receiver. Where it has fewer bytes, some pieces are empty."},
		option{"segments", powers(2, 1, 252), []int{1, 8}, func(o *bench.VIOptions, n int) { o.Segments = n }},
		[]int{64, 4096, 65536}, 64, 4096),

	bySizes("vibe-notify", "Polling, waiting and handlers", 4*time.Second,
		[]string{"With handlers, SendNotify and RecvNotify deliver each completion, and the handler hands it over to the goroutine that waits for it."},
		plain(delivery, waiting), with(delivery+" with handlers", delivery, bench.VIOptions{Notify: true})),

	alongOption("vibe-mts", "Largest transfer that a VI allows", 2*time.Second, report.Axis{Name: "MaxTransferSize", Unit: "bytes", Log: true}, nil,
		option{"bytes at most", powers(4, 4096, 1<<20), []int{4096, 1 << 20}, func(o *bench.VIOptions, n int) { o.MaxTransfer = n }},
		[]int{4096}, 4096),

	bySizes("vibe-level", "Reliability levels", 4*time.Second, nil, plain(unreliable, delivery, reception)),

	bySizes("vibe-rdma", "RDMA against send and receive", 4*time.Second, nil, plain(delivery, rdmaWrite, rdmaRead)),
}

// bySizes is a group of rows along VIBe's message sizes, compared with the first row.
func bySizes(name, title string, turn time.Duration, notes []string, first []row, more ...row) group {
	rows := slices.Concat(first, more)
	return experiment{
		axis: alongSizes, base: rows[0].Label, notes: notes,
		parts: func(quick bool) []part { return []part{exchange(rows, vibeSizes(quick))} },
	}.group(name, title, turn)
}

// An option of a VI, and its values: all, and those of a quick run.
type option struct {
	what       string
	all, quick []int
	set        func(*bench.VIOptions, int)
}

// alongOption is a group along the values of an option, with a series for each of some message sizes.
func alongOption(name, title string, turn time.Duration, axis report.Axis, notes []string, o option, sizes []int, quickSizes ...int) group {
	return experiment{
		axis: axis, notes: notes,
		parts: func(quick bool) []part {
			p := exchange(along(fewer(quick, o.all, o.quick...), o.what, o.set), fewer(quick, sizes, quickSizes...))
			p.place = byRow
			return []part{p}
		},
	}.group(name, title, turn)
}

// vibeSizes are short, middle and long messages.
func vibeSizes(quick bool) []int {
	return fewer(quick, []int{64, 256, 1024, 4096, 16384, 65536}, 64, 4096)
}
