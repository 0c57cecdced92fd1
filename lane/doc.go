// Package lane is the way of frames between two programs on one interface, or two
// queues of one program: an AF_XDP queue does not hear what another one sends, so
// that the frames go through memory that both have mapped.
//
//	side 0                      shared memory                     side 1
//	Send ----> | head | frames of side 0 ............. | ----> Receive
//	Receive <- | ......... frames of side 1 | head     | <---- Send
//	                                 sleeping? a bell (socket pair)
//
// Each direction is a ring of Slots frames of at most MaxFrame bytes, with one
// producer and one consumer. A side writes its own indices only, keeps copies of
// them in memory of its own, and believes the other side nothing: an index out of
// bounds makes a ring empty and full for ever, a length out of bounds a frame of no
// bytes. Frames are copied in and out, so that what has been received does not
// change any more.
//
// # Concurrency
//
// Send has one owner, and Receive has one. Ready and Sleep may be called by any
// goroutine.
package lane
