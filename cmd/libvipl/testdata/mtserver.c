/*
 * mtserver: a server with a thread that is blocked in VipCQWait for ever, on a
 * second NIC handle of the device; its answers go out from there. The main thread
 * works on the first handle meanwhile, and in the end simply returns. Several
 * threads of the client each have a VI of their own.
 *
 *	mtserver server|client DEVICE [ADDRESS] [COUNT]
 */
#include "pair.h"

#include <pthread.h>

#define CLIENTS 4
#define SLOTS 8
#define SLOT 1024

static struct side s, second;
static long count = 500;
static VIP_CQ_HANDLE cq;
static VIP_VI_HANDLE vis[CLIENTS];
static VIP_MEM_HANDLE handle;
static char *memory;
static volatile int served;

/* Receive i of client c, and the answer to it. */
static VIP_DESCRIPTOR *descriptor(int c, int i, int answer)
{
	return (VIP_DESCRIPTOR *)memory + (c * SLOTS + i) * 2 + answer;
}

static char *buffer(int c, int i)
{
	return memory + 2 * 64 * CLIENTS * SLOTS + (c * SLOTS + i) * SLOT;
}

static void *server_thread(void *unused)
{
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_DESCRIPTOR *d, *answer;
	int c, i;

	(void)unused;
	for (;;) {
		VIP_RETURN got = VipCQWait(cq, VIP_INFINITE, &vi, &recv);

		CHECK(got);
		ASSERT(recv == VIP_TRUE);
		got = VipRecvDone(vi, &d);
		if (got == VIP_DESCRIPTOR_ERROR && d && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR))
			continue; /* that client has gone */
		CHECK(got);
		for (c = 0; vis[c] != vi; c++)
			;
		i = (int)(d - descriptor(c, 0, 0)) / 2;
		answer = d + 1;
		while (VipSendDone(vi, &d) == VIP_SUCCESS)
			;
		describe(answer, buffer(c, i), descriptor(c, i, 0)->CS.Length, handle);
		CHECK(VipPostSend(vi, answer, handle));
		describe(descriptor(c, i, 0), buffer(c, i), SLOT, handle);
		/* Its buffer is being sent: a client sends no more before it has the answer. */
		CHECK(VipPostRecv(vi, descriptor(c, i, 0), handle));
		served++;
	}
	return NULL;
}

static void *client_thread(void *arg)
{
	int c = (int)(long)arg;
	char name[16];
	VIP_VI_HANDLE vi = side_vi(&s, VIP_SERVICE_RELIABLE_RECEPTION, NULL);
	VIP_DESCRIPTOR *in = descriptor(c, 0, 0), *out = descriptor(c, 0, 1), *d;
	long k;

	sprintf(name, "worker%d", c);
	side_connect(&s, vi, name);
	for (k = 0; k < count; k++) {
		unsigned long n = (unsigned long)(k % 500) + 8;

		describe(in, buffer(c, 1), SLOT, handle);
		CHECK(VipPostRecv(vi, in, handle));
		memset(buffer(c, 0), (int)(c * 50 + k % 50), n);
		describe(out, buffer(c, 0), n, handle);
		CHECK(VipPostSend(vi, out, handle));
		CHECK(VipSendWait(vi, PATIENCE, &d));
		CHECK(VipRecvWait(vi, PATIENCE, &d));
		ASSERT(d == in && d->CS.Length == n && memcmp(buffer(c, 0), buffer(c, 1), n) == 0);
	}
	CHECK(VipDisconnect(vi));
	CHECK(VipDestroyVi(vi));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[CLIENTS];
	long c;
	int i, k;

	side_open(&s, argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = atol(argv[k]);
	if (!s.server) {
		memory = side_memory(&s, CLIENTS * SLOTS * (2 * 64 + SLOT), &handle);
		for (c = 0; c < CLIENTS; c++)
			ASSERT(pthread_create(&threads[c], NULL, client_thread, (void *)c) == 0);
		for (c = 0; c < CLIENTS; c++)
			ASSERT(pthread_join(threads[c], NULL) == 0);
		printf("mtserver: %ld calls by each of %d threads\n", count, CLIENTS);
		CHECK(VipCloseNic(s.nic));
		return 0;
	}
	side_open(&second, argc, argv);
	memory = side_memory(&second, CLIENTS * SLOTS * (2 * 64 + SLOT), &handle);
	CHECK(VipCreateCQ(second.nic, 1, &cq));
	for (c = 0; c < CLIENTS; c++) {
		vis[c] = side_vi(&second, VIP_SERVICE_RELIABLE_RECEPTION, cq);
		for (i = 0; i < SLOTS; i++) {
			describe(descriptor((int)c, i, 0), buffer((int)c, i), SLOT, handle);
			CHECK(VipPostRecv(vis[c], descriptor((int)c, i, 0), handle));
		}
	}
	ASSERT(pthread_create(&threads[0], NULL, server_thread, NULL) == 0);
	/* The requests are waited for one discriminator after the other. */
	for (c = 0; c < CLIENTS; c++) {
		char name[16];

		sprintf(name, "worker%ld", c);
		side_connect(&second, vis[c], name);
	}
	while (served < count * CLIENTS)
		usleep(1000);
	for (c = 0; c < CLIENTS; c++) {
		VIP_VI_STATE state;

		do { /* until the client has its last answer and has gone */
			usleep(1000);
			CHECK(VipQueryVi(vis[c], &state, NULL, NULL, NULL));
		} while (state == VIP_STATE_CONNECTED);
	}
	return 0; /* with a thread in VipCQWait and both NICs open */
}
