package mvich_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Memory of the arena carries messages as any other does, of which parts may be sent; it stays while it is in use,
// and does not count among what is registered.
func TestAlloc(t *testing.T) {
	j := newJob(t, 2, jobConfig{options: with(mvich.WithRegistered(1 << 20))})
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
		get(c.Sendrecv(out, other, 1, in, other, 1))
		must(check(in, other))
		if s := w.Stats(); s.RegisteredBytes != 0 || s.Registered != 0 {
			return fmt.Errorf("memory of the arena was registered: %+v", s)
		}
		r := get(c.Isend(out, other, 2))
		if err := w.Free(buf); !errors.Is(err, mvich.ErrBusy) {
			return fmt.Errorf("freed while it is sent: %v", err)
		}
		copyOf := bytes.Clone(in)
		get(c.Recv(copyOf, other, 2))
		must(mvich.WaitAll(r))
		must(w.Free(buf))
		if err := w.Free(buf); !errors.Is(err, mvich.ErrMemory) {
			return fmt.Errorf("freed twice: %v", err)
		}
		if _, err := w.Alloc(1 << 30); !errors.Is(err, vipl.ErrResource) {
			return fmt.Errorf("more than the arena has: %v", err)
		}
		return errOf(w.Alloc(n)) // Finalize takes it back
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

// Memory that a message will yet use is not freed, whichever way the message goes: what comes would be written over
// what is there by then.
func TestFreeInUse(t *testing.T) {
	j := newJob(t, 2, jobConfig{options: with(mvich.WithProtocol(mvich.R3))})
	const n = 20000
	each(t, 2, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		if rank == 1 {
			_, err := c.Recv(nil, 0, 2)
			if err == nil {
				_, err = c.Recv(make([]byte, n), 0, 1)
			}
			return err
		}
		buf := get(w.Alloc(2 * n))
		for name, begin := range map[string]func() (*mvich.Request, error){
			"a receive":                 func() (*mvich.Request, error) { return c.Irecv(buf[n:], 0, 7) },
			"a message to another rank": func() (*mvich.Request, error) { return c.Isend(buf[n:], 1, 1) },
			"a message to this rank":    func() (*mvich.Request, error) { return c.Issend(buf[n:], 0, 7) },
		} {
			r := get(begin())
			for range 2 {
				if err := w.Free(buf); !errors.Is(err, mvich.ErrBusy) {
					return fmt.Errorf("freed with %s under way: %v", name, err)
				}
				if name != "a message to another rank" {
					break
				}
				if _, _, err := c.Iprobe(1, 7); err != nil { // so that its request goes
					return err
				}
			}
			switch name {
			case "a receive":
				r.Cancel()
			case "a message to another rank":
				must(c.Send(nil, 1, 2))
			default:
				get(c.Recv(make([]byte, n), 0, 7))
			}
			must(mvich.WaitAll(r))
		}
		return w.Free(buf)
	})
}
