// Package bpf holds the XDP programs: the demux program, which takes the
// frames of our VIs off an interface and gives each to the AF_XDP socket of
// its VI, and a baseline that gives a socket all that comes to a UDP port.
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
// A slot is a place for one AF_XDP socket. Many VIs share a slot: all those
// whose frames the socket's owner takes. The kernel gives a frame only to a
// socket of the receive queue that the frame came in on, so an entry also names
// the queue, and a frame on another queue is counted instead of vanishing.
//
// The program is bound to the interface by a bpf_link. A program of somebody
// else is never replaced, and ours is gone when the process is, whatever ends
// it. The link, the program and the maps live as long as the [Demux]: keep it
// reachable, or the garbage collector closes them and so detaches.
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
// Loading needs CAP_BPF and CAP_NET_ADMIN, and so does attaching. To look up
// the name of a foreign program takes CAP_SYS_ADMIN; without, its number has to
// do. Needs Linux 5.18 for XDP programs that take multi-buffer frames.
//
// demux.c is compiled by go generate; the objects are committed.
package bpf
