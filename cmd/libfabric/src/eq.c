/* Event queues. */
#include <stdlib.h>

#include "viaxdp.h"

struct vx_event {
	struct vx_event *next;
	uint32_t event;
	int error;            /* it is an error, for fi_eq_readerr */
	int code;
	fid_t fid;            /* whom it is about */
	struct fi_info *info; /* of FI_CONNREQ, until it is read */
	size_t length;        /* of what fi_eq_read returns; of an error, of its data */
	unsigned char data[];
};

static struct vx_eq *queue(struct fid_eq *fid)
{
	return VX_OUTER(fid, struct vx_eq, fid);
}

static struct vx_event *make(size_t length)
{
	struct vx_event *e = calloc(1, sizeof *e + length);

	if (e)
		e->length = length;
	else
		VX_WARN(FI_LOG_EQ, "out of memory: an event is lost\n");
	return e;
}

static void append(struct vx_eq *eq, struct vx_event *e)
{
	pthread_mutex_lock(&eq->lock);
	*eq->last = e;
	eq->last = &e->next;
	vx_wait_signal(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
}

void vx_eq_cm(struct vx_eq *eq, uint32_t event, fid_t fid, struct fi_info *info, const void *data, size_t length)
{
	struct fi_eq_cm_entry entry = {.fid = fid, .info = info};
	struct vx_event *e = make(sizeof entry + length);

	if (!e) {
		fi_freeinfo(info);
		return;
	}
	e->event = event;
	e->fid = fid;
	e->info = info;
	memcpy(e->data, &entry, sizeof entry);
	if (length)
		memcpy(e->data + sizeof entry, data, length);
	append(eq, e);
}

void vx_eq_error(struct vx_eq *eq, fid_t fid, int error, int code, const void *data, size_t length)
{
	struct vx_event *e = make(length);

	if (!e)
		return;
	e->error = error;
	e->code = code;
	e->fid = fid;
	if (length)
		memcpy(e->data, data, length);
	append(eq, e);
}

static void dispose(struct vx_event *e)
{
	if (e->info)
		fi_freeinfo(e->info);
	free(e);
}

/* Drops the events of a fid; NULL: all. */
static void drop(struct vx_eq *eq, fid_t fid)
{
	struct vx_event **at = &eq->first, *e;

	while ((e = *at))
		if (!fid || e->fid == fid) {
			*at = e->next;
			dispose(e);
		} else {
			at = &e->next;
		}
	eq->last = at;
}

void vx_eq_forget(struct vx_eq *eq, fid_t fid)
{
	pthread_mutex_lock(&eq->lock);
	drop(eq, fid);
	pthread_mutex_unlock(&eq->lock);
}

void vx_eq_bind(struct vx_eq *eq, int change)
{
	pthread_mutex_lock(&eq->lock);
	eq->refs += (unsigned)change;
	pthread_mutex_unlock(&eq->lock);
}

static void unlink_first(struct vx_eq *eq)
{
	eq->first = eq->first->next;
	if (!eq->first)
		eq->last = &eq->first;
}

static ssize_t take(struct vx_eq *eq, uint32_t *event, void *buf, size_t length, uint64_t flags)
{
	struct vx_event *e = eq->first;
	size_t need, n;

	if (!e)
		return -FI_EAGAIN;
	if (e->error)
		return -FI_EAVAIL;
	need = e->fid ? sizeof(struct fi_eq_cm_entry) : e->length; /* the data behind it may be cut */
	if (length < need)
		return -FI_ETOOSMALL;
	n = e->length < length ? e->length : length;
	*event = e->event;
	memcpy(buf, e->data, n);
	if (flags & FI_PEEK)
		return (ssize_t)n;
	unlink_first(eq);
	e->info = NULL; /* the program's */
	dispose(e);
	return (ssize_t)n;
}

static void disarm(struct vx_eq *eq)
{
	int disarmed;

	pthread_mutex_lock(&eq->lock);
	disarmed = vx_wait_disarm(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
	if (disarmed)
		vx_watch_all(-1);
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buf, size_t length, uint64_t flags)
{
	struct vx_eq *eq = queue(fid);
	ssize_t n;

	if (!event || !buf || flags & ~FI_PEEK)
		return -FI_EINVAL;
	disarm(eq);
	vx_progress_all();
	pthread_mutex_lock(&eq->lock);
	n = take(eq, event, buf, length, flags);
	pthread_mutex_unlock(&eq->lock);
	return n;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buf, size_t length, int timeout, uint64_t flags)
{
	struct vx_eq *eq = queue(fid);
	int64_t end = vx_deadline(timeout);
	ssize_t n;
	int more = 1;

	if (eq->wait.fd < 0)
		return -FI_ENOSYS; /* before the read: it would take the event */
	n = eq_read(fid, event, buf, length, flags);
	if (n != -FI_EAGAIN)
		return n;
	vx_watch_all(1);
	pthread_mutex_lock(&eq->lock);
	eq->wait.waiters++;
	while ((n = take(eq, event, buf, length, flags)) == -FI_EAGAIN && more > 0) {
		more = vx_wait_block(&eq->wait, &eq->lock, end);
		vx_wait_clear(&eq->wait);
	}
	eq->wait.waiters--;
	vx_wait_signal(&eq->wait); /* the others look, too */
	pthread_mutex_unlock(&eq->lock);
	vx_watch_all(-1);
	return n;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *buf, uint64_t flags)
{
	struct vx_eq *eq = queue(fid);
	struct vx_event *e;
	ssize_t n = -FI_EAGAIN;

	pthread_mutex_lock(&eq->lock);
	e = eq->first;
	if (e && e->error) {
		void *data = buf->err_data;
		/* Before release 1.5 both are for output only. */
		size_t room = FI_VERSION_LT(eq->fabric->fid.api_version, FI_VERSION(1, 5)) ? 0 : buf->err_data_size;

		free(eq->err_data);
		eq->err_data = NULL;
		memset(buf, 0, sizeof *buf);
		buf->fid = e->fid;
		buf->context = e->fid->context;
		buf->err = e->error;
		buf->prov_errno = e->code;
		if (room && data) {
			buf->err_data = data;
			buf->err_data_size = e->length < room ? e->length : room;
			memcpy(data, e->data, buf->err_data_size);
		} else if (e->length && (eq->err_data = malloc(e->length))) {
			memcpy(eq->err_data, e->data, e->length);
			buf->err_data = eq->err_data;
			buf->err_data_size = e->length;
		}
		if (!(flags & FI_PEEK)) {
			unlink_first(eq);
			dispose(e);
		}
		n = sizeof *buf;
	}
	pthread_mutex_unlock(&eq->lock);
	return n;
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t event, const void *buf, size_t length, uint64_t flags)
{
	struct vx_eq *eq = queue(fid);
	struct vx_event *e;

	if (!eq->writable)
		return -FI_ENOSYS;
	if ((length && !buf) || flags)
		return -FI_EINVAL;
	e = make(length);
	if (!e)
		return -FI_ENOMEM;
	e->event = event;
	if (length)
		memcpy(e->data, buf, length);
	append(eq, e);
	return (ssize_t)length;
}

static const char *eq_strerror(struct fid_eq *fid, int code, const void *data, char *buf, size_t length)
{
	const char *text;

	(void)fid, (void)data;
	switch ((VIP_RETURN)code) {
	case VIP_SUCCESS:
		text = "the peer's program refused the connection";
		break;
	case VIP_NO_MATCH:
		text = "no program listens at the address";
		break;
	case VIP_REJECT:
		text = "the peer's host refused the connection";
		break;
	case VIP_NOT_REACHABLE:
		text = "there is no route to the host";
		break;
	case VIP_TIMEOUT:
		text = "the host did not answer in time";
		break;
	default:
		text = "VipConnectRequest failed; VIA_VERBOSE=1 tells why";
	}
	if (buf && length) {
		strncpy(buf, text, length - 1);
		buf[length - 1] = 0;
	}
	return text;
}

int vx_eq_trywait(struct vx_eq *eq)
{
	int ready, arms = 0;

	if (eq->wait.fd < 0)
		return -FI_EINVAL;
	vx_progress_all();
	pthread_mutex_lock(&eq->lock);
	ready = eq->first != NULL;
	if (!ready)
		arms = vx_wait_arm(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
	if (arms)
		vx_watch_all(1);
	return ready ? -FI_EAGAIN : 0;
}

static int eq_close(struct fid *fid)
{
	struct vx_eq *eq = VX_OUTER(fid, struct vx_eq, fid.fid);
	int busy;

	pthread_mutex_lock(&eq->lock);
	busy = eq->refs != 0;
	pthread_mutex_unlock(&eq->lock);
	if (busy)
		return -FI_EBUSY;
	if (eq->wait.armed)
		vx_watch_all(-1);
	drop(eq, NULL);
	vx_wait_close(&eq->wait);
	pthread_mutex_destroy(&eq->lock);
	__atomic_sub_fetch(&eq->fabric->refs, 1, __ATOMIC_SEQ_CST);
	free(eq->err_data);
	free(eq);
	return 0;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	return vx_wait_control(&VX_OUTER(fid, struct vx_eq, fid.fid)->wait, command, arg);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = eq_close,
	.bind = vx_no_bind,
	.control = eq_control,
	.ops_open = vx_no_ops_open,
};

static struct fi_ops_eq eq_ops = {
	.size = sizeof eq_ops,
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

int vx_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
	struct vx_eq *eq = calloc(1, sizeof *eq);
	int error;

	if (!eq)
		return -FI_ENOMEM;
	error = vx_wait_open(&eq->wait, attr ? attr->wait_obj : FI_WAIT_NONE);
	if (error) {
		free(eq);
		return error;
	}
	eq->writable = attr && attr->flags & FI_WRITE;
	eq->last = &eq->first;
	pthread_mutex_init(&eq->lock, NULL);
	eq->fabric = VX_OUTER(fabric, struct vx_fabric, fid);
	__atomic_add_fetch(&eq->fabric->refs, 1, __ATOMIC_SEQ_CST);
	eq->fid.fid.fclass = FI_CLASS_EQ;
	eq->fid.fid.context = context;
	eq->fid.fid.ops = &fid_ops;
	eq->fid.ops = &eq_ops;
	*out = &eq->fid;
	return 0;
}
