/*
 * rpc: remote calls to a server of few connections, as servers for cLAN were written. A
 * thread waits for requests for connections and gives each one of eight VIs, or
 * rejects it when all are in use; workers sleep in VipCQWait on one completion queue for the
 * receives of all of them. Calls and replies bring credits. When a client
 * has gone, its VI's receives come back flushed, through the same queue; the worker that takes
 * off the last one makes the VI ready for the next client. In the end the server
 * returns from main, with all threads where they are.
 *
 *	rpc server|client DEVICE [ADDRESS] [CALLS]
 */
#include "pair.h"

#include <pthread.h>

#define VIS 8
#define CLIENTS 11
#define ROUNDS 3
#define WORKERS 3
#define CREDITS 6 /* receives of each side of a connection */
#define MOST 3000

enum { CALL_SUM, CALL_REVERSE, CALL_STOP };

typedef struct {
	VIP_UINT32 number, procedure, credits, bytes;
} HEADER;

/* A descriptor and what it is for, in one piece. */
typedef struct {
	VIP_DESCRIPTOR d;
	HEADER h;
	char data[MOST];
	int busy;
	char pad[64 - (sizeof(HEADER) + MOST + sizeof(int)) % 64];
} PACKET;

typedef struct conn {
	VIP_VI_HANDLE vi;
	PACKET *in, *out; /* CREDITS of each */
	int receives;     /* that the provider has */
	int owed;         /* credits to give back */
	pthread_mutex_t lock;
	struct conn *next; /* free */
} CONN;

static struct side s;
static VIP_MEM_HANDLE handle;
static VIP_CQ_HANDLE cq;
static long calls = 300;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static CONN conns[VIS], *idle;
static int stopped, lost, served, reused;

static VIP_NET_ADDRESS *make_address(const unsigned char *host, const char *service)
{
	/* Not a byte more than it takes. */
	VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)malloc(2 * sizeof(VIP_UINT16) + s.attributes.NicAddressLen + strlen(service));

	a->HostAddressLen = s.attributes.NicAddressLen;
	a->DiscriminatorLen = (VIP_UINT16)strlen(service);
	memcpy(a->HostAddress, host, s.attributes.NicAddressLen);
	memcpy(&a->HostAddress[a->HostAddressLen], service, strlen(service));
	return a;
}

static void post_receive(CONN *c, PACKET *p)
{
	p->d.Control.Control = VIP_CONTROL_OP_SENDRECV;
	p->d.Control.SegCount = 2;
	p->d.Control.Reserved = 0;
	p->d.Control.Length = sizeof p->h + sizeof p->data;
	p->d.Data[0].Data.Address = &p->h;
	p->d.Data[0].Handle = handle;
	p->d.Data[0].Length = sizeof p->h;
	p->d.Data[1].Data.Address = p->data;
	p->d.Data[1].Handle = handle;
	p->d.Data[1].Length = sizeof p->data;
	c->receives++;
	CHECK(VipPostRecv(c->vi, &p->d, handle));
}

/* Sends a packet; the header and the data are segments of their own. */
static VIP_RETURN transmit(CONN *c, PACKET *p)
{
	p->h.credits = (VIP_UINT32)c->owed;
	c->owed = 0;
	p->busy = 1;
	p->d.Control.Control = VIP_CONTROL_OP_SENDRECV;
	p->d.Control.SegCount = p->h.bytes > 0 ? 2 : 1;
	p->d.Control.Reserved = 0;
	p->d.Control.Length = sizeof p->h + p->h.bytes;
	p->d.Data[0].Data.Address = &p->h;
	p->d.Data[0].Handle = handle;
	p->d.Data[0].Length = sizeof p->h;
	p->d.Data[1].Data.Address = p->data;
	p->d.Data[1].Handle = handle;
	p->d.Data[1].Length = p->h.bytes;
	return VipPostSend(c->vi, &p->d, handle);
}

/* Takes back what was sent. */
static void reap(CONN *c)
{
	VIP_DESCRIPTOR *d;

	while (VipSendDone(c->vi, &d), d != NULL)
		((PACKET *)d)->busy = 0;
}

static PACKET *free_packet(CONN *c)
{
	int i;

	reap(c);
	for (i = 0; i < CREDITS; i++)
		if (!c->out[i].busy)
			return &c->out[i];
	return NULL;
}

/*
 * The server.
 */
static void make_idle(CONN *c)
{
	int i;

	for (i = 0; i < CREDITS; i++)
		post_receive(c, &c->in[i]);
	c->owed = 0;
	pthread_mutex_lock(&lock);
	c->next = idle;
	idle = c;
	pthread_mutex_unlock(&lock);
}

/* What was flushed has all come back: the VI serves the next one. */
static void recycle(CONN *c)
{
	VIP_VI_STATE state;
	VIP_BOOLEAN sends, receives;

	CHECK(VipDisconnect(c->vi));
	reap(c);
	CHECK(VipQueryVi(c->vi, &state, NULL, &sends, &receives));
	ASSERT(state == VIP_STATE_IDLE && sends && receives);
	make_idle(c);
	pthread_mutex_lock(&lock);
	reused++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void execute(CONN *c, PACKET *p)
{
	PACKET *r;
	VIP_UINT32 i, sum = 0;
	double start = seconds();

	while ((r = free_packet(c)) == NULL) /* replies are taken back in the order of calls */
		ASSERT((seconds() - start) * 1e3 < PATIENCE);
	ASSERT(p->d.Control.Length == sizeof p->h + p->h.bytes);
	r->h = p->h;
	switch (p->h.procedure) {
	case CALL_SUM:
		for (i = 0; i < p->h.bytes; i++)
			sum += (unsigned char)p->data[i];
		memcpy(r->data, &sum, sizeof sum);
		r->h.bytes = sizeof sum;
		break;
	case CALL_REVERSE:
		for (i = 0; i < p->h.bytes; i++)
			r->data[i] = p->data[p->h.bytes - 1 - i];
		break;
	case CALL_STOP:
		r->h.bytes = 0;
	}
	post_receive(c, p);
	c->owed++;
	transmit(c, r); /* if the client has gone, it comes back flushed */
}

static void *worker(void *unused)
{
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN receive;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;
	CONN *c;
	int i, stop;

	(void)unused;
	for (;;) {
		CHECK(VipCQWait(cq, VIP_INFINITE, &vi, &receive));
		ASSERT(receive);
		for (c = NULL, i = 0; i < VIS; i++)
			if (conns[i].vi == vi)
				c = &conns[i];
		ASSERT(c != NULL);
		pthread_mutex_lock(&c->lock);
		rc = VipRecvDone(vi, &d);
		ASSERT(d != NULL); /* an entry for each */
		c->receives--;
		stop = 0;
		if (rc == VIP_SUCCESS) {
			stop = ((PACKET *)d)->h.procedure == CALL_STOP;
			pthread_mutex_lock(&lock); /* before the reply, which may be the last one's */
			served++;
			pthread_mutex_unlock(&lock);
			execute(c, (PACKET *)d);
		} else {
			ASSERT(rc == VIP_DESCRIPTOR_ERROR && (d->Control.Status & VIP_STATUS_DESC_FLUSHED_ERROR));
			if (c->receives == 0)
				recycle(c);
		}
		pthread_mutex_unlock(&c->lock);
		pthread_mutex_lock(&lock);
		stopped |= stop;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void *doorman(void *unused)
{
	VIP_NET_ADDRESS *here = make_address(s.attributes.LocalNicAddress, "rpc"), *there;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE request;
	VIP_RETURN rc;
	CONN *c;

	(void)unused;
	there = make_address(s.attributes.LocalNicAddress, "mine");
	for (;;) {
		rc = VipConnectWait(s.nic, here, VIP_INFINITE, there, &theirs, &request);
		CHECK(rc);
		ASSERT(there->HostAddressLen == s.attributes.NicAddressLen && there->DiscriminatorLen == 4);
		pthread_mutex_lock(&lock);
		c = idle;
		if (c)
			idle = c->next;
		pthread_mutex_unlock(&lock);
		if (!c) {
			rc = VipConnectReject(request);
			ASSERT(rc == VIP_SUCCESS || rc == VIP_TIMEOUT);
			continue;
		}
		rc = VipConnectAccept(request, c->vi);
		if (rc != VIP_SUCCESS) { /* it has given up: the VI is for the next */
			ASSERT(rc == VIP_TIMEOUT);
			pthread_mutex_lock(&lock);
			c->next = idle;
			idle = c;
			pthread_mutex_unlock(&lock);
		}
	}
	return NULL;
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	(void)context;
	ASSERT(e->NicHandle == s.nic && e->ResourceCode == VIP_RESOURCE_VI && e->ErrorCode == VIP_ERROR_CONN_LOST);
	pthread_mutex_lock(&lock);
	lost++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void prepare(CONN *c, PACKET *memory)
{
	memset(c, 0, sizeof *c);
	pthread_mutex_init(&c->lock, NULL);
	c->in = memory;
	c->out = memory + CREDITS;
}

static void serve(void)
{
	pthread_t thread;
	PACKET *memory = (PACKET *)(void *)side_memory(&s, VIS * 2 * CREDITS * sizeof(PACKET), &handle);
	int i;

	CHECK(VipErrorCallback(s.nic, NULL, on_error));
	CHECK(VipCreateCQ(s.nic, VIS * CREDITS, &cq));
	for (i = 0; i < VIS; i++) {
		prepare(&conns[i], memory + i * 2 * CREDITS);
		conns[i].vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, cq);
		make_idle(&conns[i]);
	}
	for (i = 0; i < WORKERS; i++)
		ASSERT(pthread_create(&thread, NULL, worker, NULL) == 0);
	ASSERT(pthread_create(&thread, NULL, doorman, NULL) == 0);
	pthread_mutex_lock(&lock);
	while (!stopped || reused < CLIENTS * ROUNDS + 1 || lost < CLIENTS * ROUNDS + 1)
		pthread_cond_wait(&changed, &lock);
	ASSERT(served >= calls * CLIENTS);
	pthread_mutex_unlock(&lock);
}

/*
 * The clients.
 */
static void enter(CONN *c)
{
	VIP_NET_ADDRESS *here = make_address(s.attributes.LocalNicAddress, "mine"), *there;
	VIP_VI_ATTRIBUTES theirs;
	VIP_RETURN rc;
	double start = seconds();
	unsigned char host[4];

	ASSERT(inet_pton(AF_INET, s.peer, host) == 1);
	there = make_address(host, "rpc");
	for (;;) {
		rc = VipConnectRequest(c->vi, here, there, PATIENCE, &theirs);
		if (rc == VIP_SUCCESS)
			break;
		/* The server is not there yet, or has no VI for another one. */
		ASSERT(rc == VIP_NO_MATCH || rc == VIP_REJECT || rc == VIP_TIMEOUT);
		ASSERT((seconds() - start) * 1e3 < PATIENCE);
		usleep(1000);
	}
	ASSERT(theirs.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY && theirs.MaxTransferSize == s.attributes.MaxTransferSize);
	free(here);
	free(there);
}

static void call(CONN *c, VIP_UINT32 number, VIP_UINT32 procedure)
{
	PACKET *p = free_packet(c);
	VIP_UINT32 i;

	while (!p)
		p = free_packet(c);
	p->h.number = number;
	p->h.procedure = procedure;
	p->h.bytes = procedure == CALL_STOP ? 0 : number * 37 % MOST;
	for (i = 0; i < p->h.bytes; i++)
		p->data[i] = (char)(number + i);
	CHECK(transmit(c, p));
}

/* Takes the reply to a call, and the credits that it brings. */
static int reply(CONN *c, VIP_UINT32 number)
{
	VIP_DESCRIPTOR *d;
	PACKET *p;
	VIP_UINT32 i, bytes = number * 37 % MOST, sum = 0, got;
	int credits;

	CHECK(VipRecvWait(c->vi, PATIENCE, &d));
	c->receives--;
	p = (PACKET *)d;
	ASSERT(p->h.number == number && d->Control.Length == sizeof p->h + p->h.bytes);
	if (p->h.procedure == CALL_REVERSE) {
		ASSERT(p->h.bytes == bytes);
		for (i = 0; i < bytes; i++)
			ASSERT(p->data[bytes - 1 - i] == (char)(number + i));
	} else if (p->h.procedure == CALL_SUM) {
		for (i = 0; i < bytes; i++)
			sum += (unsigned char)(number + i);
		memcpy(&got, p->data, sizeof got);
		ASSERT(p->h.bytes == sizeof got && got == sum);
	}
	credits = (int)p->h.credits;
	post_receive(c, p);
	return credits;
}

static void leave(CONN *c)
{
	VIP_DESCRIPTOR *d;

	CHECK(VipDisconnect(c->vi));
	for (;;) { /* all that was posted comes back */
		VIP_RETURN rc = VipRecvDone(c->vi, &d);

		if (d == NULL)
			break;
		ASSERT(rc == VIP_DESCRIPTOR_ERROR && d->Control.Status & VIP_STATUS_DESC_FLUSHED_ERROR);
		c->receives--;
	}
	ASSERT(c->receives == 0);
	reap(c);
}

static void *client(void *arg)
{
	CONN *c = (CONN *)arg;
	int round, i, credits, waits;
	long asked, got;

	for (round = 0; round < ROUNDS; round++) {
		for (i = 0; i < CREDITS; i++)
			post_receive(c, &c->in[i]);
		enter(c);
		credits = CREDITS;
		for (asked = got = 0; got < calls / ROUNDS; got++) {
			for (waits = (int)(asked - got); credits > 0 && waits < CREDITS && asked < calls / ROUNDS; waits++, credits--, asked++)
				call(c, (VIP_UINT32)asked, asked % 3 ? CALL_REVERSE : CALL_SUM);
			credits += reply(c, (VIP_UINT32)got);
		}
		ASSERT(credits == CREDITS);
		leave(c);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static CONN all[CLIENTS];
	pthread_t threads[CLIENTS];
	PACKET *memory;
	int i, at;

	ASSERT(sizeof(PACKET) % 64 == 0);
	side_open(&s, argc, argv);
	at = s.server ? 3 : 4;
	if (argc > at)
		calls = atol(argv[at]) / ROUNDS * ROUNDS;
	if (s.server) {
		serve();
		return 0;
	}
	memory = (PACKET *)(void *)side_memory(&s, CLIENTS * 2 * CREDITS * sizeof(PACKET), &handle);
	for (i = 0; i < CLIENTS; i++) {
		prepare(&all[i], memory + i * 2 * CREDITS);
		all[i].vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
		ASSERT(pthread_create(&threads[i], NULL, client, &all[i]) == 0);
	}
	for (i = 0; i < CLIENTS; i++)
		ASSERT(pthread_join(threads[i], NULL) == 0);
	for (i = 0; i < CREDITS; i++)
		post_receive(&all[0], &all[0].in[i]);
	enter(&all[0]);
	call(&all[0], 0, CALL_STOP);
	reply(&all[0], 0);
	CHECK(VipCloseNic(s.nic));
	printf("rpc: %ld calls of each of %d clients\n", calls, CLIENTS);
	return 0;
}
