// Package shmlink carries frames through shared memory between two programs on one
// interface, or between two queues of one program. An AF_XDP queue does not receive
// what another queue of its interface sends, so the frames go through memory that
// both sides have mapped.
//
//	side 0                      shared memory                     side 1
//	Send ----> | head | frames of side 0 ............. | ----> Receive
//	Receive <- | ......... frames of side 1 | head     | <---- Send
//	                                 sleeping? a bell (socket pair)
//
// Each direction is a ring of Slots frames of at most MaxFrame bytes, with one
// producer and one consumer. A side writes only its own indices, keeps copies of
// them in private memory, and does not trust the other side: an index out of bounds
// makes the ring empty and full for good, and a length out of bounds gives a frame
// of no bytes. Frames are copied in and out, so that a received frame cannot change.
//
// # Concurrency
//
// Send has one owner, and Receive has one. Ready and Sleep may be called by any
// goroutine.
package shmlink
