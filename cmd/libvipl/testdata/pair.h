/*
 * What the test programs share: the arguments, checked calls, registered memory
 * with descriptors in it, and one connection.
 *
 *	program server DEVICE
 *	program client DEVICE ADDRESS-OF-SERVER
 */
#ifndef PAIR_H
#define PAIR_H

#define _DEFAULT_SOURCE 1 /* usleep, clock_gettime, valloc */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <vipl.h>

#define CHECK(call)                                                                      \
	do {                                                                             \
		VIP_RETURN got_ = (call);                                                \
		if (got_ != VIP_SUCCESS) {                                               \
			fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, got_); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

#define EXPECT(want, call)                                                               \
	do {                                                                             \
		VIP_RETURN got_ = (call);                                                \
		if (got_ != (want)) {                                                    \
			fprintf(stderr, "%s:%d: %s: %d, want %s\n", __FILE__, __LINE__, #call, got_, #want); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

#define ASSERT(that)                                                                     \
	do {                                                                             \
		if (!(that)) {                                                           \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #that); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

/* How many milliseconds to wait for what must come, on a machine that others use, too. */
#define PATIENCE 60000

/* Not every program uses all of it. */
#define PAIR_MAYBE __attribute__((unused))

/* One side of a pair. */
struct side {
	int server;
	const char *device, *peer;
	VIP_NIC_HANDLE nic;
	VIP_NIC_ATTRIBUTES attributes;
	VIP_PROTECTION_HANDLE ptag;
};

/* Room for an address of 16 bytes and a discriminator of 16. */
union address {
	VIP_NET_ADDRESS a;
	char room[4 + 16 + 16];
};

PAIR_MAYBE static void side_usage(const char *name)
{
	fprintf(stderr, "usage: %s server DEVICE | %s client DEVICE ADDRESS\n", name, name);
	exit(2);
}

PAIR_MAYBE static void side_open(struct side *s, int argc, char **argv)
{
	memset(s, 0, sizeof *s);
	if (argc < 3)
		side_usage(argv[0]);
	s->server = strcmp(argv[1], "server") == 0;
	s->device = argv[2];
	if (!s->server) {
		if (argc < 4)
			side_usage(argv[0]);
		s->peer = argv[3];
	}
	CHECK(VipOpenNic(s->device, &s->nic));
	CHECK(VipQueryNic(s->nic, &s->attributes));
	CHECK(VipCreatePtag(s->nic, &s->ptag));
}

/* n bytes of ordinary memory, registered, at a multiple of 64. */
PAIR_MAYBE static char *side_memory(struct side *s, unsigned long n, VIP_MEM_HANDLE *handle)
{
	VIP_MEM_ATTRIBUTES m;
	char *p;

	p = (char *)malloc(n + 64);
	ASSERT(p != NULL);
	memset(p, 0, n + 64);
	p += 64 - ((unsigned long)p & 63);
	m.Ptag = s->ptag;
	m.EnableRdmaWrite = VIP_TRUE;
	m.EnableRdmaRead = VIP_TRUE;
	CHECK(VipRegisterMem(s->nic, p, n, &m, handle));
	return p;
}

PAIR_MAYBE static VIP_VI_ATTRIBUTES side_attributes(struct side *s, VIP_RELIABILITY_LEVEL level)
{
	VIP_VI_ATTRIBUTES v;

	memset(&v, 0, sizeof v);
	v.ReliabilityLevel = level;
	v.MaxTransferSize = s->attributes.MaxTransferSize;
	v.Ptag = s->ptag;
	v.EnableRdmaWrite = VIP_TRUE;
	v.EnableRdmaRead = level != VIP_SERVICE_UNRELIABLE;
	return v;
}

PAIR_MAYBE static VIP_VI_HANDLE side_vi(struct side *s, VIP_RELIABILITY_LEVEL level, VIP_CQ_HANDLE cq)
{
	VIP_VI_ATTRIBUTES v = side_attributes(s, level);
	VIP_VI_HANDLE vi;

	CHECK(VipCreateVi(s->nic, &v, NULL, cq, &vi));
	return vi;
}

/* The address of this side, with a discriminator. */
PAIR_MAYBE static void side_local(struct side *s, union address *a, const char *discriminator)
{
	memset(a, 0, sizeof *a);
	a->a.HostAddressLen = s->attributes.NicAddressLen;
	a->a.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
	memcpy(a->a.HostAddress, s->attributes.LocalNicAddress, a->a.HostAddressLen);
	memcpy(a->a.HostAddress + a->a.HostAddressLen, discriminator, a->a.DiscriminatorLen);
}

PAIR_MAYBE static void side_remote(const char *peer, union address *a, const char *discriminator)
{
	memset(a, 0, sizeof *a);
	a->a.HostAddressLen = 4;
	a->a.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
	ASSERT(inet_pton(AF_INET, peer, a->a.HostAddress) == 1);
	memcpy(a->a.HostAddress + 4, discriminator, a->a.DiscriminatorLen);
}

PAIR_MAYBE static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Connects vi: the server accepts one request, the client asks until the server waits. */
PAIR_MAYBE static void side_connect(struct side *s, VIP_VI_HANDLE vi, const char *discriminator)
{
	union address local, remote;
	VIP_VI_ATTRIBUTES theirs;
	VIP_CONN_HANDLE conn;
	VIP_RETURN got;
	double start = seconds();

	side_local(s, &local, discriminator);
	if (s->server) {
		CHECK(VipConnectWait(s->nic, &local.a, PATIENCE, &remote.a, &theirs, &conn));
		CHECK(VipConnectAccept(conn, vi));
		return;
	}
	side_remote(s->peer, &remote, discriminator);
	do {
		got = VipConnectRequest(vi, &local.a, &remote.a, 5000, &theirs);
		if (got != VIP_SUCCESS)
			usleep(2000); /* the server is not there yet */
	} while ((got == VIP_NO_MATCH || got == VIP_TIMEOUT) && (seconds() - start) * 1e3 < PATIENCE);
	CHECK(got);
}

/*
 * Waits until the client, which has everything that it needs, has gone: the side that
 * disconnects first may lose what the other has not acknowledged in 200 ms.
 */
PAIR_MAYBE static void side_after(VIP_VI_HANDLE vi)
{
	VIP_VI_STATE state;

	do
		CHECK(VipQueryVi(vi, &state, NULL, NULL, NULL));
	while (state == VIP_STATE_CONNECTED);
}

/* A descriptor of one segment. */
PAIR_MAYBE static void describe(VIP_DESCRIPTOR *d, void *data, unsigned long n, VIP_MEM_HANDLE handle)
{
	d->CS.Control = VIP_CONTROL_OP_SENDRECV;
	d->CS.Reserved = 0;
	d->CS.SegCount = 1;
	d->CS.Length = (VIP_UINT32)n;
	d->DS[0].Local.Data.Address = data;
	d->DS[0].Local.Handle = handle;
	d->DS[0].Local.Length = (VIP_UINT32)n;
}

#endif
