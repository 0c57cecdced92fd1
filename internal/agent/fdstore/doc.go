// Package fdstore is a process that holds what must outlive the agent: the eBPF program, its tables, its
// attachment, the control socket. While programs have queues, an agent may be killed and another one started
// without the loss of a frame.
//
//	agent ---- Put, Delete ----> fdstored           agent is killed
//	  (Store)                     key: value, descriptors
//	agent' <------- List ------- fdstored           the next one goes on
//
// A descriptor store does not interpret its entries, with one exception: the first descriptor of a lease is a
// pipe that ends when the program with the queue dies. When there is no agent and no such program, the store
// exits and closes everything, so that nothing stays behind on the host.
//
// If the descriptor store dies first, its Client, which has a copy of everything, starts another one.
//
// The agent starts it as a child that outlives it (Start, and Main in the child). Only its own user and root
// can use its socket, since its entries give control of the interface.
//
// # Concurrency
//
// All methods of Client may be called concurrently.
package fdstore
