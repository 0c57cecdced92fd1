/* fi_send, fi_recv and their families. */
#include "match.h"

static struct vx_ep *endpoint(struct fid_ep *ep)
{
	return VX_OUTER(ep, struct vx_ep, fid);
}

uint64_t vx_tx_defaults(const struct vx_ep *ep, int injected)
{
	uint64_t flags = ep->info->tx_attr->op_flags;

	return injected ? (flags & VX_LEVELS) | FI_INJECT : flags;
}

ssize_t vx_send(struct fid_ep *fid, const struct vx_call *call)
{
	struct vx_ep *ep = endpoint(fid);
	struct vx_op *op;
	struct vx_tx *tx;
	ssize_t result = 0;

	pthread_mutex_lock(&ep->nic->lock);
	tx = vx_tx_to(ep, call->to, &result);
	if (tx && !vx_tx_eager(tx, call)) {
		op = vx_tx_new(tx, call, &result);
		if (op)
			result = vx_tx_post(op);
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return result;
}

static ssize_t msg_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vx_send(ep, &(struct vx_call){
		.to = dest, .iov = &iov, .count = 1, .context = context, .flags = vx_tx_defaults(endpoint(ep), 0)});
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, void *context)
{
	(void)desc;
	return vx_send(ep, &(struct vx_call){
		.to = dest, .iov = iov, .count = count, .context = context, .flags = vx_tx_defaults(endpoint(ep), 0)});
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags)
{
	return vx_send(ep, &(struct vx_call){
		.to = msg->addr, .iov = msg->msg_iov, .count = msg->iov_count, .context = msg->context, .data = msg->data, .flags = flags});
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vx_send(ep, &(struct vx_call){
		.to = dest, .iov = &iov, .count = 1, .flags = vx_tx_defaults(endpoint(ep), 1), .injected = 1});
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vx_send(ep, &(struct vx_call){.to = dest, .iov = &iov, .count = 1, .context = context, .data = data,
		.flags = vx_tx_defaults(endpoint(ep), 0) | FI_REMOTE_CQ_DATA});
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vx_send(ep, &(struct vx_call){.to = dest, .iov = &iov, .count = 1, .data = data,
		.flags = vx_tx_defaults(endpoint(ep), 1) | FI_REMOTE_CQ_DATA, .injected = 1});
}

static ssize_t receive(struct fid_ep *fid, const struct iovec *iov, size_t count, fi_addr_t src, void *context, uint64_t flags)
{
	struct vx_ep *ep = endpoint(fid);
	struct vx_link *link;
	struct vx_recv *r;
	ssize_t result = 0;
	size_t i;

	if (count > VX_IOV || (count && !iov) || flags & ~VX_RX_FLAGS || (flags & FI_MULTI_RECV && count != 1))
		return -FI_EINVAL;
	if (ep->rdm)
		return vx_match_receive(ep, &(struct vx_call){
			.to = src, .iov = iov, .count = count, .context = context, .flags = flags});
	pthread_mutex_lock(&ep->nic->lock);
	link = ep->tx.link;
	if (!ep->enabled)
		result = -FI_EOPBADSTATE;
	else if (link && vx_link_ended(link))
		result = -FI_ENOTCONN;
	else if (ep->recv_tail - ep->recv_head == ep->rx_size)
		result = -FI_EAGAIN;
	if (!result) {
		r = &ep->recvs[ep->recv_tail++ & (ep->rx_size - 1)];
		memset(r, 0, sizeof *r);
		r->flags = ep->rx_selective ? flags : flags | FI_COMPLETION;
		r->context = context;
		r->count = (unsigned)count;
		for (i = 0; i < count; i++) {
			r->iov[i] = iov[i];
			r->length += iov[i].iov_len;
		}
		if (link && link->held_head != link->held_tail) {
			vx_link_deliver(link);
			vx_link_pump(link);
		}
		if (link && vx_link_ended(link))
			vx_rx_flush(ep);
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return result;
}

static ssize_t msg_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, void *context)
{
	struct iovec iov = {buf, len};

	(void)desc;
	return receive(ep, &iov, 1, src, context, endpoint(ep)->info->rx_attr->op_flags);
}

static ssize_t msg_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, void *context)
{
	(void)desc;
	return receive(ep, iov, count, src, context, endpoint(ep)->info->rx_attr->op_flags);
}

static ssize_t msg_recvmsg(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags)
{
	return receive(ep, msg->msg_iov, msg->iov_count, msg->addr, msg->context, flags);
}

struct fi_ops_msg vx_msg_ops = {
	.size = sizeof vx_msg_ops,
	.recv = msg_recv,
	.recvv = msg_recvv,
	.recvmsg = msg_recvmsg,
	.send = msg_send,
	.sendv = msg_sendv,
	.sendmsg = msg_sendmsg,
	.inject = msg_inject,
	.senddata = msg_senddata,
	.injectdata = msg_injectdata,
};
