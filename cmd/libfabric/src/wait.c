/*
 * Wait objects: an eventfd for each queue and counter that has one. It is written only for threads that wait.
 *
 * Several threads may use one object: some poll the descriptor after fi_trywait, some block in a read, some read without
 * waiting. poll tests the descriptor again when it wakes up. So only the next fi_trywait clears it for the program: a
 * thread that blocks clears it for itself, and signals it again when it leaves.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "viaxdp.h"

int64_t vx_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t vx_deadline(int timeout)
{
	return timeout < 0 ? INT64_MAX : vx_now() + (int64_t)timeout * 1000000;
}

int vx_wait_open(struct vx_wait *w, enum fi_wait_obj object)
{
	memset(w, 0, sizeof *w);
	w->object = object;
	w->fd = -1;
	switch (object) {
	case FI_WAIT_NONE:
		return 0;
	case FI_WAIT_UNSPEC:
	case FI_WAIT_FD:
	case FI_WAIT_YIELD:
		w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		return w->fd < 0 ? -errno : 0;
	default:
		return -FI_ENOSYS;
	}
}

void vx_wait_close(struct vx_wait *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
}

void vx_wait_signal(struct vx_wait *w)
{
	uint64_t one = 1;

	if (w->fd >= 0 && (w->waiters || w->polled) && !w->signaled)
		w->signaled = write(w->fd, &one, sizeof one) == sizeof one;
}

void vx_wait_clear(struct vx_wait *w)
{
	uint64_t count;

	if (w->signaled && read(w->fd, &count, sizeof count) < 0 && errno != EAGAIN)
		return;
	w->signaled = 0;
}

int vx_wait_control(struct vx_wait *w, int command, void *arg)
{
	switch (command) {
	case FI_GETWAIT:
		if (w->object != FI_WAIT_FD || !arg)
			return -FI_ENODATA;
		*(int *)arg = w->fd;
		return 0;
	case FI_GETWAITOBJ:
		if (!arg)
			return -FI_EINVAL;
		*(enum fi_wait_obj *)arg = w->object;
		return 0;
	}
	return -FI_ENOSYS;
}

int vx_wait_block(struct vx_wait *w, pthread_mutex_t *lock, int64_t end)
{
	struct pollfd p = {.fd = w->fd, .events = POLLIN};
	int64_t left = end == INT64_MAX ? -1 : end - vx_now();
	int ms = left < 0 ? -1 : left > 3600000000000 ? 3600000 : (int)((left + 999999) / 1000000), interrupted;

	if (end != INT64_MAX && left <= 0)
		return 0;
	pthread_mutex_unlock(lock);
	interrupted = poll(&p, 1, ms) < 0 && errno == EINTR;
	pthread_mutex_lock(lock);
	return interrupted ? -1 : 1;
}

int vx_wait_arm(struct vx_wait *w)
{
	int armed = w->armed;

	vx_wait_clear(w);
	w->polled = w->armed = 1;
	return !armed;
}

int vx_wait_disarm(struct vx_wait *w)
{
	if (!w->armed || !w->signaled)
		return 0; /* a thread that polls has not been signaled yet */
	w->armed = 0;
	return 1;
}

void vx_wait_enter(struct vx_wait *w, struct vx_nic *nic)
{
	w->waiters++;
	vx_nic_watch(nic, 1);
}

void vx_wait_leave(struct vx_wait *w, struct vx_nic *nic)
{
	vx_nic_watch(nic, -1);
	w->waiters--;
	vx_wait_signal(w); /* the others look, too */
}
