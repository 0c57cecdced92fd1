// Package vianet is sockets over Virtual Interfaces: Dial, Listen, [net.Conn] and [net.Listener] for programs that
// know package net, over package vipl.
//
//	program          Write                                  Read
//	                   |                                      ^
//	          +--------v---------+                  +---------+--------+
//	Conn      | small: fill a    |   data, fin      | queue of what    |
//	          | send buffer      |----------------->| has arrived      |
//	          | large: register, |   announce       | large: RDMA read |
//	          | announce, wait   |----------------->| into the buffer  |
//	          |                  |<-----------------| of Read, confirm |
//	          +--------+---------+   taken, credit  +---------+--------+
//	                   |                                      |
//	VI          half of the buffers                  the other half,
//	            are for sending                      posted as receives
//
// A [Stack] is what connections over one NIC have in common: two completion queues, the goroutines that serve them,
// and memory that stays registered. Each [Conn] has a VI of its own, with reliable delivery, and a pool of buffers
// for control messages: half for sending, half posted as receives.
//
// # The session protocol
//
// A control message is a header and, in a data message, bytes of the stream. All numbers are in network byte order.
//
//	offset size  field
//	0      1     kind
//	1      1     0
//	2      2     data buffers that the sender of the message gives back
//	4      4     number of the transfer; hello: version of the protocol
//	8      4     length in bytes; hello: of the longest message it takes
//	12     4     memory handle
//	16     8     address
//	24           data
//
// Both sides begin with hello, which says how many data messages the peer may send. Each takes one of these buffers
// until the receiving program has read it; then it is posted again and given back, in the next message of whatever
// kind, or in one of its own when half of them have gathered. All other messages are bounded by the protocol itself,
// and have receives of their own set aside:
//
//	kind      sent by    says                                    under way at most
//	hello     both       version, longest message, data buffers  1
//	data      both       bytes of the stream                     as many as given
//	credit    both       buffers given back; end of a filling    3
//	announce  sender     large data lies here, read it           \
//	ask       sender     large data is here, where to write it?   > 3
//	filled    sender     it has been written                     |
//	withdraw  sender     the program does not wait any more      /
//	room      receiver   write it here                           \ 2
//	taken     receiver   so much of it has been read or filled   /
//	room 0    receiver   here is a ring; so much of it was read  2
//	filled 0  sender     so much has been written to the ring    as data
//	data 1    sender     as data; a ring would have taken them   as data
//	fin       both       no more data                            1
//	finack    both       the fin has come, and all before it     1
//	stop      both       what comes is not read any more         1
//
// So a Write blocks when the peer's program does not read, and nothing else blocks: credits and confirmations go on
// when both programs only write.
//
// A Write of more than Options.Threshold bytes is a transfer, unless a ring takes it. Where both NICs have RDMA read
// the sender announces its registered memory and the receiver reads it; else the sender asks, and the receiver names
// registered memory that the sender writes. Either way the bytes go between the buffers of the two programs when the
// Read asks for many, and through staging buffers, ahead of the program, when it asks for few. Write returns when the
// receiver has all:
//
//	read mode    idle -- announce --> offered -- taken(all) -----------> idle
//	write mode   idle -- ask -------> offered -- room, filled ... -----> idle
//	a deadline, Close                 offered -- withdraw, taken(n) ---> idle
//
// A transfer takes two round trips, or one where it is written, in which nothing else moves, and buffers hold 80 KiB
// of a round trip. So a receiver of two of at most 128 KiB, or 128 KiB by Writes of 16 KiB and more that took
// buffers, names a ring of 256 KiB, by a room with 0 in the place of a transfer's number. Both go there at once from
// then on, as RDMA writes and a filled 0, which takes a data buffer as a data message does; Write returns when the
// NIC has the bytes. The Read copies them out of the ring. At most 64 connections of a stack have a ring.
//
// Memory of [Stack.Alloc] is written where frames are long, although the receiver could read it: a write is sent from
// where the memory lies, while the answer to an RDMA read is a copy.
//
// The program's memory is open to the peer only as long as a transfer needs it, and only to the peer of this
// connection: each connection has a protection tag. It stays registered for the next time, up to Options.Registered
// bytes. A ring is open to the peer until the connection ends.
//
// A connection ends with fin from either side, each answered by finack. Where the fin of one that was closed has to
// wait, because the peer has no room for what comes before it, stop ends the peer's Writes: nobody gives back buffers
// for them any more, and it may be that its program reads only when it has written. A peer that breaks the rules,
// with a message that cannot be understood, more data than it has credits for or memory that is not there, has its
// connection reset.
//
// # Waiting
//
// A call that waits polls first, for as long as that has paid lately and at most Options.Spin: the data is then found
// by the goroutine that wants it. One goroutine of a Stack polls at a time, and meanwhile serves all connections: it
// takes what has come for them, and rings the doorbell for what they write. Each time that something comes for any of
// them its time to poll begins again, until its own deadline. Then it sleeps, and the stack's own goroutine waits for
// completions.
//
// That goroutine sleeps in the kernel, and keeps one of the Go runtime's processors until the runtime notices. So a
// program that may use one CPU only, to which the runtime gives one processor, should have two (GOMAXPROCS=2): with
// one, others find their bytes only 20 to 100 microseconds later, each time.
//
// # Concurrency
//
// Every method may be called from any goroutine at any time. Reads of one connection come one after the other, and so
// do its Writes; each deadline counts for those that wait their turn, too. The bytes of a Write belong to the package
// until it returns.
//
// # Errors
//
// Errors are [*net.OpError], but for [io.EOF]. A deadline is [os.ErrDeadlineExceeded], with Timeout; it leaves the
// stream as it is, and the connection can be used again with another deadline. A Read or Write whose buffer the peer
// is still busy with goes on past its deadline, or Close, until that is over: a round trip, and at most two seconds,
// after which the connection is reset. A connection that broke is [syscall.ECONNRESET]; nobody listening is
// [syscall.ECONNREFUSED]; no memory is [syscall.ENOBUFS]; pre-shared keys that do not go together are
// [syscall.EKEYREJECTED].
//
// # Addresses
//
// An address is that of a NIC and a port; [::] and 0.0.0.0 are all addresses of the NIC to Listen, and its own to
// Dial. Ports are those of this package, and have nothing to do with the kernel's: they travel as the discriminator
// of VIA's connections. The networks "via" and "tcp" mean the same, with 4 or 6 behind for one family; so a Stack
// serves as the dialer of an http.Transport.
//
// # Unlike TCP
//
// Keepalive is the VI's own, and always on: a peer that is silent for 1.6 seconds is gone. How long that is belongs
// to the NIC, not to a connection: [vipl.WithSilence] sets it, and nothing else does.
//
// There is no urgent data.
//
// Small Writes are combined only while they cannot be sent at once. [Conn.SetNoDelay] of false has them wait for
// more, for a millisecond at most, and not for the peer's answers.
//
// A listener refuses connections when as many as Options.Backlog wait, and Dial asks again a few times, in less than
// a second; nobody is kept waiting for longer.
//
// A port of a Stack is one number for all addresses of its NIC: two listeners cannot have the same port at different
// addresses, and a connection's own port is no other's, whatever the peer is.
//
// Close delivers what was written also where not everything was read, and for at most Options.Linger; TCP resets the
// connection then.
//
// # Privileges
//
// As package vipl: none of its own.
package vianet
