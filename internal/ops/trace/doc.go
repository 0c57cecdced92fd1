// Package trace stamps the steps of a message's way, ARCHITECTURE.md's table, of
// many messages, and says when each was reached.
//
//	sender                               receiver
//	PostSend called      0
//	frame on the TX ring |  port
//	doorbell             |  port
//	kernel returns       v  port         frames seen    |  port
//	PostSend returned                    RecvDone gives v  the message
//
// The stamps are taken around the engine, by a port between it and the AF_XDP
// queue: engine and queue are those of every program, and each stamp costs some
// 50 ns, which is in the figures. Both sides are in this process, on a thread
// each, and poll.
package trace
