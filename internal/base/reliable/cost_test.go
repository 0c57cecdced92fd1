package reliable

import (
	"testing"

	"viaxdp/internal/lab/nstest"
)

// turn is one exchange over a link that loses frame 5 of every 16 and the
// retransmission timer that follows now and then.
func turn(s *Sender, r *Receiver, now int64, lose bool) int64 {
	var ranges [32]Range
	base := s.Next()
	for i := range uint32(16) {
		s.Send(now, uint64(i), 1)
		if lose && i == 5 {
			continue
		}
		switch seq := base + i; r.Arrive(seq, false) {
		case OutOfOrder:
			r.Buffer(seq, uint64(i))
		case InOrder:
			for ok := true; ok; {
				_, ok = r.Pop()
			}
		}
	}
	now += 20_000
	n := r.Ranges(ranges[:])
	s.Ack(now, r.Next(), 256)
	s.AckRanges(now, r.Next(), ranges[:n])
	s.DetectLosses(now)
	r.Acked()
	for seq, ok := s.NextLost(); ok; seq, ok = s.NextLost() {
		s.Resent(now, seq)
		for ok = r.Arrive(seq, true) == InOrder; ok; {
			_, ok = r.Pop()
		}
	}
	now += 20_000
	if due := s.Deadline(); due != 0 && due <= now {
		s.Timeout(now)
	}
	s.Ack(now, r.Next(), 256)
	r.Acked()
	return now
}

func TestNothingAllocates(t *testing.T) {
	s, r := NewSender(1, 256), NewReceiver(1, 256)
	now := int64(1)
	for _, lose := range []bool{false, true} {
		if n := testing.AllocsPerRun(100, func() { now = turn(s, r, now, lose) }); n != 0 {
			t.Errorf("losing %v: %v allocations", lose, n)
		}
	}
	nstest.ErrorIf(t, !s.Idle() || s.Stats().Resent == 0, "idle %v, %+v", s.Idle(), s.Stats())
	now = 1
	dead := NewSender(1, 256)
	dead.Send(now, 0, 1)
	if n := testing.AllocsPerRun(100, func() {
		if seq, probe := dead.Timeout(dead.Deadline()); probe {
			dead.Resent(now, seq)
		}
	}); n != 0 {
		t.Errorf("time-out: %v allocations", n)
	}
}

// The first retransmissions of a connection allocate nothing: there is room for all frames in flight.
func TestFirstRetransmissionsAllocateNothing(t *testing.T) {
	const runs, frames, rounds = 10, 2 * leastPlaces, 3
	var fresh [1 + runs]*Sender
	for i := range fresh {
		fresh[i] = NewSender(1, MaxWindow)
		for range frames {
			fresh[i].Send(1, 0, 1)
		}
	}
	next := 0
	if n := testing.AllocsPerRun(runs, func() {
		s := fresh[next]
		next++
		for i := range rounds * frames {
			s.Resent(int64(2+i), uint32(1+i%frames))
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for _, s := range fresh {
		nstest.ErrorIf(t, s.Stats().Resent != rounds*frames, "%+v", s.Stats())
	}
}

// BenchmarkFrame is the cost of one frame at both ends together.
func BenchmarkFrame(b *testing.B) {
	for name, lose := range map[string]bool{"in order": false, "one of 16 lost": true} {
		b.Run(name, func(b *testing.B) {
			s, r := NewSender(1, 256), NewReceiver(1, 256)
			now := int64(1)
			b.ReportAllocs()
			for i := 0; i < b.N; i += 16 {
				now = turn(s, r, now, lose)
			}
		})
	}
}

// BenchmarkWideRecovery is one acknowledgement in the worst case: the first of
// MaxWindow frames is missing and the rest is held.
func BenchmarkWideRecovery(b *testing.B) {
	s := NewSender(1, MaxWindow)
	s.cwnd = s.most
	for i := range MaxWindow {
		s.Send(1, uint64(i), 1)
	}
	s.AckRange(20_000, 2, MaxWindow+1)
	for b.Loop() {
		s.AckRange(20_000, 2, MaxWindow+1)
		s.DetectLosses(20_000)
	}
}

// BenchmarkHostileRanges is one acknowledgement of a peer that wants to cost time: 32 ranges,
// each of all frames but the first.
func BenchmarkHostileRanges(b *testing.B) {
	s := NewSender(1, MaxWindow)
	s.cwnd = s.most
	for i := range MaxWindow {
		s.Send(1, uint64(i), 1)
	}
	ranges := hostileRanges()
	for b.Loop() {
		s.AckRanges(20_000, 1, ranges[:])
		s.DetectLosses(20_000)
	}
}

// What a connection costs that sends little, however large its window is: less than 4 KB. After a burst it costs what
// the burst took.
func TestIdleIsSmall(t *testing.T) {
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			s, r := NewSender(1, MaxWindow), NewReceiver(1, MaxWindow)
			turn(s, r, 1, false)
		}
	})
	n := r.AllocedBytesPerOp()
	nstest.ErrorIf(t, n > 4<<10, "a connection of small frames takes %d bytes", n)
	s := NewSender(1, MaxWindow)
	s.cwnd = s.most
	for range 1000 {
		s.Send(1, 0, 1)
	}
	nstest.ErrorIf(t, len(s.frames) != 1024, "room for %d frames, 1000 are outstanding", len(s.frames))
}
