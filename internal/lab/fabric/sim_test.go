package fabric

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Events happen in the order of their time, and those of the same time in the order of their creation. That holds within sequences, too, also
// if an event comes before an earlier one of its sequence, and for events that other events make.
func TestOrderOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type happening struct{ at, made int64 }
		var got, want []happening
		s, links := NewSim(1), make([]sequence, 3)
		var add func()
		add = func() {
			h := happening{s.now + rapid.Int64Range(0, 4).Draw(t, "after"), int64(len(want))}
			want = append(want, h)
			do := func() {
				got = append(got, happening{s.now, h.made})
				if len(want) < 60 && rapid.Bool().Draw(t, "another") {
					add()
				}
			}
			if i := rapid.IntRange(0, len(links)).Draw(t, "link"); i < len(links) {
				links[i].at(s, h.at, do)
			} else {
				s.at(h.at, do)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			add()
		}
		s.Run(Second)
		slices.SortFunc(want, func(a, b happening) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.made, b.made)) })
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
