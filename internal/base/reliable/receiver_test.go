package reliable

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// The Receiver agrees with a set of numbers that arrived.
func TestReceiverAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-100, 1<<32-1)).Draw(t, "first")
		window := rapid.IntRange(1, 100).Draw(t, "window")
		r := NewReceiver(first, window)
		size := uint32(roundUp(window))
		next, unacked := first, 0
		top, row := first, 0 // one past the latest gap's last frame; frames in a row behind the gap
		late := 0            // late frames in a row
		buffered := map[uint32]uint64{}
		newest := first // the frame that was kept last
		var want ReceiverStats
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				seq := next + uint32(rapid.IntRange(-10, int(size)+10).Draw(t, "ahead"))
				if rapid.IntRange(0, 20).Draw(t, "anywhere") == 0 {
					seq = rapid.Uint32().Draw(t, "seq")
				}
				ahead := seq - next
				_, here := buffered[seq]
				again := rapid.Bool().Draw(t, "again")
				verdict, urgent, news := OutOfOrder, r.Urgent(), true
				fills := func() {
					news = late < 8 || again
					if late++; again {
						late = 0
					}
				}
				switch {
				case int32(ahead) < 0 || here:
					verdict = Duplicate
					want.Duplicate++
				case ahead >= size:
					verdict = OutsideWindow
					want.OutsideWindow++
				case ahead == 0:
					verdict = InOrder
					want.InOrder++
					if news = len(buffered) > 0; news {
						fills()
					}
				default:
					want.OutOfOrder++
					unacked++
					switch {
					case len(buffered) > 0 && seq == top:
						top++
						row++
						news = again || late < 8 && row <= 3
					case len(buffered) == 0 || int32(seq-top) > 0:
						top, row = seq+1, 1
						news = again || late < 8
					default:
						fills()
					}
				}
				if got := r.Arrive(seq, again); got != verdict {
					t.Fatalf("frame %d at %d: verdict %d, want %d", seq, next, got, verdict)
				}
				if r.Urgent() != (urgent || news) {
					t.Fatalf("urgent %v after verdict %d", r.Urgent(), verdict)
				}
				if here {
					newest = seq
				}
				switch verdict {
				case OutOfOrder:
					if rapid.IntRange(0, 9).Draw(t, "no memory") > 0 {
						tag := rapid.Uint64().Draw(t, "tag")
						r.Buffer(seq, tag)
						buffered[seq] = tag
						newest = seq
					}
				case InOrder:
					next++
					unacked++
				}
				for {
					tag, ok := r.Pop()
					expect, there := buffered[next]
					if ok != there || tag != expect {
						t.Fatalf("popped %d, %v at %d, want %d, %v", tag, ok, next, expect, there)
					}
					if !ok {
						break
					}
					delete(buffered, next)
					next++
					unacked++
				}
			},
			"acknowledge": func(*rapid.T) {
				r.Acked()
				unacked = 0
			},
			"ask": func(*rapid.T) { r.AskUrgent() },
			"": func(t *rapid.T) {
				if r.Next() != next || r.Buffered() != len(buffered) || r.Unacked() != unacked || r.Stats() != want {
					t.Fatalf("next %d, held %d, unacked %d, %+v; want %d, %d, %d, %+v",
						r.Next(), r.Buffered(), r.Unacked(), r.Stats(), next, len(buffered), unacked, want)
				}
				out := make([]Range, rapid.IntRange(0, 40).Draw(t, "room for ranges"))
				got := out[:r.Ranges(out)]
				model := runs(buffered, next, size)
				if len(got) != min(len(out), len(model)) || len(got) == len(model) && !slices.Equal(got, model) {
					t.Fatalf("ranges %v, want %d of %v", got, len(out), model)
				}
				_, here := buffered[newest]
				for _, g := range got {
					i := slices.Index(model, g)
					if i < 0 {
						t.Fatalf("range %v is not among %v, or not in order", g, model)
					}
					model = model[i+1:]
					here = here && (before(newest, g.Start) || !before(newest, g.End))
				}
				if here && len(got) > 0 {
					t.Fatalf("frame %d came last, and is not in %v", newest, got)
				}
			},
		})
		for range len(buffered) {
			tag, ok := r.Drain()
			i := slices.Index(values(buffered), tag)
			if !ok || i < 0 {
				t.Fatalf("drained %d, %v, which is not held", tag, ok)
			}
		}
		if _, ok := r.Drain(); ok || r.Buffered() != 0 {
			t.Fatalf("more than %d drained", len(buffered))
		}
	})
}

func values(m map[uint32]uint64) (v []uint64) {
	for _, tag := range m {
		v = append(v, tag)
	}
	return v
}

// runs are all runs of a set.
func runs(buffered map[uint32]uint64, next, size uint32) (out []Range) {
	for i := range size {
		seq := next + i
		if _, ok := buffered[seq]; !ok {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == seq {
			out[n-1].End++
		} else {
			out = append(out, Range{seq, seq + 1})
		}
	}
	return out
}

// Where gaps are filled by frames that are only late, neither a gap nor its end is news,
// until one is filled by a frame that is sent again.
func TestLateFramesAreNoNews(t *testing.T) {
	r := NewReceiver(1, 8)
	gap := func(again bool) (told [3]bool) {
		missing := r.Next()
		for i := range told {
			r.Arrive(missing+1+uint32(i), false)
			r.Buffer(missing+1+uint32(i), 0)
			told[i] = r.Urgent()
			r.Acked()
		}
		r.Arrive(missing, again)
		for ok := true; ok; {
			_, ok = r.Pop()
		}
		nstest.ErrorIf(t, told[0] != r.Urgent() && !again, "a gap is told %v, its end %v", told[0], r.Urgent())
		nstest.ErrorIf(t, again && !r.Urgent(), "nothing is told of a frame that was sent again")
		r.Acked()
		return told
	}
	row := slices.Repeat([]bool{false}, lateRow)
	after := 0
	for n, again := range slices.Concat(row[1:], []bool{true}, row, row, []bool{true}, row[1:]) {
		if told, news := gap(again), after < lateRow; told != [3]bool{news, news, news} {
			t.Errorf("gap %d, %d late frames in a row: told at once %v, want %v", n, after, told, news)
		}
		if after++; again {
			after = 0
		}
	}
}

// While a frame is missing, the frames behind it are not all acknowledged at once: three are, so that the loss
// is detected, and the later ones as often as without a loss.
func TestGapIsNotToldForEachFrame(t *testing.T) {
	r := NewReceiver(1, 256)
	told := 0
	for seq := uint32(2); seq < 102; seq++ {
		nstest.FatalIf(t, r.Arrive(seq, false) != OutOfOrder, "frame %d is not early", seq)
		r.Buffer(seq, 0)
		if r.Urgent() || r.Unacked() >= ackEvery {
			told++
			r.Acked()
		}
	}
	want := dupThreshold + 97/ackEvery
	nstest.ErrorIf(t, told != want, "told %d times of 100 frames behind a gap, want %d", told, want)
	r.Arrive(150, false) // a second gap is news
	nstest.ErrorIf(t, !r.Urgent(), "a second gap is not told at once")
	r.Buffer(150, 0)
	r.Acked()
	r.Arrive(1, true)
	nstest.ErrorIf(t, !r.Urgent(), "the end of a gap is not told at once")
}
