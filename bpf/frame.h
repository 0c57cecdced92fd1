/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * frame.h - the headers of a frame, outermost first, as the bytes lie on the
 * wire. Our own structures and not the kernel's: those are packed or made of
 * small fields, and the compiler would read an address byte by byte.
 */
#ifndef VIA_FRAME_H
#define VIA_FRAME_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>

#define PROTO_IPV4 0x0800 /* Ethernet types, host byte order */
#define PROTO_IPV6 0x86dd
#define PROTO_VLAN 0x8100 /* 802.1Q */
#define PROTO_QINQ 0x88a8 /* 802.1ad */

struct eth {
	__u8   dst[6];
	__u8   src[6];
	__be16 proto;
};

struct vlan {
	__be16 tci;
	__be16 proto;
};

#define IP4_PLAIN    0x45   /* version 4, five words: no options */
#define IP4_FRAGMENT 0x3fff /* more fragments, or an offset */
#define NEXT_UDP     17

struct ip4 {
	__u8   version_ihl;
	__u8   tos;
	__be16 len;
	__be16 id;
	__be16 frag;
	__u8   ttl;
	__u8   next;
	__u16  check;
	__be32 src;
	__be32 dst;
};

struct ip6 {
	__u8   version_class;
	__u8   class_flow[3];
	__be16 len;
	__u8   next;
	__u8   hops;
	__be64 src[2];
	__be64 dst[2];
};

struct udp {
	__be16 src;
	__be16 dst;
	__be16 len;
	__u16  check;
};

#define VIA_VERSION      0xa3
#define VIA_KIND_CONTROL 0x80 /* connection management, for the kernel's socket */
#define VIA_PORTS        64   /* destination ports, from ours on */

/* Our header. Package wire describes it; only the first 16 bytes matter here. */
struct via {
	__u8   version;
	__u8   kind;
	__be16 flags;
	__be32 vi;
	__be64 key;
	__be32 seq;
	__be32 ack;
	__be16 window;
	__be16 len;
	__be32 immediate;
	__be64 remote_addr;
	__be32 remote_handle;
	__be32 crc;
};

_Static_assert(sizeof(struct eth) == 14, "Ethernet header");
_Static_assert(sizeof(struct vlan) == 4, "VLAN tag");
_Static_assert(sizeof(struct ip4) == 20, "IPv4 header");
_Static_assert(sizeof(struct ip6) == 40, "IPv6 header");
_Static_assert(sizeof(struct udp) == 8, "UDP header");
_Static_assert(sizeof(struct via) == 48, "VIA header");

/* An address in 16 bytes, network byte order, in two words of memory. */
struct host {
	__be64 hi;
	__be64 lo;
};

/* An IPv4 address as a host: ::ffff:a.b.c.d. */
static __always_inline struct host mapped(__be32 ip4)
{
	struct host h = {};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	h.lo = (__u64)ip4 << 32 | 0xffff0000;
#else
	h.lo = 0xffffULL << 32 | ip4;
#endif
	return h;
}

#endif
