/*
 * putget: one-sided operations on a symmetric heap. Rows of a matrix are spread over two
 * nodes and transposed by puts that gather a column from as many segments as it
 * has elements; what is got is put elsewhere without waiting in between, by the fence
 * of the queue; a put with immediate data tells the other side that all before it is there.
 * A node that waits reads words of its own memory, or the status of a descriptor, and makes
 * no call meanwhile.
 *
 *	putget server|client DEVICE [ADDRESS] [ROUNDS]
 */
#include "pair.h"

#define N 240       /* rows and columns; the half of them on each node */
#define H (N / 2)
#define HEAP (1UL << 20)
#define OPS 32      /* descriptors */
#define SEGS (N + 1)
#define SIGNALS 16  /* receives for puts with immediate data */

/* What lies at the same place in both heaps. */
struct heap {
	int a[H][N], b[H][N];
	volatile unsigned turn[2]; /* barriers: written by the other one */
	unsigned from[2];
	int there[2048], back[2048];
};

/* A descriptor with room for all its segments behind it. */
union op {
	VIP_DESCRIPTOR d;
	char room[(sizeof(VIP_CONTROL_SEGMENT) + SEGS * sizeof(VIP_DESCRIPTOR_SEGMENT) + 63) / 64 * 64];
};

static struct side s;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE heap_handle, op_handle, peer_handle;
static struct heap *heap;
static VIP_UINT64 peer_heap;
static union op *ops;
static VIP_DESCRIPTOR *signals;
static unsigned issued, finished, barriers, told;

/* The address in the peer of what is there in my heap. */
static VIP_UINT64 peers(const volatile void *p)
{
	return peer_heap + (VIP_UINT64)((const volatile char *)p - (char *)heap);
}

/* Waits for the oldest operation by its status alone, and then takes it off. */
static void finish_one(void)
{
	VIP_DESCRIPTOR *d, *oldest = &ops[finished % OPS].d;

	while (!(oldest->CS.Status & VIP_STATUS_DONE))
		;
	ASSERT((oldest->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
	CHECK(VipSendDone(vi, &d));
	ASSERT(d == oldest);
	finished++;
}

static void quiet(void)
{
	while (finished != issued)
		finish_one();
}

static VIP_DESCRIPTOR *begin(VIP_UINT16 control, VIP_UINT64 remote)
{
	VIP_DESCRIPTOR *d;

	while (issued - finished == OPS)
		finish_one();
	d = &ops[issued++ % OPS].d;
	d->CS.Control = control;
	d->CS.Reserved = 0;
	d->CS.SegCount = 1;
	d->CS.Length = 0;
	d->CS.ImmediateData = 0;
	d->DS[0].Remote.Data.AddressBits = remote;
	d->DS[0].Remote.Handle = peer_handle;
	d->DS[0].Remote.Reserved = 0;
	return d;
}

static void add(VIP_DESCRIPTOR *d, volatile void *p, unsigned n)
{
	VIP_DESCRIPTOR_SEGMENT *g = d->DS + d->CS.SegCount++;

	g->Local.Data.AddressBits = (VIP_UINT64)p;
	g->Local.Handle = heap_handle;
	g->Local.Length = n;
	d->CS.Length += n;
}

static void issue(VIP_DESCRIPTOR *d)
{
	CHECK(VipPostSend(vi, d, op_handle));
}

static void put(VIP_UINT64 to, volatile void *from, unsigned n)
{
	VIP_DESCRIPTOR *d = begin(VIP_CONTROL_OP_RDMAWRITE, to);

	add(d, from, n);
	issue(d);
}

static void post_signal(VIP_DESCRIPTOR *d)
{
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 0;
	d->CS.Length = 0;
	d->CS.Reserved = 0;
	CHECK(VipPostRecv(vi, d, op_handle));
}

/* Waits for the next put with immediate data, by the status of the receive that it takes. */
static void await_signal(VIP_UINT32 value)
{
	VIP_DESCRIPTOR *d, *next = &signals[told++ % SIGNALS];

	while (!(next->CS.Status & VIP_STATUS_DONE))
		;
	CHECK(VipRecvDone(vi, &d));
	ASSERT(d == next && (d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
	ASSERT((d->CS.Status & VIP_STATUS_IMMEDIATE) && d->CS.ImmediateData == value);
	post_signal(d);
}

/* Both are here, and what each has put before is where it belongs. */
static void barrier(void)
{
	unsigned t = ++barriers;

	quiet();
	heap->from[t % 2] = t;
	put(peers(&heap->turn[t % 2]), &heap->from[t % 2], sizeof(unsigned));
	while (heap->turn[t % 2] != t)
		;
}

static void start(int argc, char **argv)
{
	struct where {
		VIP_UINT64 heap;
		VIP_MEM_HANDLE handle;
	} *mine, *theirs;
	VIP_MEM_ATTRIBUTES m;
	VIP_DESCRIPTOR *d, *ds;
	char *memory;
	int i;

	side_open(&s, argc, argv);
	ASSERT(s.attributes.MaxSegmentsPerDesc >= SEGS && (s.attributes.RDMAReadSupport & VIP_SERVICE_RELIABLE_RECEPTION));
	heap = (struct heap *)valloc(HEAP);
	ASSERT(heap != NULL && sizeof *heap <= HEAP);
	memset(heap, 0, HEAP);
	m.Ptag = s.ptag;
	m.EnableRdmaWrite = m.EnableRdmaRead = VIP_TRUE;
	CHECK(VipRegisterMem(s.nic, heap, HEAP, &m, &heap_handle));
	memory = side_memory(&s, OPS * sizeof(union op) + (SIGNALS + 2) * 64 + 64, &op_handle);
	ops = (union op *)(void *)memory;
	signals = (VIP_DESCRIPTOR *)(void *)(memory + OPS * sizeof(union op));
	ds = signals + SIGNALS;
	mine = (struct where *)(void *)(ds + 2);
	theirs = mine + 1;
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_RECEPTION, NULL);
	describe(&ds[0], theirs, sizeof *theirs, op_handle);
	CHECK(VipPostRecv(vi, &ds[0], op_handle));
	for (i = 0; i < SIGNALS; i++)
		post_signal(&signals[i]);
	side_connect(&s, vi, "putget");
	mine->heap = (VIP_UINT64)heap;
	mine->handle = heap_handle;
	describe(&ds[1], mine, sizeof *mine, op_handle);
	CHECK(VipPostSend(vi, &ds[1], op_handle));
	CHECK(VipRecvWait(vi, PATIENCE, &d));
	CHECK(VipSendWait(vi, PATIENCE, &d));
	peer_heap = theirs->heap;
	peer_handle = theirs->handle;
}

/* Row r of the matrix is on node r / H. */
static int element(int r, int c, long round) { return r * 1000 + c + (int)round * 7; }

static void transpose(int me, long round)
{
	int r, c;

	for (r = 0; r < H; r++)
		for (c = 0; c < N; c++)
			heap->a[r][c] = element(me * H + r, c, round);
	barrier();
	for (c = 0; c < N; c++) {
		/* Column c of my rows is a part of row c of the result. */
		if (c / H == me) {
			for (r = 0; r < H; r++)
				heap->b[c % H][me * H + r] = heap->a[r][c];
		} else {
			VIP_DESCRIPTOR *d = begin(VIP_CONTROL_OP_RDMAWRITE, peers(&heap->b[c % H][me * H]));

			for (r = 0; r < H; r++)
				add(d, &heap->a[r][c], sizeof(int));
			issue(d);
		}
	}
	barrier();
	for (r = 0; r < H; r++)
		for (c = 0; c < N; c++)
			ASSERT(heap->b[r][c] == element(c, me * H + r, round));
}

/* There and back, one behind the other: two are got, scattered, and go elsewhere. */
static void relay(long round)
{
	VIP_DESCRIPTOR *d;
	int i, half = (int)(sizeof heap->there / sizeof(int)) / 2;
	unsigned bytes = (unsigned)half * (unsigned)sizeof(int);

	for (i = 0; i < half; i++)
		heap->there[i] = (int)round * 31 + i + s.server;
	memset(heap->back, 0, sizeof heap->back);
	barrier();
	/* The first half of the other's, got in pieces of growing size, goes into its second half. */
	d = begin(VIP_CONTROL_OP_RDMAREAD, peers(&heap->there[0]));
	for (i = 0; i < half;) {
		int n = i / 2 + 1 < half - i ? i / 2 + 1 : half - i;

		add(d, &heap->back[i], (unsigned)n * (unsigned)sizeof(int));
		i += n;
	}
	issue(d);
	d = begin(VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_QFENCE | VIP_CONTROL_IMMEDIATE, peers(&heap->there[half]));
	add(d, &heap->back[0], bytes / 2);
	add(d, &heap->back[half / 2], bytes / 2);
	d->CS.ImmediateData = (VIP_UINT32)round + 1;
	issue(d);
	await_signal((VIP_UINT32)round + 1);
	for (i = 0; i < half; i++)
		ASSERT(heap->there[half + i] == heap->there[i]);
	barrier();
	for (i = 0; i < half; i++)
		ASSERT(heap->back[i] == (int)round * 31 + i + !s.server);
}

int main(int argc, char **argv)
{
	long rounds = 20, k;
	int at;

	start(argc, argv);
	at = s.server ? 3 : 4;
	if (argc > at)
		rounds = atol(argv[at]);
	for (k = 0; k < rounds; k++) {
		transpose(!s.server, k);
		relay(k);
	}
	barrier();
	quiet();
	if (s.server)
		side_after(vi);
	else
		CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	if (!s.server)
		printf("putget: %ld transpositions and relays\n", rounds);
	return 0;
}
