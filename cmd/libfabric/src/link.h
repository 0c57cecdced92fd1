/*
 * link.h - a VI with its buffers, and the messages on it.
 *
 * Both sides post VX_CREDITS + VX_RESERVE receives of VX_PIECE bytes. A message of the program is
 * cut into pieces, which are VI messages with a header each. A piece needs a credit: it may
 * be sent if fewer than the peer's limit were sent. The limit grows as the peer posts the
 * receives again. It does so for VX_SPENT pieces that it has copied to the program's memory, or for fewer when it has
 * nothing else to do: a post is a call into Go, and would delay the program's answer. So a message
 * for which the program has posted no receive waits, in the peer's receives and then at
 * this side, and the VI never lacks a receive.
 *
 * Messages without a credit have the other receives: hello and answer, one each; VX_CREDIT, at
 * most two that the peer has not seen, because half of the credits have to be used for each;
 * VX_ACK, one at a time, which VX_SEEN answers.
 *
 * A message of FI_EP_RDM begins with its tag. VX_EAGER has its data, and VX_MORE what one piece has no room for. For longer
 * ones VX_REQUEST says where the data is. Then the receiver reads it from there when a receive matches, and answers VX_FINISHED.
 * Pieces never wait for a receive there: what matches none is copied. If that is much, VX_FULL asks for requests.
 */
#ifndef LINK_H
#define LINK_H

#include "viaxdp.h"

enum {
	VX_CREDITS = 64,
	VX_RESERVE = 8,
	VX_RECEIVES = VX_CREDITS + VX_RESERVE,
	VX_SPENT = 16, /* receives that are posted again together */
	VX_SENDS = 64,
	VX_LISTED = 3,          /* pieces that are posted together: at MTU 1500 a packet of 36 frames */
	VX_PIECE = 17920,       /* bytes of data in a piece: 12 frames at MTU 1500, 2 at MTU 9000; ofi_rxm's packets fit in one */
	VX_EAGER_MAX = 131072,  /* bytes of a VX_EAGER with its VX_MORE */
	VX_EAGER_LONG = 32768,  /* the same where frames are long, which makes a read fast */
	VX_UNEXPECTED = 16 << 20, /* bytes of memory for a peer's messages that wait */
	VX_UNEXPECTED_MOST = 32 << 20, /* more ends the link: before it hears VX_FULL a peer sends at most VX_CREDITS pieces */
	VX_RDMA_MAX = 1 << 20,  /* bytes of an RDMA descriptor */
	VX_VERSION = 3,         /* of the messages */
};

enum vx_type {
	VX_HELLO = 1, VX_ACCEPT, VX_REJECT, VX_CREDIT, VX_ACK, VX_SEEN, VX_DATA, VX_WROTE,
	VX_EAGER, VX_REQUEST, VX_FINISHED, VX_MORE,
};

enum { /* flags of a header */
	VX_FIRST = 1,     /* piece of a message */
	VX_LAST = 2,
	VX_WANT_ACK = 4,  /* the sender waits for the arrival */
	VX_HAS_DATA = 8,  /* data is remote CQ data */
	VX_TAGGED = 16,
	VX_FAILED = 32,   /* VX_FINISHED: the receiver could not read the message */
	VX_FULL = 64,     /* the peer's messages take VX_UNEXPECTED bytes at the sender of this, which wants requests only */
};

struct vx_header { /* integers are little-endian, as those of all hosts that we run on */
	uint8_t type, flags;
	uint16_t reserved;
	uint32_t limit; /* pieces that the peer may have sent in all */
	uint32_t acked; /* pieces with VX_WANT_ACK that have arrived in all */
	uint32_t reserved2;
	uint64_t total; /* VX_FIRST: bytes of the message */
	uint64_t data;  /* VX_FINISHED: id of the request */
	uint64_t tag;
};

struct vx_request { /* the data of VX_REQUEST */
	uint64_t id;
	uint32_t count, reserved;
	struct {
		uint64_t address, length;
		uint32_t key, reserved;
	} parts[VX_IOV];
};

struct vx_hello {
	char magic[8];
	uint32_t version, piece;
	union vx_addr from; /* the requester's name for itself */
	uint32_t length;    /* of the program's data, which follows; FI_EP_RDM: of a vx_greeting */
	uint32_t rdm;       /* the endpoint is FI_EP_RDM */
};

enum vx_state {
	VX_NEW,        /* no connection yet */
	VX_REQUESTING, /* VipConnectRequest or VipConnectAccept runs */
	VX_GREETED,    /* requester: waits for the answer */
	VX_GREETING,   /* acceptor: waits for the hello */
	VX_ASKED,      /* acceptor: the program has to answer */
	VX_UP,
	VX_DOWN,
};

struct vx_rx_slot {
	VIP_DESCRIPTOR d;
	struct vx_header header;
	unsigned char data[VX_PIECE];
} __attribute__((aligned(64)));

struct vx_tx_slot {
	VIP_DESCRIPTOR d;
	VIP_DESCRIPTOR_SEGMENT more[4]; /* segments behind the two of d */
	struct vx_op *op;               /* an RDMA operation */
	struct vx_header header __attribute__((aligned(32)));
	unsigned char data[VX_PIECE];
} __attribute__((aligned(64)));

struct vx_link {
	struct fid fid; /* FI_CLASS_CONNREQ, for fi_info's handle */
	struct vx_link *next;
	struct vx_nic *nic;
	VIP_VI_HANDLE vi;
	enum vx_state state;
	int watched;         /* by vx_nic_watch, while it is not up */
	struct vx_ep *ep;    /* NULL: none yet */
	struct vx_tx *tx;    /* to the peer; NULL as ep */
	struct vx_peer *of;  /* FI_EP_RDM: the peer */
	struct vx_partial *partial; /* FI_EP_RDM: the message that arrives in pieces; NULL: none */
	int rdm;
	int full;            /* FI_EP_RDM: the last message had VX_FULL */
	struct vx_pep *pep;  /* whose request it is; NULL: none, or an endpoint has it */
	struct vx_link *sibling; /* the listener's next request */
	int64_t since;           /* when it was accepted */
	int shut;                /* this side ends the connection */
	int unanswered;          /* FI_CONNREQ has reported it, and the program has neither accepted nor refused */
	union vx_addr peer;  /* as the hello names it */
	unsigned char host[16]; /* the address that the request came from */
	size_t host_length;

	struct vx_memory *memory;
	size_t size;
	VIP_MEM_HANDLE handle;
	unsigned sends_head, sends_tail; /* slots in use */

	uint32_t sent, limit;       /* pieces; those that the peer has allowed */
	uint32_t reposted, told;    /* pieces consumed whose receives are posted again; the limit that the peer was told */
	uint32_t acked, acks_owed;  /* arrived with VX_WANT_ACK; told of fewer */
	uint32_t peer_acked;
	int acking, seen_owed;      /* VX_ACK without VX_SEEN; VX_SEEN to send */

	uint16_t held[VX_RECEIVES]; /* receive slots with pieces that wait, in order */
	unsigned held_head, held_tail;
	VIP_DESCRIPTOR *spent[VX_SPENT]; /* receives of pieces that were consumed, to post again */
	unsigned spent_count;
	VIP_DESCRIPTOR *listed[VX_LISTED]; /* VX_LIST */
	unsigned listed_count;
	struct vx_link *next_spent, **this_spent; /* in the list of the NIC while there are any */
};

struct vx_memory { /* one registered region */
	struct vx_rx_slot rx[VX_RECEIVES];
	struct vx_tx_slot tx[VX_SENDS];
};

/* link.c; under the lock of the NIC unless they say otherwise */
int vx_link_open(struct vx_nic *nic, struct vx_link **out);
void vx_link_close(struct vx_link *link); /* without the lock; ends the connection */
struct vx_link *vx_link_find(struct vx_nic *nic, VIP_VI_HANDLE vi);
struct vx_link *vx_link_request(struct vx_nic *nic, const struct fid *handle); /* NULL: no request that FI_CONNREQ has reported */
void vx_link_receive(struct vx_link *link); /* takes all that has completed */
void vx_link_receive_one(struct vx_link *link);
void vx_link_reap(struct vx_link *link);
void vx_link_pump(struct vx_link *link);    /* sends what waits */
void vx_link_deliver(struct vx_link *link); /* gives held pieces to the endpoint */
void vx_link_set(struct vx_link *link, enum vx_state state);
void vx_link_attributes(VIP_VI_ATTRIBUTES *a);

/* A free send slot with its header cleared, or NULL; and its way to the VI. */
struct vx_tx_slot *vx_link_slot(struct vx_link *link);
enum vx_bell {
	VX_RING,
	VX_RING_LATER, /* with what the program posts next */
	VX_LIST,       /* it is posted together with the next one, which the caller sends without doing anything else first */
};

int vx_link_send(struct vx_link *link, struct vx_tx_slot *slot, enum vx_type type, size_t length, enum vx_bell bell);
int vx_link_credit(struct vx_link *link); /* a piece may be sent */
int vx_link_ended(const struct vx_link *link); /* nothing arrives any more, and the program has heard or hears of it */
int vx_link_post(struct vx_link *link, struct vx_tx_slot *slot, enum vx_bell bell);
void vx_link_repost(struct vx_link *link); /* posts spent receives */
int vx_link_greet(struct vx_link *link, enum vx_type type, const union vx_addr *from, const void *data, size_t length);

#endif
