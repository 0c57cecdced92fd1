/*
 * hello: one message there and one back.
 *
 *	hello server DEVICE
 *	hello client DEVICE ADDRESS-OF-SERVER
 *
 *	cc -o hello hello.c $(pkg-config --cflags --libs vipl)
 */
#define _DEFAULT_SOURCE 1 /* posix_memalign, usleep */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vipl.h>

#define ROOM 1024      /* bytes of a message, at most */
#define TIMEOUT 10000 /* milliseconds */

static const char service[] = "hello"; /* what the server waits on: any bytes */

/* Descriptors lie in registered memory, at multiples of 64 bytes. So may the data. */
struct memory {
	VIP_DESCRIPTOR in, out;
	char received[ROOM], sent[ROOM];
};

static void check(VIP_RETURN code, const char *what)
{
	if (code == VIP_SUCCESS)
		return;
	fprintf(stderr, "hello: %s: code %d (VIA_VERBOSE=1 tells more)\n", what, (int)code);
	exit(1);
}

/* Fills in a descriptor of one segment, for a send or a receive. */
static void fill(VIP_DESCRIPTOR *d, void *data, unsigned length, VIP_MEM_HANDLE handle)
{
	memset(d, 0, sizeof *d);
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 1;
	d->CS.Length = length; /* of a send: the sum of its segments */
	d->DS[0].Local.Data.Address = data;
	d->DS[0].Local.Handle = handle;
	d->DS[0].Local.Length = length;
}

/* A host of this NIC's kind, and the service behind it. */
static VIP_NET_ADDRESS *address(const void *host, unsigned length)
{
	VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)calloc(1, sizeof *a + length + sizeof service);

	if (a == NULL) {
		check(VIP_ERROR_RESOURCE, "calloc");
		return NULL;
	}
	a->HostAddressLen = (VIP_UINT16)length;
	a->DiscriminatorLen = (VIP_UINT16)strlen(service);
	memcpy(a->HostAddress, host, length);
	memcpy(a->HostAddress + length, service, strlen(service));
	return a;
}

static void send_text(VIP_VI_HANDLE vi, struct memory *m, VIP_MEM_HANDLE handle, const char *text)
{
	VIP_DESCRIPTOR *done;

	strcpy(m->sent, text);
	fill(&m->out, m->sent, (unsigned)strlen(text), handle);
	check(VipPostSend(vi, &m->out, handle), "VipPostSend");
	check(VipSendWait(vi, TIMEOUT, &done), "VipSendWait");
}

static void receive_text(VIP_VI_HANDLE vi)
{
	VIP_DESCRIPTOR *done;

	check(VipRecvWait(vi, TIMEOUT, &done), "VipRecvWait");
	printf("%.*s\n", (int)done->CS.Length, (char *)done->DS[0].Local.Data.Address);
}

int main(int argc, char **argv)
{
	VIP_NIC_HANDLE nic;
	VIP_NIC_ATTRIBUTES attributes;
	VIP_PROTECTION_HANDLE ptag;
	VIP_MEM_ATTRIBUTES memory_attributes;
	VIP_MEM_HANDLE handle;
	VIP_VI_ATTRIBUTES vi_attributes;
	VIP_VI_HANDLE vi;
	VIP_VI_STATE state;
	VIP_CONN_HANDLE request;
	VIP_NET_ADDRESS *local, *remote;
	VIP_RETURN code = VIP_NO_MATCH;
	struct memory *m;
	unsigned char host[16];
	void *p;
	int server = argc == 3 && strcmp(argv[1], "server") == 0, tries;

	if (!server && (argc != 4 || strcmp(argv[1], "client") != 0)) {
		fprintf(stderr, "usage: hello server DEVICE | hello client DEVICE ADDRESS\n");
		return 2;
	}
	check(VipOpenNic(argv[2], &nic), "VipOpenNic");
	check(VipQueryNic(nic, &attributes), "VipQueryNic");
	check(VipCreatePtag(nic, &ptag), "VipCreatePtag");

	/* Memory, for descriptors and data, that VIs with the tag may use. */
	if (posix_memalign(&p, VIP_DESCRIPTOR_ALIGNMENT, sizeof *m) != 0)
		check(VIP_ERROR_RESOURCE, "posix_memalign");
	m = (struct memory *)p;
	memset(m, 0, sizeof *m);
	memset(&memory_attributes, 0, sizeof memory_attributes);
	memory_attributes.Ptag = ptag;
	check(VipRegisterMem(nic, m, sizeof *m, &memory_attributes, &handle), "VipRegisterMem");

	/* A VI. Its receive is posted before the peer can send. */
	memset(&vi_attributes, 0, sizeof vi_attributes);
	vi_attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
	vi_attributes.MaxTransferSize = ROOM;
	vi_attributes.Ptag = ptag;
	check(VipCreateVi(nic, &vi_attributes, NULL, NULL, &vi), "VipCreateVi");
	fill(&m->in, m->received, ROOM, handle);
	check(VipPostRecv(vi, &m->in, handle), "VipPostRecv");

	local = address(attributes.LocalNicAddress, attributes.NicAddressLen);
	if (server) {
		check(VipConnectWait(nic, local, VIP_INFINITE, NULL, NULL, &request), "VipConnectWait");
		check(VipConnectAccept(request, vi), "VipConnectAccept");
		receive_text(vi);
		send_text(vi, m, handle, "hello, client");
		do { /* until the client, which has the answer then, disconnects */
			usleep(1000);
			check(VipQueryVi(vi, &state, NULL, NULL, NULL), "VipQueryVi");
		} while (state == VIP_STATE_CONNECTED);
	} else {
		if (inet_pton(attributes.NicAddressLen == 16 ? AF_INET6 : AF_INET, argv[3], host) != 1)
			check(VIP_INVALID_PARAMETER, argv[3]);
		remote = address(host, attributes.NicAddressLen);
		for (tries = 0; tries < TIMEOUT / 10 && code == VIP_NO_MATCH; tries++) {
			if (tries > 0)
				usleep(10000); /* the server does not wait yet */
			code = VipConnectRequest(vi, local, remote, TIMEOUT, NULL);
		}
		check(code, "VipConnectRequest");
		free(remote);
		send_text(vi, m, handle, "hello, server");
		receive_text(vi);
	}
	check(VipDisconnect(vi), "VipDisconnect");
	free(local);
	check(VipCloseNic(nic), "VipCloseNic"); /* with all that is open under it */
	free(m);
	return 0;
}
