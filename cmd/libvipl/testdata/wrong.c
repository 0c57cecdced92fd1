/*
 * wrong: calls that no program should make. Each gets a return code, none does
 * harm, and afterwards everything works.
 *
 *	wrong server DEVICE
 */
#include "pair.h"

static struct side s;

/* Every function with one handle, which is none of its kind. */
static void handle(void *h)
{
	VIP_NIC_ATTRIBUTES nic;
	VIP_VI_ATTRIBUTES vi;
	VIP_MEM_ATTRIBUTES mem;
	VIP_AUTODISCOVERY_LIST list;
	VIP_DESCRIPTOR *d;
	VIP_BOOLEAN b;
	VIP_VI_STATE state;
	VIP_MEM_HANDLE m = 0;
	VIP_ULONG n = 0;
	union address a;
	char name[10];
	void *out = NULL;

	memset(&mem, 0, sizeof mem);
	memset(&vi, 0, sizeof vi);
	memset(&list, 0, sizeof list);
	memset(&a, 0, sizeof a);
#define WRONG(call) EXPECT(VIP_INVALID_PARAMETER, call)
	if (h != s.nic) {
		WRONG(VipCloseNic(h));
		WRONG(VipQueryNic(h, &nic));
		WRONG(VipErrorCallback(h, NULL, NULL));
		WRONG(VipQuerySystemManagementInfo(h, VIP_SMI_AUTODISCOVERY, &list));
		WRONG(VipCreatePtag(h, &out));
		WRONG(VipDestroyPtag(h, s.ptag));
		WRONG(VipRegisterMem(h, name, 10, &mem, &m));
		WRONG(VipDeregisterMem(h, name, 1));
		WRONG(VipQueryMem(h, name, 1, &mem));
		WRONG(VipSetMemAttributes(h, name, 1, &mem));
		WRONG(VipCreateVi(h, &vi, NULL, NULL, &out));
		WRONG(VipConnectWait(h, &a.a, 0, &a.a, &vi, &out));
		WRONG(VipCreateCQ(h, 1, &out));
		WRONG(VipNSInit(h, NULL));
		WRONG(VipNSShutdown(h));
		WRONG(VipNSGetHostByName(h, name, &a.a, 0));
		WRONG(VipNSGetHostByAddr(h, &a.a, name, &n));
		WRONG(VipxAllocMem(h, 10, &mem, &out, &m));
		WRONG(VipxPoll(h));
		WRONG(VipxListen(h, &a.a));
		WRONG(VipxUnlisten(h, &a.a));
	}
	WRONG(VipDestroyPtag(s.nic, h));
	mem.Ptag = h ? h : &mem; /* none is no wrong one */
	EXPECT(s.nic ? VIP_INVALID_PTAG : VIP_INVALID_PARAMETER, VipRegisterMem(s.nic, name, 10, &mem, &m));
	WRONG(VipDestroyVi(h));
	WRONG(VipQueryVi(h, &state, &vi, &b, &b));
	WRONG(VipSetViAttributes(h, &vi));
	WRONG(VipConnectAccept(h, h));
	WRONG(VipConnectReject(h));
	WRONG(VipConnectRequest(h, &a.a, &a.a, 10, &vi));
	WRONG(VipDisconnect(h));
	WRONG(VipConnectPeerRequest(h, &a.a, &a.a, 10));
	WRONG(VipConnectPeerDone(h, &vi));
	WRONG(VipConnectPeerWait(h, &vi));
	WRONG(VipPostSend(h, NULL, 0));
	WRONG(VipPostRecv(h, NULL, 0));
	WRONG(VipxPostSendLater(h, NULL, 0));
	n = 1;
	WRONG(VipxPostSends(h, &d, &n, 0));
	ASSERT(n == 0);
	n = 1;
	WRONG(VipxPostRecvs(h, &d, &n, 0));
	ASSERT(n == 0);
	/* And no descriptor: programs take them off until there is none. */
#define NONE(call)                      \
	d = (VIP_DESCRIPTOR *)(void *)&mem; \
	WRONG(call);                        \
	ASSERT(d == NULL)
	NONE(VipSendDone(h, &d));
	NONE(VipRecvDone(h, &d));
	NONE(VipSendWait(h, 0, &d));
	NONE(VipRecvWait(h, 0, &d));
	WRONG(VipSendNotify(h, NULL, (VIP_VI_CALLBACK)abort));
	WRONG(VipRecvNotify(h, NULL, (VIP_VI_CALLBACK)abort));
	WRONG(VipResizeCQ(h, 1));
	WRONG(VipDestroyCQ(h));
	WRONG(VipCQDone(h, &out, &b));
	WRONG(VipCQWait(h, 0, &out, &b));
	WRONG(VipCQNotify(h, NULL, (VIP_CQ_CALLBACK)abort));
}

/* Descriptors that are none, wherever they are said to be, are refused and told. */
static volatile unsigned told;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	VIP_NIC_ATTRIBUTES nic;

	CHECK(VipQueryNic(e->NicHandle, &nic)); /* takes stack */
	ASSERT(context == &s && e->ErrorCode == VIP_ERROR_POST_DESC && e->ResourceCode == VIP_RESOURCE_DESCRIPTOR);
	told++;
}

static void descriptors(VIP_VI_HANDLE vi)
{
	static const VIP_UINT64 none[] = {0, 3, 64, 4032, 4095, 4100, 4160, 0x7fff0000, (VIP_UINT64)-64};
	const unsigned n = sizeof none / sizeof *none;
	double start = seconds();
	unsigned i;

	CHECK(VipErrorCallback(s.nic, &s, on_error));
	for (i = 0; i < n; i++) {
		WRONG(VipPostSend(vi, (VIP_DESCRIPTOR *)none[i], 5));
		WRONG(VipPostRecv(vi, (VIP_DESCRIPTOR *)none[i], 5));
	}
	while (told < 2 * n && (seconds() - start) * 1e3 < PATIENCE)
		usleep(1000);
	ASSERT(told == 2 * n);
	CHECK(VipErrorCallback(s.nic, NULL, NULL));
}

/* Good handles, and NULL for everything that is written to or read from. */
static void nulls(VIP_VI_HANDLE vi, VIP_CQ_HANDLE cq)
{
	VIP_BOOLEAN b;
	VIP_MEM_ATTRIBUTES mem;
	VIP_MEM_HANDLE m;
	VIP_VI_ATTRIBUTES attributes = side_attributes(&s, VIP_SERVICE_RELIABLE_DELIVERY);
	union address a;
	void *out;

	side_local(&s, &a, "x");
	mem.Ptag = s.ptag;
	mem.EnableRdmaWrite = mem.EnableRdmaRead = 0;
	WRONG(VipOpenNic(NULL, &out));
	WRONG(VipOpenNic(s.device, NULL));
	WRONG(VipQueryNic(s.nic, NULL));
	WRONG(VipQuerySystemManagementInfo(s.nic, VIP_SMI_AUTODISCOVERY, NULL));
	WRONG(VipCreatePtag(s.nic, NULL));
	WRONG(VipRegisterMem(s.nic, NULL, 10, &mem, &m));
	WRONG(VipRegisterMem(s.nic, &a, 0, &mem, &m));
	WRONG(VipRegisterMem(s.nic, &a, 10, &mem, NULL));
	WRONG(VipRegisterMem(s.nic, (void *)0x7000000000001000, 10, &mem, &m));
	EXPECT(VIP_ERROR_RESOURCE, VipRegisterMem(s.nic, &a, (VIP_ULONG)-1, &mem, &m));
	EXPECT(VIP_ERROR_RESOURCE, VipxAllocMem(s.nic, 1UL << 40, &mem, &out, &m));
	EXPECT(VIP_ERROR_RESOURCE, VipxAllocMem(s.nic, (VIP_ULONG)-1, &mem, &out, &m));
	WRONG(VipCreateVi(s.nic, NULL, NULL, NULL, &out));
	WRONG(VipCreateVi(s.nic, &attributes, vi, NULL, &out)); /* a VI for a CQ */
	WRONG(VipCreateVi(s.nic, &attributes, NULL, NULL, NULL));
	WRONG(VipQueryVi(vi, NULL, NULL, NULL, NULL));
	WRONG(VipSetViAttributes(vi, NULL));
	WRONG(VipConnectWait(s.nic, NULL, 0, NULL, NULL, &out));
	WRONG(VipConnectWait(s.nic, &a.a, 0, NULL, NULL, NULL));
	a.a.HostAddressLen = 5;
	WRONG(VipConnectRequest(vi, &a.a, &a.a, 10, NULL));
	a.a.HostAddressLen = 4;
	a.a.DiscriminatorLen = 65535;
	WRONG(VipConnectPeerRequest(vi, &a.a, &a.a, 10));
	WRONG(VipPostSend(vi, NULL, 5));
	WRONG(VipPostRecv(vi, (VIP_DESCRIPTOR *)3, 5));
	WRONG(VipSendDone(vi, NULL));
	WRONG(VipRecvWait(vi, 0, NULL));
	WRONG(VipSendNotify(vi, NULL, NULL));
	WRONG(VipCreateCQ(s.nic, 0, &out));
	WRONG(VipCreateCQ(s.nic, (VIP_ULONG)-1, &out));
	WRONG(VipCreateCQ(s.nic, 1, NULL));
	WRONG(VipResizeCQ(cq, 0));
	WRONG(VipCQDone(cq, NULL, &b));
	WRONG(VipCQWait(cq, 0, &out, NULL));
	WRONG(VipCQNotify(cq, NULL, NULL));
	WRONG(VipNSGetHostByName(s.nic, NULL, &a.a, 0));
	WRONG(VipNSGetHostByAddr(s.nic, NULL, NULL, NULL));
}

/* As many tags as the NIC says can be made, beside other things of the program's. */
static void tags(void)
{
	VIP_ULONG i, n = s.attributes.MaxPtags - 1; /* one is there */
	VIP_PROTECTION_HANDLE *made = (VIP_PROTECTION_HANDLE *)calloc(n, sizeof *made);

	ASSERT(made != NULL);
	for (i = 0; i < n; i++)
		CHECK(VipCreatePtag(s.nic, &made[i]));
	for (i = 0; i < n; i++)
		CHECK(VipDestroyPtag(s.nic, made[i]));
	free(made);
}

int main(int argc, char **argv)
{
	VIP_VI_HANDLE vi, freed;
	VIP_CQ_HANDLE cq, empty;
	VIP_NIC_HANDLE closed;
	char local[64];
	int i;

	handle(NULL); /* before anything was opened: s.nic is NULL, too */
	handle(local);
	side_open(&s, argc, argv);
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	freed = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	CHECK(VipDestroyVi(freed));
	descriptors(vi);
	CHECK(VipCreateCQ(s.nic, 1, &cq));
	CHECK(VipCreateCQ(s.nic, 1, &empty));
	CHECK(VipDestroyCQ(empty));
	handle(NULL);
	handle(local);
	handle((void *)-1L);
	handle(freed);
	handle(empty);
	handle(s.nic);
	for (i = 0; i < 64; i++)
		handle((void *)((VIP_UINT64)vi ^ 1UL << i));
	nulls(vi, cq);
	tags();
	closed = s.nic;
	CHECK(VipCloseNic(s.nic)); /* and all that goes with it */
	WRONG(VipDestroyVi(vi));
	WRONG(VipDestroyCQ(cq));
	WRONG(VipCloseNic(closed));
	side_open(&s, argc, argv);
	handle(closed);
	handle(vi);
	handle(cq);
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	CHECK(VipDestroyVi(vi));
	CHECK(VipCloseNic(s.nic));
	printf("wrong: a return code for each\n");
	return 0;
}
