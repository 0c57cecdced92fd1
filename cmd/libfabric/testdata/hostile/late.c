/* For LD_PRELOAD: a thread that has accepted a connection goes on late, as on a busy machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
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
