package suite

import (
	"slices"
	"time"

	"viaxdp/bench"
)

// An ablation disables one part of the design in Reliable Delivery, to show its effect.
type ablation struct {
	name, title, note string
	how               string // the part is left out, in the name of the row
	without           bench.VIOptions
	sizes, quick      []int // nil: vibeSizes
	streams           bool  // no ping-pong: it makes no difference there
	mtus              []int // nil: the session's; of several the rows say which
	before, behind    []row // of the two rows
}

var ablations = []ablation{{
	name: "abl-multibuffer", title: "Payload by reference in multi-buffer frames, and copied",
	note: "At MTU 9000. Without multi-buffer frames everything of a message is copied into frames of one chunk.",
	how:  "single chunks", without: bench.VIOptions{NoMultiBuffer: true}, sizes: []int{4096, 16384, 65536}, quick: []int{4096}, mtus: []int{9000},
	behind: slices.Concat(plain(rawCopy), []row{with(rawCopy+", single chunks", rawCopy, bench.VIOptions{NoMultiBuffer: true})}),
}, {
	name: "abl-segmentation", title: "Frames of long messages in GSO packets, and each alone",
	note: "A GSO packet is up to 44 frames of 1514 bytes, or 7 of 9014, that leave by one system call; on a veth pair nothing divides it. Alone, each frame is an entry of the TX ring. With headroom, which only a privileged program on a veth can give, the receiver's kernel does not copy the packet before the demux program.",
	how:  "each frame alone", without: bench.VIOptions{NoSegmentation: true}, sizes: []int{1024, 4096, 16384, 65536, 262144, 1048576}, quick: []int{65536}, mtus: []int{1500, 9000},
	behind: slices.Concat([]row{with(delivery+", without headroom", delivery, bench.VIOptions{NoHeadroom: true})}, plain(tcpSpin)),
}, {
	name: "abl-packing", title: "Messages that wait share a frame and a doorbell, and not",
	note: "Without packing each message has a frame and a doorbell of its own.",
	how:  "one message a frame", without: bench.VIOptions{NoPacking: true}, sizes: []int{4, 16, 64, 256, 1024}, quick: []int{64},
}, {
	name: "abl-lists", title: "Descriptors posted in lists, and one by one",
	note: "Streams post descriptors in lists of 16, and take completed ones off likewise, as perftest does with --post_list; a list rings the doorbell once.",
	how:  "one by one", without: bench.VIOptions{List: 1}, sizes: []int{4, 16, 64, 256, 1024, 4096}, quick: []int{64}, streams: true,
	before: plain(rawRings), behind: []row{with(delivery+", lists of 4", delivery, bench.VIOptions{List: 4})},
}, {
	name: "abl-rest", title: "The RX ring rests in a stream, and does not",
	note: "Polls of a stream's receiver leave the RX ring alone for up to 16 us after each look, so that the sender's kernel need not wait for the line of its index; and look each time.",
	how:  "no rest", without: bench.VIOptions{NoPollPause: true}, sizes: []int{64, 1024, 4096, 65536}, quick: []int{4096}, before: plain(rawCopy),
}, {
	name: "abl-depth", title: "Descriptors under way together, and one at a time",
	note: "One at a time, a send is posted when the one before is complete: with Reliable Delivery when it was handed to the network, with Reliable Reception when it is in the target's memory.",
	how:  "one at a time", without: bench.VIOptions{OneByOne: true}, streams: true,
	behind: slices.Concat(plain(reception), []row{with(reception+", one at a time", reception, bench.VIOptions{OneByOne: true})}),
}, {
	name: "abl-engine", title: "Progress in the caller, and by an engine goroutine",
	note: "The engine is a goroutine that polls; the one that is measured only looks at descriptors in memory. Both share the CPU of the process and hand it to each other by the Go scheduler.",
	how:  "engine goroutine", without: bench.VIOptions{Engine: true},
}, {
	name: "abl-crc", title: "CRC32C over headers and data, and over headers alone",
	note: "Without the checksum of data, what damages it on the way is found by the link's own checksum or not at all, against VIA's rules.",
	how:  "no checksum of data", without: bench.VIOptions{NoChecksum: true},
}, {
	name: "abl-secure", title: "Frames sealed by a pre-shared key, and plain",
	note: "Sealed is authenticated and encrypted by AES-256-GCM from a pre-shared key, which takes the place of the checksum; data is then not lent to the kernel.",
	how:  "sealed", without: bench.VIOptions{Sealed: true}, quick: []int{64, 65536}, mtus: []int{1500, 9000, 65535},
}, {
	name: "abl-agent", title: "A NIC that the agent has opened for the program, and one of its own",
	note: "The agent is a process of its own in each namespace. It opens the queue and hands it over with its memory; no message passes through it, so that both rows should be alike.",
	how:  "through the agent", without: bench.VIOptions{Agent: true},
}}

// rows are the usual row and the one that leaves something out, among others.
func (a ablation) rows() []row {
	return slices.Concat(a.before, plain(delivery), []row{with(delivery+", "+a.how, delivery, a.without)}, a.behind)
}

func (a ablation) group() group {
	base := delivery
	if len(a.mtus) > 1 {
		base += mtuSuffix(a.mtus[0])
	}
	return experiment{
		axis: alongSizes, base: base, notes: []string{a.note},
		parts: func(quick bool) []part {
			sizes := vibeSizes(quick)
			if quick && a.quick != nil {
				sizes = a.quick
			} else if !quick && a.sizes != nil {
				sizes = a.sizes
			}
			p := exchange(a.rows(), sizes)
			p.latency = !a.streams
			return atMTUs(p, a.mtus...)
		},
	}.group(a.name, a.title, time.Duration(max(1, len(a.mtus)))*2500*time.Millisecond)
}

// atMTUs is a part at each of some MTUs. Without any it is at the session's, and the series
// of several say at which.
func atMTUs(p part, mtus ...int) (parts []part) {
	if len(mtus) < 2 {
		p.mtu = append(mtus, 0)[0]
		return []part{p}
	}
	for _, mtu := range mtus {
		parts = append(parts, p.named(mtu))
	}
	return parts
}

// ablationGroups are those of ablations, and two that compare more.
var ablationGroups = func() (list []group) {
	for _, a := range ablations {
		if a.name == "abl-engine" {
			list = append(list, pagesGroup)
		}
		list = append(list, a.group())
	}
	return append(list, mtuGroup)
}()

var pagesGroup = experiment{
	axis: alongSizes, base: delivery,
	notes: []string{"Fresh buffers are those of a region of 32 MiB, one after the other; without these rows a ping-pong stays in few pages of any size."},
	parts: func(quick bool) []part {
		none := 0
		rows := slices.Concat(plain(rawRings), plain(delivery), []row{with(delivery+", fresh buffers", delivery, bench.VIOptions{Reuse: &none})})
		for _, r := range rows {
			r.Label, r.SmallPages = r.Label+", 4 KB pages", true
			rows = append(rows, r)
		}
		return []part{exchange(rows, fewer(quick, []int{64, 4096, 65536}, 64, 4096))}
	},
}.group("abl-pages", "Hugepages, and pages of 4 KB", 4*time.Second)

var mtuGroup = experiment{
	axis: alongSizes, base: rawCopy + mtuSuffix(1500),
	parts: func(quick bool) []part {
		return atMTUs(exchange(plain(rawCopy, delivery, tcpSpin), fewer(quick, bench.DefaultSizes(), 64, 65536)), 1500, 9000, 65535)
	},
}.group("abl-mtu", "MTU 1500, 9000 and the largest frame of the link", 8*time.Second)
