package mvich

import (
	"errors"
	"fmt"
	"slices"
)

// Special ranks and tags, and bounds.
const (
	AnySource = -1 // a receive takes messages of every rank
	AnyTag    = -1 // and with every tag
	ProcNull  = -2 // no rank: sends and receives complete at once, without data

	MaxTag     = 1 << 30
	MaxMessage = 1<<31 - 1 // bytes of a message at most: what an int holds anywhere
)

// Status describes the message that a receive got.
type Status struct {
	Source    int // rank in the communicator
	Tag       int
	Bytes     int // in the buffer; of the message where it was probed
	Size      int // of the message in bytes: more than Bytes where it was truncated
	Cancelled bool
}

// Count is the number of whole elements of the message.
func Count[T Element](s Status) int { return s.Bytes / sizeOf[T]() }

// Request is a send or receive that was begun. Its methods may be called concurrently; each of them makes progress
// for the whole world.
type Request struct {
	w       *World
	comm    *Comm
	send    bool
	sync    bool // send: completes when it is matched
	awaited bool // send: its call returns when it is complete
	context uint32
	peer    int // rank in the world, or AnySource; or ProcNull
	tag     int
	buf     []byte
	unpack  func()   // receive: puts what came where it belongs
	scratch *scratch // that buf is in, if any

	done      bool
	err       error
	cancelled bool
	abandoned bool // done for the program, while its data still moves

	// Receive: which message it got.
	source, got int
	size        int // bytes that move; of a send, too
	room        int // bytes of the buffer
	whole       int // bytes of the message

	// Rendezvous.
	number    uint32   // in World.numbered, 0: not there
	offered   Protocol // send: what was offered to the peer; Eager: all was sent, and only done is outstanding
	remote    offer
	partner   uint32 // number of the other side's request
	reg       *registration
	right     right // that it pins reg with
	begun     int   // bytes in operations that were posted
	moved     int   // bytes that have moved
	truncated error // what the receive will complete with
	held      bool  // in held of its link
}

// fresh takes a request of the spare ones, for a call that waits for it and gives it back by recycle.
func (w *World) fresh() *Request {
	if n := len(w.spare); n > 0 {
		r := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return r
	}
	return &Request{}
}

func (w *World) recycle(r *Request) {
	if r.abandoned {
		return
	}
	*r = Request{}
	w.spare = append(w.spare, r)
}

// complete ends a request, once. No more data moves for it. Of an abandoned request, whose outcome the program already
// has, it releases what was kept for its data.
func (w *World) complete(r *Request, err error) {
	if r.done && !r.abandoned {
		return
	}
	if r.number != 0 {
		delete(w.numbered, r.number)
		r.number = 0
	}
	w.unregister(r)
	failed := err != nil && !errors.Is(err, ErrTruncated)
	if r.unpack != nil && !failed && !r.cancelled && !r.abandoned {
		r.unpack()
	}
	if r.scratch != nil {
		w.putScratch(r.scratch, failed)
	}
	r.buf, r.unpack, r.scratch = nil, nil, nil
	if !r.abandoned {
		r.done, r.err = true, err
		w.announce()
	}
}

// register has r pin a registration of buf, which peers have that right to until unregister.
func (w *World) register(r *Request, buf []byte, need right) (err error) {
	if r.reg, err = w.regs.acquire(buf, need); err == nil {
		r.right = need
	}
	return err
}

func (w *World) unregister(r *Request) {
	if r.reg != nil {
		w.regs.release(r.reg, r.right)
		r.reg = nil
	}
}

// abandon completes a request for the program. What a live peer has begun with it runs to its end, without the
// program's buffer unless RDMA uses it.
func (w *World) abandon(r *Request, err error) {
	if !r.done {
		r.done, r.err, r.abandoned = true, err, true
		w.announce()
	}
}

// giveUp ends a receive that no call will wait for: at once, unless RDMA moves data to the program's buffer. A live rank may
// begin to write at any time once it knows the buffer.
func (r *Request) giveUp(err error) {
	switch w := r.w; {
	case w.withdraw(r):
		w.complete(r, err)
	case r.reg != nil && r.scratch == nil:
		r.wait()
	default:
		w.abandon(r, err)
	}
}

// assign gives r a number that packets can name.
func (w *World) assign(r *Request) {
	for {
		w.lastNumber++
		if _, used := w.numbered[w.lastNumber]; !used && w.lastNumber != 0 {
			break
		}
	}
	r.number = w.lastNumber
	w.numbered[r.number] = r
}

// status is the Status of a completed request.
func (r *Request) status() Status {
	switch {
	case r.send:
		return Status{}
	case r.cancelled:
		return Status{Source: AnySource, Tag: AnyTag, Cancelled: true}
	case r.peer == ProcNull:
		return Status{Source: ProcNull, Tag: AnyTag}
	}
	return Status{Source: r.comm.rankOf(r.source), Tag: r.got, Bytes: r.size, Size: r.whole}
}

// Wait waits until the request is complete. A send is complete when its buffer may be used again. Waiting again gives
// the same answer.
func (r *Request) Wait() (Status, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.wait()
	return r.status(), r.err
}

func (r *Request) wait() { r.w.await(func() bool { return r.done }) }

// Test reports, without waiting, whether the request is complete, and its outcome.
func (r *Request) Test() (s Status, done bool, err error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if !r.done {
		r.w.progress()
	}
	if !r.done {
		return Status{}, false, nil
	}
	return r.status(), true, r.err
}

// Cancel takes back a receive that has no message yet: it completes, and its Status says so. False: it has one, or is
// complete, or is a send.
func (r *Request) Cancel() bool {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.withdraw(r) {
		return false
	}
	r.cancelled = true
	w.complete(r, nil)
	return true
}

// WaitAll waits for all requests; nil ones are passed over. The error joins those of all, each with the place of its
// request.
func WaitAll(requests ...*Request) error {
	var errs []error
	for i, r := range requests {
		if r == nil {
			continue
		}
		if _, err := r.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("request %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// WaitAny waits until one of the requests is complete, which it replaces by nil; i is its place. nil ones are passed
// over; when all are, i is -1.
func WaitAny(requests []*Request) (i int, s Status, err error) { return takeOne(requests, true) }

// TestAny is WaitAny without waiting: i is -1 when none is complete, and also, for ever, when all are nil.
func TestAny(requests []*Request) (i int, s Status, err error) { return takeOne(requests, false) }

func takeOne(requests []*Request, wait bool) (i int, s Status, err error) {
	w, err := worldOf(requests)
	if w == nil {
		return -1, Status{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i = w.firstDone(requests, wait); i >= 0 {
		s, err = take(requests, i)
	}
	return i, s, err
}

// Outcome is what became of one request of several.
type Outcome struct {
	Index  int // its place
	Status Status
	Err    error
}

// WaitSome waits until at least one of the requests is complete, and takes all that are, replacing them by nil.
// Without any but nil ones it returns none.
func WaitSome(requests []*Request) ([]Outcome, error) { return takeAll(requests, true) }

// TestSome is WaitSome without waiting: it returns none when none is complete, and also, for ever, when all are nil.
func TestSome(requests []*Request) ([]Outcome, error) { return takeAll(requests, false) }

func takeAll(requests []*Request, wait bool) (all []Outcome, err error) {
	w, err := worldOf(requests)
	if w == nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firstDone(requests, wait)
	for i, r := range requests {
		if r != nil && r.done {
			s, err := take(requests, i)
			all = append(all, Outcome{i, s, err})
		}
	}
	return all, nil
}

// TestAll reports, without waiting, whether all requests are complete; if so the error is as WaitAll's.
func TestAll(requests ...*Request) (bool, error) {
	w, err := worldOf(requests)
	if w == nil {
		return err == nil, err
	}
	w.mu.Lock()
	w.progress()
	all := true
	for _, r := range requests {
		all = all && (r == nil || r.done)
	}
	w.mu.Unlock()
	if !all {
		return false, nil
	}
	return true, WaitAll(requests...)
}

// worldOf is the world of the requests, nil if there are none.
func worldOf(requests []*Request) (w *World, err error) {
	for _, r := range requests {
		switch {
		case r == nil:
		case w == nil:
			w = r.w
		case w != r.w:
			return nil, ErrMixed
		}
	}
	return w, nil
}

// firstDone is the place of the first that is complete, which it may wait for, or -1.
func (w *World) firstDone(requests []*Request, wait bool) (i int) {
	look := func() bool {
		i = slices.IndexFunc(requests, func(r *Request) bool { return r != nil && r.done })
		return i >= 0
	}
	if wait {
		w.await(look)
	} else {
		w.progress()
		look()
	}
	return i
}

func take(requests []*Request, i int) (Status, error) {
	r := requests[i]
	requests[i] = nil
	return r.status(), r.err
}
