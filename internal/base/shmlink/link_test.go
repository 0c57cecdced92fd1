package shmlink

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
)

func pair(t testing.TB) (mem []byte, a, b *Link) {
	t.Helper()
	mem = make([]byte, Size)
	a, errA := New(mem, 0)
	b, errB := New(mem, 1)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	return mem, a, b
}

// Frames arrive in order and whole in both directions, while both sides run.
func TestFrames(t *testing.T) {
	_, a, b := pair(t)
	var wg sync.WaitGroup
	run := func(l *Link, mine, other byte) {
		const frames = 20_000
		buf := make([]byte, MaxFrame)
		out := bytes.Repeat([]byte{mine}, MaxFrame)
		// A side that has received all may still have frames to send that found no room.
		for sent, got := uint32(0), uint32(0); sent < frames || got < frames; {
			if sent < frames {
				binary.NativeEndian.PutUint32(out, sent)
				if ok, _ := l.Send(out[:4+sent%(MaxFrame-4)]); ok {
					sent++
				}
			}
			n, ok := l.Receive(buf)
			if !ok {
				runtime.Gosched()
				continue
			}
			if n != 4+int(got)%(MaxFrame-4) || binary.NativeEndian.Uint32(buf) != got ||
				bytes.Count(buf[4:n], []byte{other}) != n-4 {
				t.Errorf("frame %d: %d bytes, %x", got, n, buf[:min(n, 8)])
				return
			}
			got++
		}
	}
	wg.Go(func() { run(a, 1, 2) })
	wg.Go(func() { run(b, 2, 1) })
	wg.Wait()
}

// A full ring takes nothing until a frame is taken. A side that sleeps gets the bell. A side
// that is made again continues where it stopped.
func TestRoomAndBell(t *testing.T) {
	mem, a, b := pair(t)
	buf := make([]byte, MaxFrame)
	for i := range Slots {
		if sent, bell := a.Send([]byte{byte(i)}); !sent || bell {
			t.Fatalf("frame %d: sent %v, bell %v", i, sent, bell)
		}
	}
	if sent, _ := a.Send(nil); sent {
		t.Error("a full ring took a frame")
	}
	if sent, _ := b.Send(make([]byte, MaxFrame+1)); sent {
		t.Error("a frame that is too long was taken")
	}
	if n, ok := b.Receive(buf); n != 1 || !ok || buf[0] != 0 {
		t.Errorf("first frame: %d bytes, %v", n, ok)
	}
	b.Sleep(true)
	if sent, bell := a.Send(nil); !sent || !bell {
		t.Errorf("sent %v, bell %v", sent, bell)
	}
	b.Sleep(false)
	again, err := New(mem, 1)
	nstest.Must(t, err)
	if n, ok := again.Receive(buf); n != 1 || !ok || buf[0] != 1 || !again.Ready() {
		t.Errorf("second frame: %d bytes of %d, %v", n, buf[0], ok)
	}
	if _, err := New(mem[1:], 0); err == nil {
		t.Error("too little memory: no error")
	}
}

// Whatever the other side writes, there is no frame beyond its bounds, no fault and
// no end to it that takes long.
func TestLies(t *testing.T) {
	mem, a, _ := pair(t)
	buf := make([]byte, MaxFrame)
	for _, v := range []uint32{Slots + 1, 1 << 31, ^uint32(0)} {
		a.in.prod.Store(v)
		if _, ok := a.Receive(buf); ok || a.Ready() {
			t.Errorf("producer at %d: a frame", v)
		}
		a.out.cons.Store(v)
		if sent, _ := a.Send([]byte("x")); sent && v != ^uint32(0) {
			t.Errorf("consumer at %d: room", v)
		}
		a.out.cons.Store(0)
	}
	a.in.prod.Store(1)
	word(a.in.slot(0), 0).Store(MaxFrame + 1)
	if n, ok := a.Receive(buf); n != 0 || !ok {
		t.Errorf("a length out of bounds: %d, %v", n, ok)
	}
	// Only this side's own index counts what it has taken.
	a.in.cons.Store(0)
	nstest.ErrorIf(t, a.Ready(), "a frame that was taken is there again")
	clear(mem)
	if _, ok := a.Receive(buf); ok {
		t.Error("indices that go back: a frame")
	}
}

func TestAllocs(t *testing.T) {
	_, a, b := pair(t)
	buf, frame := make([]byte, MaxFrame), make([]byte, 100)
	if n := testing.AllocsPerRun(1000, func() {
		a.Send(frame)
		b.Receive(buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A neighbour that writes anything to the memory of the link, between any two steps of this side, only gets frames of
// at most MaxFrame bytes accepted, and between two steps of its own at most as many as there are slots.
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
				nstest.FatalIf(t, (a.head-head == 1) != sent || a.head-head > 1,
					"sent %v: from %d to %d", sent, head, a.head)
			case 1:
				taken := 0
				for ; taken <= Slots; taken++ {
					n, ok := a.Receive(buf[:MaxFrame])
					if !ok {
						break
					}
					nstest.FatalIf(t, n > MaxFrame, "a frame of %d bytes", n)
				}
				nstest.FatalIf(t, taken > Slots, "more frames than slots")
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
		nstest.ErrorIf(t, !bytes.Equal(buf[MaxFrame:], bytes.Repeat([]byte{0xee}, 8)), "written behind the buffer")
		nstest.ErrorIf(t, len(mine) != ringSize || len(mem) != Size, "the views have changed")
	})
}
