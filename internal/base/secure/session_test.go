package secure

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// packet is a sealed one on its way.
type packet struct {
	sealed, clear, plain []byte
	epoch                uint16
	number               uint64
}

func sealOne(s *Session, plain []byte) packet {
	epoch, number := s.Next()
	clear := []byte{byte(epoch), byte(number)}
	return packet{s.Seal(nil, plain, clear), clear, plain, epoch, number}
}

func (p packet) open(s *Session) ([]byte, error) {
	b := bytes.Clone(p.sealed)
	err := s.Open(b, p.clear, p.epoch, p.number)
	return b[:len(b)-TagLen], err
}

// Through loss, reordering, repetition and changes of the key, a packet is opened
// once or, when it is too old, not at all: against a list of what was opened.
func TestSession(t *testing.T) {
	k := newPSK(t, 0)
	changes := 0 // of the key, in all sessions
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Frames: uint64(rapid.IntRange(1, 50).Draw(t, "frames")), Bytes: uint64(rapid.IntRange(1, 2000).Draw(t, "bytes"))}
		a, b := shake(t, k, limits)
		opened := map[uint64]bool{}
		var ways []packet
		top, epoch := uint64(0), uint16(0)
		for i := range rapid.IntRange(1, 300).Draw(t, "packets") {
			p := sealOne(a, bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 100).Draw(t, "length")))
			ways = append(ways, p)
			if rapid.IntRange(0, 3).Draw(t, "step") == 0 {
				continue // it is late
			}
			pick := ways[max(0, len(ways)-1-rapid.IntRange(0, 20).Draw(t, "back")):][0]
			got, err := pick.open(b)
			inReach := int16(pick.epoch-epoch) >= -1 && int16(pick.epoch-epoch) <= 1
			switch {
			case opened[pick.number]:
				if err != ErrReplay {
					t.Fatalf("packet %d a second time: %v", pick.number, err)
				}
			case !inReach:
				if err != ErrForged {
					t.Fatalf("packet %d of epoch %d in epoch %d: %v", pick.number, pick.epoch, epoch, err)
				}
			case err != nil:
				t.Fatalf("packet %d of epoch %d: %v; newest %d of %d", pick.number, pick.epoch, err, top, epoch)
			case !bytes.Equal(got, pick.plain):
				t.Fatalf("packet %d: %x, want %x", pick.number, got, pick.plain)
			default:
				opened[pick.number] = true
				top = max(top, pick.number)
				if pick.epoch != epoch && int16(pick.epoch-epoch) > 0 {
					epoch = pick.epoch
					changes++
				}
			}
		}
	})
	nstest.ErrorIf(t, changes == 0, "no key has changed")
}

// The key changes by frames and by bytes, and never with it the numbering.
func TestRekey(t *testing.T) {
	for name, c := range map[string]struct {
		l       Limits
		size    int
		changes uint16
	}{
		"frames": {Limits{Frames: 10}, 100, 9}, "bytes": {Limits{Bytes: 1000}, 100, 9}, "neither": {Limits{}, 100, 0},
	} {
		a, b := shake(t, newPSK(t, 0), c.l)
		for i := range 100 {
			p := sealOne(a, make([]byte, c.size))
			nstest.FatalIf(t, p.number != uint64(i), "%s: number %d, want %d", name, p.number, i)
			if _, err := p.open(b); err != nil {
				t.Fatalf("%s: packet %d: %v", name, i, err)
			}
		}
		if a.Epoch() != c.changes || b.in.current.epoch != c.changes || b.Epoch() != 0 {
			t.Errorf("%s: epochs %d, %d, want %d; back %d", name, a.Epoch(), b.in.current.epoch, c.changes, b.Epoch())
		}
	}
	// 65536 changes: the epoch's number begins again.
	a, b := shake(t, newPSK(t, 0), Limits{Frames: 1})
	for i := range 1<<16 + 10 {
		if _, err := sealOne(a, nil).open(b); err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
	}
}

// Only the peer's packets open, and a packet that does not open changes nothing.
func TestForged(t *testing.T) {
	a, b := shake(t, newPSK(t, 0), Limits{Frames: 4})
	c, _ := shake(t, newPSK(t, 0), Limits{}) // another connection by the same key
	plain := []byte("the packet's bytes")
	good := sealOne(a, plain)
	back := sealOne(b, plain)
	stranger := sealOne(c, plain)
	change := func(f func(p *packet)) packet {
		p := good
		p.sealed, p.clear = bytes.Clone(p.sealed), bytes.Clone(p.clear)
		f(&p)
		return p
	}
	for name, p := range map[string]packet{
		"a bit":              change(func(p *packet) { p.sealed[3] ^= 4 }),
		"the tag":            change(func(p *packet) { p.sealed[len(p.sealed)-1] ^= 1 }),
		"the part in clear":  change(func(p *packet) { p.clear[0] ^= 1 }),
		"the number":         change(func(p *packet) { p.number++ }),
		"the highest number": change(func(p *packet) { p.number = 1<<64 - 1 }),
		"the next epoch":     change(func(p *packet) { p.epoch++ }),
		"a far epoch":        change(func(p *packet) { p.epoch += 1000 }),
		"the last epoch":     change(func(p *packet) { p.epoch-- }),
		"the length":         change(func(p *packet) { p.sealed = p.sealed[:len(p.sealed)-1] }),
		"turned back":        back,
		"other connection":   stranger,
	} {
		nstest.Equal(t, name, nstest.Err(p.open(b)), ErrForged)
	}
	nstest.Equal(t, "nothing at all", b.Open(nil, nil, 0, 5), ErrForged)
	if got, err := good.open(b); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("the good one behind them: %q, %v", got, err)
	}
	nstest.Equal(t, "a second time", nstest.Err(good.open(b)), ErrReplay)
}

// The window against a set.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		came, top := map[uint64]bool{}, uint64(0)
		at := rapid.Uint64Max(1<<40).Draw(t, "start")
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				at += rapid.Uint64Max(3*Window).Draw(t, "jump")
			case 1:
				at -= min(at, rapid.Uint64Max(2*Window).Draw(t, "back"))
			default:
				at += rapid.Uint64Max(3).Draw(t, "on")
			}
			fresh := w.fresh(at)
			if came[at] && fresh {
				t.Fatalf("%d came before, newest %d", at, top)
			}
			if !came[at] && at+Window >= top && !fresh {
				t.Fatalf("%d is refused, newest %d", at, top)
			}
			if fresh {
				w.take(at)
				came[at] = true
				top = max(top, at)
				if w.fresh(at) {
					t.Fatalf("%d can be taken twice", at)
				}
			}
		}
	})
}

// No bytes bring Open down, and none are taken.
func FuzzOpen(f *testing.F) {
	a, b := shake(f, newPSK(f, 0), Limits{})
	p := sealOne(a, []byte("plain"))
	f.Add(p.sealed, p.clear, p.epoch, p.number+1)
	f.Add([]byte{}, []byte{}, uint16(1), uint64(1)<<63)
	f.Fuzz(func(t *testing.T, sealed, clear []byte, epoch uint16, number uint64) {
		nstest.FatalIf(t, b.Open(bytes.Clone(sealed), clear, epoch, number) == nil && !bytes.Equal(sealed, p.sealed),
			"a forged packet was opened")
	})
}

func TestNoAllocation(t *testing.T) {
	a, b := shake(t, newPSK(t, 0), Limits{})
	plain, clear := make([]byte, 1400), make([]byte, 24)
	sealed := make([]byte, 0, len(plain)+TagLen)
	if n := testing.AllocsPerRun(200, func() {
		epoch, number := a.Next()
		nstest.Must(t, b.Open(a.Seal(sealed, plain, clear), clear, epoch, number))
		if b.Open(sealed[:len(plain)+TagLen], clear, epoch, number) != ErrReplay {
			t.Fatal("a replay was opened")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{112, 1472, 4000, 65000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, _ := shake(b, newPSK(b, 0), Limits{})
			buf, plain, clear := make([]byte, 0, size+TagLen), make([]byte, size), make([]byte, 24)
			b.SetBytes(int64(size))
			for b.Loop() {
				s.Next()
				s.Seal(buf, plain, clear)
			}
		})
	}
}

func BenchmarkHandshake(b *testing.B) {
	k := newPSK(b, 0)
	for b.Loop() {
		shake(b, k, Limits{})
	}
}
