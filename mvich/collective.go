package mvich

import (
	"errors"
	"fmt"
)

// Collective operations are made of messages in a context of their own, whose
// tag is the number of the operation. Each has an algorithm for short data,
// which takes few messages one after the other, and one for long data, which
// moves few bytes through each rank:
//
//	             short                    long
//	Barrier      dissemination
//	Bcast        binomial tree            scatter, then ring
//	Reduce       binomial tree            ring of partial results, then gather
//	AllReduce    recursive doubling       ring of partial results, then ring
//	Gather       binomial tree            each to the root
//	Scatter      binomial tree            the root to each
//	AllGather    Bruck                    ring
//	AllToAll     Bruck                    pairwise exchange
//	Scan         recursive doubling
//
// Data is long from longData bytes on, as each operation counts them; on few
// ranks the simple way is the short one, too.
const (
	longData  = 16 << 10 // bytes
	longBlock = 512      // bytes that one rank has for another, in AllToAll
	fewRanks  = 4
)

// step is one collective operation of this rank.
type step struct {
	c   *Comm
	tag int
}

func (c *Comm) step() step {
	c.turn++
	return step{c: c, tag: c.turn & (MaxTag - 1)}
}

// rank wraps a number around the communicator.
func (s step) rank(i int) int {
	n := s.c.Size()
	return ((i % n) + n) % n
}

// start begins a message of the operation.
func (s step) start(buf []byte, rank int, send bool) *Request {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &Request{}
	s.begin(r, buf, rank, send)
	return r
}

func (s step) begin(r *Request, buf []byte, rank int, send bool) {
	s.c.begin(r, buf, s.c.context+1, rank, s.tag)
	r.send = send
	if err := checkLength(len(buf)); err != nil {
		s.c.w.complete(r, err)
		return
	}
	if send {
		s.c.w.startSend(r)
	} else {
		s.c.w.startRecv(r)
	}
}

// finish waits for what start began. Exactly as much as was asked for must
// come.
func (s step) finish(requests ...*Request) error {
	var errs []error
	for _, r := range requests {
		_, err := r.Wait()
		errs = append(errs, lengthError(err, r, r.room))
	}
	return errors.Join(errs...)
}

func lengthError(err error, r *Request, want int) error {
	if errors.Is(err, ErrTruncated) || err == nil && r.size != want {
		return fmt.Errorf("%w: %d bytes came, not %d", ErrCount, max(r.size, r.whole), want)
	}
	return err
}

// move does one message and waits for it, without a request of its own.
func (s step) move(buf []byte, rank int, send bool) error {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.fresh()
	defer w.recycle(r)
	s.begin(r, buf, rank, send)
	r.wait()
	return lengthError(r.err, r, len(buf))
}

func (s step) send(buf []byte, to int) error   { return s.move(buf, to, true) }
func (s step) recv(buf []byte, from int) error { return s.move(buf, from, false) }

// exchange sends to one rank and receives from another at once.
func (s step) exchange(out []byte, to int, in []byte, from int) error {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r, x := w.fresh(), w.fresh()
	defer w.recycle(r)
	defer w.recycle(x)
	s.begin(r, in, from, false)
	s.begin(x, out, to, true)
	x.wait()
	r.wait()
	return errors.Join(lengthError(x.err, x, len(out)), lengthError(r.err, r, len(in)))
}

// Barrier waits until all ranks have called it. In round i each tells the rank
// 2^i ahead, so that after the last one it has heard of all.
func (c *Comm) Barrier() error {
	s := c.step()
	for k := 1; k < c.Size(); k *= 2 {
		if err := s.exchange(nil, s.rank(c.rank+k), nil, s.rank(c.rank-k)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Comm) checkRoot(root int) error {
	if root < 0 || root >= c.Size() {
		return fmt.Errorf("%w: root %d of %d", ErrRank, root, c.Size())
	}
	return nil
}

// blocks cuts n into as many parts as there are ranks, the first ones one
// longer where it does not come out even.
type blocks struct{ n, parts int }

func (b blocks) start(i int) int { return i*(b.n/b.parts) + min(i, b.n%b.parts) }

func (b blocks) of(buf []byte, size, i int) []byte {
	return buf[b.start(i)*size : b.start(i+1)*size]
}
