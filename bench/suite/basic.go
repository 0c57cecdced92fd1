package suite

import (
	"slices"

	"viaxdp/bench"
)

// basicGroups are MyVIA's two tests, and all transports side by side.
var basicGroups = []group{
	experiment{
		axis: alongSizes, base: rawRings,
		notes: append(slices.Clone(publishedLatency), loneKernelPair),
		parts: func(quick bool) []part {
			return []part{{
				rows: myVIARows(), sizes: myVIASizes(quick), latency: true, least: 1000, place: bySize,
			}}
		},
	}.group("pingpong", "MyVIA's pingpong: half of a round trip, by message size"),

	experiment{
		axis: alongSizes, base: rawRings,
		notes: append(slices.Clone(publishedBandwidth), loneKernelPair),
		parts: func(quick bool) []part {
			return []part{{
				rows: myVIARows(), sizes: myVIASizes(quick), bandwidth: true, least: 2000, place: bySize,
			}}
		},
	}.group("window", "MyVIA's window: messages one way, by message size"),

	experiment{
		axis: alongSizes, base: rawRings,
		notes: []string{
			loneKernelPair,
			rawRings + "-c and " + rawCopy + "-c: their steps by a program in C with AF_XDP rings of its own (bench/floor/c/floor.c). What the rings in Go take more is what Go and package xdpnic cost.",
			besideLabel + ": the same transport on the pair that AF_XDP uses, while via-xdp's program is attached at both ends. It takes offloads of the kernel away.",
		},
		parts: func(quick bool) []part {
			beside := row{Row: bench.Row{Label: besideLabel, Name: tcpSpin, Beside: true}}
			return []part{exchange(
				concat(plain(withTwins(bench.Names())...), []row{beside}),
				fewer(quick, bench.DefaultSizes(), 64, 4096),
			)}
		},
	}.group("baselines", "All transports side by side"),
}

// withTwins has behind each name the program in C that takes the same steps, where
// there is one.
func withTwins(names []string) []string {
	var list []string
	for _, n := range names {
		list = append(list, n)
		if slices.Contains(bench.ProgramsInC(), n+"-c") {
			list = append(list, n+"-c")
		}
	}
	return list
}

// loneKernelPair is how the kernel's transports are measured.
const loneKernelPair = "The kernel's TCP and UDP run on a pair of their own that never has an XDP program."

// myVIARows are the transports of MyVIA's two tests: the floor, three levels,
// RDMA, and the kernel.
func myVIARows() []row {
	return plain(rawRings, rawCopy, unreliable, delivery, reception, rdmaWrite, tcpSpin, udpSpin)
}

// myVIASizes are 4 bytes to 1 MiB.
func myVIASizes(quick bool) []int { return fewer(quick, powers(4, 4, 1<<20), 64, 4096) }

// Published figures of VIA systems on the hardware of their time, to look at
// beside the plots.
var (
	publishedLatency = []string{
		"Published one-way latencies of short messages: MyVIA on Myrinet LANai9 8.46 us; M-VIA on Fast Ethernet 22 us; " +
			"cLAN on Windows NT 14.2 us, TCP on it 84 us; SOVIA, sockets on VIA over cLAN, 10.5 us.",
	}
	publishedBandwidth = []string{
		"Published bandwidths: MyVIA on Myrinet LANai9 250 MB/s at 4 KiB, 96 % of the link, where Berkeley VIA needs 32 KiB for as much; " +
			"on LANai4 76.2 MB/s, Berkeley VIA 47.46 MB/s; M-VIA 11.6 MB/s on Fast Ethernet, 59.7 MB/s on GNIC-II; " +
			"cLAN on Windows NT 87.7 MB/s, TCP on it 37.6 MB/s; SOVIA 101.75 MB/s (814 Mbit/s).",
	}
)
