package torture

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawHead(t *rapid.T) head {
	return head{
		kind: kind(rapid.IntRange(int(kindHello), int(kindBye)).Draw(t, "kind")), seq: rapid.Uint64().Draw(t, "seq"),
		taken: rapid.Uint64().Draw(t, "taken"), session: rapid.Uint64().Draw(t, "session"),
		handle: rapid.Uint32().Draw(t, "handle"), source: rapid.Uint32().Draw(t, "source"),
		slots: rapid.Uint64().Draw(t, "slots"), from: rapid.Uint64().Draw(t, "from"),
	}
}

// A message that was not touched is read as it was written; one of which a byte
// of the pattern, or the length, was changed is found out.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawHead(t)
		b := make([]byte, headLen+rapid.IntRange(0, 3000).Draw(t, "more"))
		want.fill(b)
		var got head
		if err := got.parse(b); err != nil || got != want {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
		if messageLen(b) != len(b) {
			t.Fatalf("%d bytes are said to be %d", len(b), messageLen(b))
		}
		if got.parse(b[:len(b)-1]) == nil {
			t.Fatal("a message that was cut off is accepted")
		}
		if len(b) == headLen {
			return
		}
		at := rapid.IntRange(headLen, len(b)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got.parse(b) == nil {
			t.Fatalf("byte %d of %d is wrong and nobody said so", at, len(b))
		}
	})
}

// Any part of a pattern that begins with a word is checked as the whole is.
func TestPatternParts(t *testing.T) {
	whole := make([]byte, 1000)
	fillPattern(whole, 99)
	for _, c := range []struct{ first, n int }{{0, 1000}, {0, 0}, {1, 1}, {3, 971}, {124, 8}, {125, 0}} {
		part := bytes.Clone(whole[8*c.first:][:c.n])
		if at, ok := checkPatternAt(part, 99, uint64(c.first)); !ok {
			t.Errorf("%+v: byte %d is said to be wrong", c, at)
		}
		if c.n == 0 {
			continue
		}
		part[c.n-1]++
		if at, ok := checkPatternAt(part, 99, uint64(c.first)); ok || at != c.n-1 {
			t.Errorf("%+v: byte %d is wrong, not %d", c, c.n-1, at)
		}
		part[c.n-1]--
		if _, ok := checkPatternAt(part, 99, uint64(c.first)+1); ok {
			t.Errorf("%+v: a part from another place is accepted", c)
		}
	}
}

// The judge of a flow finds messages that are doubled, left out, of another
// incarnation, or too late.
func TestJudge(t *testing.T) {
	reliable, unreliable := FlowConfig{Level: 2}, FlowConfig{Level: 1}
	for _, c := range []struct {
		name string
		cfg  FlowConfig
		do   func(f *flow)
		want string // "": all is well
	}{
		{"in order", reliable, func(f *flow) { f.numbered(0); f.numbered(1) }, ""},
		{"doubled", reliable, func(f *flow) { f.numbered(0); f.numbered(0) }, "message 0 came, 1 was due"},
		{"left out", reliable, func(f *flow) { f.numbered(1) }, "message 1 came, 0 was due"},
		{"left out, which may be", unreliable, func(f *flow) { f.numbered(5) }, ""},
		{"doubled, which may not be", unreliable, func(f *flow) { f.numbered(5); f.numbered(5) }, "message 5 came, 6 was due"},
		{"after the last", reliable, func(f *flow) { f.finalCame = true; f.numbered(0) }, "after the last"},
		{"another incarnation", reliable, func(f *flow) {
			f.known(&head{kind: kindHello, session: 7})
			f.known(&head{kind: kindData, session: 8})
		}, errSession.Error()},
		{"the former incarnation", reliable, func(f *flow) {
			f.last = 7
			f.known(&head{kind: kindHello, session: 7})
		}, errSession.Error()},
		{"no hello", reliable, func(f *flow) { f.known(&head{kind: kindData, session: 7}) }, "first message"},
		{"credit for nothing", reliable, func(f *flow) { f.known(&head{kind: kindHello, session: 7, taken: 1}) }, "taken 1 messages of 0"},
	} {
		f := &flow{cfg: c.cfg, disc: []byte("f")}
		c.do(f)
		got := strings.Join(f.n.Violations, "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Immediate data has the low half of a number, also where that wraps.
func TestWholeNumbers(t *testing.T) {
	for _, n := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 5<<32 + 3} {
		for d := -5; d <= 5; d++ {
			want := n + uint64(int64(d))
			f := &flow{incarnation: incarnation{expect: n}}
			if got := f.whole(uint32(want)); got != want {
				t.Errorf("due %d: %d is taken for %d", n, want, got)
			}
		}
	}
}
