// Package bpf loads and attaches the XDP programs: the demux program, which
// redirects each frame of a local VI to the AF_XDP socket of that VI, and a
// baseline that redirects every frame to a UDP port. [Trim] is a program on what
// leaves an interface.
//
//	           interface                     kernel                  user space
//	 frame  +-----------+
//	------->| via_demux |--- not ours ---> stack: ARP, ND, UDP socket
//	        +-----------+                  of connection management
//	          |  |  |  |
//	          |  |  |  +- counters[cause] <------------------------ Counters
//	          |  |  |     per CPU
//	          |  |  +---- vis[VI number & 0xffff] <---------------- EnterVI
//	          |  |        {number, slot, key, peer, queue}          RemoveVI
//	          |  +------- sockets[slot] ---> AF_XDP socket <------- Register
//	          |                              of the queue           Unregister
//	          +- drop: version, short, no VI, key, source, queue, no socket
//
// The maps:
//
//	name      type          key               value           written by
//	vis       ARRAY, mapped VI's index        vi_entry, 40 B  EnterVI, RemoveVI
//	sockets   XSKMAP        slot              socket          Register, Unregister
//	queues    HASH          slot              1               the same; the readable mirror of sockets
//	counters  PERCPU_ARRAY  cause             frames          the program
//
// A slot is a place for one AF_XDP socket. All VIs of the socket's owner share
// its slot. The kernel gives a frame only to a socket of the receive queue on
// which the frame arrived. An entry therefore also names the queue, and the
// program counts a frame on another queue, which the kernel would drop silently.
//
// The program is bound to the interface by a bpf_link. It never replaces another
// owner's program, and it is detached when the process ends in any way. The link,
// the program and the maps live as long as the [Demux]: keep it reachable, or the
// garbage collector closes them and so detaches the program.
//
// # Example
//
//	d, err := bpf.LoadDemux(bpf.Config{})
//	if err != nil {
//		return err
//	}
//	defer d.Close()
//	if err := d.Register(0, socketFD); err != nil { // slot 0
//		return err
//	}
//	if err := d.EnterVI(0x00010005, bpf.VIEntry{Slot: 0, Queue: 0, Key: key, Peer: peer}); err != nil {
//		return err
//	}
//	err = d.Attach(ifindex, bpf.Generic)
//
// # Concurrency, privilege
//
// All methods of [Demux] and [Redirect] may be called by any goroutine at any
// time; none of them is on the data path. Attach must run on a thread that is
// in the interface's network namespace.
//
// Loading and attaching need CAP_BPF and CAP_NET_ADMIN. Reading the name of
// another owner's program takes CAP_SYS_ADMIN; without it only its ID is known.
// Linux 5.18 is needed for XDP programs that take multi-buffer frames.
//
// demux.c is compiled by go generate; the objects are committed.
package bpf
