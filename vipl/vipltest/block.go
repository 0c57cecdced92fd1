package vipltest

import "viaxdp/vipl"

// block is registered memory that holds descriptors, each with a buffer of its
// own, and to which peers may write and from which they may read.
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

// block makes count descriptors with room for segs segments, and buffers of
// size bytes.
func (t *T) block(n *vipl.NIC, count, size int) *block {
	t.Helper()
	return t.blockOf(n, nil, count, 2, size)
}

// blockOf is block with a tag, or nil, and with room for segs segments.
func (t *T) blockOf(n *vipl.NIC, tag *vipl.Ptag, count, segs, size int) *block {
	t.Helper()
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

// stride is the distance of two descriptors: what one takes, in multiples of 64.
func (b *block) stride() int {
	return (max(vipl.ControlSegmentSize+b.segs*vipl.DataSegmentSize, 64) + 63) &^ 63
}

// at is the offset of buffer i.
func (b *block) at(i int) int { return b.count*b.stride() + i*b.size }

// buf is buffer i, and seg its first n bytes as a data segment.
func (b *block) buf(i int) []byte { return b.Bytes()[b.at(i) : b.at(i)+b.size] }

func (b *block) seg(i, n int) vipl.DataSegment { return b.Segment(b.at(i), n) }

// remote names buffer i to the peer.
func (b *block) remote(i int) vipl.AddressSegment { return b.Remote(b.at(i)) }

// prepare makes descriptor i a send or receive of the first n bytes of its
// buffer, without immediate data.
func (b *block) prepare(i, n int) *vipl.Descriptor {
	d := b.desc[i]
	d.Control, d.ImmediateData, d.Reserved = 0, 0, 0
	d.SetSegments(b.seg(i, n))
	return d
}

// send posts a send of the first n bytes of buffer i.
func (b *block) send(v *vipl.VI, i, n int) *vipl.Descriptor {
	b.t.Helper()
	return b.post(v, b.prepare(i, n))
}

// sendImmediate is send with immediate data.
func (b *block) sendImmediate(v *vipl.VI, i, n int, imm uint32) *vipl.Descriptor {
	b.t.Helper()
	b.prepare(i, n).SetImmediate(imm)
	return b.post(v, b.desc[i])
}

// recv posts a receive into the first n bytes of buffer i.
func (b *block) recv(v *vipl.VI, i, n int) *vipl.Descriptor {
	b.t.Helper()
	return b.postRecv(v, b.prepare(i, n))
}

// write posts an RDMA write of the first n bytes of buffer i.
func (b *block) write(v *vipl.VI, i, n int, to vipl.AddressSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetRDMAWrite(to, b.seg(i, n))
	return b.post(v, b.desc[i])
}

// writeImmediate is write with immediate data.
func (b *block) writeImmediate(v *vipl.VI, i, n int, to vipl.AddressSegment, imm uint32) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetRDMAWrite(to, b.seg(i, n))
	b.desc[i].SetImmediate(imm)
	return b.post(v, b.desc[i])
}

// read posts an RDMA read into the first n bytes of buffer i.
func (b *block) read(v *vipl.VI, i, n int, from vipl.AddressSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetRDMARead(from, b.seg(i, n))
	return b.post(v, b.desc[i])
}

// post posts a descriptor of the block to the send queue as it is.
//
// Both programs of a rule are one process. The race detector knows nothing of
// the link between them: what one wrote before the other reads it is ordered by
// a call on each NIC.
func (b *block) post(v *vipl.VI, d *vipl.Descriptor) *vipl.Descriptor {
	b.t.Helper()
	if d.Control&3 == vipl.ControlRDMARead {
		b.t.A.Counters()
		b.t.B.Counters()
	}
	b.t.must(v.PostSend(d, b.Handle()))
	return d
}

// postRecv posts a descriptor of the block to the receive queue as it is.
func (b *block) postRecv(v *vipl.VI, d *vipl.Descriptor) *vipl.Descriptor {
	b.t.Helper()
	b.t.must(v.PostRecv(d, b.Handle()))
	return d
}

// sendMessage posts a send of n bytes of message k from buffer i.
func (b *block) sendMessage(v *vipl.VI, i, n, k int) *vipl.Descriptor {
	b.t.Helper()
	fill(b.buf(i)[:n], k)
	return b.send(v, i, n)
}

// sendDone, writeDone and readDone are send, write and read, and wait for the end.
func (b *block) sendDone(v *vipl.VI, i, n int) {
	b.t.Helper()
	b.send(v, i, n)
	b.t.sent(v, 0)
}

func (b *block) writeDone(v *vipl.VI, i, n int, to vipl.AddressSegment) {
	b.t.Helper()
	b.write(v, i, n, to)
	b.t.sent(v, vipl.StatusOpRDMAWrite)
}

func (b *block) readDone(v *vipl.VI, i, n int, from vipl.AddressSegment) {
	b.t.Helper()
	b.read(v, i, n, from)
	b.t.sent(v, vipl.StatusOpRDMARead)
}

// sends and recvs post the first count descriptors with n bytes each.
func (b *block) sends(v *vipl.VI, count, n int) {
	b.t.Helper()
	for i := range count {
		b.send(v, i, n)
	}
}

func (b *block) recvs(v *vipl.VI, count, n int) {
	b.t.Helper()
	for i := range count {
		b.recv(v, i, n)
	}
}

// sendSegments, recvSegments, writeSegments and readSegments post descriptor i with
// these segments.
func (b *block) sendSegments(v *vipl.VI, i int, segs ...vipl.DataSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetSegments(segs...)
	return b.post(v, b.desc[i])
}

func (b *block) recvSegments(v *vipl.VI, i int, segs ...vipl.DataSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetSegments(segs...)
	return b.postRecv(v, b.desc[i])
}

func (b *block) writeSegments(v *vipl.VI, i int, to vipl.AddressSegment, segs ...vipl.DataSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetRDMAWrite(to, segs...)
	return b.post(v, b.desc[i])
}

func (b *block) readSegments(v *vipl.VI, i int, from vipl.AddressSegment, segs ...vipl.DataSegment) *vipl.Descriptor {
	b.t.Helper()
	b.desc[i].SetRDMARead(from, segs...)
	return b.post(v, b.desc[i])
}

// wipe zeroes buffer i. The provider's goroutines have seen it when it returns.
func (b *block) wipe(i int, v *vipl.VI) {
	b.t.Helper()
	clear(b.buf(i))
	_, err := v.Query()
	b.t.must(err)
}

// message sends n bytes of message k from buffer 0 of one block to buffer 0 of the other.
func (t *T) message(va *vipl.VI, a *block, vb *vipl.VI, b *block, n, k int) {
	t.Helper()
	b.recv(vb, 0, n)
	t.carries(va, a, vb, b, n, k)
}

// carries is message into the receive that is posted already.
func (t *T) carries(va *vipl.VI, a *block, vb *vipl.VI, b *block, n, k int) {
	t.Helper()
	a.sendMessage(va, 0, n, k)
	t.receivedMessage(vb, b.buf(0)[:n], k)
	t.sent(va, 0)
}

// behind sends an empty message with the last descriptors of two blocks, and
// waits for it: everything before it has arrived. The sends before it have been
// taken off the queue.
func (t *T) behind(va *vipl.VI, a *block, vb *vipl.VI, b *block) {
	t.Helper()
	d := b.recv(vb, len(b.desc)-1, 0)
	a.send(va, len(a.desc)-1, 0)
	if t.received(vb, 0) != d {
		t.Error("another receive")
	}
	t.sent(va, 0)
}

// pattern is byte i of message k: no two messages and no two frames look alike.
func pattern(i, k int) byte { return byte(i*7 + i>>8 + i>>16 + k*31 + 1) }

// fill writes the pattern of message k.
func fill(b []byte, k int) []byte {
	for i := range b {
		b[i] = pattern(i, k)
	}
	return b
}

// holds checks that b is message k, and holdsFrom that it is the part of it from
// byte from on.
func (t *T) coalesces(what string, b []byte, k int) {
	t.Helper()
	t.holdsFrom(what, b, 0, k)
}

func (t *T) holdsFrom(what string, b []byte, from, k int) {
	t.Helper()
	for i := range b {
		if want := pattern(from+i, k); b[i] != want {
			t.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(b), b[i], want)
			return
		}
	}
}

// untouched checks that b is all zero.
func (t *T) untouched(what string, b []byte) {
	t.Helper()
	for i := range b {
		if b[i] != 0 {
			t.Errorf("%s: byte %d of %d was written: %#x", what, i, len(b), b[i])
			return
		}
	}
}
