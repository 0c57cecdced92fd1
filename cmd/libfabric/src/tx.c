/*
 * Transmits. An operation waits in order until it begins; then its pieces or RDMA descriptors are
 * handed to the VI, as credits and send slots allow; then it may have to wait for the VI, or for the
 * peer's acknowledgement.
 *
 * Messages are copied to send slots. So their memory can be reused when they are handed over.
 * The memory of RDMA operations is registered for the time of the operation.
 */
#include <stdlib.h>

#include "match.h"

static void append(struct vx_ops *q, struct vx_op *op)
{
	if (!q->first)
		q->last = &q->first;
	op->next = NULL;
	*q->last = op;
	q->last = &op->next;
}

static void prepend(struct vx_ops *q, struct vx_op *op)
{
	if (!q->first)
		q->last = &op->next;
	op->next = q->first;
	q->first = op;
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

void vx_tx_init(struct vx_tx *tx, struct vx_ep *ep)
{
	struct vx_ops *all[] = {&tx->waiting, &tx->unacknowledged, &tx->unfinished, &tx->pulls};
	size_t i;

	tx->ep = ep;
	for (i = 0; i < sizeof all / sizeof *all; i++)
		all[i]->last = &all[i]->first;
}

int vx_tx_idle(const struct vx_tx *tx)
{
	return !tx->inflight && !tx->waiting.first && !tx->unacknowledged.first && !tx->unfinished.first && !tx->pulls.first;
}

struct vx_tx *vx_tx_to(struct vx_ep *ep, fi_addr_t to, ssize_t *error)
{
	if (ep->rdm)
		return vx_rdm_to(ep, to, error);
	*error = ep->tx.link && ep->tx.link->state == VX_UP ? 0 : -FI_ENOTCONN;
	return *error ? NULL : &ep->tx;
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

static int completes(const struct vx_ep *ep, const struct vx_call *call)
{
	return !call->injected && (!ep->tx_selective || call->flags & FI_COMPLETION);
}

/* The bytes of a call, or an error. */
static ssize_t check(const struct vx_ep *ep, const struct vx_call *call)
{
	size_t i, length = 0;

	if (call->count > VX_IOV || (call->count && !call->iov) || call->flags & ~(uint64_t)VX_TX_FLAGS)
		return -FI_EINVAL;
	for (i = 0; i < call->count; i++)
		length += call->iov[i].iov_len;
	if (call->flags & FI_INJECT && length > ep->info->tx_attr->inject_size)
		return -FI_EINVAL;
	return length > VX_MAX_MESSAGE ? -FI_EMSGSIZE : (ssize_t)length;
}

struct vx_op *vx_tx_new(struct vx_tx *tx, const struct vx_call *call, ssize_t *error)
{
	struct vx_ep *ep = tx->ep;
	ssize_t length = check(ep, call);
	struct vx_op *op;
	size_t i;

	*error = length;
	if (length < 0)
		return NULL;
	*error = -FI_EAGAIN;
	op = get(ep);
	if (!op)
		return NULL;
	op->tx = tx;
	op->kind = call->kind;
	op->tagged = call->tagged;
	op->tag = call->tag;
	op->context = call->context;
	op->data = call->data;
	op->injected = call->injected;
	op->flags = completes(ep, call) ? call->flags | FI_COMPLETION : call->flags & ~FI_COMPLETION;
	op->length = (size_t)length;
	op->count = (unsigned)call->count;
	for (i = 0; i < call->count; i++)
		op->iov[i] = call->iov[i];
	return op;
}

static void release(struct vx_op *op)
{
	struct vx_ep *ep = op->tx->ep;
	int i;

	for (i = 0; i < op->registered; i++)
		if (op->handles[i])
			VipDeregisterMem(ep->nic->handle, op->iov[i].iov_base, op->handles[i]);
	op->registered = 0;
	if (op->kind == VX_PULL)
		return; /* it becomes a VX_FINISH */
	if (op->kind == VX_FINISH) {
		free(op);
		return;
	}
	free(op->copy);
	op->next = ep->free;
	ep->free = op;
}

static const uint64_t entry_flags[] = {
	[VX_SEND] = FI_SEND | FI_MSG,
	[VX_READ] = FI_READ | FI_RMA,
	[VX_WRITE] = FI_WRITE | FI_RMA,
};

/* A read of a long message has ended, and the sender is told if there still is one. */
static void pulled(struct vx_op *op, int error)
{
	struct vx_tx *tx = op->tx;

	release(op);
	op->kind = VX_FINISH;
	op->error = error;
	vx_match_pulled(tx->ep, op, error);
	if (tx->link && tx->link == op->link && tx->link->state == VX_UP)
		prepend(&tx->pulls, op); /* the sender may wait for it to send the next */
	else
		release(op);
}

static void complete(struct vx_ep *ep, const struct vx_op *op, int error)
{
	struct fi_cq_err_entry entry = {
		.op_context = op->context, .flags = entry_flags[op->kind], .err = error,
	};

	if (op->tagged)
		entry.flags = FI_SEND | FI_TAGGED;
	if (ep->tx_cq && !ep->closing && (error || op->flags & FI_COMPLETION))
		vx_cq_push(ep->tx_cq, &entry);
	vx_cntr_add(op->kind == VX_SEND ? ep->send : op->kind == VX_READ ? ep->read : ep->write, error);
}

static void done(struct vx_op *op, int error)
{
	if (op->kind == VX_PULL) {
		pulled(op, error);
		return;
	}
	op->tx->inflight -= (unsigned)op->started;
	if (op->kind != VX_FINISH)
		complete(op->tx->ep, op, error);
	release(op);
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

static unsigned flags_of(uint64_t flags, int tagged)
{
	return (flags & FI_REMOTE_CQ_DATA ? VX_HAS_DATA : 0U) | (tagged ? VX_TAGGED : 0U);
}

/*
 * The data of a piece that others follow: whole frames, which libvipl can send in one packet (GSO) with those of the next one.
 * Encrypted frames are shorter: there each piece ends a packet.
 */
static size_t whole_piece(const struct vx_link *link)
{
	size_t header = sizeof(struct vx_header);
	size_t frame = link->nic->frame - (link->tx->ep->name.sa.sa_family == AF_INET6 ? 20 : 0); /* IPv6's header is longer */
	size_t frames = (VX_PIECE + header) / frame;

	return frames ? frames * frame - header : VX_PIECE;
}

/* Whether another piece of the message can be sent for certain. */
static int goes_on(const struct vx_link *link, const struct vx_op *op, size_t n)
{
	return op->done + n < op->length && (int32_t)(link->limit - link->sent) > 1 && link->sends_tail - link->sends_head < VX_SENDS - 1;
}

/* 1: all pieces are handed over. */
static int hand_message(struct vx_link *link, struct vx_op *op)
{
	size_t whole = whole_piece(link);

	do {
		size_t n = op->length - op->done;
		struct vx_tx_slot *slot;
		unsigned flags = flags_of(op->flags, op->tagged) | (op->done == 0 ? VX_FIRST : 0);
		enum vx_type type = !op->tx->ep->rdm ? VX_DATA : op->done == 0 ? VX_EAGER : VX_MORE;

		if (!vx_link_credit(link) || !(slot = vx_link_slot(link)))
			return 0;
		if (n > VX_PIECE)
			n = whole;
		gather(op, op->done, slot->data, n);
		if (op->done + n == op->length)
			flags |= VX_LAST | (wants_ack(op) ? VX_WANT_ACK : 0);
		slot->header.flags = (uint8_t)flags;
		slot->header.total = op->length;
		slot->header.data = op->data;
		slot->header.tag = op->tag;
		if (vx_link_send(link, slot, type, n, goes_on(link, op, n) ? VX_LIST : bell(op)))
			return 0; /* it is being lost */
		op->done += n;
	} while (op->done < op->length);
	return 1;
}

/* Where the data of a long message is. */
static size_t request(const struct vx_op *op, struct vx_request *r)
{
	unsigned i;

	memset(r, 0, sizeof *r);
	r->id = (uint64_t)(op - op->tx->ep->ops);
	r->count = op->count;
	for (i = 0; i < op->count; i++) {
		r->parts[i].address = (uint64_t)(uintptr_t)op->iov[i].iov_base;
		r->parts[i].length = op->iov[i].iov_len;
		r->parts[i].key = op->handles[i];
	}
	return sizeof *r;
}

static int hand_request(struct vx_link *link, struct vx_op *op)
{
	struct vx_tx_slot *slot;

	if (!vx_link_credit(link) || !(slot = vx_link_slot(link)))
		return 0;
	slot->header.flags = (uint8_t)flags_of(op->flags, op->tagged);
	slot->header.total = op->length;
	slot->header.data = op->data;
	slot->header.tag = op->tag;
	if (vx_link_send(link, slot, VX_REQUEST, request(op, (struct vx_request *)slot->data), bell(op)))
		return 0;
	op->done = op->length;
	return 1;
}

static int hand_finish(struct vx_link *link, const struct vx_op *op)
{
	struct vx_tx_slot *slot;

	if (!vx_link_credit(link) || !(slot = vx_link_slot(link)))
		return 0;
	slot->header.flags = op->error ? VX_FAILED : 0;
	slot->header.data = op->id;
	return !vx_link_send(link, slot, VX_FINISHED, 0, VX_RING);
}

/*
 * A message that one piece can carry, and nothing before it has to wait: the usual case, without a vx_op.
 */
int vx_tx_eager(struct vx_tx *tx, const struct vx_call *call)
{
	struct vx_ep *ep = tx->ep;
	struct vx_link *link = tx->link;
	struct vx_tx_slot *slot;
	struct vx_header *h;
	ssize_t n;

	if (call->flags & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_FENCE) || tx->waiting.first || tx->full || !link ||
		link->state != VX_UP || !vx_link_credit(link) || (n = check(ep, call)) < 0 || n > VX_PIECE || !(slot = vx_link_slot(link)))
		return 0;
	h = &slot->header;
	h->flags = (uint8_t)(flags_of(call->flags, call->tagged) | (ep->rdm ? 0 : VX_FIRST | VX_LAST));
	h->total = (uint64_t)n;
	h->data = call->data;
	h->tag = call->tag;
	vx_iov_copy(call->iov, (unsigned)call->count, 0, slot->data, (size_t)n, VX_FROM_LIST);
	if (vx_link_send(link, slot, ep->rdm ? VX_EAGER : VX_DATA, (size_t)n, call->flags & FI_MORE ? VX_RING_LATER : VX_RING))
		return 0;
	if (ep->tx_cq && completes(ep, call)) {
		struct fi_cq_err_entry entry = {
			.op_context = call->context, .flags = FI_SEND | (call->tagged ? FI_TAGGED : FI_MSG),
		};

		vx_cq_push(ep->tx_cq, &entry);
	}
	vx_cntr_add(ep->send, 0);
	return 1;
}

/* RDMA of small writes has the send slot's memory, and needs no registration. */
static int copied(const struct vx_op *op)
{
	return op->kind == VX_WRITE && op->length <= VX_INJECT;
}

static int register_local(struct vx_op *op)
{
	VIP_MEM_ATTRIBUTES readable = {.EnableRdmaRead = VIP_TRUE};
	unsigned i;

	if (copied(op) || (op->kind == VX_SEND && !op->later))
		return 0;
	for (i = 0; i < op->count; i++) {
		VIP_RETURN code = VIP_SUCCESS;

		op->registered = (int)i + 1;
		if (op->iov[i].iov_len)
			code = VipRegisterMem(op->tx->ep->nic->handle, op->iov[i].iov_base, op->iov[i].iov_len,
				op->later ? &readable : NULL, &op->handles[i]);
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

/* A slot for an operation, which may fail meanwhile: taking completed sends can find its descriptors flushed. */
static struct vx_tx_slot *slot_for(struct vx_link *link, struct vx_op *op)
{
	struct vx_tx_slot *slot;

	op->posted++; /* so that vx_tx_reaped does not end and free it under the caller */
	slot = vx_link_slot(link);
	op->posted--;
	return op->error ? NULL : slot; /* the link is being lost, which ends the operation */
}

static int hand_rdma(struct vx_link *link, struct vx_op *op)
{
	struct vx_tx_slot *slot;

	while (op->done < op->length) {
		size_t n;

		if (!(slot = slot_for(link, op)))
			return 0;
		n = remote_segment(op, op->done, &slot->d.DS[0].Remote);
		if (n > op->length - op->done)
			n = op->length - op->done;
		if (n > VX_RDMA_MAX)
			n = VX_RDMA_MAX;
		slot->d.CS.Control = op->kind == VX_WRITE ? VIP_CONTROL_OP_RDMAWRITE : VIP_CONTROL_OP_RDMAREAD;
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
	if (!vx_link_credit(link) || !(slot = slot_for(link, op)))
		return 0;
	slot->header.flags = (uint8_t)((op->flags & FI_REMOTE_CQ_DATA ? VX_HAS_DATA : 0) | (wants_ack(op) ? VX_WANT_ACK : 0));
	slot->header.data = op->data;
	return !vx_link_send(link, slot, VX_WROTE, 0, bell(op));
}

/* Injected data that is not handed over at once is kept. */
static int keep(struct vx_op *op)
{
	size_t n = op->length - op->done;

	if (!n || op->copy)
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

static void settle(struct vx_op *op)
{
	if (op->handed && op->acknowledged && !op->posted)
		done(op, op->error);
}

/* 1: it has gone on. */
static int hand_pull(struct vx_tx *tx, struct vx_op *op)
{
	if (op->kind == VX_FINISH ? !hand_finish(tx->link, op) : !op->error && !hand_rdma(tx->link, op))
		return 0;
	drop(&tx->pulls, op);
	op->handed = op->acknowledged = 1;
	settle(op);
	return 1;
}

void vx_tx_pull(struct vx_op *op)
{
	op->link = op->tx->link;
	op->error = op->post ? register_local(op) : 0;
	append(&op->tx->pulls, op);
	vx_tx_pump(op->tx);
}

/* The same without a read, for which there is no memory. */
void vx_tx_unread(struct vx_tx *tx, uint64_t id, int failed)
{
	const struct vx_op op = {.id = id, .error = failed ? FI_ENOMEM : 0};

	if (!tx->link || tx->link->state != VX_UP || !hand_finish(tx->link, &op))
		VX_WARN(FI_LOG_EP_DATA, "out of memory: the sender of a long message is not told of its end\n");
}

/* The longest message that a read is slower for than the copies of its pieces, measured on a veth pair. */
static size_t eager_max(const struct vx_nic *nic)
{
	return nic->frame > 4096 ? VX_EAGER_LONG : VX_EAGER_MAX;
}

static int hand(struct vx_tx *tx, struct vx_op *op)
{
	if (op->kind != VX_SEND)
		return hand_rdma(tx->link, op);
	return op->later ? hand_request(tx->link, op) : hand_message(tx->link, op);
}

void vx_tx_pump(struct vx_tx *tx)
{
	struct vx_link *link = tx->link;
	struct vx_op *op;
	int error = 0;

	if (!link)
		return;
	while ((op = tx->pulls.first) && link->state == VX_UP && hand_pull(tx, op))
		;
	while ((op = tx->waiting.first) && link->state == VX_UP) {
		if (!op->started) {
			if (op->flags & FI_FENCE && tx->inflight)
				return;
			op->started = 1;
			tx->inflight++;
			op->later = op->kind == VX_SEND && tx->ep->rdm && (op->length > eager_max(link->nic) || tx->full);
			error = op->later && op->flags & FI_INJECT ? -keep(op) : 0;
			if (!error && !(error = vx_rma_keys(op)))
				error = register_local(op);
			if (error) {
				drop(&tx->waiting, op);
				done(op, error);
				continue;
			}
		}
		if (!hand(tx, op))
			return;
		drop(&tx->waiting, op);
		op->handed = 1;
		op->unfinished = op->later;
		if (op->unfinished)
			append(&tx->unfinished, op);
		else if (op->kind != VX_READ && wants_ack(op))
			append(&tx->unacknowledged, op);
		else
			op->acknowledged = 1;
		settle(op);
	}
}

void vx_tx_reaped(struct vx_op *op, int error)
{
	struct vx_tx *tx = op->tx;

	op->posted--;
	if (!op->error)
		op->error = error;
	if (op->error && !op->posted) { /* the link is being lost: nothing more of it will be handed over */
		drop(&tx->waiting, op);
		drop(&tx->unacknowledged, op);
		drop(&tx->pulls, op);
		op->handed = op->acknowledged = 1;
	}
	settle(op);
}

void vx_tx_acknowledged(struct vx_tx *tx, uint32_t count)
{
	struct vx_op *op;

	while (count-- && (op = tx->unacknowledged.first)) {
		drop(&tx->unacknowledged, op);
		op->acknowledged = 1;
		settle(op);
	}
}

void vx_tx_finished(struct vx_tx *tx, uint64_t id, int failed)
{
	struct vx_ep *ep = tx->ep;
	struct vx_op *op;

	if (id >= ep->ops_used || (op = &ep->ops[id])->tx != tx || !op->unfinished)
		return;
	drop(&tx->unfinished, op);
	op->unfinished = 0;
	op->acknowledged = 1;
	if (failed)
		op->error = FI_EIO;
	settle(op);
}

static void flush(struct vx_ops *q, int error)
{
	struct vx_op *op;

	while ((op = q->first)) {
		drop(q, op);
		op->handed = op->acknowledged = 1;
		op->unfinished = 0;
		if (!op->error)
			op->error = error;
		settle(op); /* or when its descriptors are complete */
	}
}

void vx_tx_flush(struct vx_tx *tx, int error)
{
	flush(&tx->unacknowledged, error);
	flush(&tx->unfinished, error);
	flush(&tx->waiting, error);
	flush(&tx->pulls, error);
}

ssize_t vx_tx_cancel(struct vx_tx *tx, void *context)
{
	struct vx_op *op;

	for (op = tx->waiting.first; op; op = op->next)
		if (op->context == context && !op->started) {
			drop(&tx->waiting, op);
			done(op, FI_ECANCELED);
			return 0;
		}
	return -FI_ENOENT;
}

/*
 * What fi_inject could not hand over: FI_EP_MSG keeps it. FI_EP_RDM has no entry that could say that it was lost with
 * the connection, which may not even have been made, so it refuses.
 */
ssize_t vx_tx_post(struct vx_op *op)
{
	struct vx_tx *tx = op->tx;
	ssize_t error = 0;

	append(&tx->waiting, op);
	vx_tx_pump(tx);
	if (!tx->waiting.first || tx->waiting.last != &op->next || !(op->flags & FI_INJECT))
		return 0;
	if (tx->ep->rdm && op->injected && !op->done && !op->posted)
		error = -FI_EAGAIN;
	else
		error = keep(op);
	if (error) {
		drop(&tx->waiting, op);
		tx->inflight -= (unsigned)op->started;
		release(op);
	}
	return error;
}
