// Package agentd is the Kernel Agent as a daemon: it has the privilege, and
// programs have none. A program connects to its Unix socket, asks for an
// interface, and gets a queue and registered memory by descriptor passing; VI
// numbers, the VI table and connection management stay here. Package
// internal/agent/agentproto is what both say, internal/agent/agentclient the program's side.
//
//	programs                agent                              fdstored
//	+------+  socket   +-----------------+                 +---------------+
//	| nic  |-----------| conn -- session-|-- device.Local  | program, maps,|
//	+------+           |                 |        \------->| link, control |
//	+------+           |        user     |       FDStore   | port, leases  |
//	| nic  |-----------| conn -- session-|-- device.Local  +---------------+
//	+------+           +-----------------+
//
// A conn is a connection, a session the queue of a program. The agent keeps no
// descriptor of a queue that it has handed out, so that a program's death frees it,
// and one of the memory, to free its pages then.
// It notices the death by the end of the connection, cleans up, and tells the
// peers of its VIs.
//
// When the agent dies, data paths go on, since the descriptor store has what they stand on.
// The next agent restores the sessions from there; programs come back to theirs by
// a random token.
//
// # Trust
//
// The agent serves root, and the users that Config grants access, interfaces and zero-copy queues to.
// A program may do what its own session allows. Its user and groups are those of its socket
// (SO_PEERCRED, SO_PEERGROUPS), not what it says. Messages are bounded and read strictly;
// what a user may have, connections included, is bounded by a quota; a program
// that does not speak, or does not listen, is hung up on.
//
// # Concurrency
//
// Server.Serve runs a goroutine for each connection, and one for each request that
// waits. Status may be called at any time. Locks, in this order: Server.mu,
// session.mu; none is held during a call of device.
package agentd
