/* For LD_PRELOAD: a thread that has accepted a connection, or has waited, goes on late, as on a busy machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <vipl.h>

enum { LATE = 100000 }; /* us */

VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE request, VIP_VI_HANDLE vi)
{
	VIP_RETURN (*next)(VIP_CONN_HANDLE, VIP_VI_HANDLE) = dlsym(dlopen("libvipl.so.1", RTLD_LAZY | RTLD_NOLOAD), "VipConnectAccept");
	VIP_RETURN code = next(request, vi);

	usleep(LATE);
	return code;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *end)
{
	int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	int code = next(cond, lock, end);

	pthread_mutex_unlock(lock);
	usleep(LATE);
	pthread_mutex_lock(lock);
	return code;
}
