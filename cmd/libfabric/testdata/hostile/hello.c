/*
 * hello INTERFACE OWN-ADDRESS SERVER NAME [MESSAGES BYTES] - requests a connection with an FI_EP_RDM endpoint, and says that
 * it is NAME.
 *
 * It prints "accepted" or "refused". Then it sends messages that match no receive and want acknowledgements, also when the server asks
 * it not to. It prints "acknowledged" if the server acknowledges all of them, or "closed" if that ends the connection.
 *
 * hello INTERFACE OWN-ADDRESS SERVER NAME TAG - connects, and then once more, and says that it is the server's own endpoint. It sends a long
 * message with that tag, which cannot be read, and ends.
 *
 * Compiled with MSG it has an FI_EP_MSG endpoint, and requests a connection only.
 *
 * hello INTERFACE OWN-ADDRESS - is a server that sends a piece of a message in place of the answer, and ends.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../src/cm.h"

#ifdef MSG
enum { PORT = 7118, RDM = 0 };
#else
enum { PORT = 7119, RDM = 1 };
#endif
enum { WAIT = 10000 }; /* ms */

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

static struct vx_memory m __attribute__((aligned(4096)));
static VIP_MEM_HANDLE handle;
static VIP_VI_HANDLE vi;

static void receive(struct vx_rx_slot *slot)
{
	prepare(&slot->d, &slot->header, handle, sizeof slot->header + VX_PIECE);
	OK(VipPostRecv(vi, &slot->d, handle));
}

/* 1: it was sent. */
static int send_one(enum vx_type type, size_t total, size_t length)
{
	struct vx_tx_slot *slot = &m.tx[0];
	VIP_DESCRIPTOR *d;

	memset(&slot->header, 0, sizeof slot->header);
	slot->header.type = (uint8_t)type;
	slot->header.flags = type == VX_EAGER ? VX_WANT_ACK : 0;
	slot->header.total = total;
	slot->header.limit = VX_CREDITS;
	prepare(&slot->d, &slot->header, handle, sizeof slot->header + length);
	return VipPostSend(vi, &slot->d, handle) == VIP_SUCCESS && VipSendWait(vi, WAIT, &d) == VIP_SUCCESS;
}

static void open_vi(VIP_NIC_HANDLE nic)
{
	VIP_VI_ATTRIBUTES attributes = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = VIP_TRUE};
	int i;

	OK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
	for (i = 0; i < VX_RECEIVES; i++)
		receive(&m.rx[i]);
}

/* Requests the connection, and leaves the server's instance in *instance. 1: it was accepted. */
static int request(union net_address *local, union net_address *remote, const char *as, uint64_t *instance)
{
	struct greeting g = {.instance = *instance};
	struct vx_hello hello = {.magic = "viaxdp", .version = VX_VERSION, .piece = VX_PIECE, .rdm = RDM, .length = sizeof g};
	VIP_DESCRIPTOR *d;
	int accepted;

	name(&hello.from, as);
	OK(VipConnectRequest(vi, &local->a, &remote->a, WAIT, NULL));
	memset(&m.tx[0].header, 0, sizeof m.tx[0].header);
	m.tx[0].header.type = VX_HELLO;
	memcpy(m.tx[0].data, &hello, sizeof hello);
	memcpy(m.tx[0].data + sizeof hello, &g, sizeof g);
	prepare(&m.tx[0].d, &m.tx[0].header, handle, sizeof m.tx[0].header + sizeof hello + sizeof g);
	OK(VipPostSend(vi, &m.tx[0].d, handle));
	accepted = VipRecvWait(vi, WAIT, &d) == VIP_SUCCESS && m.rx[0].header.type == VX_ACCEPT;
	puts(accepted ? "accepted" : "refused");
	OK(VipSendWait(vi, WAIT, &d));
	memcpy(&g, m.rx[0].data + sizeof hello, sizeof g);
	*instance = g.instance;
	return accepted;
}

/* A long message at an address that nobody may read. */
static void send_unreadable(uint64_t tag)
{
	struct vx_tx_slot *slot = &m.tx[0];
	struct vx_request r = {.count = 1, .parts = {{.address = 4096, .length = 1000, .key = 1}}};
	VIP_DESCRIPTOR *d;

	slot->header = (struct vx_header){.type = VX_REQUEST, .flags = VX_TAGGED, .tag = tag, .total = 1000, .limit = VX_CREDITS};
	memcpy(slot->data, &r, sizeof r);
	prepare(&slot->d, &slot->header, handle, sizeof slot->header + sizeof r);
	OK(VipPostSend(vi, &slot->d, handle));
	OK(VipSendWait(vi, WAIT, &d));
}

static void close_vi(void)
{
	VIP_DESCRIPTOR *d;

	OK(VipDisconnect(vi));
	while (VipRecvDone(vi, &d), d)
		;
	OK(VipDestroyVi(vi));
}

static const char *messages(uint32_t count, size_t length)
{
	uint32_t sent = 0, acked = 0, limit = VX_CREDITS;

	while (acked != count) {
		int more = sent != count && sent != limit;
		VIP_DESCRIPTOR *d;
		VIP_RETURN code;

		if (more && !send_one(VX_EAGER, length, length))
			return "closed";
		sent += (uint32_t)more;
		code = more ? VipRecvDone(vi, &d) : VipRecvWait(vi, WAIT, &d);
		if (code == VIP_SUCCESS) {
			struct vx_rx_slot *r = VX_OUTER(d, struct vx_rx_slot, d);

			limit = r->header.limit;
			acked = r->header.acked;
			if (r->header.type == VX_ACK && !send_one(VX_SEEN, 0, 0))
				return "closed";
			receive(r);
		} else if (code != VIP_NOT_DONE) {
			return code == VIP_TIMEOUT ? "forgotten" : "closed";
		}
	}
	return "acknowledged";
}

static void listener(union net_address *at)
{
	at->a.DiscriminatorLen = 5;
	memcpy(at->a.HostAddress + at->a.HostAddressLen, (char[]){'o', 'f', 'i', PORT >> 8, PORT & 0xff}, 5);
}

static void serve(VIP_NIC_HANDLE nic, union net_address *local)
{
	VIP_CONN_HANDLE request;
	VIP_DESCRIPTOR *d;

	listener(local);
	OK(VipConnectWait(nic, &local->a, WAIT, NULL, NULL, &request));
	OK(VipConnectAccept(request, vi));
	OK(VipRecvWait(vi, WAIT, &d));
	OK(!send_one(VX_EAGER, 20000, 10));
	OK(VipDisconnect(vi));
}

int main(int argc, char **argv)
{
	union net_address local, remote;
	uint64_t instance = 42;
	VIP_NIC_HANDLE nic;
	int accepted;

	if (argc != 3 && (argc < 5 || argc > 7))
		return 2;
	address(&local, argv[2]);
	OK(VipOpenNic(argv[1], &nic));
	OK(VipRegisterMem(nic, &m, sizeof m, NULL, &handle));
	open_vi(nic);
	if (argc == 3) {
		serve(nic, &local);
		return 0;
	}
	address(&remote, argv[3]);
	listener(&remote);
	accepted = request(&local, &remote, argv[4], &instance);
	if (accepted && argc == 6) {
		close_vi();
		open_vi(nic);
		if (request(&local, &remote, argv[4], &instance))
			send_unreadable(strtoul(argv[5], NULL, 10));
		close_vi();
	}
	if (accepted && argc == 7)
		puts(messages((uint32_t)strtoul(argv[5], NULL, 10), strtoul(argv[6], NULL, 10)));
	return 0;
}
