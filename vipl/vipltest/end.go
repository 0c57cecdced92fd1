package vipltest

import "viaxdp/vipl"

// block is registered memory that holds descriptors, each with a buffer of its own. Peers may write to it and
// read from it.
//
//	| desc 0 | desc 1 | ... | buffer 0 | buffer 1 | ...
type block struct {
	*vipl.Region
	t     *T
	count int
	segs  int
	size  int // bytes of a buffer
	desc  []*vipl.Descriptor
}

// block makes count descriptors with buffers of size bytes.
func (t *T) block(n *vipl.NIC, count, size int) *block {
	return t.blockOf(n, nil, count, 2, size)
}

// blockOf is block with a tag, or nil, and with room for segs segments.
func (t *T) blockOf(n *vipl.NIC, tag *vipl.Ptag, count, segs, size int) *block {
	b := &block{t: t, count: count, segs: segs, size: size}
	bytes := count * (b.stride() + size)
	b.Region = t.alloc(n, bytes, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: true})
	for i := range count {
		d, err := b.Descriptor(i*b.stride(), segs)
		t.must(err)
		b.desc = append(b.desc, d)
	}
	return b
}

// stride returns the distance between two descriptors: the size of one, rounded up to a multiple of 64.
func (b *block) stride() int {
	return (max(vipl.ControlSegmentSize+b.segs*vipl.DataSegmentSize, 64) + 63) &^ 63
}

// at returns the offset of buffer i.
func (b *block) at(i int) int { return b.count*b.stride() + i*b.size }

// buf returns buffer i, and seg its first n bytes as a data segment.
func (b *block) buf(i int) []byte { return b.Bytes()[b.at(i) : b.at(i)+b.size] }

func (b *block) seg(i, n int) vipl.DataSegment { return b.Segment(b.at(i), n) }

// remote returns buffer i as an address segment for the peer.
func (b *block) remote(i int) vipl.AddressSegment { return b.Remote(b.at(i)) }

// fillAll writes message first+i into each buffer i.
func (b *block) fillAll(first int) {
	for i := range b.count {
		fill(b.buf(i), first+i)
	}
}

// prepare makes descriptor i a send or receive of the first n bytes of its
// buffer, without immediate data.
func (b *block) prepare(i, n int) *vipl.Descriptor {
	d := b.desc[i]
	d.Control, d.ImmediateData, d.Reserved = 0, 0, 0
	d.SetSegments(b.seg(i, n))
	return d
}

// on returns the end of a connection of v with its descriptors and data in b.
func (b *block) on(v *vipl.VI) *end { return &end{b, v} }

// end is one end of a connection: a VI, and a block for its descriptors and data.
type end struct {
	*block
	v *vipl.VI
}

// post posts a descriptor of the block to the send queue as it is, and postRecv to the
// receive queue.
//
// Both programs of a rule run in one process. The race detector does not see the link between them, so a call
// on each NIC orders one side's writes before the other side's reads.
func (e *end) post(d *vipl.Descriptor) *vipl.Descriptor {
	if d.Control&3 == vipl.ControlRDMARead {
		e.t.A.Counters()
		e.t.B.Counters()
	}
	e.t.must(e.v.PostSend(d, e.Handle()))
	return d
}

func (e *end) postRecv(d *vipl.Descriptor) *vipl.Descriptor {
	e.t.must(e.v.PostRecv(d, e.Handle()))
	return d
}

// send posts a send of the first n bytes of buffer i, and recv a receive into them.
func (e *end) send(i, n int) *vipl.Descriptor {
	return e.post(e.prepare(i, n))
}

func (e *end) recv(i, n int) *vipl.Descriptor {
	return e.postRecv(e.prepare(i, n))
}

// write posts an RDMA write of the first n bytes of buffer i, and read an RDMA read into them.
func (e *end) write(i, n int, to vipl.AddressSegment) *vipl.Descriptor {
	return e.writeSegments(i, to, e.seg(i, n))
}

func (e *end) read(i, n int, from vipl.AddressSegment) *vipl.Descriptor {
	return e.readSegments(i, from, e.seg(i, n))
}

// sendImmediate and writeImmediate are send and write with immediate data.
func (e *end) sendImmediate(i, n int, imm uint32) *vipl.Descriptor {
	e.prepare(i, n).SetImmediate(imm)
	return e.post(e.desc[i])
}

func (e *end) writeImmediate(i, n int, to vipl.AddressSegment, imm uint32) *vipl.Descriptor {
	e.desc[i].SetRDMAWrite(to, e.seg(i, n))
	e.desc[i].SetImmediate(imm)
	return e.post(e.desc[i])
}

// sendMessage posts a send of n bytes of message k from buffer i.
func (e *end) sendMessage(i, n, k int) *vipl.Descriptor {
	fill(e.buf(i)[:n], k)
	return e.send(i, n)
}

// sends and recvs post the first count descriptors with n bytes each, sends with message
// i in buffer i.
func (e *end) sends(count, n int) {
	for i := range count {
		e.sendMessage(i, n, i)
	}
}

func (e *end) recvs(count, n int) {
	for i := range count {
		e.recv(i, n)
	}
}

// sendSegments, recvSegments, writeSegments and readSegments post descriptor i with
// these segments.
func (e *end) sendSegments(i int, segs ...vipl.DataSegment) *vipl.Descriptor {
	e.desc[i].SetSegments(segs...)
	return e.post(e.desc[i])
}

func (e *end) recvSegments(i int, segs ...vipl.DataSegment) *vipl.Descriptor {
	e.desc[i].SetSegments(segs...)
	return e.postRecv(e.desc[i])
}

func (e *end) writeSegments(i int, to vipl.AddressSegment, segs ...vipl.DataSegment) *vipl.Descriptor {
	e.desc[i].SetRDMAWrite(to, segs...)
	return e.post(e.desc[i])
}

func (e *end) readSegments(i int, from vipl.AddressSegment, segs ...vipl.DataSegment) *vipl.Descriptor {
	e.desc[i].SetRDMARead(from, segs...)
	return e.post(e.desc[i])
}

// sent and received wait for completions of the queues, as those of T do.
func (e *end) sent(want ...vipl.Status) *vipl.Descriptor {
	return e.t.sent(e.v, want...)
}

func (e *end) received(want ...vipl.Status) *vipl.Descriptor {
	return e.t.received(e.v, want...)
}

// arrived waits for receive i, which is a message of n bytes: message k.
func (e *end) arrived(i, n, k int) *vipl.Descriptor {
	d := e.received()
	e.t.errorIf(d != e.desc[i] || int(d.Length) != n, "receive %p of %d bytes, want %p of %d", d, d.Length, e.desc[i], n)
	e.t.holds("message", e.buf(i)[:n], k)
	return d
}

// writeWait and readWait are write and read, and wait for the completion.
func (e *end) writeWait(i, n int, to vipl.AddressSegment) {
	e.write(i, n, to)
	e.sent(vipl.StatusOpRDMAWrite)
}

func (e *end) readWait(i, n int, from vipl.AddressSegment) {
	e.read(i, n, from)
	e.sent(vipl.StatusOpRDMARead)
}

// message sends n bytes of message k from buffer 0 to buffer 0 of the peer.
func (e *end) message(peer *end, n, k int) {
	peer.recv(0, n)
	e.carries(peer, n, k)
}

// carries is message into a receive that is already posted.
func (e *end) carries(peer *end, n, k int) {
	e.sendMessage(0, n, k)
	peer.arrived(0, n, k)
	e.sent()
}

// writes writes n bytes of message k from buffer 0 to the peer's memory, and waits until they have arrived.
func (e *end) writes(peer *end, to *vipl.Region, off, n, k int) {
	fill(e.buf(0)[:n], k)
	e.writeWait(0, n, to.Remote(off))
	e.behind(peer)
	e.t.holds("target", to.Bytes()[off:off+n], k)
}

// behind sends an empty message with the last descriptors of both blocks, and waits for it: everything before
// it has then arrived. Earlier sends must already be dequeued.
func (e *end) behind(peer *end) {
	d := peer.recv(len(peer.desc)-1, 0)
	e.send(len(e.desc)-1, 0)
	e.t.same(peer.received(), d)
	e.sent()
}

// wipe zeroes buffer i. The provider's goroutines see the zeros when it returns.
func (e *end) wipe(i int) {
	clear(e.buf(i))
	e.synchronize()
}

// synchronize takes the lock of the provider's engine. What its goroutines did to memory before happened before it
// returns, and they see what this goroutine wrote.
func (e *end) synchronize() {
	_, err := e.v.Query()
	e.t.must(err)
}

// pattern returns byte i of message k. Different messages, and different frames, have different bytes.
func pattern(i, k int) byte { return byte(i*7 + i>>8 + i>>16 + k*31 + 1) }

// fill writes the pattern of message k.
func fill(b []byte, k int) []byte {
	for i := range b {
		b[i] = pattern(i, k)
	}
	return b
}

// holds checks that b is message k, and holdsFrom that it is the part of k from byte from on.
func (t *T) holds(what string, b []byte, k int) {
	t.holdsFrom(what, b, 0, k)
}

func (t *T) holdsFrom(what string, b []byte, from, k int) {
	for i := range b {
		if want := pattern(from+i, k); b[i] != want {
			t.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(b), b[i], want)
			return
		}
	}
}

// untouched checks that b is all zero.
func (t *T) untouched(what string, b []byte) {
	for i := range b {
		if b[i] != 0 {
			t.Errorf("%s: byte %d of %d was written: %#x", what, i, len(b), b[i])
			return
		}
	}
}
