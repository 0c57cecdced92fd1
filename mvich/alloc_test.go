package mvich_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Memory of the arena carries messages as any other does, of which parts may be
// sent; it stays while it is in use, and does not count among what is registered.
func TestAlloc(t *testing.T) {
	j := newJob(t, 2, jobConfig{options: func(int) []mvich.Option {
		return []mvich.Option{mvich.WithRegistered(1 << 20)}
	}})
	const n = 300_000
	each(t, 2, func(rank int) error {
		w := j.worlds[rank]
		c, other := w.Comm(), 1-rank
		buf, err := w.Alloc(2 * n)
		if err != nil || len(buf) != 2*n {
			return fmt.Errorf("%d bytes, %w", len(buf), err)
		}
		out, in := buf[:n], buf[n:]
		fill(out, rank)
		if _, err := c.Sendrecv(out, other, 1, in, other, 1); err != nil {
			return err
		}
		if err := check(in, other); err != nil {
			return err
		}
		if s := w.Stats(); s.RegisteredBytes != 0 || s.Registered != 0 {
			return fmt.Errorf("memory of the arena was registered: %+v", s)
		}
		r, err := c.Isend(out, other, 2)
		if err != nil {
			return err
		}
		if err := w.Free(buf); !errors.Is(err, mvich.ErrBusy) {
			return fmt.Errorf("freed while it is sent: %v", err)
		}
		copyOf := bytes.Clone(in)
		if _, err := c.Recv(copyOf, other, 2); err != nil {
			return err
		}
		if err := mvich.WaitAll(r); err != nil {
			return err
		}
		if err := w.Free(buf); err != nil {
			return err
		}
		if err := w.Free(buf); !errors.Is(err, mvich.ErrMemory) {
			return fmt.Errorf("freed twice: %v", err)
		}
		if _, err := w.Alloc(1 << 30); !errors.Is(err, vipl.ErrResource) {
			return fmt.Errorf("more than the arena has: %v", err)
		}
		_, err = w.Alloc(n) // Finalize takes it back
		return err
	})
}

// Where the NIC's arena is full, packets lie in the program's memory.
func TestArenaFull(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	each(t, 2, func(rank int) error {
		for n := 4 << 20; n >= 4096; n /= 2 {
			for {
				if _, err := j.worlds[rank].Alloc(n); errors.Is(err, vipl.ErrResource) {
					break
				} else if err != nil {
					return err
				}
			}
		}
		return nil
	})
	j.run(t, swapSizes)
	j.spotless(t, mvich.DefaultCredits)
}
