/*
 * notifier: a program that is all handlers, as those written for event loops were:
 * both sides ask for the connection and wait for it, a handler for each receive
 * posts again and arms itself again, one of the completion queue serves both queues
 * of another VI, one of errors notices that the other side has gone. The main
 * thread sleeps until the handlers are done.
 *
 *	notifier server|client DEVICE ADDRESS-OF-THE-OTHER [COUNT]
 */
#include "pair.h"

#include <pthread.h>

#define BUFFERS 32
#define SIZE 2048

typedef struct {
	VIP_VI_HANDLE vi;
	VIP_CQ_HANDLE cq; /* of both queues, or none */
	VIP_DESCRIPTOR *sends;
	long got, sent, confirmed;
} END;

static struct side s;
static VIP_MEM_HANDLE handle;
static END queue_end, cq_end;
static long count = 400;
static int lost, over;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void arm(END *e);

/* Sends as far as the send descriptors go. Under the lock. */
static void send_some(END *e)
{
	VIP_DESCRIPTOR *d;

	while (e->sent < count && e->sent - e->confirmed < BUFFERS / 2 && e->sent - e->got < BUFFERS / 2) {
		d = &e->sends[e->sent % BUFFERS];
		describe(d, (char *)(e->sends + BUFFERS) + e->sent % BUFFERS * SIZE, (unsigned long)(e->sent * 5 % SIZE), handle);
		d->CS.Control |= VIP_CONTROL_IMMEDIATE;
		d->CS.ImmediateData = (VIP_UINT32)e->sent++;
		CHECK(VipPostSend(e->vi, d, handle));
	}
}

static void received(END *e, VIP_DESCRIPTOR *d)
{
	ASSERT((d->CS.Status & VIP_STATUS_ERROR_MASK) == 0 && (d->CS.Status & VIP_STATUS_IMMEDIATE));
	ASSERT(d->CS.ImmediateData == (VIP_UINT32)e->got && d->CS.Length == (VIP_UINT32)(e->got * 5 % SIZE));
	e->got++;
	describe(d, d->DS[0].Local.Data.Address, SIZE, handle);
	CHECK(VipPostRecv(e->vi, d, handle));
}

/* The head of the receive queue is done. */
static void on_receive(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
	END *e = (END *)context;

	ASSERT(nic == s.nic && vi == e->vi && d != NULL);
	pthread_mutex_lock(&lock);
	if (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) {
		pthread_mutex_unlock(&lock);
		return; /* it is over: not armed again */
	}
	received(e, d);
	send_some(e);
	pthread_cond_broadcast(&changed);
	arm(e); /* under the lock: main takes all down when it has counted enough */
	pthread_mutex_unlock(&lock);
}

static void on_sent(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
	END *e = (END *)context;

	ASSERT(nic == s.nic && vi == e->vi);
	pthread_mutex_lock(&lock);
	ASSERT(d == &e->sends[e->confirmed % BUFFERS] && (d->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
	e->confirmed++;
	send_some(e);
	pthread_cond_broadcast(&changed);
	if (e->confirmed < count)
		CHECK(VipSendNotify(e->vi, e, on_sent));
	pthread_mutex_unlock(&lock);
}

/* An entry of the completion queue; the descriptor is to be taken off. */
static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
	END *e = (END *)context;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;

	ASSERT(nic == s.nic && vi == e->vi);
	pthread_mutex_lock(&lock);
	rc = recv ? VipRecvDone(vi, &d) : VipSendDone(vi, &d);
	if (rc == VIP_DESCRIPTOR_ERROR || over) {
		pthread_mutex_unlock(&lock);
		return;
	}
	CHECK(rc);
	if (recv)
		received(e, d);
	else
		e->confirmed++;
	send_some(e);
	pthread_cond_broadcast(&changed);
	arm(e); /* under the lock: main takes all down when it has counted enough */
	pthread_mutex_unlock(&lock);
}

static void arm(END *e)
{
	if (e->cq)
		CHECK(VipCQNotify(e->cq, e, on_entry));
	else
		CHECK(VipRecvNotify(e->vi, e, on_receive));
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	ASSERT(context == NULL && e->ResourceCode == VIP_RESOURCE_VI && e->ErrorCode == VIP_ERROR_CONN_LOST);
	ASSERT(e->ViHandle == queue_end.vi || e->ViHandle == cq_end.vi);
	pthread_mutex_lock(&lock);
	lost++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void make(END *e, VIP_CQ_HANDLE cq, const char *name, const char *peer)
{
	VIP_VI_ATTRIBUTES v = side_attributes(&s, VIP_SERVICE_RELIABLE_DELIVERY);
	char *memory = (char *)malloc(2 * BUFFERS * (SIZE + 64) + 64);
	VIP_DESCRIPTOR *recvs = (VIP_DESCRIPTOR *)(((unsigned long)memory + 63) & ~63UL);
	VIP_MEM_ATTRIBUTES m;
	union address local, remote;
	int i;

	memset(memory, 0, 2 * BUFFERS * (SIZE + 64) + 64);
	memset(&m, 0, sizeof m);
	m.Ptag = s.ptag;
	CHECK(VipRegisterMem(s.nic, memory, 2 * BUFFERS * (SIZE + 64) + 64, &m, &handle));
	e->cq = cq;
	CHECK(VipCreateVi(s.nic, &v, cq, cq, &e->vi));
	for (i = 0; i < BUFFERS; i++) {
		describe(&recvs[i], (char *)(recvs + BUFFERS) + i * SIZE, SIZE, handle);
		CHECK(VipPostRecv(e->vi, &recvs[i], handle));
	}
	e->sends = (VIP_DESCRIPTOR *)(void *)((char *)(recvs + BUFFERS) + BUFFERS * SIZE);
	side_local(&s, &local, name);
	side_remote(peer, &remote, name);
	CHECK(VipConnectPeerRequest(e->vi, &local.a, &remote.a, PATIENCE));
	CHECK(VipConnectPeerWait(e->vi, &v));
	arm(e);
	pthread_mutex_lock(&lock);
	if (!cq)
		CHECK(VipSendNotify(e->vi, e, on_sent));
	send_some(e);
	while (e->got < count || e->confirmed < count)
		ASSERT(pthread_cond_wait(&changed, &lock) == 0);
	pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
	VIP_CQ_HANDLE cq;
	VIP_VI_STATE state;

	if (argc < 4)
		side_usage(argv[0]);
	side_open(&s, argc, argv);
	if (argc > 4)
		count = atol(argv[4]);
	CHECK(VipErrorCallback(s.nic, NULL, on_error));
	CHECK(VipCreateCQ(s.nic, 16, &cq));
	make(&queue_end, NULL, "queue", argv[3]);
	make(&cq_end, cq, "cq", argv[3]);
	if (s.server) { /* until the client has gone: its handlers are done then */
		pthread_mutex_lock(&lock);
		while (lost < 2)
			ASSERT(pthread_cond_wait(&changed, &lock) == 0);
		pthread_mutex_unlock(&lock);
		CHECK(VipQueryVi(queue_end.vi, &state, NULL, NULL, NULL));
		ASSERT(state == VIP_STATE_ERROR);
	}
	pthread_mutex_lock(&lock);
	over = 1; /* handlers find what they were called for gone */
	pthread_mutex_unlock(&lock);
	CHECK(VipDisconnect(queue_end.vi));
	CHECK(VipDisconnect(cq_end.vi));
	CHECK(VipCloseNic(s.nic)); /* with all there is */
	if (!s.server)
		printf("notifier: %ld messages by handlers\n", 2 * count);
	return 0;
}
