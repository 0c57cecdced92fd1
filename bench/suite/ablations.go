package suite

import "viaxdp/bench"

// ablationGroups leave out one part of the design at a time, to show what it is
// worth.
var ablationGroups = []group{
	tableGroup,

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"At MTU 9000. Without multi-buffer frames everything of a message is copied into frames of one chunk."},
		parts: func(quick bool) []part {
			single := bench.VIOptions{NoMultiBuffer: true}
			p := exchange(concat(
				ablated("single chunks", single),
				plain(rawCopy), []row{with(rawCopy+", single chunks", rawCopy, single)},
			), fewer(quick, []int{4096, 16384, 65536}, 4096))
			p.mtu = 9000
			return []part{p}
		},
	}.group("abl-multibuffer", "Payload by reference in multi-buffer frames, and copied"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Without packing each message has a frame and a doorbell of its own."},
		parts: func(quick bool) []part {
			return []part{exchange(ablated("one message a frame", bench.VIOptions{NoPacking: true}),
				fewer(quick, []int{4, 16, 64, 256, 1024}, 64))}
		},
	}.group("abl-packing", "Messages that wait share a frame and a doorbell, and not"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Streams post descriptors in lists of 16, and take completed ones off likewise, as perftest does with --post_list; a list rings the doorbell once."},
		parts: func(quick bool) []part {
			p := exchange(concat(
				plain(rawRings), ablated("one by one", bench.VIOptions{List: 1}),
				[]row{with(delivery+", lists of 4", delivery, bench.VIOptions{List: 4})},
			), fewer(quick, []int{4, 16, 64, 256, 1024, 4096}, 64))
			p.latency = false
			return []part{p}
		},
	}.group("abl-lists", "Descriptors posted in lists, and one by one"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Polls of a stream's receiver leave the RX ring alone for up to 16 us after each look, so that the sender's kernel need not wait for the line of its index; and look each time."},
		parts: func(quick bool) []part {
			return []part{exchange(concat(plain(rawCopy), ablated("no rest", bench.VIOptions{NoRest: true})),
				fewer(quick, []int{64, 1024, 4096, 65536}, 4096))}
		},
	}.group("abl-rest", "The RX ring rests in a stream, and does not"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"One at a time, a send is posted when the one before is complete: with Reliable Delivery when it was handed to the network, with Reliable Reception when it is in the target's memory."},
		parts: func(quick bool) []part {
			one := bench.VIOptions{OneByOne: true}
			p := exchange(concat(
				ablated("one at a time", one),
				plain(reception), []row{with(reception+", one at a time", reception, one)},
			), vibeSizes(quick))
			p.latency = false
			return []part{p}
		},
	}.group("abl-depth", "Descriptors under way together, and one at a time"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Fresh buffers are those of a region of 32 MiB, one after the other; without these rows a ping-pong stays in few pages of any size."},
		parts: func(quick bool) []part {
			fresh := func() bench.VIOptions { none := 0; return bench.VIOptions{Reuse: &none} }
			rows := concat(plain(rawRings), plain(delivery), []row{with(delivery+", fresh buffers", delivery, fresh())})
			for _, r := range rows {
				r.Label, r.SmallPages = r.Label+", 4 KB pages", true
				rows = append(rows, r)
			}
			return []part{exchange(rows, fewer(quick, []int{64, 4096, 65536}, 64, 4096))}
		},
	}.group("abl-pages", "Hugepages, and pages of 4 KB"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"The engine is a goroutine that polls; the one that is measured only looks at descriptors in memory. Both share the CPU of the process and hand it to each other by the Go scheduler."},
		parts: func(quick bool) []part {
			return []part{exchange(ablated("engine goroutine", bench.VIOptions{Engine: true}), vibeSizes(quick))}
		},
	}.group("abl-engine", "Progress in the caller, and by an engine goroutine"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"Without the checksum of data, what damages it on the way is found by the link's own checksum or not at all, against VIA's rules."},
		parts: func(quick bool) []part {
			return []part{exchange(ablated("no checksum of data", bench.VIOptions{NoChecksum: true}), vibeSizes(quick))}
		},
	}.group("abl-crc", "CRC32C over headers and data, and over headers alone"),

	experiment{
		axis: alongSizes, base: delivery + mtuSuffix(1500),
		notes: []string{"Sealed is authenticated and encrypted by AES-256-GCM from a pre-shared key, which takes the place of the checksum; data is then not lent to the kernel."},
		parts: func(quick bool) []part {
			var parts []part
			for _, mtu := range []int{1500, 9000, 65535} {
				p := exchange(ablated("sealed", bench.VIOptions{Sealed: true}), fewer(quick, vibeSizes(quick), 64, 65536))
				p.mtu = mtu
				p.place = func(r row, bytes int) (string, float64) {
					return r.Label + mtuSuffix(mtu), float64(bytes)
				}
				parts = append(parts, p)
			}
			return parts
		},
	}.group("abl-secure", "Frames sealed by a pre-shared key, and plain"),

	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"The agent is a process of its own in each namespace. It opens the queue and hands it over with its memory; no message passes through it, so that both rows should be alike."},
		parts: func(quick bool) []part {
			return []part{exchange(ablated("through the agent", bench.VIOptions{Agent: true}), vibeSizes(quick))}
		},
	}.group("abl-agent", "A NIC that the agent has opened for the program, and one of its own"),

	experiment{
		axis: alongSizes, base: rawCopy + mtuSuffix(1500),
		parts: func(quick bool) []part {
			var parts []part
			for _, mtu := range []int{1500, 9000, 65535} {
				p := exchange(plain(rawCopy, delivery, tcpSpin), fewer(quick, bench.DefaultSizes(), 64, 65536))
				p.mtu = mtu
				p.place = func(r row, bytes int) (string, float64) {
					return r.Label + mtuSuffix(mtu), float64(bytes)
				}
				parts = append(parts, p)
			}
			return parts
		},
	}.group("abl-mtu", "MTU 1500, 9000 and the largest frame of the link"),
}

// ablated are the usual row and the one that leaves something out.
func ablated(how string, o bench.VIOptions) []row {
	return concat(plain(delivery), []row{with(delivery+", "+how, delivery, o)})
}
