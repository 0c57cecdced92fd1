/*
 * sixbytes: a library that knows no other address than cLAN's of six bytes, wired
 * in: hosts are found by name, of this side's own there is only the length. One
 * pool of descriptors serves sends and receives, which all have the immediate bit;
 * it lies in memory without attributes. To be run with VIA_ADDRESS_LEN=6.
 *
 *	sixbytes server|client DEVICE ADDRESS-OF-THE-OTHER [COUNT]
 */
#include "pair.h"

#define ADDR_LEN 6
#define POOL 64
#define MTU 4096

typedef struct {
	VIP_DESCRIPTOR desc;
	char data[MTU];
} MBUF;

static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE handle;
static VIP_DESCRIPTOR *pool;
static char *memory;
static VIP_VI_ATTRIBUTES vi_attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 32768, 0, 0, 0, 0};

static VIP_DESCRIPTOR *request(void)
{
	VIP_DESCRIPTOR *d = pool;

	ASSERT(d != NULL);
	pool = (VIP_DESCRIPTOR *)d->Control.Next.Address;
	return d;
}

static void release(VIP_DESCRIPTOR *d)
{
	d->Control.Length = MTU;
	d->Control.Status = 0;
	d->Data[0].Length = MTU;
	d->Control.Next.Address = pool;
	pool = d;
}

static void make_pool(void)
{
	VIP_DESCRIPTOR *d;
	int i;

	memory = (char *)malloc(64 + POOL * sizeof(MBUF));
	memset(memory, 0, 64 + POOL * sizeof(MBUF));
	CHECK(VipRegisterMem(nic, memory, 64 + POOL * sizeof(MBUF), 0, &handle));
	for (i = 0; i < POOL; i++) {
		d = &((MBUF *)(((unsigned long)memory + 63) & ~63UL))[i].desc;
		d->Control.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
		d->Control.SegCount = 1;
		d->Data[0].Data.Address = (char *)d + sizeof(VIP_DESCRIPTOR);
		d->Data[0].Handle = handle;
		release(d);
	}
}

static void connect_to(int server, char *name, char *discriminator)
{
	char localbuf[40], remotebuf[40];
	VIP_NET_ADDRESS *local = (VIP_NET_ADDRESS *)(void *)localbuf, *remote = (VIP_NET_ADDRESS *)(void *)remotebuf;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE conn;
	VIP_RETURN rc;

	memset(localbuf, 0xa5, sizeof localbuf); /* what lay on the stack */
	memset(remotebuf, 0x5a, sizeof remotebuf);
	local->HostAddressLen = ADDR_LEN;
	local->DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
	memcpy(local->HostAddress + ADDR_LEN, discriminator, local->DiscriminatorLen);
	if (server) {
		CHECK(VipConnectWait(nic, local, VIP_INFINITE, remote, &theirs, &conn));
		ASSERT(remote->HostAddressLen == ADDR_LEN && remote->DiscriminatorLen == strlen(discriminator));
		ASSERT(memcmp(remote->HostAddress + ADDR_LEN, discriminator, remote->DiscriminatorLen) == 0);
		ASSERT((remotebuf[4 + ADDR_LEN + remote->DiscriminatorLen] & 0xff) == 0x5a); /* and no byte behind it */
		CHECK(VipConnectAccept(conn, vi));
		return;
	}
	CHECK(VipNSInit(nic, 0));
	CHECK(VipNSGetHostByName(nic, name, remote, 0));
	ASSERT(remote->HostAddressLen == ADDR_LEN);
	remote->DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
	memcpy(remote->HostAddress + ADDR_LEN, discriminator, remote->DiscriminatorLen);
	do
		rc = VipConnectRequest(vi, local, remote, PATIENCE, &theirs);
	while (rc == VIP_NO_MATCH);
	CHECK(rc);
}

static void transfer(int sends, long i)
{
	VIP_DESCRIPTOR *d, *done;
	VIP_RETURN rc;

	if (sends) {
		d = request();
		d->Control.ImmediateData = (VIP_UINT32)i;
		d->Control.Length = (VIP_UINT32)(i % MTU);
		d->Data[0].Length = d->Control.Length;
		memset(d->Data[0].Data.Address, (int)i & 0xff, d->Control.Length);
		CHECK(VipPostSend(vi, d, d->Data[0].Handle));
		CHECK(VipSendWait(vi, PATIENCE, &done));
		ASSERT(done == d);
		release(done);
		return;
	}
	while ((rc = VipRecvDone(vi, &done)) == VIP_NOT_DONE)
		;
	CHECK(rc);
	ASSERT(done->Control.ImmediateData == (VIP_UINT32)i && done->Control.Length == (VIP_UINT32)(i % MTU));
	ASSERT(done->Control.Length == 0 ||
		((char *)done->Data[0].Data.Address)[done->Control.Length - 1] == (char)(i & 0xff));
	release(done);
	d = request();
	CHECK(VipPostRecv(vi, d, d->Data[0].Handle));
}

int main(int argc, char **argv)
{
	VIP_NIC_ATTRIBUTES attributes;
	VIP_DESCRIPTOR *d;
	long count = 200, i;
	int server;

	if (argc < 4)
		side_usage(argv[0]);
	server = strcmp(argv[1], "server") == 0;
	if (argc > 4)
		count = atol(argv[4]);
	CHECK(VipOpenNic(argv[2], &nic));
	CHECK(VipQueryNic(nic, &attributes));
	ASSERT(attributes.NicAddressLen == ADDR_LEN && attributes.LocalNicAddress[4] == 0 && attributes.LocalNicAddress[5] == 0);
	CHECK(VipCreateVi(nic, &vi_attributes, NULL, NULL, &vi));
	make_pool();
	for (i = 0; i < POOL / 2; i++) {
		d = request();
		CHECK(VipPostRecv(vi, d, handle));
	}
	connect_to(server, argv[3], (char *)"job42");
	for (i = 0; i < count; i++) {
		transfer(server, i);
		transfer(!server, i);
	}
	if (server)
		side_after(vi);
	VipDisconnect(vi);
	do
		VipRecvDone(vi, &d);
	while (d != 0);
	CHECK(VipDestroyVi(vi));
	CHECK(VipDeregisterMem(nic, memory, handle));
	free(memory);
	CHECK(VipCloseNic(nic));
	if (!server)
		printf("sixbytes: %ld messages each way\n", count);
	return 0;
}
