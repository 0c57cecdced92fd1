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
//	    |--- Request (id, offer, From, To) --------------->|    nobody waits:
//	    |      again after 5, 10, 20 ... 200 ms            |<-- NoMatch
//	    |                                                  | Incoming
//	    |<------------------- Accept (offer, From, To) ----| Accept  (or Reject)
//	    | Answer.Confirm: this side takes frames           |
//	    |--- Confirm (key of the Accept) ----------------->| Accept returns
//	    |      again after 5, 10, 20 ... 200 ms            |
//	    |<------------------------------------ Confirmed --|
//	    |--- first data frame ---------------------------->| (Established: the same)
//
// A Request that is repeated before there is an answer gets a Retry or a Pending.
//
// A source address proves nothing: anybody can write one. Until something comes from it
// that only a receiver of what was sent there knows, an address gets at most one message
// for each that came, of no more bytes in all, and no frame of the data path. Its exchange
// has one of 32 places apart from those of others (unproven.go). When they are short, a
// Request has to bring a cookie:
//
//	|--- Request ------------------------------------->| nothing is remembered
//	|<-------------------------------- Retry (cookie) --|
//	|--- Request (cookie) ---------------------------->| Incoming
//
// The cookie is a MAC over addresses, port, id and discriminators, by a key that
// changes each second (unproven.go). Programs get proven requests first, and in a flood
// no others.
//
// Retry, Confirmed, and the key in a Confirm came later than the rest. An older
// requester drops a Retry, so that it connects only while no cookies are asked for; it is
// connected by its first frame, which is its keepalive if it has nothing to say. An
// older acceptor drops the Confirm with a key; to its repeated Accept the plain one is
// the answer.
//
// Each message may be lost, repeated, late or out of order. An exchange is
// known by its id, random and 64 bits long, and the requester's address; a
// repeated Request gets the answer of the state that the exchange is in, and
// never makes a second Incoming. Both sides remember a finished exchange for
// 2 s after its last message. A requester that is not heard of for 3 s has
// vanished. What strangers can make the Manager remember is bounded, and takes no
// room from exchanges that made a connection.
//
// # Peers
//
// Between peers there is no server: both sides ask for each other, and meet when
// the addresses cross-match. So that one exchange comes of two Requests, the
// side with the lower address (host, then discriminator) is the requester, and
// the other only says that it is there:
//
//	requester (lower)                                  acceptor (higher)
//	    |--- Request (peer, id 1) ---------------------->|    nobody asked: silence
//	    |<--------------------- Request (peer, id 2) ----| RequestPeer
//	    |--- Request (peer, id 1) at once -------------->| Incoming
//	    |            and on as above                     |
//
// When the acceptor has called before the requester, the requester's first Request
// is enough. A peer's Request that nobody waits for makes an agent remember nothing,
// and meets no Listener and no Wait. Calls of RequestPeer with the same addresses
// take turns: the next one asks when the one before it has met its peer.
//
// # Discovery
//
// Discover sends a Hello from each of the interface's addresses to all hosts of
// the link, twice, and collects what answers come in 100 ms. A Here is as long
// as a Hello, goes out at most 100 times a second, and only for a Hello that was
// sent to all hosts, which no router passes on: an agent cannot be made to
// shout at a third host, nor be asked from afar. Nothing further than one hop
// is found.
//
// # Concurrency
//
// All methods may be called concurrently. The Manager sends without its lock.
// Incoming.Established may be called by the data path. Timers run while something is
// remembered.
package connmgr
