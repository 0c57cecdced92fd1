// Package fdstore is a process that holds what must not die with the agent: the
// eBPF program, its tables, its attachment, the control socket. While programs
// have queues, an agent may be killed and another one started, and no frame is
// lost.
//
//	agent ---- Put, Delete ----> fdstored           agent is killed
//	  (Store)                     key: value, descriptors
//	agent' <------- List ------- fdstored           the next one goes on
//
// A descriptor store understands nothing of what it holds but one thing: the first
// descriptor of a lease ends, as a pipe does, when the program that has the queue
// is dead. When there is no agent and no such program, it leaves, and takes all
// with it, so that nothing stays behind on the host.
//
// When the descriptor store dies first, its Client, which has a copy of everything, starts
// another one.
//
// The agent starts it as a child that outlives it (Start, and Main in the child).
// Its socket is for its own user and root only: what it holds gives power
// over the interface.
//
// # Concurrency
//
// All methods of Client may be called concurrently.
package fdstore
