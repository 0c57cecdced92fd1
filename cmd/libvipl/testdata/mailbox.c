/*
 * mailbox: a message library of remote writes alone, as for networks that had nothing
 * else: records go into a ring in the other's memory, each by one RDMA write of
 * several segments, and are found there without a call: first the header, which has the
 * length, and then the word after the last byte. The reader clears what it
 * has read and writes back, now and then, how far it has come. A write with
 * immediate data at the end tells that all was read.
 *
 *	mailbox server|client DEVICE [ADDRESS] [COUNT]
 */
#include "pair.h"

#define RING 16384 /* bytes of records */
#define LONGEST 3000
#define WRITES 8 /* descriptors */
#define SPACE 128 /* bytes of a descriptor with four segments, whole lines */
#define WRAP 0xffffffffu /* length of a record that is none: go on at the beginning */

#define BARRIER() __asm__ __volatile__("" : : : "memory")

struct header {
	VIP_UINT32 number, length; /* number: from 1 on, 0 is what has not come */
};

/* What each side shows the other, and where it is. */
struct window {
	char ring[RING];
	volatile VIP_UINT32 read; /* bytes that the other has read of my records */
	VIP_UINT32 room[15];
};

struct where {
	VIP_UINT64 address;
	VIP_MEM_HANDLE handle;
};

/* What a write sends beside the program's data. */
struct edges {
	struct header header;
	VIP_UINT32 number;
};

static struct side s;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE mine, own; /* the window, which the other writes; all else */
static struct window *window;
static struct where theirs;
static char *descriptors, *data;
static struct edges *edges;
static VIP_UINT32 *reading; /* what a write of progress sends; the last places are its and of the end */
static unsigned posted, done;
static VIP_UINT32 written, taken, told; /* bytes */

static VIP_DESCRIPTOR *descriptor(unsigned i) { return (VIP_DESCRIPTOR *)(void *)(descriptors + i * SPACE); }

/* Waits until at most that many writes are under way. */
static void box_reap(unsigned most)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;

	while (posted - done > most) {
		got = VipSendDone(vi, &d);
		if (got == VIP_NOT_DONE)
			continue;
		CHECK(got);
		ASSERT(d == descriptor(done % WRITES));
		ASSERT((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_WRITE);
		done++;
	}
}

/* The next descriptor, to write at an offset of the other's window. */
static VIP_DESCRIPTOR *box_next(unsigned long offset)
{
	VIP_DESCRIPTOR *d;

	box_reap(WRITES - 1);
	d = descriptor(posted++ % WRITES);
	d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
	d->CS.Reserved = 0;
	d->CS.SegCount = 1;
	d->CS.Length = 0;
	d->DS[0].Remote.Data.AddressBits = theirs.address + offset;
	d->DS[0].Remote.Handle = theirs.handle;
	d->DS[0].Remote.Reserved = 0;
	return d;
}

static void box_add(VIP_DESCRIPTOR *d, void *from, VIP_UINT32 n)
{
	VIP_DESCRIPTOR_SEGMENT *at = d->DS + d->CS.SegCount++;

	at->Local.Data.Address = from;
	at->Local.Handle = own;
	at->Local.Length = n;
	d->CS.Length += n;
}

static VIP_UINT32 box_size(VIP_UINT32 length) { return (VIP_UINT32)(sizeof(struct header) + (length + 3) / 4 * 4 + 4); }

/* Writes record number if there is room for it in the other's ring. */
static int box_put(VIP_UINT32 number, char *from, VIP_UINT32 length)
{
	VIP_UINT32 at = written % RING, size = box_size(length), left = RING - at;
	struct edges *e;
	VIP_DESCRIPTOR *d;

	if (left < size) {
		if (written + left + size - window->read > RING)
			return 0;
		d = box_next(at);
		e = &edges[(posted - 1) % WRITES];
		e->header.number = number;
		e->header.length = WRAP;
		box_add(d, &e->header, left < sizeof e->header ? left : (VIP_UINT32)sizeof e->header);
		CHECK(VipPostSend(vi, d, own));
		written += left;
		at = 0;
	}
	if (written + size - window->read > RING)
		return 0;
	d = box_next(at);
	e = &edges[(posted - 1) % WRITES];
	e->header.number = e->number = number;
	e->header.length = length;
	box_add(d, &e->header, sizeof e->header);
	box_add(d, from, (length + 3) / 4 * 4);
	box_add(d, &e->number, 4);
	CHECK(VipPostSend(vi, d, own));
	written += size;
	return 1;
}

/* Finds record number, if it has come as a whole; its data, or NULL. */
static char *box_get(VIP_UINT32 number, VIP_UINT32 *length)
{
	VIP_UINT32 at = taken % RING;
	volatile struct header *h = (volatile struct header *)(void *)(window->ring + at);

	if (RING - at < sizeof *h) { /* no room for a header: it is a mark */
		if (h->number != number)
			return NULL;
		memset(window->ring + at, 0, RING - at);
		taken += RING - at;
		return box_get(number, length);
	}
	if (h->number == 0)
		return NULL;
	ASSERT(h->number == number);
	while ((*length = h->length) == 0)
		; /* no record is empty */
	if (*length == WRAP) {
		memset(window->ring + at, 0, RING - at);
		taken += RING - at;
		return box_get(number, length);
	}
	ASSERT(*length <= LONGEST);
	while (*(volatile VIP_UINT32 *)(void *)(window->ring + at + box_size(*length) - 4) != number)
		;
	BARRIER();
	return window->ring + at + sizeof *h;
}

/* Gives the room of a record back. */
static void box_drop(VIP_UINT32 length)
{
	VIP_UINT32 size = box_size(length);
	VIP_DESCRIPTOR *d;

	memset(window->ring + taken % RING, 0, size);
	BARRIER();
	taken += size;
	if (taken - told > RING / 4) {
		d = box_next((unsigned long)((char *)&window->read - (char *)window));
		reading[(posted - 1) % WRITES] = told = taken;
		box_add(d, &reading[(posted - 1) % WRITES], 4);
		CHECK(VipPostSend(vi, d, own));
	}
}

static void box_init(int argc, char **argv)
{
	VIP_MEM_ATTRIBUTES m;
	VIP_VI_ATTRIBUTES v;
	VIP_DESCRIPTOR *d;
	struct where *exchange;
	unsigned long n = (WRITES + 2) * SPACE + 2 * sizeof(struct where) + WRITES * (sizeof *edges + 4) + 2 * LONGEST + 256;

	side_open(&s, argc, argv);
	m.Ptag = s.ptag;
	m.EnableRdmaWrite = VIP_TRUE;
	m.EnableRdmaRead = VIP_FALSE;
	window = (struct window *)valloc(sizeof *window);
	memset(window, 0, sizeof *window);
	CHECK(VipRegisterMem(s.nic, window, sizeof *window, &m, &mine));
	m.EnableRdmaWrite = VIP_FALSE;
	descriptors = (char *)valloc(n);
	memset(descriptors, 0, n);
	CHECK(VipRegisterMem(s.nic, descriptors, n, &m, &own));
	exchange = (struct where *)(void *)(descriptors + (WRITES + 2) * SPACE);
	edges = (struct edges *)(void *)(exchange + 2);
	reading = (VIP_UINT32 *)(void *)(edges + WRITES);
	data = (char *)(reading + WRITES);

	v = side_attributes(&s, VIP_SERVICE_RELIABLE_DELIVERY);
	v.EnableRdmaRead = VIP_FALSE;
	CHECK(VipCreateVi(s.nic, &v, NULL, NULL, &vi));
	d = descriptor(WRITES);
	describe(d, &exchange[0], sizeof *exchange, own);
	CHECK(VipPostRecv(vi, d, own));
	side_connect(&s, vi, "mailbox");
	exchange[1].address = (VIP_UINT64)(unsigned long)window;
	exchange[1].handle = mine;
	describe(descriptor(WRITES + 1), &exchange[1], sizeof *exchange, own);
	CHECK(VipPostSend(vi, descriptor(WRITES + 1), own));
	CHECK(VipRecvWait(vi, PATIENCE, &d));
	CHECK(VipSendWait(vi, PATIENCE, &d));
	theirs = exchange[0];
	/* For the write that says that the other has read everything. */
	describe(descriptor(WRITES), NULL, 0, 0);
	descriptor(WRITES)->CS.SegCount = 0;
	CHECK(VipPostRecv(vi, descriptor(WRITES), own));
}

static VIP_UINT32 length_of(VIP_UINT32 number) { return 1 + number * 7919u % LONGEST; }

static unsigned char byte_of(VIP_UINT32 number, VIP_UINT32 i, int server)
{
	return (unsigned char)(number * 31u + i * 7u + (server ? 1 : 128));
}

int main(int argc, char **argv)
{
	VIP_UINT32 count = 2000, sent = 0, got = 0, length, i;
	VIP_DESCRIPTOR *d;
	char *from, *p;
	int k;

	box_init(argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = (VIP_UINT32)atol(argv[k]);
	while (sent < count || got < count) {
		if (sent < count) {
			box_reap(0); /* the one buffer is free again */
			length = length_of(sent + 1);
			from = data + sent % 61; /* wherever it lies */
			for (i = 0; i < length; i++)
				from[i] = (char)byte_of(sent + 1, i, s.server);
			sent += (VIP_UINT32)box_put(sent + 1, from, length);
		}
		if (got < count && (p = box_get(got + 1, &length)) != NULL) {
			got++;
			ASSERT(length == length_of(got));
			for (i = 0; i < length; i++)
				ASSERT((unsigned char)p[i] == byte_of(got, i, !s.server));
			box_drop(length);
		}
	}
	box_reap(0);
	d = box_next(0); /* nothing is written: the receive alone is taken */
	d->CS.Control |= VIP_CONTROL_IMMEDIATE;
	d->CS.ImmediateData = got;
	CHECK(VipPostSend(vi, d, own));
	CHECK(VipRecvWait(vi, PATIENCE, &d));
	ASSERT(d == descriptor(WRITES) && d->CS.ImmediateData == count);
	ASSERT((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
	ASSERT(d->CS.Status & VIP_STATUS_IMMEDIATE);
	box_reap(0);
	if (!s.server)
		printf("mailbox: %u records each way\n", (unsigned)count);
	if (s.server)
		side_after(vi);
	else
		CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
