// Package vipl is the VI Provider Library in Go: what a program uses to send
// and receive messages through a VI NIC without the kernel on the way.
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
// A [Nic] is an open interface. Memory that descriptors and data lie in is
// registered with it: [Nic.AllocMem] allocates from the NIC's arena,
// [Nic.RegisterMem] takes any memory of the program. A [VI] is connected with
// one other by [Nic.ConnectWait] and [Conn.Accept] on one side and
// [VI.ConnectRequest] on the other. Then [VI.PostSend] sends what a
// [Descriptor] describes into the descriptor that the peer posted with
// [VI.PostRecv]; Done and Wait give completed descriptors back, in order.
//
// A receive must be posted before its message comes: on a reliable VI a message
// that meets an empty receive queue breaks the connection, on an unreliable
// one it is lost.
//
// # Files, in the order of a message
//
//	post.go       1    check, translate, join the queue     workqueue.go; list.go several at once
//	engine_tx.go  2    segment, retransmit, acknowledge     pack.go, hold.go for streams, long.go for long frames
//	port.go       3-6  doorbell, lease on arrived frames, who makes progress    doorbell.go: for several VIs; rest.go: when not to look
//	engine_rx.go  7-8  check, order, place                  early.go what waits for others, rdma.go for RDMA
//	cq.go         9    complete              wait.go wakes, notify.go calls
//	send.go, recv.go   11 done
//
// A connection:
//
//	conn.go                  as the engine keeps it
//	connect.go               how it comes about; its head lists the other files of that
//	break.go, disconnect.go  how it ends: with an error, by the program
//	source.go                what becomes of it when the interface loses its address
//	timers.go                its time: retransmission, keepalive, silence
//	secure.go                what its frames are sealed with
//	loop.go, lanes.go        when both VIs are on one queue, on two queues of one interface
//
// # RDMA
//
// Memory is opened to peers by EnableRdmaWrite and EnableRdmaRead, of the region
// and of the VI. The program tells its peer where it is ([Region.Remote]) in a
// message; the peer's [Descriptor.SetRDMAWrite] and [Descriptor.SetRDMARead]
// then name it, and nobody posts a receive. The bytes of a write land in
// ascending order, its last word last. The target's program is not asked and
// not told, unless the write carries immediate data; but the frames are placed
// by its library: at once while it polls or calls [Nic.Poll], else as soon as
// the kernel has woken the library's goroutine.
//
// # Concurrency
//
// Every method may be called from any goroutine at any time. Done never
// waits for a goroutine that is in Wait. There is no thread behind a VI: whoever
// posts, polls or waits moves frames; a background goroutine of the NIC does
// while nobody else does. A spinning program should lock its goroutine to a
// thread and the thread to a CPU, and leave the Go runtime a second one or at
// least GOMAXPROCS >= 2.
//
// # Errors
//
// A VIPL return code is a [Return], which is an error. Control operations return an
// [*OpError] that wraps one and says more; calls of the data path return the bare
// codes and allocate nothing.
//
// # Privileges
//
// None where an agent opens the NIC ([WithAgent]). Without one OpenNic needs root, or
// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. [Open] over a NIC in memory needs none.
package vipl
