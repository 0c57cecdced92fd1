package xdpnic

import "golang.org/x/sys/unix"

// Stats are the counts of a socket since Open, those of receiving with the sockets of Config.ExtraQueues. Filled, Completed and
// ChunkErrors belong to the pool and are the same for all sockets that share
// it. So does the kernel's Rx_fill_ring_empty_descs, also if processes share the queue.
type Stats struct {
	Filled      uint64 // fill ring entries that the kernel has taken; if processes share the queue, those that this one has put there
	Received    uint64 // RX ring entries taken
	Transmitted uint64 // TX ring entries that the kernel has taken
	Completed   uint64 // completion ring entries taken

	TxFrames   uint64 // frames accepted by Send and SendSegs
	TxKicks    uint64 // system calls made to send
	TxAgain    uint64 // kicks that sent only a part (EAGAIN)
	TxNoMemory uint64 // kicks that ended because the kernel was short of memory (ENOBUFS, ENOMEM)
	TxLostBusy uint64 // frames lost (EBUSY): the driver's queue was full, there was no carrier, or the frame was too long
	TxRefused  uint64 // calls of Send and SendSegs refused because they broke a rule

	RxFrames      uint64 // frames handed out by Receive
	RxKicks       uint64 // system calls made by Refill
	RxTooManySegs uint64 // frames dropped because they had more segments than the caller's batch
	RxBadEntries  uint64 // frames dropped because an RX entry named memory that the kernel was not given

	ChunkErrors uint64 // wrong uses of chunks; Audit names the first

	KernelStats unix.XDPStatistics // XDP_STATISTICS
}

// Stats reads the queue's counters and the kernel's. After Close it returns the
// values from just before. Owner only.
func (q *Queue) Stats() (Stats, error) {
	if q.fd < 0 {
		return q.last, nil
	}
	p, s := q.pool, q.n
	s.Filled = p.filled
	if p.shared == nil { // else the ring has entries of other processes
		s.Filled -= uint64(p.fill.left())
	}
	s.Transmitted -= uint64(q.tx.left())
	s.Completed, s.ChunkErrors = p.completed, p.wrongs
	var err error
	if s.KernelStats, err = kernelStats(q.fd); err != nil {
		return s, q.fail("XDP_STATISTICS", err)
	}
	for _, a := range q.extra {
		t, err := a.Stats()
		if err != nil {
			return s, err
		}
		s.addReceived(&t)
	}
	return s, nil
}

// addReceived adds the counts of receiving of another socket, and its wrong uses of chunks.
func (s *Stats) addReceived(t *Stats) {
	s.Filled += t.Filled
	s.Received += t.Received
	s.RxFrames += t.RxFrames
	s.RxKicks += t.RxKicks
	s.RxTooManySegs += t.RxTooManySegs
	s.RxBadEntries += t.RxBadEntries
	s.ChunkErrors += t.ChunkErrors
	k, l := &s.KernelStats, &t.KernelStats
	k.Rx_dropped += l.Rx_dropped
	k.Rx_invalid_descs += l.Rx_invalid_descs
	k.Rx_ring_full += l.Rx_ring_full
	k.Rx_fill_ring_empty_descs += l.Rx_fill_ring_empty_descs
}

// Counter is one count with its name and meaning.
type Counter struct {
	Name    string
	Meaning string
	Value   uint64
	Drop    bool // the count is of frames that did not arrive or were not sent
}

// Each calls f for every counter, in a fixed order. Every drop of this socket has
// a counter here. Frames that did not reach it are counted elsewhere (the XDP
// program's counters; ethtool -S rx_queue_N_drops; ip -s link).
func (s *Stats) Each(f func(Counter)) {
	k := &s.KernelStats
	for _, c := range []Counter{
		{"tx_frames", "frames handed to Send and SendSegs", s.TxFrames, false},
		{"tx_entries", "TX ring entries the kernel has taken", s.Transmitted, false},
		{"tx_completed", "entries that came back on the completion ring", s.Completed, false},
		{"tx_kicks", "system calls made to send", s.TxKicks, false},
		{"tx_again", "kicks that took a part only: budget, send buffer, completion ring", s.TxAgain, false},
		{"tx_no_memory", "kicks that found the kernel short of memory; nothing lost", s.TxNoMemory, false},
		{"tx_lost_busy", "frames lost because the driver's queue was full, the interface had no carrier, or the frame was too long for it", s.TxLostBusy, true},
		{"tx_refused", "frames refused by Send and SendSegs because they break a rule", s.TxRefused, true},
		{"tx_invalid_descs", "TX entries dropped by the kernel as invalid", k.Tx_invalid_descs, true},
		{"tx_ring_empty_descs", "times the kernel found no more on the TX ring", k.Tx_ring_empty_descs, false},
		{"rx_frames", "frames handed out by Receive", s.RxFrames, false},
		{"rx_segments", "RX ring entries handed out by Receive", s.Received, false},
		{"rx_kicks", "system calls made to wake a driver that wants chunks", s.RxKicks, false},
		{"rx_filled", "fill ring entries the kernel has taken; on a queue that processes share, those that this one has put there", s.Filled, false},
		{"rx_dropped", "frames dropped for want of fill chunks (rx_fill_ring_empty_descs of them, and those of several segments), or longer than a chunk without multi-buffer", k.Rx_dropped, true},
		{"rx_fill_ring_empty_descs", "times a chunk was wanted and the fill ring was empty; contained in rx_dropped when copying, no loss in zero-copy mode", k.Rx_fill_ring_empty_descs, false},
		{"rx_ring_full", "frames dropped because the RX ring was full", k.Rx_ring_full, true},
		{"rx_invalid_descs", "fill ring entries dropped by the kernel as invalid", k.Rx_invalid_descs, false},
		{"rx_too_many_segs", "frames dropped because they had more segments than the caller's batch", s.RxTooManySegs, true},
		{"rx_bad_entries", "frames dropped because an RX entry named memory the kernel was not given", s.RxBadEntries, true},
		{"chunk_errors", "wrong uses of chunks by the program; Audit names the first", s.ChunkErrors, false},
	} {
		f(c)
	}
}
