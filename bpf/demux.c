//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * demux.c - redirects a frame to the AF_XDP socket of its VI.
 *
 * The program runs for every frame that the interface receives. It parses the
 * frame in order: Ethernet, at most one VLAN tag, IPv4 or IPv6, UDP, our
 * header, and looks up the VI table. It returns one of three actions:
 *
 *   XDP_PASS      not ours, or connection management: the kernel's stack gets it
 *   XDP_DROP      on our port, but no frame of a VI that is connected here
 *   XDP_REDIRECT  to the socket in the VI's slot
 *
 * Frames of VIs may also come to one of the VIA_PORTS - 1 ports after ours, if
 * the NIC steers that port to the VI's queue. What else comes there is another
 * program's, and passes.
 *
 * It reads only the linear part of a frame (data to data_end). A multi-buffer
 * frame whose headers continue in a fragment passes, or counts as short if it
 * is known to be ours by then. No driver splits headers that early.
 *
 * The owner of the VI checks length fields, CRC32C and sequence, because it has
 * the payload. Nothing checks destination address and VLAN number, because the
 * VI number with its random key is a stronger check. If the NIC or the generic
 * hook has removed the VLAN tag, the program does not see one.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "frame.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Set by the loader before the verifier sees the program. */
const volatile __u16 udp_port = 4793;

/*
 * The outcomes of frames on our port: keys of the counters. bpf2go makes Go
 * constants of them. Add a new one at the end, before CAUSE_COUNT.
 */
enum cause {
	CAUSE_REDIRECTED, /* given to a socket */
	CAUSE_CONTROL,    /* connection management, passed to the kernel */
	CAUSE_SHORT,      /* ends before our header does */
	CAUSE_VERSION,    /* not this version of the format */
	CAUSE_NO_VI,      /* no such VI: index, or generation */
	CAUSE_KEY,        /* not the key of the VI's connection */
	CAUSE_SOURCE,     /* not from the VI's peer */
	CAUSE_QUEUE,      /* not on a queue of the VI's sockets */
	CAUSE_NO_SOCKET,  /* the slot is empty */
	CAUSE_COUNT
};

/*
 * One VI. The low 16 bits of a VI number are its index in the table. id holds
 * the whole number, so that a stale generation is recognized. An entry with id
 * 0 is empty: 0 is never the number of a VI.
 *
 * User space writes entries through a mapping while the program runs; see
 * vis.go for the order. Number and slot are one word so that a frame that
 * matched one VI can never go to the slot of another.
 */
struct vi_entry {
	__u64       id;    /* VI number, slot in the high half */
	__be64      key;   /* as in the frame */
	struct host peer;
	/* With queues 0: the receive queue of the socket in the slot. Otherwise
	 * the VI has sockets on queues 0 to queues-1, and that of queue n is in
	 * slot + n. */
	__u32       queue;
	__u32       queues;
};

_Static_assert(sizeof(struct vi_entry) == 40, "VI table entry");

/* The sizes are defaults; the loader sets those of its configuration. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct vi_entry);
} vis SEC(".maps");

/* Slot to socket. User space cannot read it back. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* The readable mirror of sockets: a key for every slot in use. Not read here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CAUSE_COUNT);
	__type(key, enum cause);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline int count(enum cause cause, int action)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &cause);

	if (n)
		*n += 1;
	return action;
}

/* A frame of no VI, offset ports after ours. */
static __always_inline int refuse(__u16 offset, enum cause cause)
{
	return offset ? XDP_PASS : count(cause, XDP_DROP);
}

/* Exactly one load: user space may change the entry at any time. */
#define LOAD(x) (*(const volatile __typeof__(x) *)&(x))

SEC("xdp.frags")
int via_demux(struct xdp_md *ctx)
{
	void *at = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

	/* Ethernet. */
	struct eth *eth = at;

	at = eth + 1;
	if (at > end)
		return XDP_PASS;
	__be16 proto = eth->proto;

	/* At most one tag: a frame with two is a provider's, not for this host. */
	if (proto == bpf_htons(PROTO_VLAN) || proto == bpf_htons(PROTO_QINQ)) {
		struct vlan *vlan = at;

		at = vlan + 1;
		if (at > end)
			return XDP_PASS;
		proto = vlan->proto;
	}

	/*
	 * IP, without options, fragments and extension headers, which our
	 * frames never have. ARP, neighbor discovery (ICMPv6) and other
	 * protocols pass here.
	 */
	struct host source;

	if (proto == bpf_htons(PROTO_IPV4)) {
		struct ip4 *ip = at;

		at = ip + 1;
		if (at > end || ip->version_ihl != IP4_PLAIN || ip->next != NEXT_UDP ||
		    ip->frag & bpf_htons(IP4_FRAGMENT))
			return XDP_PASS;
		source = mapped(ip->src);
	} else if (proto == bpf_htons(PROTO_IPV6)) {
		struct ip6 *ip = at;

		at = ip + 1;
		if (at > end || ip->version_class >> 4 != 6 || ip->next != NEXT_UDP)
			return XDP_PASS;
		source.hi = ip->src[0];
		source.lo = ip->src[1];
	} else {
		return XDP_PASS;
	}

	/* UDP. A frame to our port is ours from here on. */
	struct udp *udp = at;

	at = udp + 1;
	if (at > end)
		return XDP_PASS;
	__u16 offset = bpf_ntohs(udp->dst) - udp_port;

	if (offset >= VIA_PORTS)
		return XDP_PASS;

	/*
	 * Version and kind. Connection management of any version goes to the
	 * kernel's socket, so that its owner can tell the peer which version it
	 * speaks.
	 */
	struct via *via = at;

	if (at + offsetof(struct via, flags) > end)
		return refuse(offset, CAUSE_SHORT);
	if (via->kind & VIA_KIND_CONTROL)
		return offset ? XDP_PASS : count(CAUSE_CONTROL, XDP_PASS);
	at = via + 1;
	if (at > end)
		return refuse(offset, CAUSE_SHORT);
	if (via->version != VIA_VERSION)
		return refuse(offset, CAUSE_VERSION);

	/* The VI: does it exist, does the key match, is the sender its peer? */
	__u32 vi = bpf_ntohl(via->vi);
	__u32 index = vi & 0xffff;
	struct vi_entry *entry = bpf_map_lookup_elem(&vis, &index);

	if (!vi || !entry)
		return refuse(offset, CAUSE_NO_VI);
	__u64 id = LOAD(entry->id);

	if ((__u32)id != vi)
		return refuse(offset, CAUSE_NO_VI);
	if (LOAD(entry->key) != via->key)
		return refuse(offset, CAUSE_KEY);
	if (LOAD(entry->peer.hi) != source.hi || LOAD(entry->peer.lo) != source.lo)
		return refuse(offset, CAUSE_SOURCE);

	/*
	 * The kernel gives a frame only to a socket of the queue on which it
	 * arrived, and otherwise drops it silently. So count it here.
	 */
	__u32 queue = ctx->rx_queue_index;
	__u32 queues = LOAD(entry->queues);
	__u32 slot = id >> 32;

	if (queues) {
		if (queue >= queues)
			return count(CAUSE_QUEUE, XDP_DROP);
		slot += queue;
	} else if (queue != LOAD(entry->queue)) {
		return count(CAUSE_QUEUE, XDP_DROP);
	}

	/* For an empty slot the helper returns the action in its flags. */
	int action = bpf_redirect_map(&sockets, slot, XDP_DROP);

	return count(action == XDP_REDIRECT ? CAUSE_REDIRECTED : CAUSE_NO_SOCKET, action);
}
