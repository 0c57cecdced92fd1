/*
 * nodepair: a message library between two nodes as they were written for cLAN: both
 * ask for the connection, receives are posted ahead in a ring and posted again
 * as they are used, free send descriptors hang on each other by their Next, and
 * credits ride on messages. Above it, a program that sums up numbers.
 *
 *	nodepair server|client DEVICE ADDRESS-OF-THE-OTHER [COUNT]
 */
#include "pair.h"

/*
 * The library.
 */
#define RECVS 40
#define SENDS 24
#define BUFFER 2048

typedef struct {
	VIP_NIC_HANDLE nic;
	VIP_PROTECTION_HANDLE ptag;
	VIP_VI_HANDLE vi;
	VIP_CQ_HANDLE cq;
	VIP_MEM_HANDLE handle;
	VIP_DESCRIPTOR *free_sends;
	int credits, to_return, ended;
} NODE;

static void put_free(NODE *n, VIP_DESCRIPTOR *d)
{
	d->Control.Next.Descriptor = n->free_sends;
	n->free_sends = d;
}

static void node_post(NODE *n, VIP_DESCRIPTOR *d)
{
	d->Control.Control = VIP_CONTROL_OP_SENDRECV;
	d->Control.SegCount = 1;
	d->Control.Reserved = 0;
	d->Control.Length = BUFFER;
	d->Data[0].Handle = n->handle;
	d->Data[0].Length = BUFFER;
	CHECK(VipPostRecv(n->vi, d, n->handle));
}

static void node_init(NODE *n, const char *device, const char *peer, int rank)
{
	VIP_NIC_ATTRIBUTES nic;
	VIP_MEM_ATTRIBUTES mem;
	VIP_VI_ATTRIBUTES vi, theirs;
	VIP_NET_ADDRESS *local, *remote;
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;
	char *pool;
	size_t size = (RECVS + SENDS) * (sizeof(VIP_DESCRIPTOR) + BUFFER);
	int i, length;

	memset(n, 0, sizeof *n);
	CHECK(VipOpenNic((VIP_CHAR *)device, &n->nic));
	CHECK(VipQueryNic(n->nic, &nic));
	CHECK(VipCreatePtag(n->nic, &n->ptag));
	CHECK(VipCreateCQ(n->nic, 1, &n->cq));
	vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	if (nic.ReliabilityLevelSupport >= VIP_SERVICE_RELIABLE_RECEPTION)
		vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
	vi.MaxTransferSize = 32768;
	vi.QoS = 0;
	vi.Ptag = NULL;
	vi.EnableRdmaWrite = VIP_FALSE;
	vi.EnableRdmaRead = VIP_FALSE;
	CHECK(VipCreateVi(n->nic, &vi, NULL, n->cq, &n->vi));

	pool = (char *)valloc(size);
	mem.Ptag = n->ptag;
	mem.EnableRdmaWrite = VIP_FALSE;
	mem.EnableRdmaRead = VIP_FALSE;
	CHECK(VipRegisterMem(n->nic, pool, size, &mem, &n->handle));
	ASSERT(n->handle != 0);
	d = (VIP_DESCRIPTOR *)pool;
	pool = (char *)(d + RECVS + SENDS);
	for (i = 0; i < RECVS + SENDS; i++, d++, pool += BUFFER) {
		d->Data[0].Data.Address = pool;
		if (i < RECVS)
			node_post(n, d);
		else
			put_free(n, d);
	}
	n->credits = RECVS;

	/* Addresses of exactly the bytes that they have. */
	length = 4 + nic.NicAddressLen + (int)sizeof rank;
	local = (VIP_NET_ADDRESS *)malloc((size_t)length);
	remote = (VIP_NET_ADDRESS *)malloc((size_t)length);
	local->HostAddressLen = remote->HostAddressLen = nic.NicAddressLen;
	local->DiscriminatorLen = remote->DiscriminatorLen = sizeof rank;
	memcpy(local->HostAddress, nic.LocalNicAddress, nic.NicAddressLen);
	inet_pton(AF_INET, peer, remote->HostAddress);
	memcpy(local->HostAddress + nic.NicAddressLen, &rank, sizeof rank);
	rank = 1 - rank;
	memcpy(remote->HostAddress + nic.NicAddressLen, &rank, sizeof rank);
	CHECK(VipConnectPeerRequest(n->vi, local, remote, PATIENCE));
	do
		got = VipConnectPeerDone(n->vi, &theirs);
	while (got == VIP_NOT_DONE);
	CHECK(got);
	free(local);
	free(remote);
}

/* Takes what has arrived: one message, or nothing. The length, or -1. */
static int node_poll(NODE *n, void *data)
{
	VIP_DESCRIPTOR *d;
	VIP_VI_HANDLE vi;
	VIP_BOOLEAN recv;
	VIP_RETURN got = VipCQDone(n->cq, &vi, &recv);
	int length;

	if (got == VIP_NOT_DONE)
		return -1;
	CHECK(got);
	got = VipRecvDone(vi, &d);
	if (got == VIP_DESCRIPTOR_ERROR && (d->Control.Status & VIP_STATUS_DESC_FLUSHED_ERROR)) {
		n->ended = 1; /* the peer has disconnected */
		return -1;
	}
	CHECK(got);
	length = (int)d->Control.Length;
	memcpy(data, d->Data[0].Data.Address, (size_t)length);
	n->credits += (int)d->Control.ImmediateData; /* 0 where there is none */
	n->to_return++;
	node_post(n, d);
	return length;
}

static int node_send(NODE *n, const void *data, int length)
{
	VIP_DESCRIPTOR *d;

	while (VipSendDone(n->vi, &d) == VIP_SUCCESS)
		put_free(n, d);
	/* The last two credits are for what has no data. */
	if (!n->free_sends || n->credits <= (length ? 2 : 0))
		return 0;
	d = n->free_sends;
	n->free_sends = d->Control.Next.Descriptor;
	memcpy(d->Data[0].Data.Address, data, (size_t)length);
	d->Control.Control = VIP_CONTROL_OP_SENDRECV;
	d->Control.Reserved = 0;
	if (n->to_return) {
		d->Control.Control |= VIP_CONTROL_IMMEDIATE;
		d->Control.ImmediateData = (VIP_UINT32)n->to_return;
		n->to_return = 0;
	}
	d->Control.SegCount = 1;
	d->Control.Length = (VIP_UINT32)length;
	d->Data[0].Handle = n->handle;
	d->Data[0].Length = (VIP_UINT32)length;
	n->credits--;
	CHECK(VipPostSend(n->vi, d, n->handle));
	return 1;
}

/*
 * The program.
 */
int main(int argc, char **argv)
{
	NODE n;
	long count = 3000, sent = 0, got = 0, sum = 0, message[BUFFER / sizeof(long)];
	int server, length, k;

	if (argc < 4) /* both ask, so that the server needs the client's address, too */
		side_usage(argv[0]);
	server = strcmp(argv[1], "server") == 0;
	node_init(&n, argv[2], argv[3], server ? 0 : 1);
	k = 4;
	if (argc > k)
		count = atol(argv[k]);
	while (sent < count || got < count) {
		message[0] = sent;
		if (sent < count)
			sent += node_send(&n, message, (int)sizeof(long) * (int)(1 + sent % 200));
		if (n.to_return > RECVS / 2)
			node_send(&n, message, 0);
		length = node_poll(&n, message);
		ASSERT(!n.ended);
		if (length <= 0)
			continue;
		ASSERT(message[0] == got && length == (int)sizeof(long) * (int)(1 + got % 200));
		sum += message[0];
		got++;
	}
	ASSERT(sum == count * (count - 1) / 2);
	if (server) {
		while (!n.ended) /* the client goes first: it may still need credits */
			node_poll(&n, message);
	} else {
		VIP_DESCRIPTOR *d;
		VIP_RETURN code;

		/* Until the send queue is empty: the other has everything then. */
		while ((code = VipSendDone(n.vi, &d)) == VIP_NOT_DONE || code == VIP_SUCCESS)
			;
		ASSERT(code == VIP_DESCRIPTOR_ERROR && d == NULL);
		printf("nodepair: %ld messages each way, sum %ld\n", count, sum);
		CHECK(VipDisconnect(n.vi));
		VipDisconnect(n.vi);
	}
	VipDestroyVi(n.vi); /* with receives on it, and no look at what it says */
	VipDestroyCQ(n.cq);
	VipCloseNic(n.nic);
	return 0;
}
