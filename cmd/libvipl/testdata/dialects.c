/*
 * dialects: how programs of the time wrote things down: both spellings of a
 * descriptor, segments by pointers and casts, addresses as numbers, codes in
 * tables and switches, functions in tables, memory of every kind, registered
 * without attributes. One process, in which a NIC's VIs talk to each other.
 *
 *	dialects server DEVICE
 */
#include "pair.h"

#ifndef VIP_ERROR_NOT_SUPPORTED
#define VIP_ERROR_NOT_SUPPORTED -33333
#endif
#if !defined(VIP_ERROR) || !defined(VIP_NOT_REACHABLE)
#error a code is missing
#endif

/* The library behind a table of functions, as in programs that load it with dlopen. */
typedef struct {
	VIP_RETURN (*open)(const VIP_CHAR *, VIP_NIC_HANDLE *);
	VIP_RETURN (*close)(VIP_NIC_HANDLE);
	VIP_RETURN (*query)(VIP_NIC_HANDLE, VIP_NIC_ATTRIBUTES *);
	VIP_RETURN (*reg)(VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, VIP_MEM_ATTRIBUTES *, VIP_MEM_HANDLE *);
	VIP_RETURN (*dereg)(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE);
	VIP_RETURN (*callback)(VIP_NIC_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_ERROR_DESCRIPTOR *));
	VIP_RETURN (*post_send)(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE);
	VIP_RETURN (*post_recv)(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE);
	VIP_RETURN (*send_done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **);
	VIP_RETURN (*recv_done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **);
} VIPL;

static VIPL vipl = {VipOpenNic, VipCloseNic, VipQueryNic, VipRegisterMem, VipDeregisterMem,
	VipErrorCallback, VipPostSend, VipPostRecv, VipSendDone, VipRecvDone};

static VIP_VI_ATTRIBUTES default_attributes = {
	VIP_SERVICE_RELIABLE_DELIVERY,
	32768,
	0, /* no quality of service */
	0, /* the default protection tag */
	VIP_TRUE,
	VIP_FALSE,
};

static const char *names[] = {"VIP_SUCCESS", "VIP_NOT_DONE", "VIP_INVALID_PARAMETER", "VIP_ERROR_RESOURCE",
	"VIP_TIMEOUT", "VIP_REJECT", "VIP_INVALID_RELIABILITY_LEVEL", "VIP_INVALID_MTU", "VIP_INVALID_QOS",
	"VIP_INVALID_PTAG", "VIP_INVALID_RDMAREAD", "VIP_DESCRIPTOR_ERROR", "VIP_INVALID_STATE",
	"VIP_ERROR_NAMESERVICE", "VIP_NO_MATCH", "VIP_NOT_REACHABLE", "VIP_ERROR_NOT_SUPPORTED"};

static const char *by_switch(VIP_RETURN rc)
{
	switch (rc) {
	case VIP_SUCCESS: return "VIP_SUCCESS";
	case VIP_NOT_DONE: return "VIP_NOT_DONE";
	case VIP_INVALID_PARAMETER: return "VIP_INVALID_PARAMETER";
	case VIP_ERROR_RESOURCE: return "VIP_ERROR_RESOURCE";
	case VIP_TIMEOUT: return "VIP_TIMEOUT";
	case VIP_REJECT: return "VIP_REJECT";
	case VIP_INVALID_RELIABILITY_LEVEL: return "VIP_INVALID_RELIABILITY_LEVEL";
	case VIP_INVALID_MTU: return "VIP_INVALID_MTU";
	case VIP_INVALID_QOS: return "VIP_INVALID_QOS";
	case VIP_INVALID_PTAG: return "VIP_INVALID_PTAG";
	case VIP_INVALID_RDMAREAD: return "VIP_INVALID_RDMAREAD";
	case VIP_DESCRIPTOR_ERROR: return "VIP_DESCRIPTOR_ERROR";
	case VIP_INVALID_STATE: return "VIP_INVALID_STATE";
	case VIP_ERROR_NAMESERVICE: return "VIP_ERROR_NAMESERVICE";
	case VIP_NO_MATCH: return "VIP_NO_MATCH";
	case VIP_NOT_REACHABLE: return "VIP_NOT_REACHABLE";
	case VIP_ERROR_NOT_SUPPORTED: return "VIP_ERROR_NOT_SUPPORTED";
	case VIP_ERROR: return "VIP_ERROR";
	default: return "";
	}
}

static void codes(void)
{
	int r;

	for (r = 0; r <= VIP_ERROR_NOT_SUPPORTED; r++)
		ASSERT(strcmp(names[r], by_switch((VIP_RETURN)r)) == 0);
	ASSERT(VIP_ERROR == 17 && sizeof names / sizeof *names == 17);
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
	VIP_ULONG *count = (VIP_ULONG *)context;

	if (e->ResourceCode == VIP_RESOURCE_VI && e->ErrorCode == VIP_ERROR_CONN_LOST)
		(*count)++;
}

/* Memory of every kind; a descriptor wherever there is room for one at a multiple of 64. */
static char in_data[8192] = "data";
static char in_bss[8192];

static VIP_DESCRIPTOR *aligned(char *p)
{
	return (VIP_DESCRIPTOR *)(void *)(((unsigned long)p + VIP_DESCRIPTOR_ALIGNMENT - 1) &
		~(unsigned long)(VIP_DESCRIPTOR_ALIGNMENT - 1));
}

/* VIs of one NIC handle, connected with each other. */
static void connect_both(struct side *s, VIP_VI_HANDLE one, VIP_VI_HANDLE two)
{
	VIP_VI_ATTRIBUTES theirs;
	VIP_NET_ADDRESS *a, *b;
	size_t room = sizeof(VIP_NET_ADDRESS) + s->attributes.NicAddressLen + sizeof(double);
	double d = 1100.0 * 17 + 3;

	a = (VIP_NET_ADDRESS *)calloc(1, room);
	b = (VIP_NET_ADDRESS *)calloc(1, room);
	a->HostAddressLen = b->HostAddressLen = s->attributes.NicAddressLen;
	a->DiscriminatorLen = b->DiscriminatorLen = sizeof(double);
	memcpy(a->HostAddress, s->attributes.LocalNicAddress, s->attributes.NicAddressLen);
	memcpy(b->HostAddress, s->attributes.LocalNicAddress, s->attributes.NicAddressLen);
	memcpy(a->HostAddress + a->HostAddressLen, &d, sizeof d);
	d++;
	memcpy(b->HostAddress + b->HostAddressLen, &d, sizeof d);
	CHECK(VipConnectPeerRequest(one, a, b, VIP_INFINITE));
	CHECK(VipConnectPeerRequest(two, b, a, VIP_INFINITE));
	CHECK(VipConnectPeerWait(one, &theirs));
	CHECK(VipConnectPeerWait(two, &theirs));
	ASSERT(theirs.MaxTransferSize == 32768 && theirs.EnableRdmaWrite == VIP_TRUE);
	free(a);
	free(b);
}

/* Whether a peer has written so far. */
static int is_last(const volatile char *p)
{
	return p[0] == 'l' && p[1] == 'a' && p[2] == 's' && p[3] == 't';
}

/* One message each way, written down in another way. */
static void both_spellings(VIP_VI_HANDLE one, VIP_VI_HANDLE two, char *from, VIP_MEM_HANDLE fh, char *to, VIP_MEM_HANDLE th)
{
	VIP_DESCRIPTOR *s = aligned(from), *r = aligned(to), *d = NULL, copy;
	char *out = (char *)s + 1024, *in = (char *)r + 1024;
	VIP_DATA_SEGMENT *seg;
	VIP_DESCRIPTOR_SEGMENT *ds;
	VIP_CONTROL_SEGMENT *cs;
	VIP_ADDRESS_SEGMENT as;
	VIP_RETURN rc;
	int i;

	/* Control and Data. The receive has a bit that means nothing there, and an old status. */
	memset(r, 0, sizeof *r);
	r->Control.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
	r->Control.SegCount = 1;
	r->Control.Length = 512;
	r->Control.Status = VIP_STATUS_DONE | VIP_STATUS_IMMEDIATE;
	seg = r->Data;
	seg->Data.Address = in;
	seg->Handle = th;
	seg->Length = 512;
	copy = *r;
	CHECK(vipl.post_recv(two, r, th));
	memset(s, 0, 4 * sizeof *s);
	for (i = 0; i < 300; i++)
		out[i] = (char)(i * 7);
	cs = &s->Control;
	cs->SegCount = 3; /* one more than a descriptor has room for: behind it */
	cs->Length = 300;
	for (i = 0, seg = &s->Data[0]; i < 3; i++, seg++) {
		seg->Data.AddressBits = (VIP_UINT64)out;
		seg->Data.AddressBits += (VIP_UINT64)(100 * i);
		seg->Handle = fh;
		seg->Length = 100;
	}
	CHECK(vipl.post_send(one, s, fh));
	do
		rc = vipl.recv_done(two, &d);
	while (rc == VIP_NOT_DONE);
	ASSERT(rc == VIP_SUCCESS && d == r && d->Control.Length == 300 && d->Control.ImmediateData == 0);
	ASSERT(memcmp(d->Data[0].Data.Address, out, 300) == 0);
	while ((rc = vipl.send_done(one, &d)) != VIP_SUCCESS)
		ASSERT(rc == VIP_NOT_DONE && d == NULL);
	ASSERT(d == s);

	/* CS and DS; the descriptor of the receive as it was. */
	*r = copy;
	CHECK(vipl.post_recv(two, r, th));
	memset(s, 0, sizeof *s);
	s->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
	s->CS.ImmediateData = 0x01020304;
	s->CS.SegCount = 1;
	s->CS.Length = 5;
	ds = s->DS;
	ds->Local.Data.Address = out;
	ds->Local.Handle = fh;
	ds->Local.Length = 5;
	CHECK(VipPostSend(one, s, s->DS[0].Local.Handle));
	while (!(r->CS.Status & VIP_STATUS_DONE))
		;
	ASSERT((r->CS.Status & VIP_STATUS_ERROR_MASK) == 0 && (r->CS.Status & VIP_STATUS_IMMEDIATE));
	ASSERT(r->CS.ImmediateData == 0x01020304 && r->CS.Length == 5);
	CHECK(VipRecvWait(two, VIP_INFINITE, &d));
	CHECK(VipSendWait(one, VIP_INFINITE, &d));

	/* Remote memory: an address segment that is assigned, and then moved on. */
	as.Data.Address = in;
	as.Handle = th;
	as.Reserved = 0;
	memset(in, 0, 512);
	memset(s, 0, sizeof *s);
	s->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
	s->CS.SegCount = 2;
	s->CS.Length = 8;
	s->DS[0].Remote = as;
	s->DS[0].Remote.Data.AddressBits += 128;
	s->DS[1].Local.Data.Address = out;
	s->DS[1].Local.Handle = fh;
	s->DS[1].Local.Length = 8;
	memcpy(out + 4, "last", 4);
	CHECK(VipPostSend(one, s, fh));
	while (!is_last(in + 132))
		;
	CHECK(VipSendWait(one, VIP_INFINITE, &d));
	/* The same by a cast of what is called a data segment. */
	s->Control.Status = 0;
	*(VIP_ADDRESS_SEGMENT *)(void *)&s->Data[0] = as;
	s->Data[1].Data.Address = out + 4;
	s->Data[1].Length = 4;
	s->Control.Length = 4;
	CHECK(VipPostSend(one, s, fh));
	CHECK(VipSendWait(one, VIP_INFINITE, &d));
	while (!is_last(in))
		;
}

int main(int argc, char **argv)
{
	struct side s;
	VIP_VI_HANDLE one = NULL, two = NULL;
	VIP_MEM_HANDLE data = (VIP_MEM_HANDLE)0, bss = 0, stack = 0, heap = 0, again = 0;
	VIP_MEM_ATTRIBUTES writable;
	VIP_ULONG lost = 0;
	VIP_DESCRIPTOR *d, *list = NULL;
	VIP_VI_STATE state;
	VIP_BOOLEAN sends, recvs;
	VIP_VI_ATTRIBUTES v;
	char on_stack[8192], *on_heap = (char *)malloc(8192);
	int i, status;

	codes();
	side_open(&s, argc, argv);
	ASSERT(strcmp(s.attributes.Name, "") != 0 && s.attributes.MaxTransferSize >= 32768 && s.attributes.MaxSegmentsPerDesc >= 252);
	status = vipl.callback(s.nic, &lost, on_error);
	if (status != VIP_SUCCESS)
		return 1;
	writable.Ptag = s.ptag;
	writable.EnableRdmaWrite = VIP_TRUE;
	writable.EnableRdmaRead = VIP_FALSE;
	CHECK(vipl.reg(s.nic, in_data, sizeof in_data, 0, &data));
	CHECK(vipl.reg(s.nic, on_stack, sizeof on_stack, NULL, &stack));
	CHECK(vipl.reg(s.nic, in_bss, sizeof in_bss, &writable, &bss));
	CHECK(vipl.reg(s.nic, on_heap, 8192, &writable, &heap));
	CHECK(vipl.reg(s.nic, on_heap, 8192, &writable, &again));
	ASSERT(data && stack && bss && heap && again && heap != again);
	CHECK(vipl.dereg(s.nic, on_heap, again));

	/* A tag that is the default one, and one of its own: both may use memory without. */
	CHECK(VipCreateVi(s.nic, &default_attributes, NULL, NULL, &one));
	v = default_attributes;
	v.Ptag = s.ptag;
	CHECK(VipCreateVi(s.nic, &v, NULL, NULL, &two));
	connect_both(&s, one, two);
	both_spellings(one, two, in_data, data, in_bss, bss);
	both_spellings(two, one, in_data, data, on_heap, heap);
	both_spellings(two, one, on_stack, stack, in_bss, bss);

	/* Peers have no access to memory without RDMA rights. */
	d = aligned(on_heap);
	memset(d, 0, sizeof *d);
	d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
	d->CS.SegCount = 2;
	d->CS.Length = 4;
	d->DS[0].Remote.Data.Address = in_data;
	d->DS[0].Remote.Handle = data;
	d->DS[1].Local.Data.Address = on_heap + 1024;
	d->DS[1].Local.Handle = heap;
	d->DS[1].Local.Length = 4;

	/* Receives are posted from a list by Next; an address that is none of a descriptor's is refused. */
	for (i = 0; i < 10; i++) {
		VIP_DESCRIPTOR *r = aligned(in_bss) + i;

		memset(r, 0, sizeof *r);
		r->CS.SegCount = 1;
		r->CS.Length = 64;
		r->DS[0].Local.Data.Address = in_bss + 4096;
		r->DS[0].Local.Handle = bss;
		r->DS[0].Local.Length = 64;
		r->CS.Next.Address = list;
		list = r;
	}
	EXPECT(VIP_INVALID_PARAMETER, VipPostRecv(two, (VIP_DESCRIPTOR *)(void *)((char *)list + 32), bss));
	while (list) {
		VIP_DESCRIPTOR *next = (VIP_DESCRIPTOR *)list->CS.Next.Address; /* posting it may change it */

		CHECK(VipPostRecv(two, list, bss));
		list = next;
	}
	CHECK(VipPostSend(one, d, heap));
	VipSendWait(one, PATIENCE, &d); /* done when it is on its way: what comes of it ends the connection */
	ASSERT(d == aligned(on_heap));
	do
		CHECK(VipQueryVi(two, &state, &v, &sends, &recvs));
	while (state == VIP_STATE_CONNECTED);
	ASSERT(state == VIP_STATE_ERROR && sends == VIP_TRUE);

	/* What is left is taken off until there is no more. */
	VipDisconnect(one);
	VipDisconnect(two);
	i = 0;
	do {
		status = VipRecvDone(two, &d);
		if (d) {
			ASSERT(status == VIP_DESCRIPTOR_ERROR && (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR));
			i++;
		}
	} while (d != 0);
	ASSERT(i == 10);
	CHECK(VipDestroyVi(two));
	do
		status = VipRecvDone(two, &d); /* of a VI that is gone: it ends all the same */
	while (d != 0);
	ASSERT(status == VIP_INVALID_PARAMETER);
	CHECK(VipDestroyVi(one));
	CHECK(vipl.dereg(s.nic, on_stack, stack));
	CHECK(vipl.dereg(s.nic, in_data, data));
	CHECK(vipl.close(s.nic));
	free(on_heap);
	printf("dialects: understood\n");
	return 0;
}
