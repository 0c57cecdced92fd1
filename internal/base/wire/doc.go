// Package wire is the wire format of via-xdp: pure functions over bytes, without system calls and allocations.
//
// A data frame is UDP on port 4793, or one of the 63 ports after it (Ports), so that hardware can steer it and routers
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
// The payload is a piece of a message. In a pack it is several small messages, each behind a head of 4 to 20 bytes
// (pack.go).
//
// Between VIs with a pre-shared key a frame is sealed. All but its first 16 bytes are encrypted, behind a packet
// number, and a tag replaces the checksum (sealed.go).
//
// The UDP checksum is 0: CRC32C protects header and payload better, and the key ties the frame to its connection.
// RFC 6935 and RFC 6936 allow that for IPv6 if the payload has a check of its own.
//
// The headers in front of the VIA header are the same for every frame of a connection, except for lengths; a
// [Template] holds them.
//
// Connection management has messages of its own (cm.go). They use the kernel's UDP socket on port 4793.
//
// Every function may be called concurrently; a [Packet] or [Template] must be used by one goroutine at a time. The
// package needs no privilege.
package wire
