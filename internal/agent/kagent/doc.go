// Package kagent is what a VI provider asks of the Kernel Agent: operations that need privilege,
// or exist once for an interface. An agent opens the interface, leases a queue, makes the
// registered memory, numbers VIs, keeps the VI table of the demux program, manages connections,
// and finds the other agents on the link. No message of a connected VI passes through it.
//
// Agent is the interface. Package device has the agent in the program's own process
// (device.Local), agentclient the one in a daemon, kagenttest one in memory. This package has
// what they share: the requests and results (Config, Info, Offer, Link, Path), the errors, and
// the agents' Status. It does not use a network interface itself.
//
// The caller of each side of a connection does the following in this order, so that no frame is
// lost even on an unreliable VI:
//
//	requester: NewVI, Path, Request; VI takes frames; Enter; Answer.ConfirmWith; send
//	acceptor:  NewVI, Wait, Path; VI takes frames; Enter; Incoming.Accept; send
//	peer:      NewVI, Path, RequestPeer; then as the part that it got
package kagent
