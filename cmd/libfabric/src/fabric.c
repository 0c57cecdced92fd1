/* Fabrics, which have nothing of their own, and fi_trywait. */
#include <stdio.h>
#include <stdlib.h>

#include "viaxdp.h"

/* Those that are open: a fabric of hints may be closed, or another provider's. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct vx_fabric *fabrics;

int vx_fabric_name(const struct fid_fabric *fid, char *name, size_t room)
{
	const struct vx_fabric *fabric;

	pthread_mutex_lock(&table);
	for (fabric = fabrics; fabric && &fabric->fid != fid; fabric = fabric->next)
		;
	if (fabric)
		snprintf(name, room, "%s", fabric->name);
	pthread_mutex_unlock(&table);
	return fabric != NULL;
}

static int fabric_close(struct fid *fid)
{
	struct vx_fabric *fabric = VX_OUTER(fid, struct vx_fabric, fid.fid), **at = &fabrics;

	if (__atomic_load_n(&fabric->refs, __ATOMIC_SEQ_CST))
		return -FI_EBUSY;
	pthread_mutex_lock(&table);
	while (*at != fabric)
		at = &(*at)->next;
	*at = fabric->next;
	pthread_mutex_unlock(&table);
	free(fabric->name);
	free(fabric);
	return 0;
}

static int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	int i, error = 0;

	(void)fabric;
	for (i = 0; i < count && !error; i++)
		switch (fids[i]->fclass) {
		case FI_CLASS_EQ:
			error = vx_eq_trywait(VX_OUTER(fids[i], struct vx_eq, fid.fid));
			break;
		case FI_CLASS_CQ:
			error = vx_cq_trywait(VX_OUTER(fids[i], struct vx_cq, fid.fid));
			break;
		case FI_CLASS_CNTR:
			error = vx_cntr_trywait(VX_OUTER(fids[i], struct vx_cntr, fid.fid));
			break;
		default:
			error = -FI_EINVAL;
		}
	return error;
}

static int no_wait(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **wait)
{
	(void)fabric, (void)attr, (void)wait;
	return -FI_ENOSYS;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = fabric_close,
	.bind = vx_no_bind,
	.control = vx_no_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_fabric fabric_ops = {
	.size = sizeof fabric_ops,
	.domain = vx_domain_open,
	.passive_ep = vx_pep_open,
	.eq_open = vx_eq_open,
	.wait_open = no_wait,
	.trywait = trywait,
};

int vx_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	struct vx_fabric *fabric = calloc(1, sizeof *fabric);

	if (!fabric)
		return -FI_ENOMEM;
	fabric->name = strdup(attr->name ? attr->name : "");
	if (!fabric->name) {
		free(fabric);
		return -FI_ENOMEM;
	}
	fabric->fid.fid.fclass = FI_CLASS_FABRIC;
	fabric->fid.fid.context = context;
	fabric->fid.fid.ops = &fid_ops;
	fabric->fid.ops = &fabric_ops;
	fabric->fid.api_version = attr->api_version;
	pthread_mutex_lock(&table);
	fabric->next = fabrics;
	fabrics = fabric;
	pthread_mutex_unlock(&table);
	*out = &fabric->fid;
	return 0;
}
