/*
 * loaded: a program that is not linked with the library but loads it, as those do
 * that can do without VIA: its threads are there before, and it lets go of it again.
 *
 *	loaded server DEVICE
 */
#include <vipl.h>

#define ALL(F)                                                                             \
	F(VipOpenNic) F(VipCloseNic) F(VipQueryNic) F(VipErrorCallback)                    \
	F(VipQuerySystemManagementInfo) F(VipCreatePtag) F(VipDestroyPtag) F(VipRegisterMem) \
	F(VipDeregisterMem) F(VipQueryMem) F(VipSetMemAttributes) F(VipCreateVi)           \
	F(VipDestroyVi) F(VipQueryVi) F(VipSetViAttributes) F(VipConnectWait)              \
	F(VipConnectAccept) F(VipConnectReject) F(VipConnectRequest) F(VipDisconnect)      \
	F(VipConnectPeerRequest) F(VipConnectPeerDone) F(VipConnectPeerWait) F(VipPostSend) \
	F(VipSendDone) F(VipSendWait) F(VipSendNotify) F(VipPostRecv) F(VipRecvDone)       \
	F(VipRecvWait) F(VipRecvNotify) F(VipCreateCQ) F(VipResizeCQ) F(VipDestroyCQ)      \
	F(VipCQDone) F(VipCQWait) F(VipCQNotify) F(VipNSInit) F(VipNSShutdown)             \
	F(VipNSGetHostByName) F(VipNSGetHostByAddr)

#define POINTER(name) static __typeof__(name) *p_##name;
ALL(POINTER)

#define VipOpenNic p_VipOpenNic
#define VipCloseNic p_VipCloseNic
#define VipQueryNic p_VipQueryNic
#define VipCreatePtag p_VipCreatePtag
#define VipRegisterMem p_VipRegisterMem
#define VipCreateVi p_VipCreateVi
#define VipDestroyVi p_VipDestroyVi
#define VipQueryVi p_VipQueryVi
#define VipConnectWait p_VipConnectWait
#define VipConnectAccept p_VipConnectAccept
#define VipConnectRequest p_VipConnectRequest
#define VipPostRecv p_VipPostRecv
#define VipRecvWait p_VipRecvWait

#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <pthread.h>

#include "pair.h"

#define FIND(name)                                                                     \
	*(void **)&p_##name = dlvsym(library, #name, "VIPL_1.0");                      \
	if (!p_##name) {                                                               \
		fprintf(stderr, "%s is not in the library: %s\n", #name, dlerror());   \
		exit(1);                                                               \
	}

static struct side s;
static VIP_VI_HANDLE vi;
static char *memory;
static VIP_MEM_HANDLE handle;
static pthread_barrier_t turn;

/* A thread that was there before the library. */
static void *older(void *turns)
{
	int i;

	for (i = 0; i < *(int *)turns; i++) {
		VIP_DESCRIPTOR *d;

		pthread_barrier_wait(&turn);
		EXPECT(VIP_DESCRIPTOR_ERROR, VipRecvWait(vi, PATIENCE, &d)); /* flushed by the other thread */
		ASSERT(d == (VIP_DESCRIPTOR *)memory && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR));
		pthread_barrier_wait(&turn);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int turns = 3, i;
	pthread_t thread;

	ASSERT(dlsym(RTLD_DEFAULT, "VipxPoll") == NULL);
	ASSERT(pthread_barrier_init(&turn, NULL, 2) == 0);
	ASSERT(pthread_create(&thread, NULL, older, &turns) == 0);
	for (i = 0; i < turns; i++) {
		void *library = dlopen("libvipl.so.1", i % 2 ? RTLD_NOW : RTLD_LAZY);

		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		ALL(FIND)
		side_open(&s, argc, argv);
		vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
		memory = side_memory(&s, 4096, &handle);
		describe((VIP_DESCRIPTOR *)memory, memory + 1024, 64, handle);
		CHECK(VipPostRecv(vi, (VIP_DESCRIPTOR *)memory, handle));
		pthread_barrier_wait(&turn);
		CHECK(p_VipDisconnect(vi));
		pthread_barrier_wait(&turn);
		CHECK(VipDestroyVi(vi));
		CHECK(VipCloseNic(s.nic));
		ASSERT(dlclose(library) == 0);
	}
	ASSERT(pthread_join(thread, NULL) == 0);
	printf("loaded: %d times\n", turns);
	return 0;
}
