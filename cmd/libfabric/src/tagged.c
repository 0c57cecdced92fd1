/* fi_tsend, fi_trecv and their families, of FI_EP_RDM. */
#include "match.h"

static struct vx_ep *endpoint(struct fid_ep *ep)
{
	return VX_OUTER(ep, struct vx_ep, fid);
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t tag, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vx_send(ep, &(struct vx_call){.to = dest, .tagged = 1, .tag = tag, .iov = &iov, .count = 1, .context = context,
		.flags = vx_tx_defaults(endpoint(ep), 0)});
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, uint64_t tag,
	void *context)
{
	(void)desc;
	return vx_send(ep, &(struct vx_call){.to = dest, .tagged = 1, .tag = tag, .iov = iov, .count = count, .context = context,
		.flags = vx_tx_defaults(endpoint(ep), 0)});
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
{
	return vx_send(ep, &(struct vx_call){.to = msg->addr, .tagged = 1, .tag = msg->tag, .iov = msg->msg_iov, .count = msg->iov_count,
		.context = msg->context, .data = msg->data, .flags = flags});
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest, uint64_t tag)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vx_send(ep, &(struct vx_call){.to = dest, .tagged = 1, .tag = tag, .iov = &iov, .count = 1,
		.flags = vx_tx_defaults(endpoint(ep), 1), .injected = 1});
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest, uint64_t tag,
	void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vx_send(ep, &(struct vx_call){.to = dest, .tagged = 1, .tag = tag, .iov = &iov, .count = 1, .context = context, .data = data,
		.flags = vx_tx_defaults(endpoint(ep), 0) | FI_REMOTE_CQ_DATA});
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t tag)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vx_send(ep, &(struct vx_call){.to = dest, .tagged = 1, .tag = tag, .iov = &iov, .count = 1, .data = data,
		.flags = vx_tx_defaults(endpoint(ep), 1) | FI_REMOTE_CQ_DATA, .injected = 1});
}

static ssize_t receive(struct fid_ep *fid, const struct vx_call *call)
{
	const uint64_t known = (VX_RX_FLAGS & ~FI_MULTI_RECV) | FI_PEEK | FI_CLAIM | FI_DISCARD;

	if (call->count > VX_IOV || (call->count && !call->iov) || call->flags & ~known ||
		(call->flags & FI_DISCARD && !(call->flags & (FI_PEEK | FI_CLAIM))))
		return -FI_EINVAL;
	return vx_match_receive(endpoint(fid), call);
}

/* The default flags of a receive may have FI_MULTI_RECV, which is for messages without a tag. */
static uint64_t defaults(struct fid_ep *ep)
{
	return endpoint(ep)->info->rx_attr->op_flags & ~FI_MULTI_RECV;
}

static ssize_t tagged_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t tag, uint64_t ignore,
	void *context)
{
	struct iovec iov = {buf, len};

	(void)desc;
	return receive(ep, &(struct vx_call){.to = src, .tagged = 1, .tag = tag, .ignore = ignore, .iov = &iov, .count = 1,
		.context = context, .flags = defaults(ep)});
}

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t tag,
	uint64_t ignore, void *context)
{
	(void)desc;
	return receive(ep, &(struct vx_call){.to = src, .tagged = 1, .tag = tag, .ignore = ignore, .iov = iov, .count = count,
		.context = context, .flags = defaults(ep)});
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
{
	return receive(ep, &(struct vx_call){.to = msg->addr, .tagged = 1, .tag = msg->tag, .ignore = msg->ignore, .iov = msg->msg_iov,
		.count = msg->iov_count, .context = msg->context, .flags = flags});
}

struct fi_ops_tagged vx_tagged_ops = {
	.size = sizeof vx_tagged_ops,
	.recv = tagged_recv,
	.recvv = tagged_recvv,
	.recvmsg = tagged_recvmsg,
	.send = tagged_send,
	.sendv = tagged_sendv,
	.sendmsg = tagged_sendmsg,
	.inject = tagged_inject,
	.senddata = tagged_senddata,
	.injectdata = tagged_injectdata,
};
