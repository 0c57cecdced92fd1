// Package xdpnic drives AF_XDP: one Queue is a socket on one queue of a network
// interface, with its UMEM, its four rings and its chunks. It moves frames and
// does not read their contents. It does not load XDP programs: the caller
// attaches one and registers Queue.FD in its XSKMAP.
//
//	+---------------------- Memory: the UMEM -----------------------+
//	| RX chunks             | TX chunks            | caller's memory |
//	+---------------------------------------------------------------+
//
//	               caller                 |          kernel
//	                                      |
//	Alloc -> write -> Send ... Flush -----|--> TX ring --------> wire
//	  ^                                   |                       |
//	  '--------------- Reap <-------------|--- completion ring <--'
//	                                      |
//	Recycle ... Refill -------------------|--> fill ring --.
//	  ^                                   |                v
//	  '--- read <--- Receive <------------|--- RX ring <-- wire
//
// # Chunks and their owners
//
// The pool of chunks lies at Config.PoolOffset in Memory, RX chunks first. The
// rest of Memory belongs to the caller; frames may have segments there. A chunk
// has exactly one owner at any time, and Audit proves it:
//
//	RX:  fill (kernel) --Receive--> leased (caller) --Recycle--> fill
//	TX:  free --Alloc--> held (caller) --Send--> tx (kernel) --completion--> free
//	                       ^  |                  |
//	                       |  '--Release--> free |
//	                       '---- completion of a frame sent with retain
//
// Recycled chunks reach the kernel with the next Refill, and frames with the
// next Flush. Call both once per batch. Free TX chunks form a stack, which keeps
// the memory in use small and in the cache.
//
// # Queues of several processes
//
// With Config.Sharing, processes that trust each other use one queue: each has its own
// socket, RX and TX ring and TX chunks, and the RX chunks are common. The first process
// opens the queue, Join lets another one in, and Reclaim takes back what a dead one had.
// No process waits for another: see shared.go. On such a queue a frame costs about three
// more atomic instructions.
//
// # Concurrency
//
// A Queue has one owner at a time: a goroutine, or the holder of the caller's
// lock. Only the owner may call Alloc, Send, SendSegs, Release, InFlight,
// Reading, Cancel, Pending, Flush, Drain, Reap, Receive, Recycle, Refill,
// TxFree, Stats, Audit, Share, Handout, FD, FDs and Close. Sockets made by Share
// have one common owner. Any goroutine may call Ready, Wait, Wake, FrameCap,
// MaxSegs, RxChunks, RxIndices and Info at any time, also during and after Close.
// Functions of the package may be called by any goroutine. Open, OpenContext,
// QueryFeatures, Running, AwaitRunning and Holders work in the network namespace
// of the calling thread.
//
// The owner's data path does not allocate, lock or log. Its only system call is
// the kick in Flush.
//
// # Kicks
//
// In copy mode the kernel sends in the system call, at most Info.TxBudget
// entries per call. Flush therefore always kicks, and repeats the kick while
// entries remain and the kernel makes progress. In zero-copy mode it kicks only
// when the driver asks for it. If the send buffer or the completion ring is
// full, entries stay on the TX ring: Pending counts them, and the next Flush
// sends them. A frame for which the driver's queue has no room is lost and
// counted (tx_lost_busy).
//
// # Modes
//
// Mode names the three data paths. Ladder and Climb try them in order and keep
// the reason for each that was refused. QueryFeatures asks the driver before
// the socket is opened. Info describes what the open socket has.
//
// # Zero-copy drivers
//
// Only bind(2) decides: a driver may announce zero-copy (QueryFeatures) and
// refuse it for this device. A successful bind is not sufficient either:
//
//   - The program must be attached in native mode, which the kernel does not
//     check. Open checks it if the program is attached first, so attach it first.
//   - Attaching and binding may take the link down, on igb for two seconds.
//     Frames sent before the interface is running again are lost.
//   - NICs take buffers in steps of 1024 bytes; igb puts 1024 bytes of a frame
//     into a chunk of 2048. Chunks of 4096 hold a frame of MTU 1500 everywhere,
//     and are the default if the driver has zero-copy.
//   - The driver sends and refills in its own time. It must be woken after its
//     ring has run dry: Flush and Refill check the need-wakeup flags. Most
//     drivers set the fill ring's flag after they have found the ring empty,
//     which may be after the last Refill has checked it. Wait wakes a driver
//     that sleeps when Wait begins; one more Refill wakes it at any time.
//   - Detaching the program or closing the socket resets the rings and drops
//     what is on them. Call Drain first.
//   - With preferred busy polling, sending stalls if the driver has a separate
//     NAPI instance for sending. See BusyPoll.
//   - A frame is one ring entry, unless the driver supports more (Info.MaxSegs).
//
// # Privileges
//
// Open needs CAP_NET_RAW, and CAP_IPC_LOCK or enough RLIMIT_MEMLOCK for the
// UMEM. Attaching a program needs CAP_NET_ADMIN and CAP_BPF. An open socket
// needs no privilege.
//
// Kernel sources of these statements: net/xdp/xsk.c, xsk_queue.h, xdp_umem.c,
// Documentation/networking/af_xdp.rst, drivers/net/veth.c.
package xdpnic
