package testbed

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/veth"
)

// bottleneck is a link of a limited rate, and the queues of the frames that wait for it: one for all, or one for each
// flow. Queues are served in turn, each with as many bytes as the others (deficit round robin).
type bottleneck struct {
	turns  []*flowQueue  // those with frames, in the order of their turns
	frames int           // in all queues
	free   time.Duration // when the link has sent the last frame
}

// flow is protocol, addresses and ports of a frame: those of IPv4 without options. Other frames are one flow.
type flow [13]byte

type flowQueue struct {
	flow   flow
	frames []waiting
	bytes  int
	credit int // bytes that it may send before the next queue's turn
}

// quantum is the credit of a turn: a frame.
const quantum = 1514

// Bytes of an Ethernet frame with IPv4.
const (
	tosAt      = 15
	checksumAt = 24
	protocolAt = 23
	addressAt  = 26
	portsEnd   = 38
)

func isIPv4(frame []byte) bool {
	return len(frame) >= portsEnd && binary.BigEndian.Uint16(frame[etherTypeAt:]) == 0x0800 && frame[etherLen] == 0x45
}

// queueOf returns the queue for a frame, which is not yet among those with frames.
func (b *bottleneck) queueOf(frame []byte, perFlow bool) *flowQueue {
	var k flow
	if perFlow && isIPv4(frame) {
		k[0] = frame[protocolAt]
		copy(k[1:], frame[addressAt:portsEnd])
	}
	for _, q := range b.turns {
		if q.flow == k {
			return q
		}
	}
	return &flowQueue{flow: k}
}

// full reports whether the queue has no room for a frame of n bytes.
func (q *flowQueue) full(f *Faults, n int) bool {
	if f.QueueBytes > 0 {
		return q.bytes+n > f.QueueBytes
	}
	return len(q.frames) >= cmp.Or(f.Queue, defaultQueue)
}

// push adds a frame to the queue.
func (b *bottleneck) push(q *flowQueue, x waiting) {
	if len(q.frames) == 0 {
		b.turns = append(b.turns, q)
	}
	q.frames = append(q.frames, x)
	q.bytes += len(x.frame)
	b.frames++
}

// pop removes the frame whose turn it is, if the link is free by now, and sets when it has been sent.
func (b *bottleneck) pop(now time.Duration, rate int64) (x waiting, ok bool) {
	if b.frames == 0 || b.free > now {
		return x, false
	}
	q := b.turns[0]
	for n := len(q.frames[0].frame); q.credit < n; n = len(q.frames[0].frame) {
		q.credit += quantum
		b.turns = append(b.turns[1:], q)
		q = b.turns[0]
	}
	x = q.frames[0]
	q.frames = q.frames[1:]
	q.bytes -= len(x.frame)
	q.credit -= len(x.frame)
	b.frames--
	if len(q.frames) == 0 {
		b.turns = b.turns[1:]
	}
	b.free = max(b.free, x.since)
	if rate > 0 {
		b.free += time.Duration(int64(len(x.frame)) * 8 * int64(time.Second) / rate)
	}
	x.due = b.free
	return x, true
}

// markCE does to an IPv4 frame what a router does whose queue is long. It returns false for a frame that must not be
// marked, or is.
func markCE(frame []byte) bool {
	if !isIPv4(frame) || frame[tosAt]&3 == 0 || frame[tosAt]&3 == 3 {
		return false
	}
	was := binary.BigEndian.Uint16(frame[tosAt-1:])
	frame[tosAt] |= 3
	sum := uint32(^binary.BigEndian.Uint16(frame[checksumAt:])) + uint32(^was) + uint32(binary.BigEndian.Uint16(frame[tosAt-1:]))
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[checksumAt:], ^uint16(sum&0xffff+sum>>16))
	return true
}

// SetTBF limits the frames that a side sends to a rate in bits per second, and queues those that wait up to a number
// of bytes, by the kernel's token bucket filter. The rate 0 takes the limit away. Frames that the filter drops count
// as Refused.
func (m *Middle) SetTBF(side int, rate int64, queue int) error {
	return veth.OnLink(m.ns, middleNames[1-side], func(h *netlink.Handle, l netlink.Link) error {
		attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		if rate == 0 {
			return h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		}
		bytes := uint64(rate / 8)
		burst := max(tbfLeast, uint32(bytes/tbfPerSecond))
		err := h.QdiscReplace(&netlink.Tbf{QdiscAttrs: attrs, Rate: bytes, Limit: uint32(queue), Buffer: netlink.Xmittime(bytes, burst)})
		if err != nil {
			return fmt.Errorf("token bucket filter (CONFIG_NET_SCH_TBF): %w", err)
		}
		return nil
	})
}

// Tokens of a token bucket filter: those of 0.1 ms, in which the kernel's timer is late at times, and of two frames at
// least.
const (
	tbfPerSecond = 10_000
	tbfLeast     = 2 * quantum
)
