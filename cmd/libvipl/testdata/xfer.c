/*
 * xfer: a file from one node to the other, as a file mover of the time made it. Both have
 * the file in memory, the sender to read only, the receiver shared, and it goes from map to
 * map by RDMA writes, each with its block's number as immediate data. A thread of the receiver
 * sleeps in VipCQWait and counts blocks; a handler of errors notices that the sender has gone, as
 * it does twice in the midst of the file: once it disconnects, once it closes its NIC.
 * Then the VI is destroyed, with its last receives taken off, another one is made, and the
 * sender goes on from where the receiver says.
 *
 *	xfer server|client DEVICE [ADDRESS] [BLOCKS]
 */
#include "pair.h"

#include <pthread.h>
#include <sys/mman.h>

#define BLOCK 20011
#define CREDITS 12
#define EVERY 4 /* blocks that one acknowledgement is for */

/* What the receiver says to a sender that has come. */
struct welcome {
	VIP_UINT64 address;
	VIP_MEM_HANDLE handle;
	VIP_UINT32 blocks; /* that it has */
};

static struct side s;
static VIP_VI_HANDLE vi;
static VIP_CQ_HANDLE cq;
static VIP_MEM_HANDLE file_handle, handle;
static VIP_DESCRIPTOR *recvs, *sends;
static struct welcome *welcome;
static char *file, *memory;
static FILE *stream;
static unsigned long blocks = 200, length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int connected, posted, sending, times_lost;
static volatile int over;
static unsigned long have;

static char content(unsigned long at) { return (char)(at * 31 + at / BLOCK * 7); }

/* The file in memory. */
static void map(int how)
{
	length = blocks * BLOCK - BLOCK / 3; /* the last block is a shorter one */
	stream = tmpfile();
	ASSERT(stream != NULL);
	if (how == PROT_READ) {
		unsigned long i;

		for (i = 0; i < length; i++)
			ASSERT(putc((unsigned char)content(i), stream) != EOF);
		ASSERT(fflush(stream) == 0);
	} else {
		ASSERT(ftruncate(fileno(stream), (off_t)length) == 0);
	}
	file = (char *)mmap(NULL, length, how, how == PROT_READ ? MAP_PRIVATE : MAP_SHARED, fileno(stream), 0);
	ASSERT(file != MAP_FAILED);
}

static unsigned size_of(unsigned long block)
{
	unsigned long left = length - block * BLOCK;

	return (unsigned)(left < BLOCK ? left : BLOCK);
}

static void make_vi(void)
{
	VIP_VI_ATTRIBUTES v = side_attributes(&s, VIP_SERVICE_RELIABLE_RECEPTION);

	v.MaxTransferSize = 32000;
	v.EnableRdmaRead = VIP_FALSE;
	CHECK(VipCreateVi(s.nic, &v, cq, cq, &vi));
}

static void open_all(int argc, char **argv)
{
	side_open(&s, argc, argv);
	memory = side_memory(&s, 2 * CREDITS * sizeof(VIP_DESCRIPTOR) + 64, &handle);
	recvs = (VIP_DESCRIPTOR *)(void *)memory;
	sends = recvs + CREDITS;
	welcome = (struct welcome *)(void *)(sends + CREDITS);
	CHECK(VipCreateCQ(s.nic, 4, &cq));
	make_vi();
}

static void post_recv(VIP_DESCRIPTOR *d, void *p, unsigned n)
{
	describe(d, p, n, handle);
	d->CS.SegCount = n > 0;
	posted++;
	CHECK(VipPostRecv(vi, d, handle));
}

static void post_send(VIP_DESCRIPTOR *d, void *p, unsigned n, VIP_UINT32 immediate)
{
	describe(d, p, n, handle);
	d->CS.SegCount = n > 0;
	d->CS.Control |= VIP_CONTROL_IMMEDIATE;
	d->CS.ImmediateData = immediate;
	sending++;
	CHECK(VipPostSend(vi, d, handle));
}

/*
 * The receiver.
 */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	VIP_VI_STATE state;

	ASSERT(context == memory && e->NicHandle == s.nic && e->ViHandle == vi);
	CHECK(VipQueryVi(e->ViHandle, &state, NULL, NULL, NULL));
	ASSERT(state == VIP_STATE_ERROR);
	if (e->ErrorCode == VIP_ERROR_RDMAW_ABORT)
		return; /* a block has come in part: it comes again */
	ASSERT(e->ErrorCode == VIP_ERROR_CONN_LOST);
	pthread_mutex_lock(&lock);
	connected = 0;
	times_lost++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void *counter(void *unused)
{
	VIP_VI_HANDLE of;
	VIP_BOOLEAN receive;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;
	int owed = 0;

	(void)unused;
	while (!over) { /* it looks up now and then */
		rc = VipCQWait(cq, 100, &of, &receive);
		if (rc == VIP_TIMEOUT)
			continue;
		CHECK(rc);
		pthread_mutex_lock(&lock);
		ASSERT(of == vi);
		rc = receive ? VipRecvDone(of, &d) : VipSendDone(of, &d);
		ASSERT(d != NULL);
		*(receive ? &posted : &sending) -= 1;
		if (rc == VIP_SUCCESS && receive) {
			ASSERT((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
			ASSERT(d->CS.ImmediateData == have && have < blocks);
			ASSERT(file[have * BLOCK] == content(have * BLOCK));
			ASSERT(file[have * BLOCK + size_of(have) - 1] == content(have * BLOCK + size_of(have) - 1));
			have++;
			post_recv(d, NULL, 0);
			if (++owed == EVERY || have == blocks) {
				post_send(&sends[1 + have / EVERY % (CREDITS - 1)], NULL, 0, (VIP_UINT32)owed);
				owed = 0;
			}
		} else if (rc != VIP_SUCCESS) {
			ASSERT(d->CS.Status & VIP_STATUS_ERROR_MASK);
			owed = 0;
		}
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void receive_file(void)
{
	VIP_MEM_ATTRIBUTES m;
	pthread_t thread;
	union address local, remote;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE request;
	unsigned long i;
	int done, session;

	map(PROT_READ | PROT_WRITE);
	m.Ptag = s.ptag;
	m.EnableRdmaWrite = VIP_TRUE;
	m.EnableRdmaRead = VIP_FALSE;
	CHECK(VipRegisterMem(s.nic, file, length, &m, &file_handle));
	CHECK(VipErrorCallback(s.nic, memory, on_error));
	ASSERT(pthread_create(&thread, NULL, counter, NULL) == 0);
	side_local(&s, &local, "a file");
	for (done = session = 0; !done; session++) {
		pthread_mutex_lock(&lock);
		for (i = 0; i < CREDITS; i++)
			post_recv(&recvs[i], NULL, 0);
		pthread_mutex_unlock(&lock);
		CHECK(VipConnectWait(s.nic, &local.a, PATIENCE, &remote.a, &theirs, &request));
		pthread_mutex_lock(&lock);
		connected = 1;
		welcome->address = (VIP_UINT64)file;
		welcome->handle = file_handle;
		welcome->blocks = (VIP_UINT32)have;
		CHECK(VipConnectAccept(request, vi));
		post_send(&sends[0], welcome, sizeof *welcome, (VIP_UINT32)session);
		while (connected || posted > 0 || sending > 0) /* until it has gone, and all has come back */
			pthread_cond_wait(&changed, &lock);
		done = have == blocks;
		CHECK(VipDisconnect(vi));
		CHECK(VipDestroyVi(vi));
		if (!done)
			make_vi();
		pthread_mutex_unlock(&lock);
	}
	ASSERT(session == 3 && times_lost == 3);
	/* The file is the one that the other side has sent. */
	rewind(stream);
	for (i = 0; i < length; i++)
		ASSERT(getc(stream) == (unsigned char)content(i));
	ASSERT(getc(stream) == EOF);
	CHECK(VipDeregisterMem(s.nic, file, file_handle));
	ASSERT(munmap(file, length) == 0);
	over = 1;
	ASSERT(pthread_join(thread, NULL) == 0);
	CHECK(VipCloseNic(s.nic));
}

/*
 * The sender.
 */
static VIP_DESCRIPTOR *completion(int *was_receive)
{
	VIP_VI_HANDLE of;
	VIP_BOOLEAN receive;
	VIP_DESCRIPTOR *d;

	CHECK(VipCQWait(cq, PATIENCE, &of, &receive));
	ASSERT(of == vi);
	CHECK(receive ? VipRecvDone(of, &d) : VipSendDone(of, &d));
	*(receive ? &posted : &sending) -= 1;
	*was_receive = receive;
	return d;
}

static void enter(void)
{
	union address local, remote;
	VIP_VI_ATTRIBUTES theirs;
	VIP_RETURN rc;
	double start = seconds();

	side_local(&s, &local, "");
	side_remote(s.peer, &remote, "a file");
	while ((rc = VipConnectRequest(vi, &local.a, &remote.a, PATIENCE, &theirs)) == VIP_NO_MATCH) {
		ASSERT((seconds() - start) * 1e3 < PATIENCE);
		usleep(1000); /* the receiver is not there yet */
	}
	CHECK(rc);
	ASSERT(theirs.EnableRdmaWrite == VIP_TRUE && theirs.EnableRdmaRead == VIP_FALSE && theirs.MaxTransferSize == 32000);
}

/* Sends blocks up to that number, or until the receiver has all. */
static void send_file(unsigned long until)
{
	VIP_DESCRIPTOR *d;
	struct welcome to;
	unsigned long next;
	int credits = 0, receive, i;

	posted = sending = 0;
	post_recv(&recvs[0], welcome, sizeof *welcome);
	for (i = 1; i < CREDITS; i++)
		post_recv(&recvs[i], NULL, 0);
	enter();
	d = completion(&receive);
	ASSERT(receive && d == &recvs[0] && d->CS.Length == sizeof *welcome);
	to = *welcome;
	post_recv(d, NULL, 0);
	for (credits = CREDITS, next = to.blocks; next < until || (until == blocks && credits < CREDITS);) {
		if (next < until && credits > 0 && sending < CREDITS) {
			d = &sends[next % CREDITS];
			d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
			d->CS.ImmediateData = (VIP_UINT32)next;
			d->CS.Reserved = 0;
			d->CS.SegCount = 2;
			d->CS.Length = size_of(next);
			d->DS[0].Remote.Data.AddressBits = to.address + next * BLOCK;
			d->DS[0].Remote.Handle = to.handle;
			d->DS[0].Remote.Reserved = 0;
			d->DS[1].Local.Data.Address = file + next * BLOCK;
			d->DS[1].Local.Handle = file_handle;
			d->DS[1].Local.Length = size_of(next);
			sending++;
			credits--;
			next++;
			CHECK(VipPostSend(vi, d, handle));
			continue;
		}
		d = completion(&receive);
		if (receive) {
			ASSERT(d->CS.Status & VIP_STATUS_IMMEDIATE);
			credits += (int)d->CS.ImmediateData;
			post_recv(d, NULL, 0);
		}
	}
}

static void open_file(int argc, char **argv)
{
	open_all(argc, argv);
	/* Without a tag, and of memory that cannot be written. */
	CHECK(VipRegisterMem(s.nic, file, length, NULL, &file_handle));
}

int main(int argc, char **argv)
{
	VIP_VI_HANDLE of;
	VIP_BOOLEAN receive;
	VIP_DESCRIPTOR *d;
	int at;

	at = argc > 1 && strcmp(argv[1], "server") == 0 ? 3 : 4;
	if (argc > at)
		blocks = (unsigned long)atol(argv[at]);
	if (at == 3) {
		open_all(argc, argv);
		receive_file();
		return 0;
	}
	map(PROT_READ);
	open_file(argc, argv);
	send_file(blocks / 3);
	CHECK(VipDisconnect(vi)); /* with blocks under way */
	while (VipCQDone(cq, &of, &receive) == VIP_SUCCESS) {
		ASSERT(of == vi);
		(receive ? VipRecvDone : VipSendDone)(vi, &d);
		ASSERT(d != NULL);
	}
	EXPECT(VIP_DESCRIPTOR_ERROR, VipSendDone(vi, &d)); /* each had an entry */
	EXPECT(VIP_DESCRIPTOR_ERROR, VipRecvDone(vi, &d));
	send_file(2 * blocks / 3);
	CHECK(VipCloseNic(s.nic)); /* as it is */
	open_file(argc, argv);
	send_file(blocks);
	CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	printf("xfer: %lu blocks\n", blocks);
	return 0;
}
