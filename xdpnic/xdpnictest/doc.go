// Package xdpnictest is NIC queues in memory, for tests: queues of one Wire
// reach each other as those of xdpnic do over a cable, with the same methods
// and the same owners of chunks. The wire loses, repeats, reorders, delays and
// corrupts frames as it is told to, and the imagined kernel lies.
//
//	 Memory of a                                             Memory of b
//	+-----------+                                           +-----------+
//	| TX chunks |--Send--> TX ring --Flush--+               |           |
//	|           |<-- completion ring <------|   +------+    |           |
//	+-----------+                           +-->| Wire |    +-----------+
//	| RX chunks |                               |faults|    |           |
//	|           |                               +---+--+    |           |
//	|           |   RX ring <--- Admit <------------'  '--->| RX chunks |
//	+-----------+   (demux)                                 +-----------+
//
// It is written independently of xdpnic's own bookkeeping, and stricter: Audit
// also names a chunk that was written to while the kernel had it or after it
// was given back. A chunk that is given back is overwritten, so that
// a program that goes on reading it reads garbage.
//
// # Faults and lies
//
// [Faults] are what the way does to the frames that a queue sends, [Lies] what
// a queue's kernel tells its program. What happens to the n-th frame of a queue
// follows from the seed and n alone, not from timing; each fault that took
// place is counted in [Stats]. Frames for a queue are those of its hardware
// address, or all that others send when it has none.
//
// A lie never makes Audit fail: wrong entries that xdpnic would refuse are
// refused here, too, and counted.
//
// # Concurrency
//
// As xdpnic.Queue: the methods belong to one owner at a time, but for Ready,
// Wait, Wake, FrameCap and RxChunks. Those that only the fake has (SetFaults,
// SetLies, Cut, Stats, Audit, Owners, and all of Wire) may be called by any
// goroutine at any time. Time is package time's, so that everything runs inside
// of a testing/synctest bubble; no goroutine runs in here but those of timers.
//
// No privilege is needed. Neither is there any allocation on a way without
// faults.
//
//	w := xdpnictest.NewWire()
//	defer w.Close()
//	a, err := w.Queue(xdpnictest.Config{Memory: arenaA.Bytes(), Admit: agentA.Admit})
//	b, err := w.Queue(xdpnictest.Config{Memory: arenaB.Bytes(), Admit: agentB.Admit})
//	a.SetFaults(xdpnictest.Faults{Seed: 1, Loss: 0.1})
package xdpnictest
