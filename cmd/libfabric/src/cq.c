/* Completion queues. A CQ is a ring that grows, so that no completion is lost. */
#include <stdlib.h>

#include "viaxdp.h"

static const size_t entry_size[] = {
	[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
	[FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
	[FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
	[FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
};

static struct vx_cq *queue(struct fid_cq *fid)
{
	return VX_OUTER(fid, struct vx_cq, fid);
}

static struct fi_cq_err_entry *first(struct vx_cq *cq)
{
	return cq->head == cq->tail ? NULL : &cq->ring[cq->head & (cq->size - 1)].entry;
}

static int grow(struct vx_cq *cq)
{
	struct vx_entry *ring = malloc(2 * cq->size * sizeof *ring);
	uint64_t i;

	if (!ring)
		return 0;
	for (i = cq->head; i != cq->tail; i++)
		ring[i & (2 * cq->size - 1)] = cq->ring[i & (cq->size - 1)];
	free(cq->ring);
	cq->ring = ring;
	cq->size *= 2;
	return 1;
}

void vx_cq_push_from(struct vx_cq *cq, const struct fi_cq_err_entry *entry, fi_addr_t from)
{
	struct vx_entry *e;

	if (cq->tail - cq->head == cq->size && !grow(cq)) {
		VX_WARN(FI_LOG_CQ, "out of memory: a completion is lost\n");
		return;
	}
	e = &cq->ring[cq->tail++ & (cq->size - 1)];
	e->entry = *entry;
	e->from = from;
	vx_wait_signal(&cq->wait);
}

void vx_cq_push(struct vx_cq *cq, const struct fi_cq_err_entry *entry)
{
	vx_cq_push_from(cq, entry, FI_ADDR_NOTAVAIL);
}

/* The formats are prefixes of each other, and of an error entry, up to the tag. */
_Static_assert(offsetof(struct fi_cq_err_entry, flags) == offsetof(struct fi_cq_tagged_entry, flags), "flags");
_Static_assert(offsetof(struct fi_cq_err_entry, len) == offsetof(struct fi_cq_tagged_entry, len), "len");
_Static_assert(offsetof(struct fi_cq_err_entry, buf) == offsetof(struct fi_cq_tagged_entry, buf), "buf");
_Static_assert(offsetof(struct fi_cq_err_entry, data) == offsetof(struct fi_cq_tagged_entry, data), "data");
_Static_assert(offsetof(struct fi_cq_err_entry, tag) == offsetof(struct fi_cq_tagged_entry, tag), "tag");

static ssize_t take(struct vx_cq *cq, void *buf, size_t count, fi_addr_t *from)
{
	size_t size = entry_size[cq->format], n;
	struct fi_cq_err_entry *e;

	for (n = 0; n < count && (e = first(cq)) && !e->err; n++) {
		memcpy((char *)buf + n * size, e, size);
		if (from)
			from[n] = VX_OUTER(e, struct vx_entry, entry)->from;
		cq->head++;
	}
	if (n)
		return (ssize_t)n;
	e = first(cq);
	return e && e->err ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *from)
{
	struct vx_cq *cq = queue(fid);
	struct vx_nic *nic = cq->domain->nic;
	ssize_t n;

	pthread_mutex_lock(&nic->lock);
	if (vx_wait_disarm(&cq->wait))
		vx_nic_watch(nic, -1);
	if (!count)
		vx_nic_progress(nic);
	else if (cq->head == cq->tail)
		vx_nic_poll(nic, cq);
	n = take(cq, buf, count, from);
	pthread_mutex_unlock(&nic->lock);
	return n;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	return cq_readfrom(fid, buf, count, NULL);
}

/* The entries of libfabric 1.4 and 1.5: programs that were compiled with old headers have no room for what was added to them. */
enum {
	ERR_ENTRY_1_4 = offsetof(struct fi_cq_err_entry, err_data_size),
	ERR_ENTRY = ERR_ENTRY_1_4 + sizeof(size_t),
};

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags)
{
	struct vx_cq *cq = queue(fid);
	struct fi_cq_err_entry *e;
	ssize_t n = -FI_EAGAIN;

	(void)flags;
	pthread_mutex_lock(&cq->domain->nic->lock);
	e = first(cq);
	if (e && e->err) {
		int old = FI_VERSION_LT(cq->domain->fabric->fid.api_version, FI_VERSION(1, 5));
		void *data = old || !buf->err_data_size ? NULL : buf->err_data;

		memcpy(buf, e, old ? ERR_ENTRY_1_4 : ERR_ENTRY); /* err_data_size is 0: there is no data */
		buf->err_data = data;
		cq->head++;
		n = 1;
	}
	pthread_mutex_unlock(&cq->domain->nic->lock);
	return n;
}

/* Polls for some time, because what is on its way is here sooner than a thread wakes up. */
static ssize_t spin(struct vx_cq *cq, void *buf, size_t count, fi_addr_t *from, int64_t end)
{
	enum { SPIN = 20000 }; /* ns */
	int64_t until = vx_now() + SPIN;
	ssize_t n;

	do {
		vx_nic_poll(cq->domain->nic, cq);
		n = take(cq, buf, count, from);
	} while (n == -FI_EAGAIN && !cq->wait.interrupted && vx_now() < until && vx_now() < end);
	return n;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *from, const void *cond, int timeout)
{
	struct vx_cq *cq = queue(fid);
	struct vx_nic *nic = cq->domain->nic;
	int64_t end = vx_deadline(timeout);
	int more = 1;
	ssize_t n;

	(void)cond;
	if (cq->wait.fd < 0)
		return -FI_ENOSYS;
	pthread_mutex_lock(&nic->lock);
	if (vx_wait_disarm(&cq->wait))
		vx_nic_watch(nic, -1);
	n = spin(cq, buf, count, from, end);
	if (n == -FI_EAGAIN && !cq->wait.interrupted) {
		unsigned signals = cq->signals;

		vx_wait_enter(&cq->wait, nic);
		while (n == -FI_EAGAIN && more > 0 && cq->signals == signals) {
			more = vx_wait_block(&cq->wait, &nic->lock, end);
			vx_wait_clear(&cq->wait);
			vx_nic_progress(nic);
			n = take(cq, buf, count, from);
		}
		vx_wait_leave(&cq->wait, nic);
	}
	cq->wait.interrupted = 0;
	pthread_mutex_unlock(&nic->lock);
	return n;
}

static ssize_t cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *cond, int timeout)
{
	return cq_sreadfrom(fid, buf, count, NULL, cond, timeout);
}

static int cq_signal(struct fid_cq *fid)
{
	struct vx_cq *cq = queue(fid);

	if (cq->wait.fd < 0)
		return -FI_ENOSYS;
	pthread_mutex_lock(&cq->domain->nic->lock);
	if (cq->wait.waiters)
		cq->signals++;
	else
		cq->wait.interrupted = 1;
	vx_wait_signal(&cq->wait);
	pthread_mutex_unlock(&cq->domain->nic->lock);
	return 0;
}

static const char *cq_strerror(struct fid_cq *fid, int code, const void *data, char *buf, size_t length)
{
	const char *text = "no further information";

	(void)fid, (void)code, (void)data;
	if (buf && length) {
		strncpy(buf, text, length - 1);
		buf[length - 1] = 0;
	}
	return text;
}

int vx_cq_trywait(struct vx_cq *cq)
{
	struct vx_nic *nic = cq->domain->nic;
	int ready;

	if (cq->wait.fd < 0)
		return -FI_EINVAL;
	pthread_mutex_lock(&nic->lock);
	vx_nic_progress(nic);
	ready = cq->head != cq->tail || cq->wait.interrupted;
	cq->wait.interrupted = 0;
	if (!ready && vx_wait_arm(&cq->wait))
		vx_nic_watch(nic, 1);
	pthread_mutex_unlock(&nic->lock);
	return ready ? -FI_EAGAIN : 0;
}

static int cq_close(struct fid *fid)
{
	struct vx_cq *cq = VX_OUTER(fid, struct vx_cq, fid.fid);
	int busy;

	pthread_mutex_lock(&cq->domain->nic->lock);
	busy = cq->refs != 0;
	if (!busy) {
		if (cq->wait.armed)
			vx_nic_watch(cq->domain->nic, -1);
		cq->domain->refs--;
	}
	pthread_mutex_unlock(&cq->domain->nic->lock);
	if (busy)
		return -FI_EBUSY;
	vx_wait_close(&cq->wait);
	free(cq->ring);
	free(cq);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	return vx_wait_control(&VX_OUTER(fid, struct vx_cq, fid.fid)->wait, command, arg);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = cq_close,
	.bind = vx_no_bind,
	.control = cq_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_cq cq_ops = {
	.size = sizeof cq_ops,
	.read = cq_read,
	.readfrom = cq_readfrom,
	.readerr = cq_readerr,
	.sread = cq_sread,
	.sreadfrom = cq_sreadfrom,
	.signal = cq_signal,
	.strerror = cq_strerror,
};

int vx_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
	enum fi_cq_format format = attr && attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
	struct vx_cq *cq;
	int error;

	if (format > FI_CQ_FORMAT_TAGGED)
		return -FI_ENOSYS;
	cq = calloc(1, sizeof *cq);
	if (!cq)
		return -FI_ENOMEM;
	error = vx_wait_open(&cq->wait, attr ? attr->wait_obj : FI_WAIT_NONE);
	cq->ring = malloc(VX_CQ_SIZE * sizeof *cq->ring);
	if (error || !cq->ring) {
		vx_wait_close(&cq->wait);
		free(cq->ring);
		free(cq);
		return error ? error : -FI_ENOMEM;
	}
	cq->size = VX_CQ_SIZE;
	cq->format = format;
	cq->domain = VX_OUTER(domain, struct vx_domain, fid);
	cq->fid.fid.fclass = FI_CLASS_CQ;
	cq->fid.fid.context = context;
	cq->fid.fid.ops = &fid_ops;
	cq->fid.ops = &cq_ops;
	pthread_mutex_lock(&cq->domain->nic->lock);
	cq->domain->refs++;
	pthread_mutex_unlock(&cq->domain->nic->lock);
	*out = &cq->fid;
	return 0;
}
