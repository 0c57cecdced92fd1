/* Counters. */
#include <stdlib.h>

#include "viaxdp.h"

static struct vx_cntr *counter(struct fid_cntr *fid)
{
	return VX_OUTER(fid, struct vx_cntr, fid);
}

void vx_cntr_add(struct vx_cntr *cntr, int failed)
{
	if (!cntr)
		return;
	if (failed)
		cntr->errors++;
	else
		cntr->value++;
	vx_wait_signal(&cntr->wait);
}

static uint64_t look(struct fid_cntr *fid, int errors)
{
	struct vx_cntr *cntr = counter(fid);
	struct vx_nic *nic = cntr->domain->nic;
	uint64_t value;

	pthread_mutex_lock(&nic->lock);
	if (vx_wait_disarm(&cntr->wait))
		vx_nic_watch(nic, -1);
	vx_nic_progress(nic);
	value = errors ? cntr->errors : cntr->value;
	cntr->read_value = cntr->value;
	cntr->read_errors = cntr->errors;
	pthread_mutex_unlock(&nic->lock);
	return value;
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	return look(fid, 0);
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
	return look(fid, 1);
}

static int change(struct fid_cntr *fid, int errors, int add, uint64_t value)
{
	struct vx_cntr *cntr = counter(fid);
	uint64_t *at = errors ? &cntr->errors : &cntr->value;

	pthread_mutex_lock(&cntr->domain->nic->lock);
	*at = add ? *at + value : value;
	vx_wait_signal(&cntr->wait);
	pthread_mutex_unlock(&cntr->domain->nic->lock);
	return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, 0, 1, value);
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, 0, 0, value);
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, 1, 1, value);
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, 1, 0, value);
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	struct vx_cntr *cntr = counter(fid);
	struct vx_nic *nic = cntr->domain->nic;
	int64_t end = vx_deadline(timeout);
	uint64_t errors;
	int more = 1, result = 0;

	if (cntr->wait.fd < 0)
		return -FI_ENOSYS;
	pthread_mutex_lock(&nic->lock);
	if (vx_wait_disarm(&cntr->wait))
		vx_nic_watch(nic, -1);
	errors = cntr->errors;
	vx_wait_enter(&cntr->wait, nic);
	for (;;) {
		vx_nic_progress(nic);
		if (cntr->value >= threshold)
			break;
		if (cntr->errors != errors || !more) {
			result = more ? -FI_EAVAIL : -FI_ETIMEDOUT;
			break;
		}
		more = vx_wait_block(&cntr->wait, &nic->lock, end);
		vx_wait_clear(&cntr->wait);
	}
	vx_wait_leave(&cntr->wait, nic);
	pthread_mutex_unlock(&nic->lock);
	return result;
}

int vx_cntr_trywait(struct vx_cntr *cntr)
{
	struct vx_nic *nic = cntr->domain->nic;
	int changed;

	if (cntr->wait.fd < 0)
		return -FI_EINVAL;
	pthread_mutex_lock(&nic->lock);
	vx_nic_progress(nic);
	changed = cntr->value != cntr->read_value || cntr->errors != cntr->read_errors;
	if (!changed && vx_wait_arm(&cntr->wait))
		vx_nic_watch(nic, 1);
	pthread_mutex_unlock(&nic->lock);
	return changed ? -FI_EAGAIN : 0;
}

static int cntr_close(struct fid *fid)
{
	struct vx_cntr *cntr = VX_OUTER(fid, struct vx_cntr, fid.fid);
	int busy;

	pthread_mutex_lock(&cntr->domain->nic->lock);
	busy = cntr->refs != 0;
	if (!busy) {
		if (cntr->wait.armed)
			vx_nic_watch(cntr->domain->nic, -1);
		cntr->domain->refs--;
	}
	pthread_mutex_unlock(&cntr->domain->nic->lock);
	if (busy)
		return -FI_EBUSY;
	vx_wait_close(&cntr->wait);
	free(cntr);
	return 0;
}

static int cntr_control(struct fid *fid, int command, void *arg)
{
	return vx_wait_control(&VX_OUTER(fid, struct vx_cntr, fid.fid)->wait, command, arg);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = cntr_close,
	.bind = vx_no_bind,
	.control = cntr_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_cntr cntr_ops = {
	.size = sizeof cntr_ops,
	.read = cntr_read,
	.readerr = cntr_readerr,
	.add = cntr_add,
	.set = cntr_set,
	.wait = cntr_wait,
	.adderr = cntr_adderr,
	.seterr = cntr_seterr,
};

int vx_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context)
{
	struct vx_cntr *cntr;
	int error;

	if (attr && attr->events != FI_CNTR_EVENTS_COMP)
		return -FI_ENOSYS;
	cntr = calloc(1, sizeof *cntr);
	if (!cntr)
		return -FI_ENOMEM;
	error = vx_wait_open(&cntr->wait, attr ? attr->wait_obj : FI_WAIT_NONE);
	if (error) {
		free(cntr);
		return error;
	}
	cntr->domain = VX_OUTER(domain, struct vx_domain, fid);
	cntr->fid.fid.fclass = FI_CLASS_CNTR;
	cntr->fid.fid.context = context;
	cntr->fid.fid.ops = &fid_ops;
	cntr->fid.ops = &cntr_ops;
	pthread_mutex_lock(&cntr->domain->nic->lock);
	cntr->domain->refs++;
	pthread_mutex_unlock(&cntr->domain->nic->lock);
	*out = &cntr->fid;
	return 0;
}
