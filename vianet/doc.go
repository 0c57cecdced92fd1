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
// A [Stack] holds what all connections over one NIC share: two completion queues, the goroutines that serve them, and
// memory that stays registered. Each [Conn] has a VI of its own, with reliable delivery, and a pool of buffers for
// control messages: half for sending, half posted as receives.
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
// until the receiving program has read it. Then the buffer is posted again and given back in the next message of any
// kind. When half of the buffers have gathered, a credit message gives them back. The protocol itself bounds all
// other messages, and each side sets receives aside for them:
//
//	kind      sent by    says                                    under way at most
//	hello     both       version, longest message, data buffers  1
//	data      both       bytes of the stream                     as many as given
//	credit    both       buffers given back; end of a filling    3
//	announce  sender     large data lies here, read it           \
//	ask       sender     large data is here, where to write it?   > 3
//	(write)   sender     the room is full                        |
//	withdraw  sender     the program does not wait any more      /
//	room      receiver   write it here                           \ 2
//	taken     receiver   this many bytes were read or filled     /
//	room 0    receiver   a ring, or how much of it was read      5
//	(write 0) sender     bytes were written to the ring          as data
//	data 1    sender     as data; a ring would have taken them   as data
//	fin       both       no more data                            1
//	finack    both       the fin has come, and all before it     1
//	stop      both       what comes is not read any more         1
//
// A write is no message but an RDMA write with immediate data, which takes a receive of the peer as a message does.
// The receiver learns from the completion how many bytes its NIC has placed, all of them before it (package vipl,
// RDMA). The immediate data has 16 bits for the buffers given back, above them a bit that is set for a room and clear
// for the ring, and 15 bits that are 0. A room is filled by one write.
//
// So a Write blocks when the peer's program does not read, and nothing else blocks. Credits and confirmations still
// flow when both programs only write.
//
// A Write of more than Options.Threshold bytes is a transfer, unless a ring takes it. Where both NICs have RDMA read
// the sender announces its registered memory and the receiver reads it; else the sender asks, and the receiver names
// registered memory that the sender writes. Either way, a large Read gets the bytes directly into its own buffer. A
// small Read gets them from staging buffers, which are filled ahead of the program. Write returns when the receiver
// has all of them:
//
//	read mode    idle -- announce --> offered -- taken(all) -----------> idle
//	write mode   idle -- ask -------> offered -- room, write ... ------> idle
//	a deadline, Close                 offered -- withdraw, taken(n) ---> idle
//
// A transfer takes two round trips, or one in write mode. Nothing else moves meanwhile, and the buffers hold only 80
// KiB per round trip. So the receiver offers a ring, by a room message with transfer number 0. It does so after two
// transfers of at most 128 KiB, or after 128 KiB in Writes of 2 KiB and more that took buffers. From then on such
// Writes go to the ring at once, each as one RDMA write, or as two where the ring ends. Each takes a data buffer, as a
// data message does. Write returns when the NIC has the bytes. The Read copies them out of the ring. At most 64
// connections of a stack have a ring.
//
// A ring has 256 KiB. It is given back by halves. Where frames leave in GSO packets, the ring has the whole packets that
// hold as much, five or more, and a Read that finds nothing gives back what was read if that is a fifth.
//
// There, in a stream, the end of a Write that does not fill a packet waits in memory of the connection for the next
// Write: if no data was read since the last Write, and the peer has a fifth of the ring to give back when this one
// begins. The message that gives it back ends the wait. So do a Read, a Write that does not go to the ring, and the end
// of the stream.
//
// A transfer from memory of [Stack.Alloc] is written where frames are long, even if the receiver could read it: the NIC
// sends a write by reference, but copies the response to an RDMA read. What goes to a ring is copied: it would be done only
// when the peer has acknowledged it, and the next Write would wait for that.
//
// The program's memory is open to the peer only as long as a transfer needs it, and only to the peer of this
// connection: each connection has a protection tag. It stays registered for the next time, up to Options.Registered
// bytes. A ring is open to the peer until the connection ends.
//
// A connection ends with fin from either side, each answered by finack. Close also sends stop, unless the peer's fin has
// come. It ends the peer's Writes: the fin may have to wait because the peer has no room for the data before it, this side
// gives back no more buffers, and the peer's program may read only after its Writes have returned. A VI that the peer
// disconnects before stop or the finack was broken, perhaps after the peer's fin. A protocol violation resets the
// connection: a message that cannot be parsed, more data than credits, or memory that does not exist.
//
// # Waiting
//
// A call that waits polls first, for as long as polling has paid lately and at most Options.Spin, so that the
// goroutine that wants the data finds it. One goroutine of a Stack polls at a time and serves all connections: it
// takes their completions, and rings the doorbell for what they write. Each arrival for any connection restarts its
// polling time, until its own deadline. Then it sleeps, and the stack's own goroutine waits for completions.
//
// That goroutine sleeps in the kernel, and keeps one of the Go runtime's processors until the runtime notices. So a
// program restricted to one CPU, for which the runtime makes one processor, should set GOMAXPROCS=2. With one
// processor, each wake-up of another goroutine takes 20 to 100 microseconds longer.
//
// # Concurrency
//
// Every method may be called from any goroutine at any time. Reads of one connection run one after the other, and so
// do its Writes. A deadline also applies to calls that wait for their turn. The bytes of a Write belong to the
// package until it returns.
//
// # Errors
//
// Errors are [*net.OpError], but for [io.EOF]. A deadline is [os.ErrDeadlineExceeded], with Timeout; it leaves the
// stream as it is, and the connection can be used again with another deadline. While the peer still accesses the
// buffer of a Read or Write, the call does not return, even past its deadline or after Close. That takes a round
// trip; after two seconds the connection is reset. A broken connection is [syscall.ECONNRESET]; a port without a
// listener is [syscall.ECONNREFUSED]; no memory is [syscall.ENOBUFS]; an interface that was removed is [syscall.ENODEV] to
// Dial, Listen and Accept; pre-shared keys that do not match are [syscall.EKEYREJECTED].
//
// # Addresses
//
// An address is that of a NIC and a port; [::] and 0.0.0.0 are all addresses of the NIC to Listen, and its own to
// Dial. Ports belong to this package and are unrelated to the kernel's: they travel as the discriminator of VIA's
// connections. The networks "via" and "tcp" mean the same; a suffix of 4 or 6 selects one family. So a Stack serves
// as the dialer of an http.Transport.
//
// # Unlike TCP
//
// Keepalive is the VI's own, and always on: a peer that is silent for 1.6 seconds is considered dead. The time is a
// setting of the NIC, not of a connection; only [vipl.WithSilence] changes it.
//
// There is no urgent data.
//
// Small Writes are combined only while they cannot be sent at once. After [Conn.SetNoDelay](false) they wait for more
// data, for a millisecond at most, but not for the peer's acknowledgements.
//
// A listener refuses connections when Options.Backlog of them wait. Dial retries a few times within a second, and
// then fails.
//
// A Stack has one port space for all addresses of its NIC. Two listeners cannot share a port at different addresses,
// and no two connections share a local port, even to different peers.
//
// Listen does not check that the host is one of this host's addresses: the NIC may get it later. TCP fails with
// EADDRNOTAVAIL.
//
// If unread data remains, Close still delivers what was written, for at most Options.Linger; TCP resets the
// connection.
//
// # Privileges
//
// The same as package vipl; this package needs none of its own.
package vianet
