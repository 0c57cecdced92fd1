// Package capture brings frames of VIs into files that other programs read. The
// kernel's stack, and so tcpdump, sees neither what AF_XDP sends nor what the
// demux program gives to a socket; the programs whose frames they are do, and
// tell whoever may ask.
//
//	engine --tap--> program's socket --> Reader --filter--> File (pcapng)
//
// Nobody pays for what nobody asked for: there is a tap only while somebody
// captures. One's own programs can be captured without privilege.
//
// Not to be seen: frames that the demux program dropped (its counters tell
// which), frames between VIs of one queue, and connection management, which is
// UDP of the kernel's and tcpdump's to capture.
package capture
