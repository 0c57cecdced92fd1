/* Memory regions: what a peer may read and write. The key is libvipl's memory handle. */
#include <stdlib.h>

#include "viaxdp.h"

static int mr_close(struct fid *fid)
{
	struct vx_mr *mr = VX_OUTER(fid, struct vx_mr, fid.fid);
	struct vx_nic *nic = mr->domain->nic;

	if (VipDeregisterMem(nic->handle, mr->base, mr->handle) != VIP_SUCCESS)
		return -FI_EBUSY; /* a peer is reading it */
	pthread_mutex_lock(&nic->lock);
	mr->domain->refs--;
	pthread_mutex_unlock(&nic->lock);
	free(mr);
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = mr_close,
	.bind = vx_no_bind,
	.control = vx_no_control,
	.ops_open = vx_no_ops_open,
};

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
	VIP_MEM_ATTRIBUTES attributes = {
		.EnableRdmaWrite = (attr->access & FI_REMOTE_WRITE) != 0,
		.EnableRdmaRead = (attr->access & FI_REMOTE_READ) != 0,
	};
	struct vx_mr *mr;
	VIP_RETURN code;

	if (fid->fclass != FI_CLASS_DOMAIN || attr->iov_count != 1 || !attr->mr_iov || !attr->mr_iov->iov_len || attr->offset)
		return -FI_EINVAL;
	if (flags)
		return -FI_EBADFLAGS;
	mr = calloc(1, sizeof *mr);
	if (!mr)
		return -FI_ENOMEM;
	mr->domain = VX_OUTER(fid, struct vx_domain, fid.fid);
	mr->base = attr->mr_iov->iov_base;
	mr->length = attr->mr_iov->iov_len;
	code = VipRegisterMem(mr->domain->nic->handle, mr->base, mr->length, &attributes, &mr->handle);
	if (code != VIP_SUCCESS) {
		free(mr);
		return code == VIP_INVALID_PARAMETER ? -FI_EFAULT : -vx_errno(code);
	}
	mr->fid.fid.fclass = FI_CLASS_MR;
	mr->fid.fid.context = attr->context;
	mr->fid.fid.ops = &fid_ops;
	mr->fid.mem_desc = mr;
	mr->fid.key = mr->handle;
	pthread_mutex_lock(&mr->domain->nic->lock);
	mr->domain->refs++;
	pthread_mutex_unlock(&mr->domain->nic->lock);
	*out = &mr->fid;
	return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
	uint64_t flags, struct fid_mr **mr, void *context)
{
	struct fi_mr_attr attr = {
		.mr_iov = iov, .iov_count = count, .access = access, .offset = offset,
		.requested_key = key, .context = context,
	};

	return mr_regattr(fid, &attr, flags, mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
	uint64_t flags, struct fid_mr **mr, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};

	return mr_regv(fid, &iov, 1, access, offset, key, flags, mr, context);
}

struct fi_ops_mr vx_mr_ops = {
	.size = sizeof vx_mr_ops,
	.reg = mr_reg,
	.regv = mr_regv,
	.regattr = mr_regattr,
};
