// Package xdpnic drives AF_XDP: one Queue is a socket on one queue of a network
// interface, with its UMEM, its four rings and its chunks. It knows frames,
// nothing of what is in them, and nothing of XDP programs: the caller attaches
// one and registers Queue.FD in its XSKMAP.
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
// Recycled chunks reach the kernel with the next Refill, frames with the next
// Flush: both are meant to be called once for a batch. Free TX chunks are a
// stack, so that the memory in use stays small and in the cache.
//
// # Who may call what
//
// A Queue has one owner at a time: a goroutine, or whoever holds the caller's
// lock. Alloc, Send, SendSegs, Release, InFlight, Pending, Flush, Drain, Reap,
// Receive, Recycle, Refill, TxFree, Stats, Audit, Share and Close are the
// owner's. Sockets made by Share have one owner together. Ready, Wait, Wake,
// FrameCap, RxChunks and Info may be called from any goroutine at any time,
// beside Close and after it, too. Open may be called from anywhere; it works in
// the network namespace of the calling thread.
//
// On the owner's path there is no allocation, no lock, no logging and no system
// call but the kick in Flush.
//
// # Kicks
//
// In copy mode the kernel sends in the system call, at most Info.TxBudget
// entries a time, so Flush always kicks, and again while entries remain and it
// gets on. In zero-copy mode it kicks only when the driver asks for it. What a
// full send buffer or completion ring holds back stays on the TX ring, is
// counted by Pending and goes with the next Flush. A frame for which the
// driver's queue has no room is lost and counted (tx_lost_busy).
//
// # Modes
//
// Mode names the three data paths. Ladder and Climb try them in order and keep
// the reason for each that was refused. QueryFeatures asks the driver
// beforehand; what the socket has got is in Info.
//
// # Zero-copy, as drivers do it
//
// Only the bind tells: a driver may say that it has zero-copy (QueryFeatures)
// and refuse it for this device. And a bind that succeeds is not all:
//
//   - The program must be attached in native mode; the kernel does not look.
//     Open does, if the program is there first, and so attach it first.
//   - Attaching and binding may take the link down, igb for two seconds: frames
//     sent before the interface is running again are lost.
//   - NICs take buffers in steps of 1024 bytes; igb puts 1024 bytes of a frame
//     into a chunk of 2048. Chunks of 4096 hold a frame of MTU 1500 everywhere,
//     and are the default where the driver has zero-copy.
//   - The driver sends and refills on its own time, and must be woken when its
//     ring has run dry: Flush and Refill look at the flags that say so. For the
//     fill ring most drivers set theirs after they have found it empty, which may be
//     behind the last Refill's look: Wait wakes those that sleep when it begins, and one
//     more Refill any.
//   - What is on the rings when the program is detached or the socket closed is
//     dropped, as the rings are set up anew: Drain before.
//   - With preferred busy polling, sending stalls where the driver has a NAPI
//     instance of its own for it. See BusyPoll.
//   - A frame is one ring entry, unless the driver says more (Info.MaxSegs).
//
// # Privileges
//
// Open needs CAP_NET_RAW, and CAP_IPC_LOCK or enough RLIMIT_MEMLOCK for the
// UMEM. Attaching a program needs CAP_NET_ADMIN and CAP_BPF. An open socket
// serves without any.
//
// Kernel sources of what is said here: net/xdp/xsk.c, xsk_queue.h, xdp_umem.c,
// Documentation/networking/af_xdp.rst, drivers/net/veth.c.
package xdpnic
