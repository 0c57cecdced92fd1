package bench

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// Streams over one queue and over two at once: messages arrive on each of them,
// at several sizes one after the other, and nothing stays changed.
func TestSpread(t *testing.T) {
	nstest.Require(t)
	procs := runtime.GOMAXPROCS(0)
	for _, queues := range []int{1, 2} {
		s, err := OpenSpread(SpreadConfig{Queues: queues})
		if err != nil {
			t.Fatal(err)
		}
		for _, bytes := range []int{64, 20_000, 1} {
			before := make([]vipl.Counters, queues)
			for i, q := range s.streams {
				before[i] = q.nics[1].Counters()
			}
			r, err := s.Stream(t.Context(), bytes, 20*time.Millisecond)
			if err != nil {
				t.Fatalf("%d queues, %d bytes: %v", queues, bytes, err)
			}
			sum := 0
			for i, q := range s.streams {
				if q.nics[0].Info().NIC.QueueID != i || q.recvs().posted == 0 {
					t.Errorf("stream %d: queue %d, %d receives", i, q.nics[0].Info().NIC.QueueID, q.recvs().posted)
				}
				if q.recvs().out() != 0 || q.sends().out() != 0 {
					t.Errorf("stream %d: %d receives and %d sends left", i, q.recvs().out(), q.sends().out())
				}
				sum += q.counted
				// All has come by the rings of the stream's own queue: none by a lane, and no
				// frame holds more than 1500 bytes.
				now := q.nics[1].Counters()
				frames := now.Frames - before[i].Frames
				if frames == 0 || frames < uint64(q.counted*bytes/1500) || now.UnknownVI > 0 {
					t.Errorf("stream %d: %d messages of %d bytes in %d frames of its queue, %d of others",
						i, q.counted, bytes, frames, now.UnknownVI)
				}
				for side, nic := range q.nics {
					if w, ok := nic.Watch(); !ok || atomic.LoadUint64(w.ShmLinks) != 0 {
						t.Errorf("stream %d, side %d: there is a lane (rings: %v)", i, side, ok)
					}
				}
			}
			if r.Messages != int64(sum) || r.PerSecond <= 0 || r.Least <= 0 || r.Least > r.PerSecond/float64(queues) {
				t.Errorf("%d queues, %d bytes: %+v, counted %d", queues, bytes, r, sum)
			}
		}
		if c := s.Conditions(); c.Mode != "native" || c.MTU != 1500 || s.CPUs() > queues {
			t.Errorf("%d CPUs, %+v", s.CPUs(), c)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if now := runtime.GOMAXPROCS(0); now != procs {
		t.Errorf("GOMAXPROCS %d, was %d", now, procs)
	}
}

// What fails on one queue ends the streams on all, and so does the context.
func TestSpreadFails(t *testing.T) {
	nstest.Require(t)
	open := func() *Spread {
		s, err := OpenSpread(SpreadConfig{Queues: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	s := open()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := s.Stream(ctx, 64, time.Millisecond); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	if _, err := s.Stream(t.Context(), MaxMessage+1, time.Millisecond); err == nil {
		t.Error("messages longer than the memory")
	}
	// The sender's memory is another one than it writes to.
	s = open()
	q := s.streams[0]
	q.memory[0], q.memory[1] = q.memory[1], q.memory[0]
	if _, err := s.Stream(t.Context(), 64, time.Millisecond); !errors.Is(err, vipl.ErrDescriptor) ||
		!strings.Contains(err.Error(), "protection") {
		t.Errorf("foreign memory: %v", err)
	}
}
