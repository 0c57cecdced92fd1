/* Receives: a ring of posted buffers, which pieces of messages are copied to. */
#include "link.h"

static struct vx_recv *first(struct vx_ep *ep)
{
	return &ep->recvs[ep->recv_head & (ep->rx_size - 1)];
}

int vx_rx_wants(struct vx_ep *ep)
{
	return ep->recv_head != ep->recv_tail;
}

static void report(struct vx_ep *ep, const struct vx_recv *r, const struct fi_cq_err_entry *entry)
{
	int always = entry->err || entry->flags & FI_MULTI_RECV;

	if (ep->rx_cq && !ep->closing && (always || r->flags & FI_COMPLETION))
		vx_cq_push(ep->rx_cq, entry);
}

static void finish(struct vx_ep *ep, struct vx_recv *r, const struct vx_header *h)
{
	enum { ALIGN = 16 }; /* of the messages of a multi-receive */
	size_t room = r->length - r->used, got = ep->filled < room ? ep->filled : room;
	struct fi_cq_err_entry entry = {
		.op_context = r->context, .flags = FI_RECV | FI_MSG, .len = got,
		.buf = r->count ? (char *)r->iov[0].iov_base + r->used : NULL,
		.olen = ep->filled - got, .err = ep->filled > got ? FI_ETRUNC : 0,
	};
	int released = 1;

	if (h->flags & VX_HAS_DATA) {
		entry.flags |= FI_REMOTE_CQ_DATA;
		entry.data = h->data;
	}
	if (r->flags & FI_MULTI_RECV) {
		r->used += (got + ALIGN - 1) & ~(size_t)(ALIGN - 1);
		released = r->used >= r->length || r->length - r->used < ep->multi_recv_min;
		if (released)
			entry.flags |= FI_MULTI_RECV;
	}
	ep->receiving = 0;
	ep->recv_head += (size_t)released;
	report(ep, r, &entry);
	vx_cntr_add(ep->recv, entry.err);
}

int vx_rx_take(struct vx_ep *ep, const struct vx_header *h, const void *data, size_t length)
{
	struct vx_recv *r = first(ep);

	if (h->flags & VX_FIRST) {
		if (r->used && h->total > r->length - r->used) {
			struct fi_cq_err_entry entry = {.op_context = r->context, .flags = FI_MULTI_RECV};

			ep->recv_head++;
			report(ep, r, &entry);
			return 0;
		}
		ep->receiving = 1;
		ep->filled = 0;
	}
	/* What has no room is dropped. */
	vx_iov_copy(r->iov, r->count, r->used + ep->filled, (void *)(uintptr_t)data, length, VX_TO_LIST);
	ep->filled += length;
	if (h->flags & VX_LAST)
		finish(ep, r, h);
	return 1;
}

void vx_rx_remote(struct vx_ep *ep, fi_addr_t from, uint64_t data)
{
	struct fi_cq_err_entry entry = {.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, .data = data};

	if (ep->rx_cq && !ep->closing)
		vx_cq_push_from(ep->rx_cq, &entry, from);
}

static void cancel(struct vx_ep *ep, struct vx_recv *r)
{
	struct fi_cq_err_entry entry = {
		.op_context = r->context, .err = FI_ECANCELED,
		.flags = FI_RECV | FI_MSG | (r->flags & FI_MULTI_RECV), /* the buffer of a multi-receive is the program's again */
	};

	report(ep, r, &entry);
	vx_cntr_add(ep->recv, 1);
}

void vx_rx_flush(struct vx_ep *ep)
{
	while (vx_rx_wants(ep)) {
		struct vx_recv *r = first(ep);

		ep->recv_head++;
		cancel(ep, r);
	}
	ep->receiving = 0;
}

ssize_t vx_rx_cancel(struct vx_ep *ep, void *context)
{
	size_t i, mask = ep->rx_size - 1;

	for (i = ep->recv_head + (size_t)(ep->receiving != 0); i != ep->recv_tail; i++) {
		struct vx_recv r = ep->recvs[i & mask];

		if (r.context != context)
			continue;
		for (; i + 1 != ep->recv_tail; i++)
			ep->recvs[i & mask] = ep->recvs[(i + 1) & mask];
		ep->recv_tail--;
		cancel(ep, &r);
		return 0;
	}
	return -FI_ENOENT;
}
