// Package xdpnictest has NIC queues in memory, for tests. Queues of one Wire are connected as those of xdpnic
// are by a cable, with the same methods and the same ownership of chunks. As configured, the wire loses,
// repeats, reorders, delays and corrupts frames, and the simulated kernel gives wrong answers.
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
// It shares no bookkeeping with xdpnic, and is stricter: Audit also reports a chunk that was written to while
// the kernel had it or after it was given back. A chunk that is given back is overwritten, so that code that
// still reads it gets garbage.
//
// # Faults and lies
//
// [Faults] are what the wire does to the frames that a queue sends. [Lies] are wrong answers of a queue's
// kernel. The result for the n-th frame of a queue follows from the seed and n alone, not from timing. Each
// fault is counted in [Stats]. A queue receives the frames to its hardware address; without one, all frames
// that others send.
//
// A lie never makes Audit fail: wrong entries that xdpnic would refuse are also refused here, and counted.
//
// # Concurrency
//
// As in xdpnic.Queue, the methods belong to one owner at a time, except for Ready, Wait, Wake, FrameCap and
// RxChunks. Methods that only this package has (SetFaults, SetLies, Cut, Stats, Audit, Owners, and all of Wire)
// may be called by any goroutine at any time. Time is that of package time, so everything runs inside a
// testing/synctest bubble. The only goroutines are those of timers.
//
// No privilege is needed. Without faults nothing is allocated per frame.
//
//	w := xdpnictest.NewWire()
//	defer w.Close()
//	a, err := w.Queue(xdpnictest.Config{Memory: arenaA.Bytes(), Admit: agentA.Admit})
//	b, err := w.Queue(xdpnictest.Config{Memory: arenaB.Bytes(), Admit: agentB.Admit})
//	a.SetFaults(xdpnictest.Faults{Seed: 1, Loss: 0.1})
package xdpnictest
