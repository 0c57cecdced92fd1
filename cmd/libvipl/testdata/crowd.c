/*
 * crowd: a server of many connections as one was written for a cluster: one arena
 * of 64 MiB in which everything lies, registered once; a loop of ConnectWait and
 * ConnectAccept that turns each client away once; one completion queue for both
 * queues of all VIs; 2,000 receives posted ahead. Each client is a thread of the
 * other process, which tries again whatever the answer is. In the end the server
 * disconnects, and both sides take off what is left in their queues.
 *
 *	crowd server|client DEVICE [ADDRESS] [COUNT]
 */
#include "pair.h"

#include <pthread.h>

#define ARENA (64UL << 20)
#define CLIENTS 6
#define MANY 2000 /* receives of the first client's VI */
#define FEW 40
#define BUFFER 1024
#define MAXHOST 128

typedef struct {
	VIP_DESCRIPTOR desc;
	char buffer[BUFFER];
} VBUF;

static struct side s;
static VIP_MEM_HANDLE handle;
static char *arena, *arena_next;
static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;
static long count = 500;
static volatile int errors_reported;

static void *take(size_t n)
{
	char *p;

	pthread_mutex_lock(&arena_lock);
	p = arena_next;
	arena_next += (n + 63) & ~(size_t)63;
	ASSERT(arena_next <= arena + ARENA);
	pthread_mutex_unlock(&arena_lock);
	return p;
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	ASSERT(context == &s && e->NicHandle == s.nic && e->ErrorCode == VIP_ERROR_CONN_LOST);
	errors_reported++;
}

/* Addresses in blocks of room for any host; the discriminator is a structure. */
typedef struct {
	char program[6];
	unsigned short number;
} DISC;

static VIP_NET_ADDRESS *address(const char *peer, int number)
{
	VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)calloc(1, sizeof(VIP_NET_ADDRESS) + MAXHOST);
	DISC d;

	a->HostAddressLen = s.attributes.NicAddressLen;
	a->DiscriminatorLen = sizeof d;
	if (peer)
		ASSERT(inet_pton(AF_INET, peer, a->HostAddress) == 1);
	else
		memcpy(a->HostAddress, s.attributes.LocalNicAddress, a->HostAddressLen);
	memcpy(d.program, "crowd", 6);
	d.number = (unsigned short)number;
	memcpy(a->HostAddress + a->HostAddressLen, &d, sizeof d);
	return a;
}

static void prepare(VBUF *b, VIP_VI_HANDLE vi)
{
	b->desc.CS.Control = VIP_CONTROL_OP_SENDRECV;
	b->desc.CS.SegCount = 1;
	b->desc.CS.Length = BUFFER;
	b->desc.CS.Reserved = 0;
	b->desc.DS[0].Local.Data.Address = b->buffer;
	b->desc.DS[0].Local.Handle = handle;
	b->desc.DS[0].Local.Length = BUFFER;
	CHECK(VipPostRecv(vi, &b->desc, handle));
}

static void send_one(VBUF *b, VIP_VI_HANDLE vi, unsigned n)
{
	b->desc.CS.Control = VIP_CONTROL_OP_SENDRECV;
	b->desc.CS.SegCount = 1;
	b->desc.CS.Length = n;
	b->desc.CS.Reserved = 0;
	b->desc.DS[0].Local.Data.Address = b->buffer;
	b->desc.DS[0].Local.Handle = handle;
	b->desc.DS[0].Local.Length = n;
	CHECK(VipPostSend(vi, &b->desc, handle));
}

/* What is left in a queue, until it is empty; each was flushed. */
static int flush(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;
	int n = 0;

	for (;;) {
		rc = done(vi, &d);
		if (rc == VIP_NOT_DONE || d == NULL)
			return n;
		ASSERT(rc == VIP_DESCRIPTOR_ERROR && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR));
		n++;
	}
}

static VIP_VI_ATTRIBUTES attributes(void)
{
	VIP_VI_ATTRIBUTES v;

	memset(&v, 0, sizeof v);
	v.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
	v.MaxTransferSize = s.attributes.MaxTransferSize;
	return v;
}

/*
 * The server: what a client sends comes back with 1 added.
 */
typedef struct {
	VIP_VI_HANDLE vi;
	VBUF *reply;
	long got;
	int waits, owes; /* a reply is under way; another one is due */
	int posted;      /* receives */
} CLIENT;

static CLIENT clients[CLIENTS];

static CLIENT *client_of(VIP_VI_HANDLE vi)
{
	int i;

	for (i = 0; i < CLIENTS; i++)
		if (clients[i].vi == vi)
			return &clients[i];
	ASSERT(!"a client's VI");
	return NULL;
}

/* A sum goes back when its send descriptor is free. */
static int reply(CLIENT *c)
{
	if (c->waits || !c->owes)
		return 0;
	*(long *)(void *)c->reply->buffer = c->got;
	send_one(c->reply, c->vi, sizeof(long));
	c->waits = 1;
	c->owes = 0;
	return 1;
}

static void accept_all(VIP_CQ_HANDLE cq)
{
	VIP_VI_ATTRIBUTES v = attributes(), theirs;
	VIP_NET_ADDRESS *local, *remote = address(NULL, 0);
	VIP_CONN_HANDLE conn;
	VIP_RETURN rc;
	int i, j, turned_away;

	for (i = 0; i < CLIENTS; i++) {
		CHECK(VipCreateVi(s.nic, &v, cq, cq, &clients[i].vi));
		clients[i].posted = i == 0 ? MANY : FEW;
		for (j = 0; j < clients[i].posted; j++)
			prepare((VBUF *)take(sizeof(VBUF)), clients[i].vi);
		clients[i].reply = (VBUF *)take(sizeof(VBUF));
		memset(clients[i].reply, 0, sizeof(VBUF));
		local = address(NULL, i);
		for (turned_away = 0;; turned_away++) {
			do
				rc = VipConnectWait(s.nic, local, 200, remote, &theirs, &conn);
			while (rc == VIP_TIMEOUT);
			CHECK(rc);
			if (turned_away)
				break;
			CHECK(VipConnectReject(conn));
		}
		ASSERT(theirs.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION);
		CHECK(VipConnectAccept(conn, clients[i].vi));
		free(local);
	}
	free(remote);
}

static void serve(void)
{
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_DESCRIPTOR *d;
	VIP_VI_STATE state;
	CLIENT *c;
	VBUF *b;
	long left = CLIENTS * count;
	int i, replies = 0;

	CHECK(VipCreateCQ(s.nic, 64, &cq));
	accept_all(cq);
	for (i = 0; i < CLIENTS; i++) { /* all are there: go */
		clients[i].owes = 1;
		replies += reply(&clients[i]);
	}
	while (left > 0 || replies > 0) {
		CHECK(VipCQWait(cq, VIP_INFINITE, &vi, &recv));
		c = client_of(vi);
		if (!recv) {
			CHECK(VipSendDone(vi, &d));
			ASSERT(d == &c->reply->desc && (d->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
			c->waits = 0;
			replies += reply(c) - 1;
			continue;
		}
		CHECK(VipRecvDone(vi, &d));
		b = (VBUF *)d;
		ASSERT(d->CS.Length >= sizeof(long) && *(long *)(void *)b->buffer == c->got);
		c->got++;
		left--;
		prepare(b, vi);
		c->owes |= c->got % 16 == 0 || c->got == count;
		replies += reply(c);
	}
	for (i = 0; i < CLIENTS; i++) {
		VipDisconnect(clients[i].vi);
		CHECK(VipQueryVi(clients[i].vi, &state, NULL, NULL, NULL));
		ASSERT(state == VIP_STATE_IDLE);
		ASSERT(flush(clients[i].vi, VipRecvDone) == clients[i].posted);
		flush(clients[i].vi, VipSendDone);
		CHECK(VipDestroyVi(clients[i].vi));
	}
	/* What the queue still tells of VIs that are gone can be taken off. */
	while (VipCQDone(cq, &vi, &recv) == VIP_SUCCESS)
		;
	CHECK(VipDestroyCQ(cq));
}

/*
 * The clients.
 */
static void *client(void *arg)
{
	int number = (int)(long)arg, rejected = 0;
	VIP_VI_ATTRIBUTES v = attributes(), theirs;
	VIP_NET_ADDRESS *local = address(NULL, 1000 + number), *remote = address(s.peer, number);
	VBUF *replies = (VBUF *)take(FEW * sizeof(VBUF)), *sends = (VBUF *)take(FEW * sizeof(VBUF));
	VIP_VI_HANDLE vi;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;
	VIP_VI_STATE state;
	long i, sum = 0, done = 0;
	double start = seconds();

	CHECK(VipCreateVi(s.nic, &v, NULL, NULL, &vi));
	for (i = 0; i < FEW; i++)
		prepare(&replies[i], vi);
	for (;;) {
		rc = VipConnectRequest(vi, local, remote, PATIENCE, &theirs);
		if (rc == VIP_SUCCESS)
			break;
		ASSERT(rc == VIP_NO_MATCH || rc == VIP_REJECT || rc == VIP_TIMEOUT);
		rejected += rc == VIP_REJECT;
		ASSERT((seconds() - start) * 1e3 < PATIENCE);
		usleep(2000);
	}
	ASSERT(rejected > 0);
	CHECK(VipRecvWait(vi, VIP_INFINITE, &d));
	prepare((VBUF *)d, vi);
	for (i = 0; i < count; i++) {
		VBUF *b = &sends[i % FEW];

		while (i - done >= FEW) {
			rc = VipSendDone(vi, &d);
			if (rc == VIP_NOT_DONE)
				continue;
			CHECK(rc);
			done++;
		}
		*(long *)(void *)b->buffer = i;
		send_one(b, vi, (unsigned)(sizeof(long) + (unsigned long)i % (BUFFER - sizeof(long))));
		/* The first is never ahead of its 2,000 receives, the others wait for their sums. */
		do {
			rc = VIP_NOT_DONE; /* behind the last sum the server may have gone */
			while (sum < count && (rc = VipRecvDone(vi, &d)) == VIP_SUCCESS) {
				sum = *(long *)(void *)((VBUF *)d)->buffer;
				prepare((VBUF *)d, vi);
			}
			ASSERT(rc == VIP_NOT_DONE || sum == count);
		} while (i + 1 - sum >= (number == 0 ? MANY : FEW));
	}
	while (sum < count) {
		CHECK(VipRecvWait(vi, VIP_INFINITE, &d));
		ASSERT(*(long *)(void *)((VBUF *)d)->buffer > sum);
		sum = *(long *)(void *)((VBUF *)d)->buffer;
		prepare((VBUF *)d, vi);
	}
	ASSERT(sum == count);
	for (; done < count; done++)
		CHECK(VipSendWait(vi, VIP_INFINITE, &d));
	/* Until the server goes; then the receives are flushed. */
	do
		CHECK(VipQueryVi(vi, &state, NULL, NULL, NULL));
	while (state == VIP_STATE_CONNECTED);
	ASSERT(state == VIP_STATE_ERROR && flush(vi, VipRecvDone) == FEW);
	CHECK(VipDisconnect(vi));
	CHECK(VipDestroyVi(vi));
	free(local);
	free(remote);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[CLIENTS];
	VIP_MEM_ATTRIBUTES m;
	int i, at;

	side_open(&s, argc, argv);
	at = s.server ? 3 : 4;
	if (argc > at)
		count = atol(argv[at]);
	ASSERT(s.attributes.MaxRegisterBlockBytes >= ARENA && s.attributes.MaxDescriptorsPerQueue >= MANY);
	CHECK(VipErrorCallback(s.nic, &s, on_error));
	arena = arena_next = (char *)malloc(ARENA + 64);
	ASSERT(arena != NULL);
	memset(&m, 0, sizeof m);
	m.Ptag = s.ptag;
	CHECK(VipRegisterMem(s.nic, arena, ARENA + 64, &m, &handle));
	arena_next += 64 - ((unsigned long)arena & 63);
	if (s.server) {
		serve();
	} else {
		for (i = 0; i < CLIENTS; i++)
			ASSERT(pthread_create(&threads[i], NULL, client, (void *)(long)i) == 0);
		for (i = 0; i < CLIENTS; i++)
			ASSERT(pthread_join(threads[i], NULL) == 0);
		printf("crowd: %d clients of %ld messages\n", CLIENTS, count);
	}
	CHECK(VipDeregisterMem(s.nic, arena, handle));
	CHECK(VipDestroyPtag(s.nic, s.ptag));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
