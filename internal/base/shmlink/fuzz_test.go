package shmlink

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// A neighbour that writes what it likes to the memory of the lane, between any two steps of this side, gets frames of
// at most MaxFrame bytes taken, as many as there are slots between two steps of its own, and nothing else.
func FuzzNeighbour(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 1, 2, 0, 0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 0, 1, 4})
	f.Add([]byte{2, 0, 0xff, 0xff, 0xff, 0x7f, 3, 3, 0, 0, 0, 0, 0, 1, 0, 1})
	f.Add([]byte{4, 0, 0x01, 0x10, 0, 0, 2, 0, 1, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		mem, a, _ := pair(t)
		mine := a.out.mem // what this side writes
		buf := bytes.Repeat([]byte{0xee}, MaxFrame+8)
		next := func() (v byte) {
			if len(script) > 0 {
				v, script = script[0], script[1:]
			}
			return v
		}
		number := func() uint32 {
			var b [4]byte
			for i := range b {
				b[i] = next()
			}
			return binary.LittleEndian.Uint32(b[:])
		}
		for len(script) > 0 {
			switch next() % 6 {
			case 0:
				head := a.head
				sent, _ := a.Send(bytes.Repeat([]byte{1}, int(number()%(MaxFrame+2))))
				if (a.head-head == 1) != sent || a.head-head > 1 {
					t.Fatalf("sent %v: from %d to %d", sent, head, a.head)
				}
			case 1:
				taken := 0
				for ; taken <= Slots; taken++ {
					n, ok := a.Receive(buf[:MaxFrame])
					if !ok {
						break
					}
					if n > MaxFrame {
						t.Fatalf("a frame of %d bytes", n)
					}
				}
				if taken > Slots {
					t.Fatal("more frames than slots")
				}
			case 2:
				a.in.prod.Store(number())
			case 3:
				a.out.cons.Store(number())
			case 4:
				word(a.in.slot(uint32(next())), 0).Store(number())
			case 5: // any word at all, of both directions
				word(mem, int(number()%(Size/4))*4).Store(number())
			}
			a.Ready()
		}
		if !bytes.Equal(buf[MaxFrame:], bytes.Repeat([]byte{0xee}, 8)) {
			t.Error("written behind the buffer")
		}
		if len(mine) != ringSize || len(mem) != Size {
			t.Error("the views have changed")
		}
	})
}
