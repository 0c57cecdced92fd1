/*
 * A ping-pong over libvipl by polling, as fi_pingpong's over libfabric. A TCP port says that the server is ready.
 *
 *	pingpong DEVICE PORT BYTES COUNT [SERVER-ADDRESS]
 *
 * The client prints, of half round trips in microseconds: COUNT, mean, least, median, 99 % and 99.9 %.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vipl.h>

enum { AHEAD = 4 /* receives */, TIMEOUT = 20000 /* ms */ };

#define CHECK(call)                                                          \
	do {                                                                 \
		VIP_RETURN got_ = (call);                                    \
		if (got_ != VIP_SUCCESS) {                                   \
			fprintf(stderr, "%s: error %d\n", #call, (int)got_); \
			exit(1);                                             \
		}                                                            \
	} while (0)

static VIP_VI_HANDLE vi;
static VIP_DESCRIPTOR *out, *in;
static char *from;
static VIP_MEM_HANDLE handle;
static unsigned bytes;

static void describe(VIP_DESCRIPTOR *d, void *data)
{
	memset(d, 0, sizeof *d);
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.SegCount = 1;
	d->CS.Length = d->DS[0].Local.Length = bytes;
	d->DS[0].Local.Data.Address = data;
	d->DS[0].Local.Handle = handle;
}

static void receive(long i)
{
	describe(&in[i % AHEAD], from + i % AHEAD * bytes);
	CHECK(VipPostRecv(vi, &in[i % AHEAD], handle));
}

static void take(VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;

	while ((got = done(vi, &d)) == VIP_NOT_DONE)
		;
	CHECK(got);
}

static void post(char *data)
{
	describe(out, data);
	CHECK(VipPostSend(vi, out, handle));
}

static void name(VIP_NET_ADDRESS *a, const void *host, size_t length)
{
	static const char service[] = "pingpong";

	a->HostAddressLen = (VIP_UINT16)length;
	a->DiscriminatorLen = sizeof service - 1;
	memcpy(a->HostAddress, host, length);
	memcpy(a->HostAddress + length, service, sizeof service - 1);
}

static void ready(int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int s = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(s, (struct sockaddr *)&a, sizeof a) != 0 || listen(s, 1) != 0) {
		perror("listen");
		exit(1);
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	char local[64] = {0}, remote[64] = {0}, peer[4];
	VIP_VI_ATTRIBUTES attributes = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY}, theirs;
	VIP_NIC_ATTRIBUTES nic_attributes;
	VIP_CONN_HANDLE connection;
	VIP_NIC_HANDLE nic;
	VIP_VI_STATE state = VIP_STATE_CONNECTED;
	char *memory;
	double *trips, began, sum = 0;
	long count, i, warm;
	int client = argc > 5;

	if (argc < 5)
		return 2;
	bytes = (unsigned)atoi(argv[3]);
	count = atol(argv[4]);
	warm = count / 10 + 1;
	trips = calloc((size_t)count, sizeof *trips);
	memory = aligned_alloc(64, (64 * (AHEAD + 1) + (size_t)(AHEAD + 1) * bytes + 63) & ~(size_t)63);
	out = (VIP_DESCRIPTOR *)memory;
	in = out + 1;
	from = memory + 64 * (AHEAD + 1);
	CHECK(VipOpenNic(argv[1], &nic));
	CHECK(VipQueryNic(nic, &nic_attributes));
	CHECK(VipRegisterMem(nic, memory, 64 * (AHEAD + 1) + (VIP_ULONG)(AHEAD + 1) * bytes, NULL, &handle));
	CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
	for (i = 0; i < AHEAD; i++)
		receive(i);
	name((VIP_NET_ADDRESS *)local, nic_attributes.LocalNicAddress, nic_attributes.NicAddressLen);
	if (client) {
		if (inet_pton(AF_INET, argv[5], peer) != 1)
			return 2;
		name((VIP_NET_ADDRESS *)remote, peer, sizeof peer);
		CHECK(VipConnectRequest(vi, (VIP_NET_ADDRESS *)local, (VIP_NET_ADDRESS *)remote, TIMEOUT, &theirs));
	} else {
		CHECK(VipxListen(nic, (VIP_NET_ADDRESS *)local));
		ready(atoi(argv[2]));
		CHECK(VipConnectWait(nic, (VIP_NET_ADDRESS *)local, TIMEOUT, (VIP_NET_ADDRESS *)remote, &theirs, &connection));
		CHECK(VipConnectAccept(connection, vi));
	}
	for (i = -warm; i < count; i++) {
		began = now();
		if (client)
			post(from + AHEAD * bytes);
		take(VipRecvDone);
		if (!client)
			post(from + AHEAD * bytes);
		receive(i + warm); /* the one that was taken, again */
		take(VipSendDone);
		if (i >= 0)
			trips[i] = (now() - began) / 2;
	}
	for (i = 0; i < count; i++)
		sum += trips[i];
	qsort(trips, (size_t)count, sizeof *trips, ascending);
	if (client) {
		printf("%ld %.3f %.3f %.3f %.3f %.3f\n", count, sum / (double)count, trips[0], trips[count / 2],
			trips[count - 1 - count / 100], trips[count - 1 - count / 1000]);
		CHECK(VipDisconnect(vi));
	}
	while (!client && state == VIP_STATE_CONNECTED) /* until the client has everything */
		CHECK(VipQueryVi(vi, &state, NULL, NULL, NULL));
	CHECK(VipCloseNic(nic));
	return 0;
}
