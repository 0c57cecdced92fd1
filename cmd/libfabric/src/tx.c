/*
 * Transmits. An operation waits in order until it begins; then its pieces or RDMA descriptors are
 * handed to the VI, as credits and send slots allow; then it may have to wait for the VI, or for the
 * peer's acknowledgement.
 *
 * Messages are copied to send slots. So their memory can be reused when they are handed over.
 * The memory of RDMA operations is registered for the time of the operation.
 */
#include <stdlib.h>

#include "link.h"

static void append(struct vx_ops *q, struct vx_op *op)
{
	if (!q->first)
		q->last = &q->first;
	op->next = NULL;
	*q->last = op;
	q->last = &op->next;
}

static void drop(struct vx_ops *q, struct vx_op *op)
{
	struct vx_op **at = &q->first;

	while (*at && *at != op)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = op->next;
	if (!*at)
		q->last = at;
}

static struct vx_op *get(struct vx_ep *ep)
{
	struct vx_op *op = ep->free;

	if (op)
		ep->free = op->next;
	else if (ep->ops_used < ep->tx_size)
		op = &ep->ops[ep->ops_used++];
	if (op)
		memset(op, 0, sizeof *op);
	return op;
}

struct vx_op *vx_tx_new(struct vx_ep *ep, const struct vx_call *call, ssize_t *error)
{
	struct vx_op *op;
	size_t i, length = 0;

	*error = -FI_EINVAL;
	if (call->count > VX_IOV || (call->count && !call->iov) || call->flags & ~(uint64_t)VX_TX_FLAGS)
		return NULL;
	for (i = 0; i < call->count; i++)
		length += call->iov[i].iov_len;
	if (call->flags & FI_INJECT && length > ep->info->tx_attr->inject_size)
		return NULL;
	*error = -FI_EMSGSIZE;
	if (length > VX_MAX_MESSAGE)
		return NULL;
	*error = -FI_ENOTCONN;
	if (!ep->link || ep->link->state != VX_UP)
		return NULL;
	*error = -FI_EAGAIN;
	op = get(ep);
	if (!op)
		return NULL;
	op->kind = call->kind;
	op->context = call->context;
	op->data = call->data;
	op->flags = call->flags;
	if (call->injected)
		op->flags &= ~FI_COMPLETION;
	else if (!ep->tx_selective)
		op->flags |= FI_COMPLETION;
	op->length = length;
	op->count = (unsigned)call->count;
	for (i = 0; i < call->count; i++)
		op->iov[i] = call->iov[i];
	return op;
}

static void release(struct vx_ep *ep, struct vx_op *op)
{
	int i;

	for (i = 0; i < op->registered; i++)
		if (op->handles[i])
			VipDeregisterMem(ep->nic->handle, op->iov[i].iov_base, op->handles[i]);
	free(op->copy);
	op->next = ep->free;
	ep->free = op;
}

static const uint64_t entry_flags[] = {
	[VX_SEND] = FI_SEND | FI_MSG,
	[VX_READ] = FI_READ | FI_RMA,
	[VX_WRITE] = FI_WRITE | FI_RMA,
};

void vx_tx_done(struct vx_ep *ep, struct vx_op *op, int error)
{
	struct fi_cq_err_entry entry = {
		.op_context = op->context, .flags = entry_flags[op->kind], .err = error,
	};

	ep->inflight -= (unsigned)op->started;
	if (ep->tx_cq && !ep->closing && (error || op->flags & FI_COMPLETION))
		vx_cq_push(ep->tx_cq, &entry);
	vx_cntr_add(op->kind == VX_SEND ? ep->send : op->kind == VX_READ ? ep->read : ep->write, error);
	release(ep, op);
}

/* Its memory, from byte at on, to a buffer. */
static void gather(const struct vx_op *op, size_t at, void *to, size_t length)
{
	vx_iov_copy(op->iov, op->count, at, to, length, VX_FROM_LIST);
}

static int wants_ack(const struct vx_op *op)
{
	return (op->flags & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)) != 0;
}

/* The doorbell of the program's last operation is that of those with FI_MORE before it. */
static enum vx_bell bell(const struct vx_op *op)
{
	return op->flags & FI_MORE ? VX_RING_LATER : VX_RING;
}

/* 1: all pieces are handed over. */
static int hand_message(struct vx_link *link, struct vx_op *op)
{
	do {
		size_t n = op->length - op->done;
		struct vx_tx_slot *slot;
		int flags = op->done == 0 ? VX_FIRST : 0;

		if (!vx_link_credit(link) || !(slot = vx_link_slot(link)))
			return 0;
		if (n > VX_PIECE)
			n = VX_PIECE;
		gather(op, op->done, slot->data, n);
		if (op->done + n == op->length)
			flags |= VX_LAST | (wants_ack(op) ? VX_WANT_ACK : 0);
		if (op->flags & FI_REMOTE_CQ_DATA)
			flags |= VX_HAS_DATA;
		slot->header.flags = (uint8_t)flags;
		slot->header.total = op->length;
		slot->header.data = op->data;
		if (vx_link_send(link, slot, VX_DATA, n, bell(op)))
			return 0; /* it is being lost */
		op->done += n;
	} while (op->done < op->length);
	return 1;
}

/* RDMA of small writes has the send slot's memory, and needs no registration. */
static int copied(const struct vx_op *op)
{
	return op->kind == VX_WRITE && op->length <= VX_INJECT;
}

static int register_local(struct vx_ep *ep, struct vx_op *op)
{
	unsigned i;

	if (copied(op))
		return 0;
	for (i = 0; i < op->count; i++) {
		VIP_RETURN code = VIP_SUCCESS;

		op->registered = (int)i + 1;
		if (op->iov[i].iov_len)
			code = VipRegisterMem(ep->nic->handle, op->iov[i].iov_base, op->iov[i].iov_len, NULL, &op->handles[i]);
		if (code != VIP_SUCCESS)
			return code == VIP_INVALID_PARAMETER ? FI_EFAULT : vx_errno(code);
	}
	return 0;
}

static void segment(VIP_DESCRIPTOR_SEGMENT *s, void *address, VIP_MEM_HANDLE handle, size_t length)
{
	s->Local.Data.Address = address;
	s->Local.Handle = handle;
	s->Local.Length = (VIP_UINT32)length;
}

/* The local segments of bytes at on; how many. */
static unsigned local_segments(struct vx_link *link, struct vx_op *op, struct vx_tx_slot *slot, size_t at, size_t length)
{
	VIP_DESCRIPTOR_SEGMENT *s = &slot->d.DS[1];
	unsigned i, n = 0;

	if (copied(op)) {
		gather(op, at, slot->data, length);
		segment(s, slot->data, link->handle, length);
		return 1;
	}
	for (i = 0; i < op->count && length; i++) {
		size_t part = op->iov[i].iov_len;

		if (at >= part) {
			at -= part;
			continue;
		}
		part -= at;
		if (part > length)
			part = length;
		segment(s, (char *)op->iov[i].iov_base + at, op->handles[i], part);
		s = n++ ? s + 1 : slot->more;
		length -= part;
		at = 0;
	}
	return n;
}

/* The remote segment of byte at on, and how far it reaches. */
static size_t remote_segment(const struct vx_op *op, size_t at, VIP_ADDRESS_SEGMENT *out)
{
	unsigned i;

	for (i = 0; i < op->remote_count; i++) {
		if (at < op->remote[i].len) {
			out->Data.AddressBits = op->remote[i].addr + at;
			out->Handle = (VIP_MEM_HANDLE)op->remote[i].key;
			return op->remote[i].len - at;
		}
		at -= op->remote[i].len;
	}
	return 0;
}

/* A write tells the peer of its data, and asks for an acknowledgement, in a message behind it. */
static int needs_message(const struct vx_op *op)
{
	return op->kind == VX_WRITE && (op->flags & FI_REMOTE_CQ_DATA || wants_ack(op));
}

static int hand_rdma(struct vx_link *link, struct vx_op *op)
{
	struct vx_tx_slot *slot;

	while (op->done < op->length) {
		size_t n;

		if (!(slot = vx_link_slot(link)))
			return 0;
		n = remote_segment(op, op->done, &slot->d.DS[0].Remote);
		if (n > op->length - op->done)
			n = op->length - op->done;
		if (n > VX_RDMA_MAX)
			n = VX_RDMA_MAX;
		slot->d.CS.Control = op->kind == VX_READ ? VIP_CONTROL_OP_RDMAREAD : VIP_CONTROL_OP_RDMAWRITE;
		slot->d.CS.SegCount = (VIP_UINT16)(1 + local_segments(link, op, slot, op->done, n));
		slot->d.CS.Length = (VIP_UINT32)n;
		slot->op = op;
		if (vx_link_post(link, slot, bell(op)))
			return 0;
		op->posted++;
		op->done += n;
	}
	if (!needs_message(op))
		return 1;
	if (!vx_link_credit(link) || !(slot = vx_link_slot(link)))
		return 0;
	slot->header.flags = (uint8_t)((op->flags & FI_REMOTE_CQ_DATA ? VX_HAS_DATA : 0) | (wants_ack(op) ? VX_WANT_ACK : 0));
	slot->header.data = op->data;
	return !vx_link_send(link, slot, VX_WROTE, 0, bell(op));
}

static void settle(struct vx_ep *ep, struct vx_op *op)
{
	if (op->handed && op->acknowledged && !op->posted)
		vx_tx_done(ep, op, op->error);
}

void vx_tx_pump(struct vx_ep *ep)
{
	struct vx_link *link = ep->link;
	struct vx_op *op;
	int error = 0;

	while ((op = ep->waiting.first) && link->state == VX_UP) {
		if (!op->started) {
			if (op->flags & FI_FENCE && ep->inflight)
				return;
			op->started = 1;
			ep->inflight++;
			if (op->kind != VX_SEND && (error = register_local(ep, op)) != 0) {
				drop(&ep->waiting, op);
				vx_tx_done(ep, op, error);
				continue;
			}
		}
		if (!(op->kind == VX_SEND ? hand_message(link, op) : hand_rdma(link, op)))
			return;
		drop(&ep->waiting, op);
		op->handed = 1;
		if (op->kind != VX_READ && wants_ack(op))
			append(&ep->unacknowledged, op);
		else
			op->acknowledged = 1;
		settle(ep, op);
	}
}

void vx_tx_reaped(struct vx_ep *ep, struct vx_op *op, int status)
{
	op->posted--;
	if (status && !op->error)
		op->error = status & VIP_STATUS_RDMA_PROT_ERROR ? FI_EACCES :
			status & VIP_STATUS_DESC_FLUSHED_ERROR ? FI_ECANCELED : FI_EIO;
	if (op->error && !op->posted) { /* the link is being lost: nothing more of it will be handed over */
		drop(&ep->waiting, op);
		drop(&ep->unacknowledged, op);
		op->handed = op->acknowledged = 1;
	}
	settle(ep, op);
}

void vx_tx_acknowledged(struct vx_ep *ep, uint32_t count)
{
	struct vx_op *op;

	while (count-- && (op = ep->unacknowledged.first)) {
		drop(&ep->unacknowledged, op);
		op->acknowledged = 1;
		settle(ep, op);
	}
}

static void flush(struct vx_ep *ep, struct vx_ops *q, int error)
{
	struct vx_op *op;

	while ((op = q->first)) {
		drop(q, op);
		op->handed = op->acknowledged = 1;
		if (!op->error)
			op->error = error;
		settle(ep, op); /* or when its descriptors are complete */
	}
}

void vx_tx_flush(struct vx_ep *ep, int error)
{
	flush(ep, &ep->unacknowledged, error);
	flush(ep, &ep->waiting, error);
}

ssize_t vx_tx_cancel(struct vx_ep *ep, void *context)
{
	struct vx_op *op;

	for (op = ep->waiting.first; op; op = op->next)
		if (op->context == context && !op->started) {
			drop(&ep->waiting, op);
			vx_tx_done(ep, op, FI_ECANCELED);
			return 0;
		}
	return -FI_ENOENT;
}

/* Injected data that could not be handed over at once is kept. */
static int keep(struct vx_op *op)
{
	size_t n = op->length - op->done;

	if (!n)
		return 0;
	op->copy = malloc(op->length);
	if (!op->copy)
		return -FI_ENOMEM;
	gather(op, 0, op->copy, op->length);
	op->iov[0].iov_base = op->copy;
	op->iov[0].iov_len = op->length;
	op->count = 1;
	return 0;
}

ssize_t vx_tx_post(struct vx_ep *ep, struct vx_op *op)
{
	append(&ep->waiting, op);
	vx_tx_pump(ep);
	if (ep->waiting.first && ep->waiting.last == &op->next && op->flags & FI_INJECT && keep(op)) {
		drop(&ep->waiting, op);
		ep->inflight -= (unsigned)op->started;
		release(ep, op);
		return -FI_ENOMEM;
	}
	return 0;
}
