package vianet

import (
	"errors"

	"viaxdp/vipl"
)

// Stats is what a Stack has counted since New, of connections that have ended, too.
type Stats struct {
	Dialed      uint64 // connections made by Dial and its like
	Accepted    uint64 // connections of listeners
	Refused     uint64 // requests that listeners refused; who dials asks again a few times
	FellBack    uint64 // connections that DialOr made the other way
	Broken      uint64 // connections that ended before this side's Close and the peer's
	Undelivered uint64 // connections that ended after Close, and not all written had got there

	Messages    Traffic // data messages sent
	Ring        Traffic // RDMA writes to a peer's ring
	Read        Traffic // transfers that a peer read
	Written     Traffic // transfers that were written to a peer
	ByReference Traffic // Writes of Ring and Written from memory of Alloc, without a copy
	Received    uint64  // bytes that Reads have given
	Stalls      uint64  // Writes that waited since the peer, whose program did not read, had no room

	Registered, Reused uint64 // the program's buffers registered for transfers; found registered
	NoMemory           uint64 // times that memory could not be had or registered

	Conns           int // now, those that are being made, or are delivering after Close, among them
	RegisteredBytes int // of the program's memory, that no transfer uses now
}

// Traffic is how often and how many bytes.
type Traffic struct{ Times, Bytes uint64 }

func (t *Traffic) count(n int) {
	if n == 0 {
		return
	}
	t.Times++
	t.Bytes += uint64(n)
}

func (t *Traffic) add(o Traffic) {
	t.Times += o.Times
	t.Bytes += o.Bytes
}

// add adds what a connection counts by itself.
func (s *Stats) add(c *Stats) {
	s.Broken += c.Broken
	s.Undelivered += c.Undelivered
	s.Messages.add(c.Messages)
	s.Ring.add(c.Ring)
	s.Read.add(c.Read)
	s.Written.add(c.Written)
	s.ByReference.add(c.ByReference)
	s.Received += c.Received
	s.Stalls += c.Stalls
}

// Stats takes a snapshot.
func (s *Stack) Stats() Stats {
	s.mu.Lock()
	sum := s.counts
	sum.Conns = len(s.conns)
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns { // one that ends meanwhile is not in the sum yet
		c.mu.Lock()
		sum.add(&c.counts)
		c.mu.Unlock()
	}
	r := s.regs
	r.mu.Lock()
	defer r.mu.Unlock()
	sum.Registered, sum.Reused, sum.RegisteredBytes = r.misses, r.hits, r.bytes
	sum.NoMemory = r.failures.Load()
	return sum
}

// count adds one to a counter of the stack's own.
func (s *Stack) count(counter *uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*counter++
}

// failed counts an error for want of memory. It returns the error.
func (r *registry) failed(err error) error {
	if errors.Is(err, vipl.ErrResource) {
		r.failures.Add(1)
	}
	return err
}
