/* Domains: an interface, as a program has opened it. */
#include <stdlib.h>

#include "match.h"

/* Those that are open: a domain of hints may be closed, or another provider's. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct vx_domain *domains;

const char *vx_domain_interface(const struct fid_domain *fid)
{
	const struct vx_domain *domain;
	const char *name;

	pthread_mutex_lock(&table);
	for (domain = domains; domain && &domain->fid != fid; domain = domain->next)
		;
	name = domain ? domain->nic->name : NULL; /* a NIC stays */
	pthread_mutex_unlock(&table);
	return name;
}

int vx_no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

int vx_no_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return -FI_ENOSYS;
}

int vx_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

static int domain_close(struct fid *fid)
{
	struct vx_domain *domain = VX_OUTER(fid, struct vx_domain, fid.fid), **at = &domains;
	int busy;

	pthread_mutex_lock(&domain->nic->lock);
	busy = domain->refs != 0;
	if (!busy && domain->automatic)
		vx_nic_watch(domain->nic, -1);
	pthread_mutex_unlock(&domain->nic->lock);
	if (busy)
		return -FI_EBUSY;
	pthread_mutex_lock(&table);
	while (*at != domain)
		at = &(*at)->next;
	*at = domain->next;
	pthread_mutex_unlock(&table);
	vx_nic_close(domain->nic);
	__atomic_sub_fetch(&domain->fabric->refs, 1, __ATOMIC_SEQ_CST);
	free(domain);
	return 0;
}

static int no_poll(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **poll)
{
	(void)domain, (void)attr, (void)poll;
	return -FI_ENOSYS;
}

static int no_scalable(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	(void)domain, (void)info, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context)
{
	(void)domain, (void)attr, (void)stx, (void)context;
	return -FI_ENOSYS;
}

static int no_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **srx, void *context)
{
	(void)domain, (void)attr, (void)srx, (void)context;
	return -FI_ENOSYS;
}

static int no_atomic(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags)
{
	(void)domain, (void)type, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = domain_close,
	.bind = vx_no_bind,
	.control = vx_no_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_domain domain_ops = {
	.size = sizeof domain_ops,
	.av_open = vx_av_open,
	.cq_open = vx_cq_open,
	.endpoint = vx_ep_open,
	.scalable_ep = no_scalable,
	.cntr_open = vx_cntr_open,
	.poll_open = no_poll,
	.stx_ctx = no_stx,
	.srx_ctx = no_srx,
	.query_atomic = no_atomic,
};

int vx_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
	struct vx_domain *domain;
	union vx_addr own;
	int error;

	if (!info || !info->domain_attr || !info->domain_attr->name)
		return -FI_EINVAL;
	domain = calloc(1, sizeof *domain);
	if (!domain)
		return -FI_ENOMEM;
	error = vx_nic_open(info->domain_attr->name, &domain->nic);
	if (error) {
		free(domain);
		return error;
	}
	domain->fabric = VX_OUTER(fabric, struct vx_fabric, fid);
	__atomic_add_fetch(&domain->fabric->refs, 1, __ATOMIC_SEQ_CST);
	domain->fid.fid.fclass = FI_CLASS_DOMAIN;
	domain->fid.fid.context = context;
	domain->fid.fid.ops = &fid_ops;
	domain->fid.ops = &domain_ops;
	domain->fid.mr = &vx_mr_ops;
	if (!vx_addr_get(&own, info->src_addr, info->src_addrlen))
		domain->format = own.sa.sa_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	domain->automatic = info->domain_attr->data_progress == FI_PROGRESS_AUTO ||
		info->domain_attr->control_progress == FI_PROGRESS_AUTO;
	VX_INFO(FI_LOG_DOMAIN, "%s: %s progress\n", info->domain_attr->name, domain->automatic ? "automatic" : "manual");
	if (domain->automatic) {
		pthread_mutex_lock(&domain->nic->lock);
		vx_nic_watch(domain->nic, 1);
		pthread_mutex_unlock(&domain->nic->lock);
	}
	pthread_mutex_lock(&table);
	domain->next = domains;
	domains = domain;
	pthread_mutex_unlock(&table);
	*out = &domain->fid;
	return 0;
}
