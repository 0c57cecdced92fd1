/* Endpoints: what they are bound to, their options, their life. */
#include <stdlib.h>

#include "match.h"

static size_t power_of_two(size_t n)
{
	size_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

static void unbind(struct vx_ep *ep)
{
	struct vx_cntr *cntrs[] = {ep->send, ep->recv, ep->read, ep->write};
	size_t i;

	if (ep->eq) {
		vx_eq_forget(ep->eq, &ep->fid.fid);
		vx_eq_bind(ep->eq, -1);
	}
	pthread_mutex_lock(&ep->nic->lock);
	if (ep->tx_cq)
		ep->tx_cq->refs--;
	if (ep->rx_cq)
		ep->rx_cq->refs--;
	for (i = 0; i < sizeof cntrs / sizeof *cntrs; i++)
		if (cntrs[i])
			cntrs[i]->refs--;
	ep->domain->refs--;
	pthread_mutex_unlock(&ep->nic->lock);
}

static void dispose(struct vx_ep *ep)
{
	fi_freeinfo(ep->info);
	free(ep->ops);
	free(ep->recvs);
	vx_rdm_free(ep);
	free(ep);
}

static int ep_close(struct fid *fid)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);

	if (ep->rdm)
		vx_rdm_close(ep);
	else
		vx_cm_close(ep);
	unbind(ep);
	dispose(ep);
	return 0;
}

static int bind_cq(struct vx_ep *ep, struct vx_cq *cq, uint64_t flags)
{
	if (flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) || !(flags & (FI_TRANSMIT | FI_RECV)))
		return -FI_EBADFLAGS;
	if (cq->domain->nic != ep->nic || (flags & FI_TRANSMIT && ep->tx_cq) || (flags & FI_RECV && ep->rx_cq))
		return -FI_EINVAL;
	if (flags & FI_TRANSMIT) {
		ep->tx_cq = cq;
		ep->tx_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
		cq->refs++;
	}
	if (flags & FI_RECV) {
		ep->rx_cq = cq;
		ep->rx_selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
		cq->refs++;
	}
	return 0;
}

static int bind_cntr(struct vx_ep *ep, struct vx_cntr *cntr, uint64_t flags)
{
	const struct {
		uint64_t flag;
		struct vx_cntr **at;
	} kinds[] = {{FI_SEND, &ep->send}, {FI_RECV, &ep->recv}, {FI_READ, &ep->read}, {FI_WRITE, &ep->write}};
	size_t i;

	if (!flags || flags & ~(FI_SEND | FI_RECV | FI_READ | FI_WRITE))
		return -FI_EBADFLAGS; /* the others need FI_RMA_EVENT */
	if (cntr->domain->nic != ep->nic)
		return -FI_EINVAL;
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (flags & kinds[i].flag && *kinds[i].at)
			return -FI_EINVAL;
	for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (flags & kinds[i].flag) {
			*kinds[i].at = cntr;
			cntr->refs++;
		}
	return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);
	int error = -FI_EINVAL;

	if (!other)
		return -FI_EINVAL;
	if (other->fclass == FI_CLASS_EQ) {
		if (ep->eq || flags)
			return -FI_EINVAL;
		ep->eq = VX_OUTER(other, struct vx_eq, fid.fid);
		vx_eq_bind(ep->eq, 1);
		return 0;
	}
	pthread_mutex_lock(&ep->nic->lock);
	if (ep->enabled)
		error = -FI_EOPBADSTATE;
	else if (other->fclass == FI_CLASS_AV)
		error = flags ? -FI_EBADFLAGS : vx_rdm_bind(ep, other);
	else if (other->fclass == FI_CLASS_CQ)
		error = bind_cq(ep, VX_OUTER(other, struct vx_cq, fid.fid), flags);
	else if (other->fclass == FI_CLASS_CNTR)
		error = bind_cntr(ep, VX_OUTER(other, struct vx_cntr, fid.fid), flags);
	pthread_mutex_unlock(&ep->nic->lock);
	return error;
}

int vx_ep_enable(struct vx_ep *ep)
{
	if (ep->enabled)
		return 0;
	if (!ep->eq && !ep->rdm)
		return -FI_ENOEQ;
	if (!ep->tx_cq && !ep->send && ep->info->caps & FI_SEND)
		return -FI_ENOCQ;
	if (!ep->tx_cq && !ep->send && !ep->read && !ep->write && ep->info->caps & (FI_READ | FI_WRITE))
		return -FI_ENOCQ;
	if (!ep->rx_cq && !ep->recv && ep->info->caps & FI_RECV)
		return -FI_ENOCQ;
	ep->enabled = 1;
	return 0;
}

static int flags_of(struct vx_ep *ep, uint64_t *flags, int set)
{
	uint64_t which = *flags & (FI_TRANSMIT | FI_RECV), rest = *flags & ~which;
	uint64_t *at = which == FI_TRANSMIT ? &ep->info->tx_attr->op_flags : &ep->info->rx_attr->op_flags;

	if (which != FI_TRANSMIT && which != FI_RECV)
		return -FI_EINVAL;
	if (!set)
		*flags = *at;
	else if (rest & ~(which == FI_TRANSMIT ? VX_TX_FLAGS : VX_RX_FLAGS))
		return -FI_EBADFLAGS;
	else
		*at = rest;
	return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);
	int error = -FI_ENOSYS;

	pthread_mutex_lock(&ep->nic->lock);
	switch (command) {
	case FI_ENABLE:
		error = ep->rdm && !ep->enabled ? vx_rdm_enable(ep) : vx_ep_enable(ep);
		break;
	case FI_GETOPSFLAG:
	case FI_SETOPSFLAG:
		error = arg ? flags_of(ep, arg, command == FI_SETOPSFLAG) : -FI_EINVAL;
		break;
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return error;
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);
	ssize_t result;

	pthread_mutex_lock(&ep->nic->lock);
	if (ep->rdm) {
		result = vx_rdm_cancel(ep, context);
	} else {
		result = vx_rx_cancel(ep, context);
		if (result)
			result = vx_tx_cancel(&ep->tx, context);
	}
	pthread_mutex_unlock(&ep->nic->lock);
	return result;
}

static int ep_getopt(fid_t fid, int level, int name, void *value, size_t *length)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);
	size_t is, room;

	if (level != FI_OPT_ENDPOINT)
		return -FI_ENOPROTOOPT;
	switch (name) {
	case FI_OPT_CM_DATA_SIZE:
		is = VX_CM_DATA;
		break;
	case FI_OPT_MIN_MULTI_RECV:
		is = ep->multi_recv_min;
		break;
	default:
		return -FI_ENOPROTOOPT;
	}
	room = *length;
	*length = sizeof is;
	if (room < sizeof is)
		return -FI_ETOOSMALL;
	memcpy(value, &is, sizeof is);
	return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid.fid);

	if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (length != sizeof ep->multi_recv_min)
		return -FI_EINVAL;
	pthread_mutex_lock(&ep->nic->lock);
	memcpy(&ep->multi_recv_min, value, length);
	pthread_mutex_unlock(&ep->nic->lock);
	return 0;
}

static int no_context(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **out, void *context)
{
	(void)ep, (void)index, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static int no_rx_context(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **out, void *context)
{
	(void)ep, (void)index, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static ssize_t rx_size_left(struct fid_ep *fid)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);

	return ep->rdm ? vx_match_left(ep) : (ssize_t)(ep->rx_size - (ep->recv_tail - ep->recv_head));
}

static ssize_t tx_size_left(struct fid_ep *fid)
{
	struct vx_ep *ep = VX_OUTER(fid, struct vx_ep, fid);
	struct vx_op *op;
	ssize_t left;

	pthread_mutex_lock(&ep->nic->lock);
	left = (ssize_t)(ep->tx_size - ep->ops_used);
	for (op = ep->free; op; op = op->next)
		left++;
	pthread_mutex_unlock(&ep->nic->lock);
	return left;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = ep_close,
	.bind = ep_bind,
	.control = ep_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_ep ep_ops = {
	.size = sizeof ep_ops,
	.cancel = ep_cancel,
	.getopt = ep_getopt,
	.setopt = ep_setopt,
	.tx_ctx = no_context,
	.rx_ctx = no_rx_context,
	.rx_size_left = rx_size_left,
	.tx_size_left = tx_size_left,
};

static int make(struct vx_ep *ep, struct fi_info *info)
{
	int rdm = info->ep_attr->type == FI_EP_RDM, error;
	size_t most = rdm ? VX_RDM_SIZE : VX_TX_SIZE, most_rx = rdm ? VX_RDM_SIZE : VX_RX_SIZE;

	ep->info = fi_dupinfo(info);
	if (!ep->info || !ep->info->tx_attr || !ep->info->rx_attr)
		return -FI_ENOMEM;
	ep->tx_size = info->tx_attr->size ? info->tx_attr->size : most;
	ep->rx_size = info->rx_attr->size ? info->rx_attr->size : most_rx;
	if (ep->tx_size > most || ep->rx_size > most_rx)
		return -FI_EINVAL;
	ep->rx_size = power_of_two(ep->rx_size);
	ep->ops = calloc(ep->tx_size, sizeof *ep->ops);
	if (!rdm)
		ep->recvs = calloc(ep->rx_size, sizeof *ep->recvs);
	if (!ep->ops || (!rdm && !ep->recvs))
		return -FI_ENOMEM;
	ep->multi_recv_min = VX_MULTI_RECV;
	vx_tx_init(&ep->tx, ep);
	error = vx_info_source(info, ep->nic->name, &ep->name);
	if (error)
		return error;
	if (info->dest_addr)
		vx_addr_get(&ep->peer, info->dest_addr, info->dest_addrlen);
	if (rdm)
		return vx_rdm_open(ep);
	return info->handle ? vx_cm_adopt(ep, info->handle) : 0;
}

int vx_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context)
{
	struct vx_ep *ep;
	int error;

	if (!info || !info->ep_attr || !info->tx_attr || !info->rx_attr ||
		(info->ep_attr->type != FI_EP_MSG && info->ep_attr->type != FI_EP_RDM))
		return -FI_EINVAL;
	ep = calloc(1, sizeof *ep);
	if (!ep)
		return -FI_ENOMEM;
	ep->domain = VX_OUTER(domain, struct vx_domain, fid);
	ep->nic = ep->domain->nic;
	ep->fid.fid.fclass = FI_CLASS_EP;
	ep->fid.fid.context = context;
	ep->fid.fid.ops = &fid_ops;
	ep->fid.ops = &ep_ops;
	ep->fid.cm = &vx_cm_ops;
	ep->fid.msg = &vx_msg_ops;
	ep->fid.rma = &vx_rma_ops;
	if (info->ep_attr->type == FI_EP_RDM) {
		ep->fid.cm = &vx_rdm_cm_ops;
		ep->fid.tagged = &vx_tagged_ops;
	}
	error = make(ep, info);
	if (error) {
		dispose(ep);
		return error;
	}
	pthread_mutex_lock(&ep->nic->lock);
	ep->domain->refs++;
	pthread_mutex_unlock(&ep->nic->lock);
	*out = &ep->fid;
	return 0;
}
