// Package vipl is the VI Provider Library in Go. A program uses it to send and receive messages through a VI NIC;
// the kernel's network stack is not involved.
//
//	 program                                      peer
//	    | PostSend            PostRecv |            |
//	    v                              v            |
//	+---------+  send queue  +-------------------+  |
//	|   VI    |------------->| engine (port)     |  |
//	|  state  |<-------------| frames <-> descr. |==+=== frames of package wire
//	+---------+ receive queue+---------+---------+
//	    |   completed              rings of the NIC (Port)
//	    v
//	  Done, Wait, or a CQ that many VIs share
//
// A [NIC] is an open interface. Descriptors and data lie in memory that is registered with it: [NIC.AllocMem]
// allocates from the NIC's arena, [NIC.RegisterMem] registers any memory of the program. A [VI] is connected with
// exactly one other VI, by [NIC.ConnectWait] and [Conn.Accept] on one side and [VI.ConnectRequest] on the other.
// [VI.PostSend] then sends the data that a [Descriptor] describes into the descriptor that the peer posted with
// [VI.PostRecv]. Done and Wait return completed descriptors in order.
//
// A receive must be posted before its message arrives. On a reliable VI a message that finds the receive queue
// empty breaks the connection; on an unreliable VI it is lost.
//
// # Files, in the order of a message
//
//	send.go, recv.go  1     the program posts
//	translate.go      1     the descriptor is read once, checked, translated
//	tx.go             2     frames are built       coalesce.go: small messages; long.go: long frames; byref.go: no copy
//	transmit.go       3     sealed or not, to the ring, a link or this port; the doorbell    gso.go: many frames at once
//	rx.go             6-8   frames are checked, put in order, placed    reorder.go: frames ahead of the sequence; gso_rx.go: many at once; rdma.go: RDMA
//	workqueue.go      9     descriptors complete    wait.go: wakes waiters; notify.go: handlers
//	ack.go            10    acknowledgements, both ways    resend.go, control.go: other frames
//	done.go           11    the program dequeues    pollpause.go: when not to poll; cq.go: completion queues
//
// The numbers are those of the table in ARCHITECTURE.md, which `via-xdp trace` prints, too. tx.go and rx.go begin with the
// steps of their path, with numbers of their own. port.go drives both: progress, and the lock.
//
// A connection:
//
//	conn.go                     the engine's state of a connection
//	connect.go                  how it is made; its head lists the other files
//	teardown.go, disconnect.go  how it ends: by an error, by the program
//	source.go                   what happens when the interface loses its address
//	timers.go                   retransmission, keepalive, silence
//	psk.go, seal.go             the pre-shared key; sealing of frames
//	transmit.go, shmlinks.go    both VIs on one queue; on two queues of one interface
//
// # RDMA
//
// EnableRDMAWrite and EnableRDMARead, of the region and of the VI, open memory to the peer. The program sends its
// peer the location ([Region.Remote]) in a message; the peer passes it to [Descriptor.SetRDMAWrite] or
// [Descriptor.SetRDMARead]. No receive is posted for RDMA. A write is placed in ascending order, its last word
// last. The target's program is not notified, unless the write carries immediate data: then it completes a receive
// once all of it is placed. The target's library places the frames: at once while the program polls or calls
// [NIC.Poll], otherwise as soon as the kernel has woken the library's goroutine.
//
// # Concurrency
//
// Every method may be called from any goroutine at any time. Done never waits for a goroutine that is in Wait. A VI
// has no thread of its own: the goroutine that posts, polls or waits moves frames, and a background goroutine of
// the NIC does so while none of them does. A spinning program should lock its goroutine to a thread and the thread
// to a CPU, and leave the Go runtime a second CPU, or at least GOMAXPROCS >= 2.
//
// # Errors
//
// A VIPL return code is a [Return], which is an error. Control operations return an [*OpError], which wraps a
// Return and describes the cause. Calls of the data path return the bare codes and allocate nothing.
//
// # Privileges
//
// A program needs no privilege if a daemon opens the NIC ([WithAgent]). Without a daemon, OpenNIC needs root, or
// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
package vipl
