/*
 * match.h - what only endpoints of type FI_EP_RDM have: an address vector (av.c), peers with a link to each
 * (rdm.c), and receives that match messages of all peers (match.c). tagged.c has the calls with tags.
 */
#ifndef MATCH_H
#define MATCH_H

#include "cm.h"

/* av.c; an fi_addr_t is an index of entries, for FI_AV_MAP as well */
struct vx_av_entry {
	union vx_addr name;
	unsigned uses; /* insertions without a removal; 0: free */
};

struct vx_av {
	struct fid_av fid;
	struct vx_domain *domain;
	unsigned refs;
	struct vx_av_entry *entries;
	size_t count, size;
	struct vx_rdm *endpoints;
};

int vx_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
const union vx_addr *vx_av_name(const struct vx_av *av, fi_addr_t addr); /* NULL: none; under the lock */
fi_addr_t vx_av_find(const struct vx_av *av, const union vx_addr *name); /* FI_ADDR_NOTAVAIL: none; under the lock */

struct vx_peer {
	struct vx_tx tx;
	struct vx_peer *next; /* in its bucket */
	union vx_addr name;
	fi_addr_t addr;       /* FI_ADDR_NOTAVAIL: the address vector does not have it */
	uint64_t instance;    /* of the endpoint that tx's link leads to */
	int theirs;           /* the peer has requested that link */
	struct vx_link *trying; /* of the thread that connects */
	int connecting;       /* there is one */
	int reached;          /* there has been a link since it began, which may be lost again */
	int crossed;          /* the peer has refused, as it connects itself */
	int error;            /* of a connection that failed without an operation that could report it */
	unsigned links;       /* that have it in of */
	unsigned unexpected;  /* messages */
	size_t unexpected_bytes; /* of memory that they take */
};

struct vx_post { /* a receive */
	struct vx_post *next;
	uint64_t flags, tag, ignore;
	void *context;
	fi_addr_t from; /* FI_ADDR_UNSPEC: any */
	struct iovec iov[VX_IOV];
	unsigned count;
	size_t length, used; /* used: by earlier messages of a multi-receive */
	unsigned pulls;      /* of a multi-receive: messages that are being read, or arrive in pieces */
	int tagged, spent;   /* spent: it is not in the list, and waits for its pulls */
};

struct vx_posts {
	struct vx_post *first, **last;
};

struct vx_message {
	struct vx_message *next;
	struct vx_peer *peer;
	struct vx_link *link; /* on which it came */
	void *claimed;        /* the context, in the list of claimed ones */
	uint64_t tag, data;
	unsigned flags;       /* of the header */
	int is_request;       /* bytes is a vx_request, not data */
	int lost;             /* claimed, and its data cannot be read any more */
	size_t total, length; /* length: of bytes */
	const void *bytes;
};

struct vx_partial { /* a message whose VX_MORE have not all arrived */
	struct vx_message message; /* the first member, as the whole is freed by it */
	struct vx_post *post;      /* the receive that it goes to; NULL: message.bytes collects it */
	void *buf;                 /* in the receive's memory, at byte used of it, for got bytes */
	size_t used, got;
	size_t done;               /* bytes that have arrived */
};

struct vx_messages {
	struct vx_message *first, **last;
};

struct vx_rdm {
	struct vx_ep *ep;
	struct vx_pep pep; /* its listener */
	struct vx_av *av;
	struct vx_rdm *next; /* of the same av */
	struct vx_peer **by_addr; /* index: an fi_addr_t */
	size_t by_addr_size;
	struct vx_peer *peers[256];
	struct vx_link *dead; /* to close, by sibling */
	uint64_t instance;    /* tells it from an earlier endpoint at the same address */
	unsigned connecting;  /* threads */
	pthread_cond_t changed;

	struct vx_posts posted[2];     /* index: tagged */
	struct vx_messages arrived[2]; /* that no receive has matched; the same */
	struct vx_messages claimed;
	struct vx_post *posts, *free;  /* rx_size of them, the first used of which were in use */
	size_t used, left;
};

/* rdm.c; under the lock unless they say otherwise */
int vx_rdm_open(struct vx_ep *ep);                /* without it */
void vx_rdm_close(struct vx_ep *ep);              /* without it */
void vx_rdm_free(struct vx_ep *ep);               /* without it */
int vx_rdm_bind(struct vx_ep *ep, struct fid *av);
int vx_rdm_enable(struct vx_ep *ep);
void vx_rdm_reap(struct vx_rdm *rdm);             /* without it: closes dead links */
struct vx_tx *vx_rdm_to(struct vx_ep *ep, fi_addr_t to, ssize_t *error);
void vx_rdm_hello(struct vx_link *link, const void *data, size_t length);
void vx_rdm_answer(struct vx_link *link, int accepted, const void *data, size_t length);
void vx_rdm_lost(struct vx_link *link);
void vx_rdm_inserted(struct vx_rdm *rdm, fi_addr_t addr, const union vx_addr *name);
void vx_rdm_removed(struct vx_rdm *rdm, fi_addr_t addr);
void vx_rdm_collect(struct vx_rdm *rdm, struct vx_peer *peer); /* frees a peer that nothing needs any more */
ssize_t vx_rdm_cancel(struct vx_ep *ep, void *context);

/* match.c; under the lock unless they say otherwise */
int vx_match_open(struct vx_ep *ep);
void vx_match_close(struct vx_rdm *rdm);
ssize_t vx_match_receive(struct vx_ep *ep, const struct vx_call *call); /* without it */
/* 0: the message is lost, for lack of memory or by an error of the peer's provider. */
int vx_match_arrived(struct vx_link *link, const struct vx_header *h, const void *data, size_t length);
void vx_match_pulled(struct vx_ep *ep, struct vx_op *op, int error);
void vx_match_lost(struct vx_rdm *rdm, const struct vx_link *link); /* its long messages cannot be read any more */
void vx_match_cut(struct vx_link *link); /* nothing arrives on it any more */
ssize_t vx_match_cancel(struct vx_rdm *rdm, void *context);
ssize_t vx_match_left(const struct vx_ep *ep);

#endif
