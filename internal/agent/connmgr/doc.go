// Package connmgr is connection management: the Manager exchanges messages with the Managers of other
// hosts over a Transport. It has no knowledge of the kernel, of queues or of the VI table; package
// ctrlport is its Transport over UDP, package kagenttest one in memory.
//
//	Request, Listen,   +---------+   wire.CM    +-----------+
//	Wait, Discover --->| Manager |<------------>| Transport |
//	                   +---------+              +-----------+
//
// One exchange:
//
//	requester                                          acceptor
//	    |                                                  | Listen, Wait
//	    |--- Request (id, offer, From, To) --------------->|    no Wait:
//	    |      again after 5, 10, 20 ... 200 ms            |<-- NoMatch
//	    |                                                  | Incoming
//	    |<------------------- Accept (offer, From, To) ----| Accept  (or Reject)
//	    | Answer.Confirm: this side takes frames           |
//	    |--- Confirm (key of the Accept) ----------------->| Accept returns
//	    |      again after 5, 10, 20 ... 200 ms            |
//	    |<------------------------------------ Confirmed --|
//	    |--- first data frame ---------------------------->| (Established: the same)
//
// A Request that is repeated before there is an answer gets a Retry, or a Pending if its address is proven.
//
// A source address can be spoofed. An address is unproven until something arrives from it that
// only a receiver of what was sent to it knows. An unproven address gets at most one message for
// each that came from it, no more bytes in all than came from it, and no frame of the data path.
// Its exchange takes one of 32 places that proven exchanges do not share (unproven.go). When
// these places are short, a Request has to bring a cookie:
//
//	|--- Request ------------------------------------->| nothing is remembered
//	|<-------------------------------- Retry (cookie) --|
//	|--- Request (cookie) ---------------------------->| Incoming
//
// The cookie is a MAC over addresses, port, id and discriminators. Its key changes each second
// (unproven.go). Programs get proven requests first, and in a flood no others.
//
// A Request of another version of the format is rejected. Its sender reads only the front of the
// answer, which is the same in every version, and the call fails with an error that names both.
//
// Each message may be lost, repeated, late or out of order. An exchange is identified by its
// random 64-bit id and the requester's address. A repeated Request gets the answer for the state
// of the exchange, and never makes a second Incoming. Both sides remember a finished exchange for
// 2 s after its last message. A requester that sends nothing for 3 s has vanished. The state that
// strangers can create is bounded, and takes no room from exchanges that made a connection.
//
// # Peers
//
// Between peers there is no server: both sides send a Request, and the two meet if their
// addresses match crosswise. To make one exchange out of two Requests, the side with the lower
// address (host, then discriminator) is the requester. The Request of the other side only reports
// that it is there:
//
//	requester (lower)                                  acceptor (higher)
//	    |--- Request (peer, id 1) ---------------------->|    no call yet: silence
//	    |<--------------------- Request (peer, id 2) ----| RequestPeer
//	    |--- Request (peer, id 1) at once -------------->| Incoming
//	    |            and on as above                     |
//
// If the acceptor called first, the requester's first Request is enough. A peer's Request without
// a matching call makes an agent remember nothing, and meets no Listener and no Wait. Calls of
// RequestPeer with the same addresses take turns: the next one asks after the one before it has
// met its peer.
//
// # Discovery
//
// Discover sends a Hello from each of the interface's addresses to all hosts of the link, twice,
// and collects the answers that arrive within 100 ms. A Here is as long as a Hello. It is sent at
// most 100 times a second, and only for a Hello that was sent to all hosts, which routers do not
// forward. So an agent cannot be used to flood a third host, nor be queried from another network.
// Only hosts one hop away are found.
//
// # Concurrency
//
// All methods may be called concurrently. The Manager sends without its lock. The data path may
// call Incoming.Established. Timers run while there is state to expire.
package connmgr
