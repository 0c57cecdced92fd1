package xdpnic

import (
	"errors"
	"fmt"
)

// Audit checks that every chunk has exactly one owner and that the sum is
// right: free stack, held, TX, fill, RX lease, recycled. Its error names the
// first wrong use (a chunk released twice, recycled without a lease, completed
// without being sent) and each table that disagrees with the chunks. Its cost is
// proportional to the number of chunks; it is meant for tests and for the end of
// a run.
//
// Owner only.
func (q *Queue) Audit() error {
	p := q.pool
	var errs []error
	if p.wrongs != 0 {
		errs = append(errs, fmt.Errorf("xdpnic: audit: %d wrong uses, the first: %s", p.wrongs, p.wrong))
	}
	var n [numOwners]uint64
	for i, o := range p.own {
		if o >= numOwners || (uint64(i) < p.rx) != (o >= ownFill) && !p.foreign(uint64(i)) {
			errs = append(errs, fmt.Errorf("xdpnic: audit: chunk %d (%d RX, %d TX chunks) has owner %s", i, p.rx, p.tx, o))
			continue
		}
		if !p.foreign(uint64(i)) {
			n[o]++
		}
	}
	check := func(what string, has, want uint64) {
		if has != want {
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: %d, but %d chunks have that owner", what, has, want))
		}
	}
	check("free stack", uint64(p.nfree), n[ownFree])
	check("on the way through TX", p.txOut, n[ownTX]+n[ownKept])
	if p.shared == nil { // else other processes have chunks, see auditShared
		check("recycled or with the kernel for receiving", uint64(p.recycled)+p.filled-p.returned, n[ownFill])
	}
	errs = append(errs, p.auditList("free stack", ownFree, p.free[:p.nfree])...)
	var recycled []uint64
	for _, i := range p.back {
		recycled = append(recycled, p.addr(i))
	}
	for k := range p.recycled - uint32(len(p.back)) {
		recycled = append(recycled, p.fill.addr[(p.fill.head+k)&p.fill.mask])
	}
	errs = append(errs, p.auditList("recycled", ownFill, recycled)...)
	for _, a := range q.extra {
		if err := a.Audit(); err != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", a.cfg.QueueID, err))
		}
	}
	return errors.Join(errs...)
}

// auditList checks that all chunks of a list have the owner o and that none is
// in it twice.
func (p *pool) auditList(what string, o owner, list []uint64) (errs []error) {
	seen := make(map[uint64]bool, len(list))
	for _, addr := range list {
		i := p.chunk(addr)
		switch {
		case i >= uint64(len(p.own)):
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: %#x is no chunk", what, addr))
		case seen[i]:
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: chunk %d twice", what, i))
		case p.own[i] != o:
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: chunk %d has owner %s", what, i, p.own[i]))
		}
		seen[i] = true
	}
	return errs
}

// foreign reports whether chunk i is a TX chunk of another process.
func (p *pool) foreign(i uint64) bool { return i >= p.rx && i-p.txAt >= p.tx }
