// Package mvich is message passing in the manner of MPI over Virtual Interfaces: ranks, communicators, tags, messages
// of any size, and collective operations. It does what MVICH did for the first VIA networks, on top of package vipl.
//
//	world, err := mvich.Init(nic, launcher)
//	c := world.Comm()
//	if c.Rank() == 0 {
//		err = mvich.Send(c, []float64{1, 2, 3}, 1, tag)
//	} else {
//		status, err = mvich.Recv(c, buf, mvich.AnySource, tag)
//	}
//	err = mvich.AllReduce(c, sum, part, mvich.Sum)
//	err = world.Finalize()
//
// Package mpiapps has two applications as examples: a stencil, and conjugate gradients.
//
// A [World] is a rank's part of a job. A [Launcher] starts the ranks and gives each its number (package pmi: mpiexec;
// [Local]: ranks of one process). A [Comm] is an ordered group of ranks with messages of its own. Methods of Comm
// carry bytes, functions of the package slices of any numbers; a [Type] picks elements out of a slice. Isend and
// Irecv begin a [Request].
//
// # Protocols
//
// A message uses one of four protocols, chosen when the message reaches the head of its queue:
//
//	 Eager               R3                   RGET                 RPUT
//	 S          R        S           R        S           R        S           R
//	 |--eager-->|        |--request->|        |--request->| addr   |--request->|
//	 |  + data  |        |<--ready---|        |<==read====|        |<--ready---| addr
//	 |          |        |--data---->|        |====data==>|        |==write===>|
//	 |          |        |--data---->|        |<--done----|        |
//	copies 2             2                    0                    0
//
//	size <= threshold, and the receiver is not full ... Eager
//	else, if the sending call waits ................... RPUT
//	else, memory of Alloc, where frames are long ...... RPUT
//	else, if both sides' VIs do RDMA reads ............ RGET
//	else, if the receiver's VI takes RDMA writes ...... RPUT
//	else, or where memory cannot be registered ........ R3
//
// A write is faster than a read, but begins only when the sender takes ready, for which its program must be in a call.
// A read needs no call of the sender. So the message of an Isend is read: its program may compute meanwhile. Memory of
// Alloc is always written: the NIC sends a write by reference, but copies the response to an RDMA read. The last write
// has the number of the receiver's request as immediate data, and so ends the message. If the sender has only one
// credit left, that write has no immediate data, and finish follows.
//
// Copies in the table are those between the program's memory and vbufs. The threshold is 16 KiB (WithThreshold,
// VIADEV_RENDEZVOUS_THRESHOLD). A receiver that cannot register its buffer answers an RGET or RPUT request with ready
// for R3; a sender that cannot register its own sends data packets where it might have written. Messages longer than
// one transfer move in pieces, up to 16 of them at a time.
//
// Buffers are registered when RDMA first needs them, and stay so in a cache of a limited number of bytes, which keeps
// them from the garbage collector. Scratch memory for collective operations and types belongs to the world, which
// keeps up to 16 MiB of it. Other ranks may read or write memory of a rank only while a message by RGET or RPUT needs
// that: the right ends with its request, completed or failed. It covers the whole registration, such as all that one
// Alloc returned, and applies to all connected ranks.
//
// # Packets
//
// Everything but RDMA goes in packets: one packet a vbuf, one vbuf a receive of the peer. All numbers are
// little-endian.
//
//	offset  bytes  field
//	 0      1      kind: eager, request, ready, data, finish, done, noop, dead, bye
//	 1      1      flags: 1 the sender waits for done; 2 the sender's memory is full
//	 2      2      credits: receives posted since the last packet (credit_update)
//	 4      4      bytes of the message in this packet
//	 8      4      context of the communicator
//	12      4      tag; dead: the rank
//	16      8      bytes of the whole message; data: where this piece begins
//	24      4      number of the sender's request
//	28      4      number of the receiver's request
//	32      8      request, ready: address of memory
//	40      4                      its handle
//	44      4                      protocol
//
// # Credits
//
// A message that meets no posted receive breaks a VI. So each rank keeps a number of receives posted for each peer
// (WithCredits), and counts how many the peer has left for it (remote_credit):
//
//	rank A                                       rank B
//	remote_credit 64 ---- eager ------------->   64 posted, takes one, posts another,
//	              63                             owes 1
//	              64 <--- any packet, credits 1  owes 0
//
//	remote_credit   64 ............. 9 | 8 ....... 2 | 1
//	may go          everything         | what others | what brings
//	                                   | wait for    | credits
//
// "What others wait for" is ready, done, finish, noop and dead, and the write that ends a message. A vbuf that was read
// is posted again when there is nothing else to do, or when the reserve's number of vbufs has been read. If half of a
// peer's credits are due and no other packet goes to it, it gets a noop. Two ranks that only send never deadlock:
// send.go has the proof.
//
// Messages that come before their receive are copied, so that their vbufs can be posted again. When a peer has too
// many bytes of them (WithUnexpected) packets to it say so, and it sends envelopes only, also of messages without
// data. A rank that violates the protocol is taken for dead: if it sends a packet that cannot be parsed, or without a
// credit; an eager message long after it must have received the order to send none; an answer that no message asked
// for; or if it never gives the credits to answer it.
//
// # Connections and deaths
//
// Two ranks connect when the first of them has something for the other (connect.go). When a connection ends without a
// bye, the rank is dead: all ranks are notified, and operations that need it fail with a [RankError] (death.go). A
// send or receive with the dead rank itself fails when RDMA no longer uses its buffer, or after ten seconds if the
// NIC is stopped for so long. The buffers of a collective operation must be left alone until Finalize if they were
// given to RDMA: ranks that live may still move them. A rank that has sent bye keeps its connections until the others
// have sent theirs, as its last packets may need retransmission. After a death the others can use the communicators
// that have lost no rank, and point-to-point messages in the others. They cannot make a new communicator of the
// survivors, for Dup and Split need all members. A rank that leaves after a death counts as dead. So the last
// collective operation may fail on some ranks with a [RankError] of a rank that has finished it. A rank whose interface is
// removed ends, as after Stop.
//
// A report of a death is believed, as the rank that sends it could also abort the job. A rank that ends a message
// without having written it (RPUT) leaves the old content in the buffer. A rank cannot connect with the token of a rank
// on another host.
//
// # Concurrency
//
// Everything may be called by any goroutine at any time, except collective operations, Dup and Split: all ranks of a
// communicator call those in the same order, one at a time. Messages of one goroutine to a rank, in one communicator,
// match in the order in which they were sent.
//
// No background thread moves messages: each call makes progress for all (progress.go). A rank that computes for long
// between calls makes others wait. One goroutine listens for ranks that connect. Another exists while a connection is
// made or ended, and one more while the last packets of a completed operation wait for credits.
//
// Calls have no deadline. To set one, begin with Irecv and call Cancel from another goroutine, such as that of a
// timer. Cancel ends the Wait unless a message has come.
//
// # Ranks and interfaces
//
// Ranks of one program may share a NIC handle. Without an agent, a program opens its interface exclusively: ranks in
// separate processes then need an interface each, in a namespace or on a host.
//
// # Files
//
//	send.go, recv.go, rendezvous.go     a message, from one rank to the other: begin here
//	progress.go, request.go             progress, and waiting
//	link.go, packet.go                  VIs, vbufs, packets
//	connect.go, death.go                connections come and go
//	world.go, job.go, comm.go           a rank, how ranks find each other, communicators
//	memory.go                           registered memory
//	types.go, collective.go, reduce.go  elements and types, collective operations
package mvich
