// Package agentd is the Kernel Agent as a daemon, so that programs need no privilege. A program
// connects to its Unix socket, asks for an interface, and receives a queue and registered memory
// by descriptor passing. VI numbers, the VI table and connection management stay in the daemon.
// Package internal/agent/agentproto is the protocol, internal/agent/agentclient the program's
// side.
//
//	programs                agent                              fdstored
//	+------+  socket   +-----------------+                 +---------------+
//	| nic  |-----------| conn -- session-|-- device.Local  | program, maps,|
//	+------+           |                 |        \------->| link, control |
//	+------+           |        user     |       FDStore   | port, leases  |
//	| nic  |-----------| conn -- session-|-- device.Local  +---------------+
//	+------+           +-----------------+
//
// A conn is a connection; a session is what the agent keeps for a queue of a program. It outlives
// the connection. The agent keeps no descriptor of a queue that it has handed out, so that the
// program's death frees the queue. It keeps one of the memory, to free the pages then. The agent detects the death by the end of the connection,
// cleans up, and resets the connections of the program's VIs at their peers.
//
// If the agent dies, data paths continue, since the descriptor store holds the files that they
// depend on. The next agent restores the sessions from there. Programs rejoin their sessions by a
// random token.
//
// # Trust
//
// The agent serves root, and the users to whom Config grants access, interfaces and zero-copy
// queues. A program may act on its own session only. Its user and groups are those of its socket
// (SO_PEERCRED, SO_PEERGROUPS), not those that it claims. Messages are bounded and parsed
// strictly. A quota bounds what a user may have, connections included. The agent hangs up on a
// program that does not send, or does not read.
//
// # Concurrency
//
// Server.Serve runs a goroutine for each connection, and one for each request that
// waits. Status may be called at any time. Locks, in this order: session.mu,
// Server.mu. While one is held, no call of device is made that takes a lock.
package agentd
