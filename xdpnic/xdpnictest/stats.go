package xdpnictest

// Stats are the counts of a queue since it was made. The conservation law for
// the frames of a wire with two queues, when nothing is on the way:
//
//	Carried + Duplicated = Cut + Filtered + Lost + LostBurst + Nowhere + the peer's Arrived
//	Arrived = RxCut + RxNotOurs + RxRefused + RxTooLong + RxRingFull + RxNoFill + RxQueued
type Stats struct {
	TxFrames         uint64 // frames taken by Send and SendSegs
	TxRefused        uint64 // refused because a rule was broken
	TxFull           uint64 // refused because the TX ring was full
	TxCompleted      uint64 // entries taken off the completion ring
	TxBadCompletions uint64 // of them, ignored: no chunk in flight
	Flushes          uint64

	// What became of the frames that the queue sent.
	Carried    uint64 // frames given to the wire
	Cut        uint64 // drop: the wire, or this queue, was cut
	Filtered   uint64 // drop: Faults.Drop
	Lost       uint64 // drop: Faults.Loss
	LostBurst  uint64 // drop: Faults.Burst
	Nowhere    uint64 // drop: no queue has that hardware address
	Duplicated uint64 // frames that went twice
	Corrupted  uint64 // frames with flipped bits
	Reordered  uint64 // frames held back for others to overtake
	Delayed    uint64 // frames that took time

	// What became of the frames that came for the queue.
	Arrived    uint64
	RxCut      uint64 // drop: this queue was cut or closed
	RxNotOurs  uint64 // drop: no VIA data frame; the kernel's stack would get it
	RxRefused  uint64 // drop: Admit said no (unknown VI, key, source)
	RxTooLong  uint64 // drop: longer than a chunk, without multi-buffer
	RxRingFull uint64 // drop: the RX ring was full
	RxNoFill   uint64 // drop: the fill ring was empty
	RxQueued   uint64 // frames put on the RX ring

	RxFrames      uint64 // frames handed out by Receive
	RxTooManySegs uint64 // drop: more segments than the caller's batch
	RxBadEntries  uint64 // RX entries ignored: no chunk that the kernel was given

	// Lies told.
	LiedSend, LiedFlush, Stalled                                 uint64
	LiedLostCompletion, LiedDoubleCompletion, LiedWildCompletion uint64
	LiedWildRx, LiedLength, LiedSplit                            uint64

	Misuses uint64 // wrong uses by the program; Audit names the first
}

// Stats returns the counts as they are now.
func (q *Queue) Stats() Stats {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	return q.n
}

// Lost is how many frames Faults.Loss has lost, of all queues.
func (w *Wire) Lost() (n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.ends {
		n += q.n.Lost
	}
	return n
}

// Each calls f for every counter, in a fixed order.
func (s *Stats) Each(f func(name string, value uint64)) {
	for _, c := range []struct {
		name  string
		value uint64
	}{
		{"tx_frames", s.TxFrames}, {"tx_refused", s.TxRefused}, {"tx_full", s.TxFull},
		{"tx_completed", s.TxCompleted}, {"tx_bad_completions", s.TxBadCompletions}, {"flushes", s.Flushes},
		{"wire_carried", s.Carried}, {"wire_cut", s.Cut}, {"wire_filtered", s.Filtered}, {"wire_lost", s.Lost},
		{"wire_lost_burst", s.LostBurst}, {"wire_nowhere", s.Nowhere}, {"wire_duplicated", s.Duplicated},
		{"wire_corrupted", s.Corrupted}, {"wire_reordered", s.Reordered}, {"wire_delayed", s.Delayed},
		{"rx_arrived", s.Arrived}, {"rx_cut", s.RxCut}, {"rx_not_ours", s.RxNotOurs}, {"rx_refused", s.RxRefused},
		{"rx_too_long", s.RxTooLong}, {"rx_ring_full", s.RxRingFull}, {"rx_no_fill", s.RxNoFill},
		{"rx_queued", s.RxQueued}, {"rx_frames", s.RxFrames}, {"rx_too_many_segs", s.RxTooManySegs},
		{"rx_bad_entries", s.RxBadEntries},
		{"lied_send", s.LiedSend}, {"lied_flush", s.LiedFlush}, {"lied_stall", s.Stalled},
		{"lied_lost_completion", s.LiedLostCompletion}, {"lied_double_completion", s.LiedDoubleCompletion},
		{"lied_wild_completion", s.LiedWildCompletion}, {"lied_wild_rx", s.LiedWildRx},
		{"lied_length", s.LiedLength}, {"lied_split", s.LiedSplit},
		{"misuses", s.Misuses},
	} {
		f(c.name, c.value)
	}
}
