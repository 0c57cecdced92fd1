package reliable

import "testing"

// The verdicts of a Receiver, and the frames that it returns in order, are those of a set of numbers.
func FuzzReceiver(f *testing.F) {
	f.Add(uint32(1), uint8(16), []byte{0, 2, 3, 1, 9, 0, 0x40, 0, 200})
	f.Add(uint32(1<<32-2), uint8(255), []byte{1, 0, 1, 0, 3, 5, 4, 4, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, first uint32, window uint8, arrivals []byte) {
		if len(arrivals) > 1024 {
			return
		}
		r, size := NewReceiver(first, int(window)), uint32(roundUp(max(1, int(window))))
		next, buffered := first, map[uint32]bool{}
		for _, x := range arrivals {
			seq := next + uint32(int32(int8(x)))
			want := OutOfOrder
			switch ahead := seq - next; {
			case int32(ahead) < 0 || buffered[seq]:
				want = Duplicate
			case ahead == 0:
				want = InOrder
			case ahead >= size:
				want = OutsideWindow
			}
			if got := r.Arrive(seq, x&1 != 0); got != want {
				t.Fatalf("frame %d at %d: verdict %d, want %d", seq, next, got, want)
			}
			switch want {
			case OutOfOrder:
				r.Buffer(seq, uint64(seq))
				buffered[seq] = true
			case InOrder:
				next++
			}
			for tag, ok := r.Pop(); ok; tag, ok = r.Pop() {
				if tag != uint64(next) || !buffered[next] {
					t.Fatalf("popped %d at %d", tag, next)
				}
				delete(buffered, next)
				next++
			}
			var out [4]Range
			for _, g := range out[:r.Ranges(out[:])] {
				for s := g.Start; s != g.End; s++ {
					if !buffered[s] {
						t.Fatalf("range [%d, %d) has %d, which did not come", g.Start, g.End, s)
					}
				}
			}
			if r.Next() != next || r.Buffered() != len(buffered) || buffered[next] {
				t.Fatalf("next %d, held %d; want %d, %d", r.Next(), r.Buffered(), next, len(buffered))
			}
		}
	})
}

// Two streams come through any schedule of losses, repetitions and delays whole and in
// order, and come to rest. Each bit of script loses a frame, in turn of each direction;
// when it is over none is lost any more.
func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1), uint32(1), uint8(0), uint8(0), uint8(0), uint8(0), []byte{})
	f.Add(uint64(2), uint32(1<<32-50), uint8(64), uint8(10), uint8(10), uint8(200), []byte{0xff, 0x0f, 0, 0xaa})
	f.Add(uint64(3), uint32(7), uint8(255), uint8(255), uint8(255), uint8(255), []byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, seed uint64, first uint32, window, repeat, late, jitter uint8, script []byte) {
		if len(script) > 32 {
			return // the same again
		}
		l := link{
			delay: 10_000, perFrame: 500, jitter: int64(jitter) * 500,
			repeat: float64(repeat) / 512, late: float64(late) / 1024, lateBy: 150_000,
		}
		w, a, b := pair(seed, first, 1+int(window), l, l)
		n := 0
		lose := func(packet) bool {
			if n >= 8*len(script) {
				return false
			}
			n++
			return script[(n-1)/8]>>((n-1)%8)&1 != 0
		}
		a.out.drop, b.out.drop = lose, lose
		a.total, b.total = 60, 20
		// Each loss may cost a time-out of a fifth of a second.
		if err := transfer(w, a, b, second+int64(8*len(script))*maxTimeout); err != nil {
			t.Error(err)
		}
	})
}

// Whatever a peer acknowledges, and in whatever order the caller does what it may do, a
// Sender's books balance.
func FuzzSender(f *testing.F) {
	f.Add(uint32(1), uint8(16), []byte{0, 0, 0, 0, 1, 2, 2, 1, 3, 3, 4, 0})
	f.Add(uint32(1<<32-3), uint8(64), []byte{0, 0, 0, 0, 0, 0, 2, 0x31, 3, 5, 4, 0, 1, 6})
	f.Fuzz(func(t *testing.T, first uint32, window uint8, ops []byte) {
		if len(ops) > 4096 {
			return
		}
		s, now, released := NewSender(first, int(window)), int64(1), first
		for len(ops) > 0 {
			op, arg := ops[0], byte(0)
			if ops = ops[1:]; len(ops) > 0 {
				arg, ops = ops[0], ops[1:]
			}
			now += int64(op>>3) * 7_000
			near := s.Unacked() + uint32(int32(int8(arg))) // before, within or beyond what is under way
			switch op & 7 {
			case 0:
				for range 1 + arg&7 {
					if s.Room() > 0 {
						s.Send(now, uint64(s.Next()), 1)
					}
				}
			case 1:
				from, to, valid := s.Ack(now, near, int(window^op&^7))
				if from != released || valid && int32(to-from) < 0 || !valid && from != to {
					t.Fatalf("acknowledgement %d released [%d, %d) at %d, valid %v", near, from, to, released, valid)
				}
				for ; released != to; released++ {
					if s.Tag(released) != uint64(released) {
						t.Fatalf("frame %d has the tag %d", released, s.Tag(released))
					}
				}
			case 2:
				s.AckRange(now, near, near+uint32(arg&15))
			case 3:
				s.DetectLosses(now)
			case 4:
				if due := s.Deadline(); due != 0 {
					now = max(now, due)
				}
				if seq, probe := s.Timeout(now); probe {
					s.Resent(now, seq)
				}
			case 5:
				if seq, ok := s.NextLost(); ok {
					s.Resent(now, seq)
				}
			case 6:
				s.Resent(now, near)
			case 7:
				s.AckRange(now, s.Next()-uint32(arg), s.Next())
			}
			if err := audit(s); err != nil {
				t.Fatalf("after operation %d: %v", op&7, err)
			}
		}
	})
}
