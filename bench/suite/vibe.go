package suite

import (
	"viaxdp/bench"
	"viaxdp/bench/report"
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
	}.group("vibe-base", "Latency, bandwidth and CPU time, polling and waiting"),

	experiment{
		axis: report.Axis{Name: "buffer reuse", Unit: "%"},
		notes: []string{
			"So many messages in a hundred are sent from and received into one buffer, the others at the next place of a region of 32 MiB.",
		},
		parts: func(quick bool) []part {
			return []part{{
				rows: along(fewer(quick, []int{0, 25, 50, 75, 100}, 0, 100), "% reuse",
					func(o *bench.VIOptions, n int) { o.Reuse = &n }),
				sizes: fewer(quick, []int{64, 4096, 65536}, 64, 4096), latency: true, bandwidth: true, place: byRow,
			}}
		},
	}.group("vibe-reuse", "Reuse of buffers"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Data lies in the NIC's arena, whose bytes the kernel reads in long frames, or in memory of the program that was registered, which is copied into frames."},
		parts: func(quick bool) []part {
			return []part{exchange(concat(plain(delivery), []row{
				with(delivery+" from the program's memory", delivery, bench.VIOptions{Register: true}),
			}), vibeSizes(quick))}
		},
	}.group("vibe-memory", "Data in the arena, and in memory of the program"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"With a completion queue, both work queues of the VI are bound to it."},
		parts: func(quick bool) []part {
			return []part{exchange(concat(plain(delivery), []row{
				with(delivery+" with a CQ", delivery, bench.VIOptions{CQ: true}),
			}, plain(waiting), []row{
				with(waiting+" with a CQ", waiting, bench.VIOptions{CQ: true}),
			}), vibeSizes(quick))}
		},
	}.group("vibe-cq", "Completion queue"),

	experiment{
		axis:  report.Axis{Name: "open VIs", Log: true},
		notes: []string{"All VIs are open and connected, one of them carries the messages. The others exchange keepalives, four times in 1.6 seconds each."},
		parts: func(quick bool) []part {
			return []part{{
				rows: along(fewer(quick, powers(2, 1, bench.MaxVIs), 1, 16), "VIs",
					func(o *bench.VIOptions, n int) { o.VIs = n }),
				sizes: []int{64, 4096}, latency: true, bandwidth: true, place: byRow,
			}}
		},
	}.group("vibe-vis", "Number of open VIs"),

	experiment{
		axis:  report.Axis{Name: "segments", Log: true},
		notes: []string{"The message is cut into so many equal pieces, by the descriptors of the sender and of the receiver. Where it has fewer bytes, some pieces are empty."},
		parts: func(quick bool) []part {
			return []part{{
				rows: along(fewer(quick, powers(2, 1, 252), 1, 8), "segments",
					func(o *bench.VIOptions, n int) { o.Segments = n }),
				sizes: fewer(quick, []int{64, 4096, 65536}, 64, 4096), latency: true, bandwidth: true, place: byRow,
			}}
		},
	}.group("vibe-segments", "Data segments of a descriptor"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"With handlers, SendNotify and RecvNotify deliver each completion, and the handler hands it over to the goroutine that waits for it."},
		parts: func(quick bool) []part {
			return []part{exchange(concat(plain(delivery, waiting), []row{
				with(delivery+" with handlers", delivery, bench.VIOptions{Notify: true}),
			}), vibeSizes(quick))}
		},
	}.group("vibe-notify", "Polling, waiting and handlers"),

	experiment{
		axis: report.Axis{Name: "MaxTransferSize", Unit: "bytes", Log: true},
		parts: func(quick bool) []part {
			return []part{{
				rows: along(fewer(quick, powers(4, 4096, 1<<20), 4096, 1<<20), "bytes at most",
					func(o *bench.VIOptions, n int) { o.MaxTransfer = n }),
				sizes: []int{4096}, latency: true, bandwidth: true, place: byRow,
			}}
		},
	}.group("vibe-mts", "Largest transfer that a VI allows"),

	experiment{
		axis: alongSizes, base: unreliable,
		parts: func(quick bool) []part {
			return []part{exchange(plain(unreliable, delivery, reception), vibeSizes(quick))}
		},
	}.group("vibe-level", "Reliability levels"),

	experiment{
		axis: alongSizes, base: delivery,
		parts: func(quick bool) []part {
			return []part{exchange(plain(delivery, rdmaWrite, rdmaRead), vibeSizes(quick))}
		},
	}.group("vibe-rdma", "RDMA against send and receive"),
}

// vibeSizes are short, middle and long messages.
func vibeSizes(quick bool) []int {
	return fewer(quick, []int{64, 256, 1024, 4096, 16384, 65536}, 64, 4096)
}
