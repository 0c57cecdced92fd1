/*
 * remotemem: a remote memory library: a segment on each node that the other one
 * writes and reads, flags in it that are polled, a fence. Above it, a red-black
 * iteration on a row of numbers, half of it on each node, checked against
 * the same on one node.
 *
 *	remotemem server|client DEVICE [ADDRESS] [STEPS]
 */
#include "pair.h"

/*
 * The library.
 */
#define SEGMENT 65536

typedef struct {
	VIP_UINT64 base;
	VIP_MEM_HANDLE handle;
} SEG;

static struct side s;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE handle;
static VIP_DESCRIPTOR *descriptors; /* a ring of 16 */
static unsigned posted, done;
static char *segment; /* mine */
static SEG theirs;

static void rm_reap(unsigned until)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;

	while (posted - done > until) {
		got = VipSendDone(vi, &d);
		if (got == VIP_NOT_DONE)
			continue;
		CHECK(got);
		done++;
	}
}

static void rm_move(int op, unsigned remote, void *local, unsigned n)
{
	VIP_DESCRIPTOR *d;

	rm_reap(15);
	d = &descriptors[posted++ % 16];
	d->CS.Control = (VIP_UINT16)op;
	d->CS.SegCount = 2;
	d->CS.Reserved = 0;
	d->CS.Length = n;
	d->DS[0].Remote.Data.AddressBits = theirs.base + remote;
	d->DS[0].Remote.Handle = theirs.handle;
	d->DS[0].Remote.Reserved = 0;
	d->DS[1].Local.Data.Address = local;
	d->DS[1].Local.Handle = handle;
	d->DS[1].Local.Length = n;
	CHECK(VipPostSend(vi, d, handle));
}

static void rm_put(unsigned remote, void *local, unsigned n) { rm_move(VIP_CONTROL_OP_RDMAWRITE, remote, local, n); }
static void rm_get(unsigned remote, void *local, unsigned n) { rm_move(VIP_CONTROL_OP_RDMAREAD, remote, local, n); }
static void rm_fence(void) { rm_reap(0); }

/* Waits for a flag without a call: only the library's own thread makes progress. */
static void rm_wait(unsigned offset, unsigned value)
{
	volatile unsigned *flag = (volatile unsigned *)(segment + offset);

	while (*flag != value)
		;
}

static void rm_init(int argc, char **argv)
{
	VIP_DESCRIPTOR *d;
	SEG *exchange;

	side_open(&s, argc, argv);
	segment = side_memory(&s, SEGMENT + 17 * 64 + 64, &handle);
	descriptors = (VIP_DESCRIPTOR *)(segment + SEGMENT);
	exchange = (SEG *)(descriptors + 17);
	/* What a fence has waited for is in the other's memory. */
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_RECEPTION, NULL);
	describe(&descriptors[0], &exchange[0], sizeof(SEG), handle);
	CHECK(VipPostRecv(vi, &descriptors[0], handle));
	side_connect(&s, vi, "remotemem");
	exchange[1].base = (VIP_UINT64)segment;
	exchange[1].handle = handle;
	describe(&descriptors[1], &exchange[1], sizeof(SEG), handle);
	CHECK(VipPostSend(vi, &descriptors[1], handle));
	CHECK(VipRecvWait(vi, PATIENCE, &d));
	CHECK(VipSendWait(vi, PATIENCE, &d));
	theirs = exchange[0];
}

/*
 * The program. The segment: HALF numbers and the neighbour's edge, then the flag.
 */
#define HALF 1000
#define EDGE (HALF * 8)
#define FLAG (EDGE + 8)
#define RESULT 16384

static void step(double *x, int n, double left, double right)
{
	double before = left;
	int i;

	for (i = 0; i < n; i++) {
		double here = x[i];

		x[i] = (before + here + (i + 1 < n ? x[i + 1] : right)) / 3;
		before = here;
	}
}

int main(int argc, char **argv)
{
	long steps = 200, k;
	double *mine, *other, whole[2 * HALF];
	struct out {
		double edge;
		unsigned flag, pad;
	} *out;
	int i, low;

	rm_init(argc, argv);
	low = s.server; /* the server has the lower half */
	if (argc > (low ? 3 : 4))
		steps = atol(argv[low ? 3 : 4]);
	mine = (double *)segment;
	out = (struct out *)(void *)(segment + 60000 / 8 * 8);
	for (i = 0; i < 2 * HALF; i++)
		whole[i] = i % 17;
	for (i = 0; i < HALF; i++)
		mine[i] = whole[low ? i : HALF + i];
	for (k = 1; k <= steps; k++) {
		/* My edge, followed by the number of the step: one write. */
		rm_fence();
		out->edge = low ? mine[HALF - 1] : mine[0];
		out->flag = (unsigned)k;
		rm_put(EDGE, out, 12);
		rm_wait(FLAG, (unsigned)k);
		step(mine, HALF, low ? 0 : *(double *)(segment + EDGE), low ? *(double *)(segment + EDGE) : 0);
		step(whole, 2 * HALF, 0, 0);
		/* The neighbour has taken my edge when its next flag is there: it may only be one step behind. */
		rm_fence();
		out->flag = (unsigned)k;
		rm_put(FLAG + 4, &out->flag, 4);
		rm_wait(FLAG + 4, (unsigned)k);
	}
	for (i = 0; i < HALF; i++)
		ASSERT(mine[i] == whole[low ? i : HALF + i]);
	/* And the other half, by reading it. */
	other = (double *)(segment + RESULT);
	rm_get(0, other, HALF * 8);
	rm_fence();
	for (i = 0; i < HALF; i++)
		ASSERT(other[i] == whole[low ? HALF + i : i]);
	out->flag = 0xffffffff;
	rm_put(FLAG, &out->flag, 4); /* I have read */
	rm_fence();
	rm_wait(FLAG, 0xffffffff);
	if (!low)
		printf("remotemem: %ld steps, both halves as on one node\n", steps);
	return 0; /* without VipCloseNic */
}
