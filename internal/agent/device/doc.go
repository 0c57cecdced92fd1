// Package device is the Kernel Agent of this process: its devices, which are interfaces that it has
// open, and the queues that it leases on them.
//
//	                         one device for an interface             one lease for a queue
//	+-------+    +-------+   +---------------------------------+     +-------------------------+
//	| vipl  |--->| Local |-->| connmgr.Manager -- ctrlport.UDP |<----| xdpnic.Queue, XSKMAP    |
//	+-------+    +-------+   | route.Router, route.Watch       |     | slot, hugepages.Arena   |
//	  Agent      (a NIC      | kagent.Numbers                  |     +-------------------------+
//	             handle)     | bpf.Demux -- VI table           |
//	                         +---------------------------------+
//
// Several Locals of one interface in one process share the device. Another process
// cannot open it meanwhile: the control port is taken, and the error says by
// whom.
//
// # Handing out
//
// An agent with privilege opens queues for programs without: HandOut gives socket
// and memory away and keeps neither. What such an agent has goes into an fdstore.Store, so
// that the next agent can go on where this one ended (Restore). Package agentd is
// that daemon, agentclient its other side. ShmLink joins two queues of the interface,
// which do not hear each other; ChargedLink, OnLinkLeft and TakeLinks charge it to the programs' users.
//
// # Changes of the interface
//
// A device watches its interface (route.Watch). Handles are told when it differs from what they were
// told last (Local.Watch). What follows for connections is their owner's matter.
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
// Request, RequestPeer, Discover and Path.
//
// Locks are taken in this order: Local.mu or device.mu, then one of registry.mu,
// those of the Manager and of the watch. Watchers are called under the watch's.
//
// # Privilege
//
// CAP_BPF and CAP_NET_ADMIN (program, neighbour resolution), CAP_NET_RAW
// (AF_XDP socket), CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK (UMEM). The kernel
// needs CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS, 5.18 or newer. kagent.Unavailable
// picks out the errors that say that any of this is missing.
package device
