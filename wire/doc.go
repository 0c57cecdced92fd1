// Package wire is the format of what via-xdp puts on the network: pure
// functions over bytes, no system call, no allocation.
//
// A data frame is UDP on port 4793, so that hardware can steer it and routers
// can carry it, with a fixed header of 48 bytes in network byte order:
//
//	+----------+---------+-------+-----------+--------------------+
//	| Ethernet | IPv4/v6 |  UDP  | VIA header|      payload       |
//	| 14 or 18 | 20 / 40 |   8   |    48     | up to the path MTU |
//	+----------+---------+-------+-----------+--------------------+
//
//	 0 version  1 kind      2 flags             4 destination VI
//	 8 key (chosen by the receiver)
//	16 sequence            20 cumulative acknowledgement
//	24 window   26 length  28 immediate data
//	32 remote address                           40 remote handle
//	44 CRC32C of the payload, then the header up to here
//
// The payload is a piece of a message, or, in a pack, several small messages
// whole, each behind a head of 4 or 8 bytes (pack.go).
//
// Between VIs with a pre-shared key a frame travels sealed: all but its first 16
// bytes encrypted, behind a packet number, and a tag instead of the checksum
// (sealed.go).
//
// The UDP checksum is 0: CRC32C protects header and payload better, and the
// key ties the frame to its connection. For IPv6 RFC 6935 and RFC 6936 allow
// that where the payload carries a check of its own.
//
// The headers in front of the VIA header are the same for every frame of a
// connection but for lengths; a [Template] holds them ready.
//
// Connection management has messages of its own (cm.go), which go through the
// kernel's UDP socket on the same port.
//
// Every function may be called concurrently; a [Packet] or [Template] belongs
// to one goroutine at a time. Nothing here needs privilege.
package wire
