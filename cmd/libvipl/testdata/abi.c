/*
 * abi: the rules of the VIPL as a program in C meets them, one after the other,
 * between VIs of two NIC handles of one device in one process.
 *
 *	abi server DEVICE [queues]: the handles are on two queues
 */
#include "pair.h"

#include <pthread.h>

static struct side a, b; /* a connects, b accepts */

struct pair {
	VIP_VI_HANDLE a, b;
};

/* The accepting side of a connection, on a thread of its own. */
struct acceptor {
	VIP_VI_HANDLE vi;
	const char *discriminator;
	pthread_t thread;
};

static void *accept_one(void *arg)
{
	struct acceptor *x = (struct acceptor *)arg;
	union address local, remote;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE conn;

	side_local(&b, &local, x->discriminator);
	CHECK(VipConnectWait(b.nic, &local.a, PATIENCE, &remote.a, &theirs, &conn));
	if (x->vi)
		CHECK(VipConnectAccept(conn, x->vi));
	else
		CHECK(VipConnectReject(conn));
	return NULL;
}

static VIP_RETURN request(VIP_VI_HANDLE vi, const char *discriminator, VIP_VI_ATTRIBUTES *theirs)
{
	union address local, remote;
	VIP_RETURN got;
	double start = seconds();

	side_local(&a, &local, "caller");
	side_local(&b, &remote, discriminator);
	do
		got = VipConnectRequest(vi, &local.a, &remote.a, PATIENCE, theirs);
	while (got == VIP_NO_MATCH && (seconds() - start) * 1e3 < PATIENCE);
	return got;
}

static void join(struct pair p, const char *discriminator)
{
	struct acceptor x;
	VIP_VI_ATTRIBUTES theirs;

	x.vi = p.b;
	x.discriminator = discriminator;
	ASSERT(pthread_create(&x.thread, NULL, accept_one, &x) == 0);
	CHECK(request(p.a, discriminator, &theirs));
	ASSERT(pthread_join(x.thread, NULL) == 0);
	ASSERT(theirs.MaxTransferSize > 0);
}

static struct pair pair(VIP_RELIABILITY_LEVEL level, VIP_CQ_HANDLE cq)
{
	struct pair p;

	p.a = side_vi(&a, level, NULL);
	p.b = side_vi(&b, level, cq);
	join(p, "pair");
	return p;
}

static void part(struct pair p)
{
	CHECK(VipDisconnect(p.a));
	CHECK(VipDisconnect(p.a)); /* again does nothing */
	CHECK(VipDisconnect(p.b));
	CHECK(VipDestroyVi(p.a));
	CHECK(VipDestroyVi(p.b));
	EXPECT(VIP_INVALID_PARAMETER, VipDestroyVi(p.a));
}

/* Waits for the head of a queue; it must be d, with that status. */
static void completes(VIP_RETURN (*wait)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **), VIP_VI_HANDLE vi,
	VIP_DESCRIPTOR *d, VIP_UINT32 status)
{
	VIP_DESCRIPTOR *got = NULL;
	VIP_RETURN code = wait(vi, PATIENCE, &got);

	if (got != d || d->CS.Status != status) {
		fprintf(stderr, "%d, descriptor %p with status %#x, want %p with %#x\n", code, (void *)got,
			got ? got->CS.Status : 0, (void *)d, status);
		exit(1);
	}
	ASSERT(code == ((status & VIP_STATUS_ERROR_MASK) ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS));
}

static char *am, *bm; /* 64 KB of memory each */
static VIP_MEM_HANDLE ah, bh;

static VIP_DESCRIPTOR *ad(int i) { return (VIP_DESCRIPTOR *)am + i; }
static VIP_DESCRIPTOR *bd(int i) { return (VIP_DESCRIPTOR *)bm + i; }
static char *adata(void) { return am + 32768; }
static char *bdata(void) { return bm + 32768; }

static void nics(void)
{
	VIP_NIC_ATTRIBUTES *q = &a.attributes;

	ASSERT(q->NicAddressLen == 4 && q->LocalNicAddress != NULL && q->ThreadSafe == VIP_TRUE);
	ASSERT(q->Name[0] != 0 && q->Name[63] == 0);
	ASSERT(q->MaxTransferSize >= 32768 && q->MaxSegmentsPerDesc >= 252);
	ASSERT(q->MaxDescriptorsPerQueue >= 1024 && q->MaxDiscriminatorLen >= 16 && q->MaxVI >= 1024);
	ASSERT(q->ReliabilityLevelSupport >= VIP_SERVICE_RELIABLE_RECEPTION);
	ASSERT(q->RDMAReadSupport & VIP_SERVICE_RELIABLE_RECEPTION);
	ASSERT(q->NativeMTU > 1000 && q->MaxCQEntries >= 1024 && q->MaxPtags > 0);
}

static void memory(void)
{
	VIP_MEM_ATTRIBUTES m, got;
	VIP_MEM_HANDLE one, two;
	VIP_PVOID arena;

	/* No attributes, and no tag: for all VIs of the handle. */
	CHECK(VipRegisterMem(a.nic, adata(), 100, NULL, &one));
	CHECK(VipQueryMem(a.nic, adata(), one, &got));
	ASSERT(got.Ptag == NULL && got.EnableRdmaWrite == VIP_FALSE && got.EnableRdmaRead == VIP_FALSE);
	EXPECT(VIP_INVALID_PARAMETER, VipSetMemAttributes(a.nic, adata(), one, NULL));
	CHECK(VipDeregisterMem(a.nic, adata(), one));
	memset(&m, 0, sizeof m);
	m.EnableRdmaRead = VIP_TRUE;
	CHECK(VipRegisterMem(a.nic, adata(), 100, &m, &one));
	CHECK(VipQueryMem(a.nic, adata(), one, &got));
	ASSERT(got.Ptag == NULL && got.EnableRdmaWrite == VIP_FALSE && got.EnableRdmaRead == VIP_TRUE);
	CHECK(VipDeregisterMem(a.nic, adata(), one));
	m.EnableRdmaRead = VIP_FALSE;
	m.Ptag = b.ptag; /* of another NIC handle */
	EXPECT(VIP_INVALID_PTAG, VipRegisterMem(a.nic, adata(), 100, &m, &one));
	m.Ptag = a.ptag;
	CHECK(VipRegisterMem(a.nic, adata() + 1, 100, &m, &one));
	m.EnableRdmaWrite = VIP_TRUE;
	CHECK(VipRegisterMem(a.nic, adata() + 1, 100, &m, &two));
	ASSERT(one != 0 && two != 0 && one != two);
	CHECK(VipQueryMem(a.nic, adata() + 1, two, &got));
	ASSERT(got.Ptag == a.ptag && got.EnableRdmaWrite == VIP_TRUE && got.EnableRdmaRead == VIP_FALSE);
	got.EnableRdmaRead = VIP_TRUE;
	CHECK(VipSetMemAttributes(a.nic, adata() + 1, one, &got));
	CHECK(VipQueryMem(a.nic, adata() + 1, one, &m));
	ASSERT(m.EnableRdmaWrite == VIP_TRUE && m.EnableRdmaRead == VIP_TRUE);
	EXPECT(VIP_INVALID_PARAMETER, VipDeregisterMem(a.nic, adata(), one)); /* not its beginning */
	CHECK(VipDeregisterMem(a.nic, adata() + 1, one));
	EXPECT(VIP_INVALID_PARAMETER, VipDeregisterMem(a.nic, adata() + 1, one));
	CHECK(VipDeregisterMem(a.nic, adata() + 1, two));
	EXPECT(VIP_INVALID_PARAMETER, VipRegisterMem(a.nic, (VIP_PVOID)64, 100, &m, &one)); /* not mapped */
	CHECK(VipxAllocMem(a.nic, 100000, &m, &arena, &one));
	ASSERT(((unsigned long)arena & 63) == 0);
	memset(arena, 1, 100000);
	CHECK(VipDeregisterMem(a.nic, arena, one));
	EXPECT(VIP_ERROR_RESOURCE, VipDestroyPtag(a.nic, a.ptag)); /* in use */
}

/* Status, length and immediate data of sends and receives. */
static void messages(VIP_RELIABILITY_LEVEL level)
{
	struct pair p = pair(level, NULL);
	VIP_DESCRIPTOR *d;
	int i;

	EXPECT(VIP_DESCRIPTOR_ERROR, VipRecvDone(p.b, &d)); /* empty */
	ASSERT(d == NULL);
	describe(bd(0), bdata(), 1000, bh);
	bd(0)->CS.Status = VIP_STATUS_DONE | VIP_STATUS_FORMAT_ERROR; /* of the last use */
	bd(0)->CS.ImmediateData = 99;
	CHECK(VipPostRecv(p.b, bd(0), bh));
	ASSERT(bd(0)->CS.Status == 0);
	EXPECT(VIP_NOT_DONE, VipRecvDone(p.b, &d));
	ASSERT(d == NULL);
	EXPECT(VIP_TIMEOUT, VipRecvWait(p.b, 10, &d));
	EXPECT(VIP_INVALID_PARAMETER, VipConnectRequest(p.a, NULL, NULL, 0, NULL));

	memcpy(adata(), "without", 8);
	describe(ad(0), adata(), 8, ah);
	CHECK(VipPostSend(p.a, ad(0), ah));
	completes(VipRecvWait, p.b, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
	ASSERT(bd(0)->CS.Length == 8 && bd(0)->CS.ImmediateData == 0 && strcmp(bdata(), "without") == 0);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);

	/* Immediate data; a program that polls the status sees the rest. */
	describe(bd(0), bdata(), 1000, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	memcpy(adata(), "withimm", 8);
	describe(ad(0), adata(), 8, ah);
	ad(0)->CS.Control |= VIP_CONTROL_IMMEDIATE;
	ad(0)->CS.ImmediateData = 0xfeedbeef;
	CHECK(VipPostSend(p.a, ad(0), ah));
	while (!(bd(0)->Control.Status & VIP_STATUS_DONE))
		;
	ASSERT(bd(0)->Control.Status == (VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE));
	ASSERT(bd(0)->Control.ImmediateData == 0xfeedbeef && memcmp(bdata(), "withimm", 8) == 0);
	CHECK(VipRecvDone(p.b, &d));
	ASSERT(d == bd(0));
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);

	/* No segment at all; and 252 of them, which lie behind the descriptor. */
	describe(bd(0), bdata(), 1000, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	describe(ad(0), adata(), 0, ah);
	ad(0)->CS.SegCount = 0;
	CHECK(VipPostSend(p.a, ad(0), ah));
	completes(VipRecvWait, p.b, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
	ASSERT(bd(0)->CS.Length == 0);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	describe(bd(0), bdata(), 1000, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	describe(ad(0), adata(), 252 * 3, ah);
	ad(0)->CS.SegCount = 252;
	{
		VIP_DATA_SEGMENT *s = &ad(0)->DS[0].Local;

		for (i = 0; i < 252 * 3; i++)
			adata()[i] = (char)i;
		for (i = 0; i < 252; i++) {
			s[i].Data.Address = adata() + 3 * i;
			s[i].Handle = ah;
			s[i].Length = 3;
		}
	}
	CHECK(VipPostSend(p.a, ad(0), ah));
	completes(VipRecvWait, p.b, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
	ASSERT(bd(0)->CS.Length == 756 && memcmp(adata(), bdata(), 756) == 0);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	part(p);
}

/* Several receives by one call, and sends whose doorbell is that of the last. */
static void lists(VIP_RELIABILITY_LEVEL level)
{
	enum { N = 40 };
	struct pair p = pair(level, NULL);
	VIP_DESCRIPTOR *ds[N + 1], *sends[N];
	VIP_ULONG n = N;
	int i;

	for (i = 0; i < N; i++) {
		ds[i] = bd(i);
		describe(bd(i), bdata() + 8 * i, 8, bh);
	}
	CHECK(VipxPostRecvs(p.b, ds, &n, bh));
	ASSERT(n == N);
	for (i = 0; i < N; i++) {
		sprintf(adata() + 8 * i, "late %d", i);
		describe(ad(i), adata() + 8 * i, 8, ah);
		if (i < N / 2)
			CHECK(i % 8 == 7 ? VipPostSend(p.a, ad(i), ah) : VipxPostSendLater(p.a, ad(i), ah));
		sends[i] = ad(i);
	}
	n = N / 2;
	CHECK(VipxPostSends(p.a, sends + N / 2, &n, ah));
	ASSERT(n == N / 2);
	for (i = 0; i < N; i++) {
		completes(VipRecvWait, p.b, bd(i), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
		ASSERT(strcmp(adata() + 8 * i, bdata() + 8 * i) == 0);
		completes(VipSendWait, p.a, ad(i), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	}
	/* Nobody rings: the library does. */
	describe(bd(0), bdata(), 8, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	describe(ad(0), adata(), 8, ah);
	CHECK(VipxPostSendLater(p.a, ad(0), ah));
	completes(VipRecvWait, p.b, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	/* A wrong descriptor ends the list. */
	ds[2] = (VIP_DESCRIPTOR *)((char *)bd(2) + 8);
	n = 4;
	EXPECT(VIP_INVALID_PARAMETER, VipxPostRecvs(p.b, ds, &n, bh));
	ASSERT(n == 2);
	n = 0;
	CHECK(VipxPostRecvs(p.b, ds, &n, bh));
	EXPECT(VIP_INVALID_PARAMETER, VipxPostRecvs(p.b, NULL, &n, bh));
	EXPECT(VIP_INVALID_PARAMETER, VipxPostRecvs(p.b, ds, NULL, bh));
	sends[0] = (VIP_DESCRIPTOR *)((char *)ad(2) + 8);
	n = 2;
	EXPECT(VIP_INVALID_PARAMETER, VipxPostSends(p.a, sends, &n, ah));
	ASSERT(n == 0);
	EXPECT(VIP_INVALID_PARAMETER, VipxPostSends(p.a, NULL, &n, ah));
	EXPECT(VIP_INVALID_PARAMETER, VipxPostSends(p.a, sends, NULL, ah));
	EXPECT(VIP_INVALID_PARAMETER, VipxPostSendLater(p.a, (VIP_DESCRIPTOR *)((char *)ad(2) + 8), ah));
	CHECK(VipDisconnect(p.b));
	for (i = 0; i < 2; i++)
		completes(VipRecvWait, p.b, bd(i), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
	part(p);
}

static void rdma(VIP_RELIABILITY_LEVEL level)
{
	struct pair p = pair(level, NULL);
	VIP_DESCRIPTOR *d = ad(0);

	describe(bd(0), bdata(), 1000, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	memset(bdata(), 0, 2000);
	strcpy(adata(), "remote memory");
	describe(d, NULL, 14, 0);
	d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
	d->CS.ImmediateData = 7;
	d->CS.SegCount = 2;
	d->DS[0].Remote.Data.AddressBits = (VIP_UINT64)(bdata() + 1500);
	d->DS[0].Remote.Handle = bh;
	d->DS[0].Remote.Reserved = 0;
	d->DS[1].Local.Data.Address = adata();
	d->DS[1].Local.Handle = ah;
	d->DS[1].Local.Length = 14;
	CHECK(VipPostSend(p.a, d, ah));
	completes(VipRecvWait, p.b, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE);
	ASSERT(bd(0)->CS.ImmediateData == 7 && strcmp(bdata() + 1500, "remote memory") == 0 && bdata()[0] == 0);
	completes(VipSendWait, p.a, d, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE);
	if (level != VIP_SERVICE_UNRELIABLE) {
		memset(adata(), 0, 14);
		d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
		CHECK(VipPostSend(p.a, d, ah));
		completes(VipSendWait, p.a, d, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ);
		ASSERT(strcmp(adata(), "remote memory") == 0);
	}
	part(p);
}

/* Polls for the head of p.b's receives, which its completion queue tells of. */
static VIP_RETURN polled(struct pair p, VIP_CQ_HANDLE cq, VIP_DESCRIPTOR **d)
{
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_RETURN got;
	double start = seconds();

	do
		got = VipCQDone(cq, &vi, &recv);
	while (got == VIP_NOT_DONE && (seconds() - start) * 1e3 < PATIENCE);
	CHECK(got);
	ASSERT(vi == p.b && recv == VIP_TRUE);
	return VipRecvDone(vi, d);
}

/*
 * A receive that reaches past the end of its region takes what fits in there. Only the message that
 * needs more is an error.
 */
static void past_region(VIP_RELIABILITY_LEVEL level)
{
	const VIP_UINT32 good = VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE;
	VIP_MEM_ATTRIBUTES m;
	VIP_MEM_HANDLE handle;
	VIP_CQ_HANDLE cq;
	VIP_DESCRIPTOR *d;
	VIP_VI_STATE state;
	struct pair p;

	m.Ptag = b.ptag;
	m.EnableRdmaWrite = m.EnableRdmaRead = VIP_FALSE;
	CHECK(VipRegisterMem(b.nic, bdata(), 8192, &m, &handle));
	memset(bdata(), 0, 16384);
	CHECK(VipCreateCQ(b.nic, 1, &cq));
	p = pair(level, cq);
	describe(bd(0), bdata() + 4096, 32768, handle);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	describe(ad(0), strcpy(adata(), "0123456"), 8, ah);
	CHECK(VipPostSend(p.a, ad(0), ah));
	CHECK(polled(p, cq, &d));
	ASSERT(d == bd(0) && d->CS.Status == good && d->CS.Length == 8 && strcmp(bdata() + 4096, "0123456") == 0);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE);

	CHECK(VipPostRecv(p.b, bd(0), bh));
	EXPECT(VIP_ERROR_RESOURCE, VipDeregisterMem(b.nic, bdata(), handle)); /* it is used */
	memset(adata(), 'x', 4097);
	describe(ad(0), adata(), 4097, ah);
	CHECK(VipPostSend(p.a, ad(0), ah));
	EXPECT(VIP_DESCRIPTOR_ERROR, polled(p, cq, &d));
	ASSERT(d == bd(0) && d->CS.Status == (good | VIP_STATUS_PROTECTION_ERROR) && d->CS.Length <= 4096);
	ASSERT(bdata()[8192] == 0);
	CHECK(VipQueryVi(p.b, &state, NULL, NULL, NULL));
	ASSERT(state == (level == VIP_SERVICE_UNRELIABLE ? VIP_STATE_CONNECTED : VIP_STATE_ERROR));
	if (level == VIP_SERVICE_RELIABLE_RECEPTION)
		completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_REMOTE_DESC_ERROR);
	else /* done, or flushed */
		ASSERT(VipSendWait(p.a, PATIENCE, &d) != VIP_TIMEOUT && d == ad(0));
	part(p);
	CHECK(VipDestroyCQ(cq));
	CHECK(VipDeregisterMem(b.nic, bdata(), handle));
}

/* Errors in descriptors, and what is posted where there is no connection. */
static void refused(void)
{
	VIP_VI_ATTRIBUTES v = side_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
	VIP_VI_HANDLE vi;
	VIP_DESCRIPTOR *d;
	VIP_VI_STATE state;
	VIP_BOOLEAN send_empty, recv_empty;
	struct pair p;

	v.Ptag = NULL; /* any tag */
	CHECK(VipCreateVi(a.nic, &v, NULL, NULL, &vi));
	describe(ad(0), adata(), 8, ah);
	CHECK(VipPostSend(vi, ad(0), ah));
	completes(VipSendWait, vi, ad(0), VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR);
	CHECK(VipPostRecv(vi, ad(0), ah));
	CHECK(VipQueryVi(vi, &state, &v, &send_empty, &recv_empty));
	ASSERT(state == VIP_STATE_IDLE && send_empty == VIP_TRUE && recv_empty == VIP_FALSE && v.Ptag == NULL);
	EXPECT(VIP_ERROR_RESOURCE, VipDestroyVi(vi)); /* a receive is posted */
	EXPECT(VIP_NOT_DONE, VipRecvDone(vi, &d));
	EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(vi, (VIP_DESCRIPTOR *)(am + 8), ah)); /* not aligned */
	EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(vi, NULL, ah));
	EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(vi, ad(1), ah + 1));
	EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(vi, (VIP_DESCRIPTOR *)0x7fff0000, ah));

	p = pair(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	describe(ad(1), adata(), 8, ah);
	ad(1)->CS.Control = 0x10; /* a reserved bit */
	CHECK(VipPostSend(p.a, ad(1), ah));
	completes(VipSendWait, p.a, ad(1), VIP_STATUS_DONE | VIP_STATUS_FORMAT_ERROR);
	CHECK(VipQueryVi(p.a, &state, NULL, NULL, NULL));
	ASSERT(state == VIP_STATE_ERROR);
	part(p);

	v = side_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
	v.ReliabilityLevel = 3;
	EXPECT(VIP_INVALID_RELIABILITY_LEVEL, VipCreateVi(a.nic, &v, NULL, NULL, &vi));
	v = side_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY);
	v.MaxTransferSize = a.attributes.MaxTransferSize + 1;
	EXPECT(VIP_INVALID_MTU, VipCreateVi(a.nic, &v, NULL, NULL, &vi));
	v = side_attributes(&a, VIP_SERVICE_UNRELIABLE);
	v.EnableRdmaRead = VIP_TRUE;
	EXPECT(VIP_INVALID_RDMAREAD, VipCreateVi(a.nic, &v, NULL, NULL, &vi));
	v = side_attributes(&a, VIP_SERVICE_UNRELIABLE);
	v.QoS = &v;
	EXPECT(VIP_INVALID_QOS, VipCreateVi(a.nic, &v, NULL, NULL, &vi));
}

/* A completion queue of one entry takes as many as come. */
static void completion_queue(void)
{
	VIP_CQ_HANDLE cq;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_DESCRIPTOR *d;
	struct pair p;
	int i;

	CHECK(VipCreateCQ(b.nic, 1, &cq));
	EXPECT(VIP_NOT_DONE, VipCQDone(cq, &vi, &recv));
	EXPECT(VIP_TIMEOUT, VipCQWait(cq, 10, &vi, &recv));
	p = pair(VIP_SERVICE_RELIABLE_RECEPTION, cq);
	EXPECT(VIP_ERROR_RESOURCE, VipDestroyCQ(cq));
	EXPECT(VIP_INVALID_PARAMETER, VipRecvWait(p.b, 10, &d));
	for (i = 0; i < 200; i++) {
		describe(bd(i), bdata() + 64 * i, 64, bh);
		CHECK(VipPostRecv(p.b, bd(i), bh));
	}
	for (i = 0; i < 200; i++) {
		describe(ad(0), adata(), 4, ah);
		memcpy(adata(), &i, 4);
		CHECK(VipPostSend(p.a, ad(0), ah));
		completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	}
	for (i = 0; i < 200; i++) {
		CHECK(VipCQWait(cq, PATIENCE, &vi, &recv));
		ASSERT(vi == p.b && recv == VIP_TRUE);
		CHECK(VipRecvDone(vi, &d));
		ASSERT(d == bd(i) && memcmp(bdata() + 64 * i, &i, 4) == 0);
	}
	EXPECT(VIP_NOT_DONE, VipCQDone(cq, &vi, &recv));
	part(p);
	CHECK(VipResizeCQ(cq, 1000));
	CHECK(VipDestroyCQ(cq));
	EXPECT(VIP_INVALID_PARAMETER, VipDestroyCQ(cq));
}

static void connections(void)
{
	VIP_VI_ATTRIBUTES v = side_attributes(&a, VIP_SERVICE_RELIABLE_DELIVERY), theirs;
	struct acceptor x;
	VIP_VI_HANDLE vi, other;
	VIP_CONN_HANDLE conn;
	union address local, remote;
	double start;
	struct pair p;

	CHECK(VipCreateVi(a.nic, &v, NULL, NULL, &vi));
	side_local(&a, &local, "caller");
	side_local(&b, &remote, "nobody");
	start = seconds();
	EXPECT(VIP_NO_MATCH, VipConnectRequest(vi, &local.a, &remote.a, PATIENCE, &theirs));
	ASSERT((seconds() - start) * 1e3 < PATIENCE / 2); /* an answer said so: the time was not over */
	EXPECT(VIP_INVALID_PARAMETER, VipConnectRequest(vi, &local.a, &remote.a, 0, &theirs));
	EXPECT(VIP_TIMEOUT, VipConnectWait(b.nic, &remote.a, 0, &local.a, &theirs, &conn));

	x.vi = NULL; /* rejects */
	x.discriminator = "reject";
	ASSERT(pthread_create(&x.thread, NULL, accept_one, &x) == 0);
	EXPECT(VIP_REJECT, request(vi, "reject", &theirs));
	ASSERT(pthread_join(x.thread, NULL) == 0);
	EXPECT(VIP_INVALID_PARAMETER, VipConnectAccept((VIP_CONN_HANDLE)vi, vi));

	/* Any size up to the NIC's. */
	v.MaxTransferSize = 32000;
	CHECK(VipSetViAttributes(vi, &v));
	other = side_vi(&b, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	p.a = vi;
	p.b = other;
	v.Ptag = b.ptag;
	CHECK(VipSetViAttributes(other, &v));
	join(p, "32000");
	v.Ptag = a.ptag;
	EXPECT(VIP_INVALID_STATE, VipSetViAttributes(vi, &v));
	CHECK(VipDisconnect(vi));
	CHECK(VipDisconnect(other));

	/* Peer to peer; an address of exactly the bytes that it has. */
	side_local(&a, &local, "one");
	side_local(&b, &remote, "two");
	EXPECT(VIP_INVALID_STATE, VipConnectPeerDone(vi, &theirs));
	CHECK(VipConnectPeerRequest(vi, &local.a, &remote.a, PATIENCE));
	EXPECT(VIP_NOT_DONE, VipConnectPeerDone(vi, &theirs));
	CHECK(VipConnectPeerRequest(other, &remote.a, &local.a, PATIENCE));
	CHECK(VipConnectPeerWait(vi, &theirs));
	CHECK(VipConnectPeerWait(other, &theirs));
	ASSERT(theirs.MaxTransferSize == 32000);
	part(p);
}

/* The remote address is written to its last byte and not beyond. */
static void *call_exact(void *vi)
{
	VIP_VI_ATTRIBUTES theirs;

	EXPECT(VIP_REJECT, request((VIP_VI_HANDLE)vi, "exact", &theirs));
	return NULL;
}

static void exact_addresses(void)
{
	enum { SIZE = 4 + 4 + 6 }; /* lengths, host, "caller" */
	char *room = (char *)malloc(SIZE), *name;
	VIP_NET_ADDRESS *remote = (VIP_NET_ADDRESS *)room;
	union address local;
	VIP_CONN_HANDLE conn;
	VIP_VI_HANDLE vi = side_vi(&a, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	pthread_t thread;
	VIP_ULONG n;

	side_local(&b, &local, "exact");
	ASSERT(pthread_create(&thread, NULL, call_exact, vi) == 0);
	CHECK(VipConnectWait(b.nic, &local.a, VIP_INFINITE, remote, NULL, &conn));
	ASSERT(remote->HostAddressLen == 4 && remote->DiscriminatorLen == 6);
	ASSERT(memcmp(remote->HostAddress + 4, "caller", 6) == 0);
	ASSERT(memcmp(remote->HostAddress, a.attributes.LocalNicAddress, 4) == 0);
	CHECK(VipConnectReject(conn));
	EXPECT(VIP_INVALID_PARAMETER, VipConnectReject(conn));
	ASSERT(pthread_join(thread, NULL) == 0);
	free(room);

	/* The name service: node1 is in the hosts file of the test. */
	CHECK(VipNSInit(a.nic, NULL));
	room = (char *)malloc(8);
	remote = (VIP_NET_ADDRESS *)room;
	CHECK(VipNSGetHostByName(a.nic, (VIP_CHAR *)"node1", remote, 0));
	ASSERT(remote->HostAddressLen == 4 && remote->DiscriminatorLen == 0 && remote->HostAddress[3] == 1);
	EXPECT(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(a.nic, (VIP_CHAR *)"node1", remote, 1));
	name = (char *)malloc(6);
	n = 5;
	EXPECT(VIP_ERROR_RESOURCE, VipNSGetHostByAddr(a.nic, remote, name, &n));
	ASSERT(n == 6);
	CHECK(VipNSGetHostByAddr(a.nic, remote, name, &n));
	ASSERT(n == 6 && strcmp(name, "node1") == 0);
	free(name);
	/* node2 has an IPv6 address, and two others with a discriminator: there is no room for them. */
	room[4] = room[5] = room[6] = room[7] = 0;
	CHECK(VipNSGetHostByName(a.nic, (VIP_CHAR *)"node2", remote, 0));
	ASSERT(remote->HostAddressLen == 4 && remote->DiscriminatorLen == 0 && remote->HostAddress[3] == 7);
	CHECK(VipNSGetHostByName(a.nic, (VIP_CHAR *)"node2", remote, 1));
	ASSERT(remote->HostAddressLen == 4 && remote->DiscriminatorLen == 0 && remote->HostAddress[3] == 8);
	EXPECT(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(a.nic, (VIP_CHAR *)"node2", remote, 2));
	CHECK(VipNSShutdown(a.nic));
	EXPECT(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(a.nic, (VIP_CHAR *)"node1", remote, 0));
	free(room);
	CHECK(VipDestroyVi(vi));
}

/* A program with room for a discriminator of 8 bytes gets no longer one. */
static struct side bounded;

static void *call_bounded(void *vi)
{
	union address local, remote;
	VIP_RETURN got;

	side_local(&bounded, &remote, "bounded");
	side_local(&a, &local, "a long caller");
	do
		got = VipConnectRequest((VIP_VI_HANDLE)vi, &local.a, &remote.a, PATIENCE, NULL);
	while (got == VIP_NO_MATCH);
	EXPECT(VIP_REJECT, got);
	side_local(&a, &local, "8 bytes.");
	do
		got = VipConnectRequest((VIP_VI_HANDLE)vi, &local.a, &remote.a, PATIENCE, NULL);
	while (got == VIP_NO_MATCH);
	EXPECT(VIP_REJECT, got);
	return NULL;
}

static void bounds(int argc, char **argv)
{
	enum { SIZE = 4 + 4 + 8 };
	union address local;
	VIP_NET_ADDRESS *remote = (VIP_NET_ADDRESS *)malloc(SIZE);
	VIP_NIC_HANDLE nic;
	VIP_CONN_HANDLE conn;
	VIP_VI_HANDLE vi = side_vi(&a, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	pthread_t thread;

	ASSERT(setenv("VIA_MAX_DISCRIMINATOR", "65", 1) == 0);
	ASSERT(VipOpenNic(argv[2], &nic) != VIP_SUCCESS);
	ASSERT(setenv("VIA_MAX_DISCRIMINATOR", "8", 1) == 0);
	side_open(&bounded, argc, argv);
	ASSERT(unsetenv("VIA_MAX_DISCRIMINATOR") == 0);
	ASSERT(bounded.attributes.MaxDiscriminatorLen == 8);
	side_local(&bounded, &local, "bounded");
	ASSERT(pthread_create(&thread, NULL, call_bounded, vi) == 0);
	CHECK(VipConnectWait(bounded.nic, &local.a, PATIENCE, remote, NULL, &conn));
	ASSERT(remote->DiscriminatorLen == 8 && memcmp(remote->HostAddress + 4, "8 bytes.", 8) == 0);
	CHECK(VipConnectReject(conn));
	ASSERT(pthread_join(thread, NULL) == 0);
	EXPECT(VIP_TIMEOUT, VipConnectWait(bounded.nic, &local.a, 10, remote, NULL, &conn));
	CHECK(VipCloseNic(bounded.nic));
	CHECK(VipDestroyVi(vi));
	free(remote);
}

/* Handlers, each called once, on a thread of the library. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static int sends, recvs, entries, post_errors, lost;

static void on_vi(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
	ASSERT(nic == a.nic || nic == b.nic);
	ASSERT(vi != NULL && (d->CS.Status & VIP_STATUS_DONE));
	pthread_mutex_lock(&lock);
	++*(int *)context;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

static void on_cq(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
	VIP_DESCRIPTOR *d;

	ASSERT(nic == b.nic && recv == VIP_TRUE);
	CHECK(VipRecvDone(vi, &d)); /* a handler may call anything */
	pthread_mutex_lock(&lock);
	++*(int *)context;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	ASSERT(context == &lost && e->NicHandle == b.nic);
	pthread_mutex_lock(&lock);
	if (e->ErrorCode == VIP_ERROR_CONN_LOST && e->ResourceCode == VIP_RESOURCE_VI && e->ViHandle)
		lost++;
	if (e->ErrorCode == VIP_ERROR_POST_DESC && e->DescriptorPtr == bd(0))
		post_errors++;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

static void until(int *counter, int n)
{
	pthread_mutex_lock(&lock);
	while (*counter < n)
		pthread_cond_wait(&change, &lock);
	pthread_mutex_unlock(&lock);
}

static void handlers(void)
{
	struct pair p = pair(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	VIP_CQ_HANDLE cq;
	int i;

	for (i = 1; i <= 3; i++) {
		CHECK(VipRecvNotify(p.b, &recvs, on_vi));
		describe(bd(0), bdata(), 64, bh);
		CHECK(VipPostRecv(p.b, bd(0), bh));
		describe(ad(0), adata(), 8, ah);
		CHECK(VipPostSend(p.a, ad(0), ah));
		CHECK(VipSendNotify(p.a, &sends, on_vi)); /* at once if it is complete */
		until(&recvs, i);
		until(&sends, i);
	}
	CHECK(VipErrorCallback(b.nic, &lost, on_error));
	describe(bd(0), bdata(), 64, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	bd(0)->CS.Reserved = 5; /* it is the provider's now */
	CHECK(VipPostSend(p.a, ad(0), ah));
	until(&post_errors, 1);
	CHECK(VipDisconnect(p.a));
	until(&lost, 1);
	CHECK(VipErrorCallback(b.nic, NULL, NULL));
	{
		VIP_DESCRIPTOR *d;

		while (VipSendDone(p.a, &d) == VIP_SUCCESS)
			;
		while (VipRecvDone(p.b, &d) == VIP_SUCCESS)
			;
	}
	part(p);

	CHECK(VipCreateCQ(b.nic, 10, &cq));
	p = pair(VIP_SERVICE_RELIABLE_DELIVERY, cq);
	CHECK(VipCQNotify(cq, &entries, on_cq));
	describe(bd(0), bdata(), 64, bh);
	CHECK(VipPostRecv(p.b, bd(0), bh));
	describe(ad(0), adata(), 8, ah);
	CHECK(VipPostSend(p.a, ad(0), ah));
	until(&entries, 1);
	completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
	part(p);
	CHECK(VipDestroyCQ(cq));
}

/* Holds up the thread that calls the handlers of a queue. */
static int holds, let_go, served;

static void on_cq_hold(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
	on_cq(context, nic, vi, recv);
	until(&let_go, 1);
}

static void send_eight(struct pair p, int i)
{
	describe(bd(i), bdata(), 64, bh);
	CHECK(VipPostRecv(p.b, bd(i), bh));
	describe(ad(i), adata(), 8, ah);
	CHECK(VipPostSend(p.a, ad(i), ah));
	completes(VipSendWait, p.a, ad(i), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
}

/* A handler whose entry is of a VI that is destroyed before it is called gets the next one. */
static void void_entry(void)
{
	struct pair stays, goes;
	VIP_CQ_HANDLE cq;
	VIP_DESCRIPTOR *d;
	VIP_RETURN rc;

	CHECK(VipCreateCQ(b.nic, 10, &cq));
	stays = pair(VIP_SERVICE_RELIABLE_DELIVERY, cq);
	goes = pair(VIP_SERVICE_RELIABLE_DELIVERY, cq);
	CHECK(VipCQNotify(cq, &holds, on_cq_hold));
	CHECK(VipCQNotify(cq, &served, on_cq));
	send_eight(stays, 0);
	until(&holds, 1);
	send_eight(goes, 1);
	while ((rc = VipRecvDone(goes.b, &d)) == VIP_NOT_DONE)
		;
	ASSERT(rc == VIP_SUCCESS && d == bd(1));
	part(goes);
	pthread_mutex_lock(&lock);
	let_go = 1;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
	send_eight(stays, 0);
	until(&served, 1);
	part(stays);
	CHECK(VipDestroyCQ(cq));
}

/* Several threads take from one queue, which grows meanwhile: each descriptor goes to one. */
enum { TAKEN = 500, TAKERS = 4 };

static VIP_VI_HANDLE taken_from;
static int takes[TAKEN], all_taken;

static void *taker(void *waits)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;
	int left = 1;

	while (left) {
		got = waits ? VipRecvWait(taken_from, 1, &d) : VipRecvDone(taken_from, &d);
		ASSERT(got == VIP_SUCCESS || d == NULL);
		if (got != VIP_SUCCESS)
			ASSERT(got == VIP_NOT_DONE || got == VIP_TIMEOUT || got == VIP_DESCRIPTOR_ERROR);
		pthread_mutex_lock(&lock);
		if (d) {
			ASSERT((d->CS.Status & VIP_STATUS_DONE) && d->CS.Length == 8);
			takes[d - bd(0)]++;
			all_taken++;
		}
		left = all_taken < TAKEN;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void takers(void)
{
	struct pair p = pair(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	pthread_t threads[TAKERS];
	int i;

	taken_from = p.b;
	for (i = 0; i < TAKERS; i++)
		ASSERT(pthread_create(&threads[i], NULL, taker, i == 0 ? &threads : NULL) == 0);
	for (i = 0; i < TAKEN; i++) {
		describe(bd(i), bdata(), 8, bh);
		CHECK(VipPostRecv(p.b, bd(i), bh));
		if (i % 50 == 49) {
			int k;

			for (k = i - 49; k <= i; k++) {
				describe(ad(0), adata(), 8, ah);
				CHECK(VipPostSend(p.a, ad(0), ah));
				completes(VipSendWait, p.a, ad(0), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
			}
		}
	}
	for (i = 0; i < TAKERS; i++)
		ASSERT(pthread_join(threads[i], NULL) == 0);
	for (i = 0; i < TAKEN; i++)
		ASSERT(takes[i] == 1);
	part(p);
}

/* Memory in use stays registered, also while a thread tries to end that. */
static volatile int trying = 1;

static void *tries(void *memory)
{
	while (trying)
		EXPECT(VIP_ERROR_RESOURCE, VipDeregisterMem(b.nic, memory, bh));
	return NULL;
}

static void in_use(void)
{
	VIP_VI_HANDLE vi = side_vi(&b, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	VIP_MEM_ATTRIBUTES m;
	VIP_DESCRIPTOR *d;
	pthread_t thread;
	int i;

	describe(bd(0), bdata(), 64, bh);
	CHECK(VipPostRecv(vi, bd(0), bh));
	ASSERT(pthread_create(&thread, NULL, tries, bm) == 0);
	for (i = 0; i < 5000; i++) {
		CHECK(VipQueryMem(b.nic, bm, bh, &m));
		CHECK(VipSetMemAttributes(b.nic, bm, bh, &m));
		EXPECT(VIP_ERROR_RESOURCE, VipDeregisterMem(b.nic, bm, bh));
	}
	trying = 0;
	ASSERT(pthread_join(thread, NULL) == 0);
	CHECK(VipDisconnect(vi));
	completes(VipRecvWait, vi, bd(0), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
	EXPECT(VIP_DESCRIPTOR_ERROR, VipRecvDone(vi, &d));
	CHECK(VipDestroyVi(vi));
}

static void discovery(void)
{
	VIP_AUTODISCOVERY_LIST list;
	union address room[8];
	VIP_NET_ADDRESS *addrs[8];
	int i;

	for (i = 0; i < 8; i++)
		addrs[i] = &room[i].a;
	list.NumberOfHops = 1;
	list.ADAddrArray = addrs;
	list.NumAdAddrs = 8;
	CHECK(VipQuerySystemManagementInfo(a.nic, VIP_SMI_AUTODISCOVERY, &list));
	ASSERT(list.NumAdAddrs >= 1 && addrs[0]->HostAddressLen == 4);
	list.NumAdAddrs = (VIP_ULONG)-1;
	EXPECT(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(a.nic, VIP_SMI_AUTODISCOVERY, &list));
	list.NumAdAddrs = 8;
	list.NumberOfHops = (VIP_ULONG)-1;
	CHECK(VipQuerySystemManagementInfo(a.nic, VIP_SMI_AUTODISCOVERY, &list));
	ASSERT(list.NumAdAddrs >= 1);
	EXPECT(VIP_ERROR_NOT_SUPPORTED, VipQuerySystemManagementInfo(a.nic, 2, &list));
}

int main(int argc, char **argv)
{
	VIP_RELIABILITY_LEVEL level;

	if (argc > 3)
		ASSERT(setenv("VIA_QUEUE", "0", 1) == 0);
	side_open(&a, argc, argv);
	if (argc > 3)
		ASSERT(setenv("VIA_QUEUE", "1", 1) == 0);
	side_open(&b, argc, argv);
	am = side_memory(&a, 65536, &ah);
	bm = side_memory(&b, 65536, &bh);
	nics();
	memory();
	for (level = VIP_SERVICE_UNRELIABLE; level <= VIP_SERVICE_RELIABLE_RECEPTION; level = (VIP_RELIABILITY_LEVEL)(2 * level)) {
		messages(level);
		lists(level);
		rdma(level);
		past_region(level);
	}
	refused();
	completion_queue();
	connections();
	exact_addresses();
	bounds(argc, argv);
	handlers();
	void_entry();
	takers();
	in_use();
	discovery();
	CHECK(VipCloseNic(a.nic));
	EXPECT(VIP_INVALID_PARAMETER, VipCloseNic(a.nic));
	CHECK(VipCloseNic(b.nic));
	printf("abi: all rules kept\n");
	return 0;
}
