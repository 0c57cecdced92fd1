/*
 * hello INTERFACE OWN-ADDRESS SERVER NAME - requests a connection with an FI_EP_RDM endpoint, and says that it is NAME.
 *
 * It prints "accepted" or "refused".
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../src/cm.h"

enum { PORT = 7119, WAIT = 10000 }; /* the server's; ms */

#define OK(call)                                                                  \
	do {                                                                      \
		int result_ = (int)(call);                                        \
		if (result_) {                                                    \
			fprintf(stderr, "%s: %d\n", #call, result_);              \
			exit(2);                                                  \
		}                                                                 \
	} while (0)

struct greeting { /* as in rdm.c */
	uint64_t instance;
	uint32_t crossed, reserved;
};

static void address(union net_address *out, const char *text)
{
	int v6 = strchr(text, ':') != NULL;

	memset(out, 0, sizeof *out);
	out->a.HostAddressLen = v6 ? 16 : 4;
	OK(inet_pton(v6 ? AF_INET6 : AF_INET, text, out->a.HostAddress) != 1);
}

static void name(union vx_addr *out, const char *text)
{
	if (strchr(text, ':')) {
		out->in6.sin6_family = AF_INET6;
		out->in6.sin6_port = htons(4000);
		OK(inet_pton(AF_INET6, text, &out->in6.sin6_addr) != 1);
	} else {
		out->in.sin_family = AF_INET;
		out->in.sin_port = htons(4000);
		OK(inet_pton(AF_INET, text, &out->in.sin_addr) != 1);
	}
}

static void prepare(VIP_DESCRIPTOR *d, void *data, VIP_MEM_HANDLE handle, size_t length)
{
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 1;
	d->CS.Length = (VIP_UINT32)length;
	d->DS[0].Local.Data.Address = data;
	d->DS[0].Local.Handle = handle;
	d->DS[0].Local.Length = (VIP_UINT32)length;
}

int main(int argc, char **argv)
{
	static struct vx_memory m __attribute__((aligned(4096)));
	struct greeting g = {.instance = 42};
	struct vx_hello hello = {.magic = "viaxdp", .version = VX_VERSION, .piece = VX_PIECE, .rdm = 1, .length = sizeof g};
	VIP_VI_ATTRIBUTES attributes = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = VIP_TRUE};
	union net_address local, remote;
	VIP_NIC_HANDLE nic;
	VIP_MEM_HANDLE handle;
	VIP_VI_HANDLE vi;
	VIP_DESCRIPTOR *d;

	if (argc != 5)
		return 2;
	address(&local, argv[2]);
	address(&remote, argv[3]);
	remote.a.DiscriminatorLen = 5;
	memcpy(remote.a.HostAddress + remote.a.HostAddressLen, (char[]){'o', 'f', 'i', PORT >> 8, PORT & 0xff}, 5);
	name(&hello.from, argv[4]);
	OK(VipOpenNic(argv[1], &nic));
	OK(VipRegisterMem(nic, &m, sizeof m, NULL, &handle));
	OK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
	prepare(&m.rx[0].d, &m.rx[0].header, handle, sizeof m.rx[0].header + VX_PIECE);
	OK(VipPostRecv(vi, &m.rx[0].d, handle));
	OK(VipConnectRequest(vi, &local.a, &remote.a, WAIT, NULL));
	m.tx[0].header.type = VX_HELLO;
	memcpy(m.tx[0].data, &hello, sizeof hello);
	memcpy(m.tx[0].data + sizeof hello, &g, sizeof g);
	prepare(&m.tx[0].d, &m.tx[0].header, handle, sizeof m.tx[0].header + sizeof hello + sizeof g);
	OK(VipPostSend(vi, &m.tx[0].d, handle));
	puts(VipRecvWait(vi, WAIT, &d) == VIP_SUCCESS && m.rx[0].header.type == VX_ACCEPT ? "accepted" : "refused");
	return 0;
}
