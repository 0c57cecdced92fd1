/*
 * Interfaces: a NIC handle of libvipl for each, which all fabrics and domains of the process
 * share, with one completion queue for the receives of all of its VIs, and one for the sends.
 *
 * Progress is made by the calls of the program. While a thread blocks, or programs want automatic
 * progress, or a connection is being made, there is a watcher: then a thread of libvipl is called
 * for the next completion, and makes progress, too.
 */
#include <stdlib.h>

#include "link.h"

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER; /* taken before the lock of a NIC */
static struct vx_nic *nics;
static int watching_all;

int vx_errno(VIP_RETURN code)
{
	switch (code) {
	case VIP_SUCCESS:
		return 0;
	case VIP_TIMEOUT:
		return FI_ETIMEDOUT;
	case VIP_REJECT:
	case VIP_NO_MATCH:
		return FI_ECONNREFUSED;
	case VIP_NOT_REACHABLE:
		return FI_EHOSTUNREACH;
	case VIP_ERROR_RESOURCE:
		return FI_ENOMEM;
	case VIP_INVALID_PARAMETER:
		return FI_EINVAL;
	case VIP_INVALID_STATE:
		return FI_EALREADY;
	default:
		return FI_EIO;
	}
}

/* The endpoint reports what happens to a connection; libvipl need not write it to standard error. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	(void)context;
	VX_INFO(FI_LOG_EP_DATA, "asynchronous error %d\n", (int)e->ErrorCode);
}

static int start(struct vx_nic *nic)
{
	VIP_NIC_ATTRIBUTES attributes;
	VIP_RETURN code = VipOpenNic(nic->name, &nic->handle);

	if (code != VIP_SUCCESS) {
		VX_WARN(FI_LOG_DOMAIN, "%s cannot be opened; VIA_VERBOSE=1 tells why\n", nic->name);
		return code == VIP_ERROR_RESOURCE ? -FI_ENODEV : -vx_errno(code);
	}
	VipErrorCallback(nic->handle, NULL, on_error);
	code = VipCreateCQ(nic->handle, 1024, &nic->received);
	if (code == VIP_SUCCESS)
		code = VipCreateCQ(nic->handle, 1024, &nic->sent);
	if (code == VIP_SUCCESS)
		code = VipQueryNic(nic->handle, &attributes);
	if (code != VIP_SUCCESS) {
		VipCloseNic(nic->handle);
		return -vx_errno(code);
	}
	nic->frame = attributes.NativeMTU;
	nic->watchers = (unsigned)watching_all;
	nic->received_armed = nic->sent_armed = 0;
	nic->rdma = 0;
	return 0;
}

/* A vx_nic stays, so that threads of libvipl may look at it whenever they want. */
static struct vx_nic *named(const char *name)
{
	struct vx_nic *nic;

	for (nic = nics; nic && strcmp(nic->name, name) != 0; nic = nic->next)
		;
	if (nic || strlen(name) >= sizeof nic->name || !(nic = calloc(1, sizeof *nic)))
		return nic;
	strcpy(nic->name, name);
	pthread_mutex_init(&nic->lock, NULL);
	nic->next = nics;
	nics = nic;
	return nic;
}

int vx_nic_open(const char *name, struct vx_nic **out)
{
	struct vx_nic *nic;
	int error = 0;

	pthread_mutex_lock(&table);
	nic = named(name);
	if (!nic)
		error = -FI_ENOMEM;
	else {
		pthread_mutex_lock(&nic->lock);
		if (nic->refs == 0)
			error = start(nic);
		if (!error)
			nic->refs++;
		vx_nic_watch(nic, 0);
		pthread_mutex_unlock(&nic->lock);
	}
	pthread_mutex_unlock(&table);
	*out = error ? NULL : nic;
	return error;
}

void vx_nic_close(struct vx_nic *nic)
{
	VIP_NIC_HANDLE handle = NULL;

	pthread_mutex_lock(&table);
	pthread_mutex_lock(&nic->lock);
	if (--nic->refs == 0) {
		handle = nic->handle;
		nic->handle = NULL;
		nic->received = nic->sent = NULL;
	}
	pthread_mutex_unlock(&nic->lock);
	if (handle)
		VipCloseNic(handle);
	pthread_mutex_unlock(&table);
}

static void completed(struct vx_nic *nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
	struct vx_link *link = vx_link_find(nic, vi);

	if (!link)
		return; /* it is being closed */
	if (recv && nic->watchers)
		vx_link_receive(link); /* the entry of one may wait for a thread of libvipl */
	else if (recv)
		vx_link_receive_one(link);
	else
		vx_link_reap(link);
	vx_link_pump(link);
}

/*
 * A program that has read one completion often reads again before it answers. So a poll in vain is no idle time yet.
 */
void vx_nic_poll(struct vx_nic *nic, const struct vx_cq *cq)
{
	enum { MOST = 64, IDLE = 4, POLLS_PER_SENT = 16 };
	int i, all = !cq || nic->rdma || ++nic->polls % POLLS_PER_SENT == 0;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;

	/* First: a stream of receives must not keep them waiting. */
	for (i = 0; i < MOST && all && nic->handle && VipCQDone(nic->sent, &vi, &recv) == VIP_SUCCESS; i++)
		completed(nic, vi, recv);
	for (i = 0; i < MOST && nic->handle && VipCQDone(nic->received, &vi, &recv) == VIP_SUCCESS; i++) {
		nic->idle = 0;
		completed(nic, vi, recv);
		if (cq && cq->head != cq->tail)
			return;
	}
	if (i == 0 && nic->spent && ++nic->idle >= IDLE)
		while (nic->spent)
			vx_link_repost(nic->spent);
}

void vx_nic_progress(struct vx_nic *nic)
{
	vx_nic_poll(nic, NULL);
}

void vx_nic_spent(struct vx_link *link)
{
	link->next_spent = link->nic->spent;
	link->this_spent = &link->nic->spent;
	if (link->next_spent)
		link->next_spent->this_spent = &link->next_spent;
	link->nic->spent = link;
}

void vx_nic_reposted(struct vx_link *link)
{
	*link->this_spent = link->next_spent;
	if (link->next_spent)
		link->next_spent->this_spent = link->this_spent;
}

static void on_completion(VIP_PVOID context, VIP_NIC_HANDLE handle, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
	struct vx_nic *nic = context;

	pthread_mutex_lock(&nic->lock);
	if (nic->handle == handle) {
		*(recv ? &nic->received_armed : &nic->sent_armed) = 0;
		completed(nic, vi, recv);
		vx_nic_progress(nic);
		vx_nic_watch(nic, 0);
	}
	pthread_mutex_unlock(&nic->lock);
}

void vx_nic_watch(struct vx_nic *nic, int change)
{
	nic->watchers += (unsigned)change;
	if (!nic->watchers || !nic->handle)
		return;
	if (!nic->received_armed)
		nic->received_armed = VipCQNotify(nic->received, nic, on_completion) == VIP_SUCCESS;
	if (!nic->sent_armed)
		nic->sent_armed = VipCQNotify(nic->sent, nic, on_completion) == VIP_SUCCESS;
}

void vx_progress_all(void)
{
	struct vx_nic *nic;

	pthread_mutex_lock(&table);
	for (nic = nics; nic; nic = nic->next) {
		pthread_mutex_lock(&nic->lock);
		vx_nic_progress(nic);
		pthread_mutex_unlock(&nic->lock);
	}
	pthread_mutex_unlock(&table);
}

void vx_watch_all(int change)
{
	struct vx_nic *nic;

	pthread_mutex_lock(&table);
	watching_all += change;
	for (nic = nics; nic; nic = nic->next) {
		pthread_mutex_lock(&nic->lock);
		if (nic->handle)
			vx_nic_watch(nic, change);
		pthread_mutex_unlock(&nic->lock);
	}
	pthread_mutex_unlock(&table);
}
