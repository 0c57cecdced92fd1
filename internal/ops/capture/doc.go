// Package capture writes frames of VIs to files that other programs read. The
// kernel's stack, and so tcpdump, sees neither what AF_XDP sends nor what the
// demux program gives to a socket. The programs that send and receive the frames
// see them, and pass them to any process that may ask.
//
//	engine --tap--> program's socket --> Reader --filter--> File (pcapng)
//
// A program has a tap only while a capture runs, so it costs nothing otherwise. A user
// can capture his own programs without privilege.
//
// A capture does not contain frames that the demux program dropped (see its counters),
// frames between VIs of one queue, and connection management, which is UDP of the
// kernel: use tcpdump.
package capture
