package vipl_test

import (
	"encoding/binary"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// What a hostile peer puts in one packet: frames of other VIs, lengths that lie, frames in another order, cut off in the
// middle, more than there is. Whatever it is, chunks are neither lost nor recycled twice (newMemoryNet looks), the engine
// does not panic, and messages that it delivers are whole.
func FuzzGSOPacket(f *testing.F) {
	const size = 400 // bytes of a frame
	f.Add([]byte{0, 0, 0, 0, 0, 0}, uint16(0), uint8(0))
	f.Add([]byte{0, 2, 0, 1, 0, 0, 4, 0, 5, 0, 3, 3}, uint16(0), uint8(1))
	f.Add([]byte{9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0}, uint16(77), uint8(2))
	f.Add([]byte{0, 0, 1, 4, 2, 5, 3, 6, 4, 7}, uint16(3), uint8(3))
	f.Fuzz(func(t *testing.T, program []byte, cut uint16, how uint8) {
		c := memoryConfig{gso: "whole", queue: gsoQueue, gate: how&4 != 0}
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		xb := newBox(t, n.b.NIC, 16, 4096)
		postRecvs(t, vb, xb, 16, 4096)
		q, err := n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}, ChunkSize: 1 << 17, RxChunks: 1, TxChunks: 1})
		must(t, err)
		defer q.Close()
		next := va.ToPeer()
		link := wire.Link{SrcMAC: [6]byte{2, 0xbb}, DstMAC: n.b.agent.Link().MAC, Src: n.a.agent.Addr(), Dst: n.b.agent.Addr()}
		template, err := wire.NewTemplate(link)
		must(t, err)
		// A frame a pair of bytes: its number, and what is wrong with it.
		var all []byte
		for i := 0; i+1 < len(program) && len(all) < 60_000; i += 2 {
			h := next
			h.Kind, h.Flags, h.Length = wire.KindData, wire.FlagFirst|wire.FlagLast, size
			h.Seq += uint32(program[i])
			wrong := program[i+1]
			switch wrong % 8 {
			case 1:
				h.VI++
			case 2:
				h.Key++
			case 3:
				h.Length += uint16(wrong)
			case 4:
				h.Length = uint16(wrong / 8)
			case 5:
				h.Flags = wire.Flags(wrong)
			case 6:
				h.Kind = wire.Kind(wrong / 8)
			}
			b := make([]byte, wire.HeaderLen+size)
			for k := range size {
				b[wire.HeaderLen+k] = program[i]
			}
			h.Put(b)
			wire.PutChecksum(b)
			if wrong%8 == 7 {
				b[wire.HeaderLen+int(wrong)] ^= 1
			}
			all = append(all, b...)
		}
		all = all[:len(all)-min(len(all), int(cut)%(2*size))]
		if len(all) == 0 {
			return
		}
		addr, frame, _ := q.Alloc()
		copy(template.Put(frame, len(all)), all)
		if how&1 != 0 { // a UDP length that lies
			binary.BigEndian.PutUint16(frame[38:], cut)
		}
		q.Send(addr, template.Len()+len(all), false)
		must(t, q.Flush())
		for range 50 {
			n.b.Poll()
			for d, _ := vb.RecvDone(); d != nil; d, _ = vb.RecvDone() {
				if d.Status().Failed() {
					continue
				}
				b := xb.buf[indexOf(xb, d)][:d.Length]
				for k := range b {
					if b[k] != b[0] {
						t.Fatalf("a message of %d bytes holds %d and %d", len(b), b[0], b[k])
					}
				}
			}
		}
	})
}

func indexOf(x *box, d *vipl.Descriptor) int {
	for i := range x.desc {
		if x.desc[i] == d {
			return i
		}
	}
	return -1
}
