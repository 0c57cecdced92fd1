// Package kagent is the Kernel Agent: what a VI provider needs that takes
// privilege or exists once on an interface. It opens the interface, leases a
// queue, makes the registered memory, numbers VIs, keeps the VI table of the
// demux program, manages connections, and finds the other agents on the link. No
// message of a connected VI passes through here.
//
//	                         one device for an interface       one lease for a queue
//	+-------+    +-------+   +---------------------------+     +-------------------------+
//	| vipl  |--->| Local |-->| Manager -- UDP :4793      |<----| xdpnic.Queue, XSKMAP    |
//	+-------+    +-------+   | Numbers                   |     | slot, hugepages.Arena   |
//	  Agent      (a NIC      | bpf.Demux -- VI table     |     +-------------------------+
//	             handle)     +---------------------------+
//
// Agent is the interface, Local the agent in the program's own process. Several
// Locals of one interface in one process share the device. Another process
// cannot open it meanwhile: the control port is taken, and the error says by
// whom.
//
// # Connections
//
// Connection management runs over an ordinary UDP socket (transport_udp.go); the
// kernel does address resolution and routing, and the demux program lets those
// frames through. The Manager is pure over a Transport and has no knowledge of
// the kernel. One exchange:
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
// changes each second (cookie.go). Programs get proven requests first, and in a flood
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
// What the caller of each side does, in this order, so that no frame is lost
// even on an unreliable VI:
//
//	requester: NewVI, Path, Enter; Request; VI takes frames; Answer.Confirm; send
//	acceptor:  Wait, NewVI, Path, Enter; VI takes frames; Incoming.Accept; send
//	peer:      NewVI, Path, Enter; RequestPeer; then as the part that it got
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
// # Handing out
//
// An agent with privilege opens queues for programs without: HandOut gives socket
// and memory away and keeps neither. What such an agent has goes into a Vault, so
// that the next agent can go on where this one ended (Restore). Package agentd is
// that daemon, agentclient its other side. Lane joins two queues of the interface,
// which do not hear each other; ChargedLane, OnLaneLeft and TakeLanes charge it to the programs' users.
//
// # Changes of the interface
//
// A device watches its interface (watch.go): each message of the kernel about links
// and addresses, and each sign that one was lost, is a reason to read the interface
// again. Handles are told when it differs from what they were told last (Watch).
// What follows for connections is their owner's matter.
//
// # Order of closing
//
// Map entries, what is to be sent, link, socket, memory. All of it hangs on
// file descriptors of the process, so that nothing stays behind after a
// SIGKILL.
//
// # Concurrency
//
// All methods of all types may be called concurrently, but for the Queue, which
// has one owner as package xdpnic says.
//
// Goroutines: three for a device (UDP's Serve and its loopback, and the one that
// watches the interface), and one for the length of each call of Local's Wait,
// Request, RequestPeer, Discover and Path. Timers of the Manager run while something
// is remembered.
//
// Locks are taken in this order: Local.mu or device.mu, then one of registry.mu,
// Manager.mu and watch.mu. Those who watch are called under watch.mu. The Manager
// sends without its lock. Incoming.Established may be called by the data path.
//
// # Privilege
//
// CAP_BPF and CAP_NET_ADMIN (program, neighbour resolution), CAP_NET_RAW
// (AF_XDP socket), CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK (UMEM). The kernel
// needs CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS, 5.18 or newer. Unavailable
// picks out the errors that say that any of this is missing.
package kagent
