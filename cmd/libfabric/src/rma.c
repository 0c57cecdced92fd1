/* fi_read, fi_write and their families. */
#include "link.h"

static struct vx_ep *endpoint(struct fid_ep *ep)
{
	return VX_OUTER(ep, struct vx_ep, fid);
}

/* The remote buffers have room for the local ones. */
static int reaches(const struct fi_msg_rma *m)
{
	size_t i, local = 0, remote = 0;

	for (i = 0; i < m->iov_count && m->msg_iov; i++)
		local += m->msg_iov[i].iov_len;
	for (i = 0; i < m->rma_iov_count; i++)
		remote += m->rma_iov[i].len;
	return remote >= local;
}

/* Keys of this provider have 32 bits. */
int vx_rma_keys(const struct vx_op *op)
{
	unsigned i;

	for (i = 0; i < op->remote_count; i++)
		if (op->remote[i].key > UINT32_MAX)
			return FI_EACCES;
	return 0;
}

static ssize_t transfer(struct fid_ep *fid, enum vx_kind kind, const struct fi_msg_rma *m, uint64_t flags, int injected)
{
	struct vx_ep *ep = endpoint(fid);
	struct vx_call call = {
		.kind = kind, .iov = m->msg_iov, .count = m->iov_count, .context = m->context, .data = m->data,
		.flags = kind == VX_READ ? flags & ~FI_INJECT : flags, /* the flag is for writes */
		.injected = injected,
	};
	struct vx_op *op = NULL;
	struct vx_tx *tx;
	ssize_t result;
	size_t i;

	if (m->rma_iov_count > VX_RMA_IOV || (m->rma_iov_count && !m->rma_iov) || !reaches(m))
		return -FI_EINVAL;
	pthread_mutex_lock(&ep->nic->lock);
	tx = vx_tx_to(ep, m->addr, &result);
	if (tx)
		op = vx_tx_new(tx, &call, &result);
	if (op) {
		op->remote_count = (unsigned)m->rma_iov_count;
		for (i = 0; i < m->rma_iov_count; i++)
			op->remote[i] = m->rma_iov[i];
		result = vx_tx_post(op);
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return result;
}

static ssize_t vector(struct fid_ep *ep, enum vx_kind kind, const struct iovec *iov, size_t count, fi_addr_t peer, uint64_t addr,
	uint64_t key, uint64_t data, void *context, uint64_t flags, int injected)
{
	struct fi_rma_iov remote = {.addr = addr, .key = key};
	struct fi_msg_rma m = {
		.msg_iov = iov, .iov_count = count, .rma_iov = &remote, .rma_iov_count = 1,
		.addr = peer, .context = context, .data = data,
	};
	size_t i;

	for (i = 0; i < count && iov; i++)
		remote.len += iov[i].iov_len;
	flags |= endpoint(ep)->info->tx_attr->op_flags;
	if (injected)
		flags = (flags & (VX_LEVELS | FI_REMOTE_CQ_DATA)) | FI_INJECT;
	return transfer(ep, kind, &m, flags, injected);
}

static ssize_t rma_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {buf, len};

	(void)desc;
	return vector(ep, VX_READ, &iov, 1, src, addr, key, 0, context, 0, 0);
}

static ssize_t rma_readv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t addr,
	uint64_t key, void *context)
{
	(void)desc;
	return vector(ep, VX_READ, iov, count, src, addr, key, 0, context, 0, 0);
}

static ssize_t rma_readmsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	return transfer(ep, VX_READ, msg, flags, 0);
}

static ssize_t rma_write(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t addr, uint64_t key,
	void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vector(ep, VX_WRITE, &iov, 1, dest, addr, key, 0, context, 0, 0);
}

static ssize_t rma_writev(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, uint64_t addr,
	uint64_t key, void *context)
{
	(void)desc;
	return vector(ep, VX_WRITE, iov, count, dest, addr, key, 0, context, 0, 0);
}

static ssize_t rma_writemsg(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags)
{
	return transfer(ep, VX_WRITE, msg, flags, 0);
}

static ssize_t rma_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest, uint64_t addr, uint64_t key)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vector(ep, VX_WRITE, &iov, 1, dest, addr, key, 0, NULL, 0, 1);
}

static ssize_t rma_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest,
	uint64_t addr, uint64_t key, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	(void)desc;
	return vector(ep, VX_WRITE, &iov, 1, dest, addr, key, data, context, FI_REMOTE_CQ_DATA, 0);
}

static ssize_t rma_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t addr,
	uint64_t key)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return vector(ep, VX_WRITE, &iov, 1, dest, addr, key, data, NULL, FI_REMOTE_CQ_DATA, 1);
}

struct fi_ops_rma vx_rma_ops = {
	.size = sizeof vx_rma_ops,
	.read = rma_read,
	.readv = rma_readv,
	.readmsg = rma_readmsg,
	.write = rma_write,
	.writev = rma_writev,
	.writemsg = rma_writemsg,
	.inject = rma_inject,
	.writedata = rma_writedata,
	.injectdata = rma_injectdata,
};
