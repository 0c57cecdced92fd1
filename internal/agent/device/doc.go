// Package device is the Kernel Agent of this process: its devices, which are open interfaces, and
// the queues that it leases on them.
//
//	                         one device for an interface             one lease for a queue
//	+-------+    +-------+   +---------------------------------+     +-------------------------+
//	| vipl  |--->| Local |-->| connmgr.Manager -- ctrlport.UDP |<----| xdpnic.Queue, XSKMAP    |
//	+-------+    +-------+   | route.Router, route.Watch       |     | slot, hugepages.Arena   |
//	  Agent      (a NIC      | kagent.Numbers                  |     +-------------------------+
//	             handle)     | bpf.Demux -- VI table           |
//	                         +---------------------------------+
//
// Several Locals of one interface in one process share the device. Another process cannot open
// the interface meanwhile, since the control port is taken. The error names the process that has
// it.
//
// # Handing out
//
// A privileged agent opens queues for unprivileged programs. HandOut gives away the socket and
// the memory. It keeps only the memory's file, to free the pages later. The state of such an agent goes into an fdstore.Store, so that
// the next agent can continue (Restore). Package agentd is that daemon, agentclient its other
// side. ShmLink joins two queues of the interface, which the NIC does not connect with each
// other. ChargedLink, OnLinkLeft and TakeLinks charge the link to the programs' users.
//
// # Changes of the interface
//
// A device watches its interface (route.Watch). A handle is notified when the interface differs
// from the last report (Local.Watch). The handle's owner decides what that means for connections.
//
// # Order of closing
//
// Map entries, frames to be sent, link, socket, memory. File descriptors of the process hold all
// of it, so that nothing remains after a SIGKILL.
//
// # Concurrency
//
// All methods of all types may be called concurrently. The Queue has one owner, as package xdpnic
// requires.
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
// CAP_BPF and CAP_NET_ADMIN (program, neighbour resolution), CAP_NET_RAW (AF_XDP socket),
// CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK (UMEM). The kernel needs CONFIG_BPF_SYSCALL and
// CONFIG_XDP_SOCKETS, 5.18 or newer. kagent.Unavailable reports whether an error means that any
// of this is missing.
package device
