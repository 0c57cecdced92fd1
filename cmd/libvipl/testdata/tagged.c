/*
 * tagged: messages with tags between two nodes, as message passing libraries of the
 * time made them: short ones eagerly into a ring of receives that is posted ahead,
 * with credits in their headers and a queue of those that the program has not asked for yet;
 * long ones by a request, an answer with an address, and RDMA writes from buffer
 * to buffer, which are registered for each message, the last one with immediate data.
 * Polls for a while, then waits.
 *
 *	tagged server|client DEVICE [ADDRESS] [ROUNDS]
 */
#include "pair.h"

/*
 * The library.
 */
#define RECVS 20
#define SENDS 20
#define PACKET 1600
#define EAGER 1024
#define PIECE 32768 /* of a long message */
#define REQUESTS 64
#define RESERVE 2 /* credits for packets that bring nothing but credits */
#define POLLS 2000

enum { FREE, SEND, RECV };
enum { EAGER_PACKET, ASK_PACKET, ANSWER_PACKET, CREDIT_PACKET, WRITES };

struct packet {
	VIP_UINT32 kind, tag, length, credits;
	VIP_UINT32 sender, receiver; /* requests */
	VIP_UINT64 address;
	VIP_MEM_HANDLE handle;
	VIP_UINT32 room;
};

struct request {
	int what, complete, matched;
	VIP_UINT32 tag, length;
	char *buffer;
	VIP_MEM_HANDLE handle; /* of a long message */
	struct packet peer;    /* what the other has said of it */
};

/* What goes out as soon as there are credits and descriptors. */
struct action {
	int what, request;
};

struct unexpected {
	struct packet packet;
	char *data;
	struct unexpected *next;
};

static struct side s;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE pool;
static VIP_DESCRIPTOR *recvs, *sends, *free_sends;
static char *recv_buffers, *send_buffers;
static struct request requests[REQUESTS];
static struct action actions[2 * REQUESTS];
static unsigned first_action, next_action;
static struct unexpected *unexpected, **last_unexpected = &unexpected;
static int credits = RECVS, owed;
static int registered; /* how often memory was, less how often it was given up */

static char *buffer_of(VIP_DESCRIPTOR *d)
{
	return d < sends ? recv_buffers + (d - recvs) * PACKET : send_buffers + (d - sends) * PACKET;
}

static void post_recv(VIP_DESCRIPTOR *d)
{
	describe(d, buffer_of(d), PACKET, pool);
	CHECK(VipPostRecv(vi, d, pool));
}

static void later(int what, int request)
{
	struct action *a = &actions[next_action++ % (2 * REQUESTS)];

	ASSERT(next_action - first_action <= 2 * REQUESTS);
	a->what = what;
	a->request = request;
}

static VIP_MEM_HANDLE give(char *buffer, VIP_UINT32 length, int write)
{
	VIP_MEM_ATTRIBUTES m;
	VIP_MEM_HANDLE h;

	m.Ptag = s.ptag;
	m.EnableRdmaWrite = write;
	m.EnableRdmaRead = VIP_FALSE;
	CHECK(VipRegisterMem(s.nic, buffer, length, &m, &h));
	registered++;
	return h;
}

static void take_back(struct request *r)
{
	CHECK(VipDeregisterMem(s.nic, r->buffer, r->handle));
	registered--;
}

static VIP_DESCRIPTOR *free_send(void)
{
	VIP_DESCRIPTOR *d = free_sends;

	ASSERT(d != NULL);
	free_sends = d->CS.Next.Descriptor;
	d->CS.Next.Descriptor = NULL;
	d->CS.NextHandle = 0;
	return d;
}

/* A packet of its kind, with what it owes. */
static void send_packet(int kind, int request)
{
	VIP_DESCRIPTOR *d = free_send();
	struct packet *p = (struct packet *)(void *)buffer_of(d);
	struct request *r = &requests[request];
	VIP_UINT32 n = sizeof *p;

	memset(p, 0, sizeof *p);
	p->kind = (VIP_UINT32)kind;
	p->credits = (VIP_UINT32)owed;
	owed = 0;
	credits--;
	switch (kind) {
	case EAGER_PACKET:
		if (r->length)
			memcpy(p + 1, r->buffer, r->length);
		n += r->length;
		r->complete = 1;
		/* fall through */
	case ASK_PACKET:
		p->tag = r->tag;
		p->length = r->length;
		p->sender = (VIP_UINT32)request;
		break;
	case ANSWER_PACKET:
		r->handle = give(r->buffer, r->peer.length, VIP_TRUE);
		p->sender = r->peer.sender;
		p->receiver = (VIP_UINT32)request;
		p->address = (VIP_UINT64)(unsigned long)r->buffer;
		p->handle = r->handle;
		break;
	}
	describe(d, p, n, pool);
	CHECK(VipPostSend(vi, d, pool));
}

/* The data of a long message. The last write takes a receive of the other's. */
static int send_writes(int request)
{
	struct request *r = &requests[request];
	VIP_UINT32 off, n;
	VIP_DESCRIPTOR *d = free_sends;
	int need = (int)((r->length + PIECE - 1) / PIECE), i;

	for (i = 0; d && i < need; i++)
		d = d->CS.Next.Descriptor;
	if (i < need)
		return 0;
	r->handle = give(r->buffer, r->length, VIP_FALSE);
	for (off = 0; off < r->length; off += n) {
		n = r->length - off < PIECE ? r->length - off : PIECE;
		d = free_send();
		d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
		d->CS.Reserved = 0;
		d->CS.SegCount = 2;
		d->CS.Length = n;
		d->DS[0].Remote.Data.AddressBits = r->peer.address + off;
		d->DS[0].Remote.Handle = r->peer.handle;
		d->DS[0].Remote.Reserved = 0;
		d->DS[1].Local.Data.Address = r->buffer + off;
		d->DS[1].Local.Handle = r->handle;
		d->DS[1].Local.Length = n;
		if (off + n == r->length) {
			d->CS.Control |= VIP_CONTROL_IMMEDIATE;
			d->CS.ImmediateData = r->peer.receiver;
		}
		CHECK(VipPostSend(vi, d, pool));
	}
	credits--;
	return 1;
}

/* A receive has its message, which p describes; data: that of an eager one. */
static void match(int request, struct packet *p, char *data)
{
	struct request *r = &requests[request];

	r->matched = 1;
	r->peer = *p;
	ASSERT(p->length <= r->length);
	if (p->kind == EAGER_PACKET) {
		if (p->length)
			memcpy(r->buffer, data, p->length);
		r->complete = 1;
	} else {
		later(ANSWER_PACKET, request);
	}
}

static void arrived(VIP_DESCRIPTOR *d)
{
	struct packet *p = (struct packet *)(void *)buffer_of(d);
	struct unexpected *u;
	int i;

	owed++;
	if ((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE) {
		struct request *r = &requests[d->CS.ImmediateData % REQUESTS];

		ASSERT(r->what == RECV && r->matched && !r->complete);
		take_back(r);
		r->complete = 1;
		return;
	}
	ASSERT(d->CS.Length >= sizeof *p);
	credits += (int)p->credits;
	switch (p->kind) {
	case CREDIT_PACKET:
		return;
	case ANSWER_PACKET:
		requests[p->sender].peer = *p;
		later(WRITES, (int)p->sender);
		return;
	}
	for (i = 0; i < REQUESTS; i++)
		if (requests[i].what == RECV && !requests[i].matched && requests[i].tag == p->tag) {
			match(i, p, (char *)(p + 1));
			return;
		}
	u = (struct unexpected *)malloc(sizeof *u + p->length);
	ASSERT(u != NULL);
	u->packet = *p;
	u->next = NULL;
	u->data = (char *)(u + 1);
	if (p->kind == EAGER_PACKET)
		memcpy(u->data, p + 1, p->length);
	*last_unexpected = u;
	last_unexpected = &u->next;
}

static void sent(VIP_DESCRIPTOR *d)
{
	int i;

	if ((d->CS.Control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAWRITE && (d->CS.Control & VIP_CONTROL_IMMEDIATE))
		for (i = 0; i < REQUESTS; i++)
			if (requests[i].what == SEND && !requests[i].complete && requests[i].handle == d->DS[1].Local.Handle) {
				take_back(&requests[i]);
				requests[i].complete = 1;
				break;
			}
	d->CS.Next.Descriptor = free_sends;
	free_sends = d;
}

static void progress(void)
{
	static int polls;
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;
	int busy = 0;

	while ((got = VipSendDone(vi, &d)) == VIP_SUCCESS) {
		sent(d);
		busy = 1;
	}
	ASSERT(got == VIP_NOT_DONE || (got == VIP_DESCRIPTOR_ERROR && d == NULL));
	got = polls < POLLS ? VipRecvDone(vi, &d) : VipRecvWait(vi, 10, &d);
	if (got == VIP_SUCCESS) {
		arrived(d);
		post_recv(d);
		busy = 1;
	} else {
		ASSERT(got == VIP_NOT_DONE || got == VIP_TIMEOUT);
	}
	while (first_action != next_action && credits > RESERVE && free_sends) {
		struct action *a = &actions[first_action % (2 * REQUESTS)];

		if (a->what == WRITES && !send_writes(a->request))
			break;
		if (a->what != WRITES)
			send_packet(a->what, a->request);
		first_action++;
		busy = 1;
	}
	if (owed > RECVS / 2 && credits > 0 && free_sends)
		send_packet(CREDIT_PACKET, 0);
	polls = busy ? 0 : polls + 1;
}

static int new_request(int what, VIP_UINT32 tag, char *buffer, VIP_UINT32 length)
{
	int i;

	for (i = 0; i < REQUESTS && requests[i].what != FREE; i++)
		;
	ASSERT(i < REQUESTS);
	memset(&requests[i], 0, sizeof requests[i]);
	requests[i].what = what;
	requests[i].tag = tag;
	requests[i].buffer = buffer;
	requests[i].length = length;
	return i;
}

static int tag_send(VIP_UINT32 tag, char *buffer, VIP_UINT32 length)
{
	int i = new_request(SEND, tag, buffer, length);

	later(length <= EAGER ? EAGER_PACKET : ASK_PACKET, i);
	return i;
}

static int tag_recv(VIP_UINT32 tag, char *buffer, VIP_UINT32 most)
{
	struct unexpected **at, *u;
	int i = new_request(RECV, tag, buffer, most);

	for (at = &unexpected; (u = *at) != NULL; at = &u->next)
		if (u->packet.tag == tag) {
			if ((*at = u->next) == NULL)
				last_unexpected = at;
			match(i, &u->packet, u->data);
			free(u);
			break;
		}
	return i;
}

static VIP_UINT32 tag_wait(int i)
{
	VIP_UINT32 length;

	while (!requests[i].complete)
		progress();
	length = requests[i].what == RECV ? requests[i].peer.length : requests[i].length;
	requests[i].what = FREE;
	return length;
}

static void tag_init(int argc, char **argv)
{
	VIP_VI_ATTRIBUTES v;
	unsigned long i;
	char *memory;

	side_open(&s, argc, argv);
	memory = side_memory(&s, (RECVS + SENDS) * (sizeof(VIP_DESCRIPTOR) + PACKET), &pool);
	recvs = (VIP_DESCRIPTOR *)(void *)memory;
	sends = recvs + RECVS;
	recv_buffers = (char *)(sends + SENDS);
	send_buffers = recv_buffers + RECVS * PACKET;
	v = side_attributes(&s, VIP_SERVICE_RELIABLE_DELIVERY);
	v.MaxTransferSize = PIECE;
	CHECK(VipCreateVi(s.nic, &v, NULL, NULL, &vi));
	for (i = 0; i < RECVS; i++)
		post_recv(&recvs[i]);
	for (i = 0; i < SENDS; i++) {
		sends[i].CS.Next.Descriptor = free_sends;
		free_sends = &sends[i];
	}
	side_connect(&s, vi, "tagged");
}

/*
 * The program: each side sends the other messages of all lengths, in one order, and
 * asks for them in another, before or after they have come.
 */
#define EACH 9

static const VIP_UINT32 lengths[EACH] = {0, 1, 7, 512, EAGER, EAGER + 1, 5000, PIECE, 100001};

static char byte_of(long round, int k, VIP_UINT32 i, int server)
{
	return (char)(round * 13 + k * 5 + (long)(i % 251) + (server ? 77 : 0));
}

int main(int argc, char **argv)
{
	static char out[EACH][100001], in[EACH][100001];
	int sending[EACH], receiving[EACH], k, m, i;
	long rounds = 100, r;
	VIP_UINT32 n, j;

	tag_init(argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		rounds = atol(argv[k]);
	for (r = 0; r < rounds; r++) {
		for (i = 0; i < 2; i++) {
			if ((r + i) % 2 == 0) {
				for (k = 0; k < EACH; k++) {
					m = (int)((k * 4 + r) % EACH);
					receiving[m] = tag_recv((VIP_UINT32)(r * EACH + m), in[m], sizeof in[m]);
				}
			} else {
				for (k = 0; k < EACH; k++) {
					for (j = 0; j < lengths[k]; j++)
						out[k][j] = byte_of(r, k, j, s.server);
					sending[k] = tag_send((VIP_UINT32)(r * EACH + k), out[k], lengths[k]);
				}
				for (k = 0; k < 50; k++)
					progress();
			}
		}
		for (k = EACH - 1; k >= 0; k--) {
			n = tag_wait(receiving[k]);
			ASSERT(n == lengths[k]);
			for (j = 0; j < n; j++)
				ASSERT(in[k][j] == byte_of(r, k, j, !s.server));
		}
		for (k = 0; k < EACH; k++)
			tag_wait(sending[k]);
	}
	k = tag_send(0xffffffff, out[0], 0);
	tag_wait(tag_recv(0xffffffff, in[0], 0));
	tag_wait(k);
	ASSERT(registered == 0 && unexpected == NULL);
	if (!s.server)
		printf("tagged: %ld rounds of %d messages each way\n", rounds, EACH);
	if (s.server)
		side_after(vi);
	else
		CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
