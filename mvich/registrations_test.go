package mvich_test

import (
	"testing"

	"viaxdp/mvich"
)

// A buffer that is used again is registered once; parts of it are found in it; and the limit makes room for others.
func TestRegistrationCache(t *testing.T) {
	const size, limit = 100_000, 250_000
	j := newJob(t, 2, jobConfig{options: with(mvich.WithRegistered(limit))})
	buffers := [2][4][]byte{}
	for rank := range buffers {
		for i := range buffers[rank] {
			buffers[rank][i] = make([]byte, size)
		}
	}
	move := func(i, from, to int) mvich.Stats {
		t.Helper()
		j.run(t, func(c *mvich.Comm) error {
			b := buffers[c.Rank()][i][from:to]
			if c.Rank() == 0 {
				fill(b, i)
				return c.Send(b, 1, 0)
			}
			clear(b)
			get(c.Recv(b, 0, 0))
			return check(b, i)
		})
		return j.worlds[0].Stats()
	}
	for range 5 {
		move(0, 0, size)
	}
	if s := move(0, size/2, size); s.Registered != 1 || s.Reused != 5 {
		t.Errorf("one buffer: %d times registered, %d times found", s.Registered, s.Reused)
	}
	move(1, 0, size)
	move(0, 0, size)
	if s := move(2, 0, size); s.Registered != 3 || s.RegisteredBytes != 2*size {
		t.Errorf("three buffers: %d times registered, %d bytes now", s.Registered, s.RegisteredBytes)
	}
	if s := move(0, 0, size); s.Registered != 3 { // the one that was unused for longest had to go, and is not this one
		t.Errorf("the one used last: %d times registered", s.Registered)
	}
	if s := move(1, 0, size); s.Registered != 4 || s.RegisteredBytes > limit {
		t.Errorf("the one used first: %d times registered, %d bytes now", s.Registered, s.RegisteredBytes)
	}
}
