package kagent

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// A number is valid, handed out once at a time, and a freed index comes back
// after all others, with another generation.
func TestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 9).Draw(t, "limit")
		s := NewNumbers(limit)
		live := map[uint32]bool{}    // by number
		taken := map[uint16]bool{}   // by index
		last := map[uint16]uint16{}  // generation of the last use
		freed := map[uint16]uint64{} // when it was freed, 0: never used
		var clock uint64
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				num, err := s.New()
				if len(live) == limit-1 {
					if !errors.Is(err, ErrNoVI) {
						t.Fatalf("with all in use: %#x, %v", num, err)
					}
					return
				}
				nstest.Must(t, err)
				i := uint16(num)
				if i == 0 || int(i) >= limit || taken[i] || live[num] {
					t.Fatalf("number %#x", num)
				}
				if gen, used := last[i]; used && uint16(num>>16) != gen+1 {
					t.Fatalf("generation %#x after %#x", num>>16, gen)
				}
				for j := uint16(1); int(j) < limit; j++ {
					if !taken[j] && freed[j] < freed[i] {
						t.Fatalf("index %d is used again before %d, which is free for longer", i, j)
					}
				}
				live[num], taken[i], last[i] = true, true, uint16(num>>16)
			},
			"free": func(t *rapid.T) {
				for num := range live {
					if !s.Live(num) || !s.Free(num) {
						t.Fatalf("%#x is not live", num)
					}
					if s.Live(num) || s.Free(num) {
						t.Fatalf("%#x is live after Free", num)
					}
					clock++
					delete(live, num)
					taken[uint16(num)] = false
					freed[uint16(num)] = clock
					return
				}
			},
			"free a stranger": func(t *rapid.T) {
				num := rapid.Uint32().Draw(t, "num")
				if !live[num] && s.Free(num) {
					t.Fatalf("%#x was never handed out", num)
				}
			},
		})
	})
}

// Keys are not 0 and not the same.
func TestKeys(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for range 1000 {
		k := NewKey()
		if seen[k] {
			t.Fatalf("key %#x", k)
		}
		seen[k] = true
	}
}

// Two sets begin with different generations.
func TestNumbersStartAtRandom(t *testing.T) {
	a, b := NewNumbers(64), NewNumbers(64)
	same := 0
	for range 63 {
		x, errx := a.New()
		y, erry := b.New()
		if errx != nil || erry != nil {
			t.Fatal(errx, erry)
		}
		if x == y {
			same++
		}
	}
	if same > 5 {
		t.Errorf("%d of 63 numbers are the same", same)
	}
}

// Take hands out what a former agent has handed out, once, and New does not give it
// again.
func TestTake(t *testing.T) {
	s := NewNumbers(6)
	const taken = 3 | 77<<16
	for _, wrong := range []uint32{0, 6, 77 << 16} {
		if s.Take(wrong) {
			t.Errorf("%#x was taken", wrong)
		}
	}
	if !s.Take(taken) || s.Take(taken) || s.Take(3|78<<16) || !s.Live(taken) || s.Used() != 1 {
		t.Error("index 3 is not taken once")
	}
	seen := map[uint32]bool{3: true}
	for range 4 {
		n, err := s.New()
		if err != nil || seen[n&0xffff] {
			t.Fatalf("%#x, %v: given before", n, err)
		}
		seen[n&0xffff] = true
	}
	if n, err := s.New(); err == nil {
		t.Errorf("%#x is one too many", n)
	}
	if !s.Free(taken) {
		t.Error("it cannot be given back")
	}
	if n, err := s.New(); err != nil || n != 3|78<<16 {
		t.Errorf("%#x, %v: want the next generation of index 3", n, err)
	}
}
