/*
 * pingpong: the latency test of old. A message goes there and back COUNT times,
 * by polling, for sizes from 4 bytes up; half of a round trip is printed, the mean
 * and the median. A few receives are posted ahead, so that posting the next one
 * and taking the send back is done while the message travels.
 *
 *	pingpong server|client DEVICE [ADDRESS] [COUNT [SIZE]]
 */
#include "pair.h"

#define MOST 32768
#define AHEAD 4 /* receives */

static VIP_VI_HANDLE vi;
static VIP_DESCRIPTOR *out, *in; /* in: AHEAD of them */
static char *to, *from;
static VIP_MEM_HANDLE handle;

/* Posts receive i again. */
static void post_recv(long i)
{
	describe(&in[i % AHEAD], from + i % AHEAD * MOST, MOST, handle);
	CHECK(VipPostRecv(vi, &in[i % AHEAD], handle));
}

static void post_send(unsigned long n)
{
	describe(out, to, n, handle);
	CHECK(VipPostSend(vi, out, handle));
}

static void take(VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **), VIP_DESCRIPTOR *want)
{
	VIP_DESCRIPTOR *d;
	VIP_RETURN got;

	do
		got = done(vi, &d);
	while (got == VIP_NOT_DONE);
	CHECK(got);
	ASSERT(d == want);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	struct side s;
	char *memory;
	long count = 1000, size = 0, n, i, first, message = 0;
	double *trips;
	int k;

	side_open(&s, argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = atol(argv[k]);
	if (argc > k + 1)
		size = atol(argv[k + 1]);
	trips = (double *)malloc((unsigned long)count * sizeof *trips);
	ASSERT(trips != NULL);
	memory = side_memory(&s, (AHEAD + 1) * (64 + MOST), &handle);
	out = (VIP_DESCRIPTOR *)memory;
	in = out + 1;
	to = memory + 64 * (AHEAD + 1);
	from = to + MOST;
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	for (i = 0; i < AHEAD; i++)
		post_recv(i);
	side_connect(&s, vi, "pingpong");

	first = size ? size : 4;
	if (!s.server)
		printf("%10s %14s %12s\n", "bytes", "one way (us)", "median");
	for (n = first; n <= (size ? size : MOST); n *= 2) {
		double start = 0, began, now;
		long warm = count / 10 + 1;

		for (i = -warm; i < count; i++) {
			began = seconds();
			if (i == 0)
				start = began;
			memset(to, (int)(message & 127), n < 64 ? (unsigned long)n : 64);
			if (!s.server)
				post_send((unsigned long)n);
			if (!s.server && message > 0)
				post_recv(message - 1 + AHEAD);
			take(VipRecvDone, &in[message % AHEAD]);
			ASSERT(in[message % AHEAD].CS.Length == (VIP_UINT32)n);
			ASSERT(from[message % AHEAD * MOST] == (char)(message & 127));
			if (s.server) {
				post_send((unsigned long)n);
				post_recv(message + AHEAD);
			}
			take(VipSendDone, out);
			message++;
			now = seconds();
			if (i >= 0)
				trips[i] = now - began;
		}
		now = seconds();
		qsort(trips, (unsigned long)count, sizeof *trips, ascending);
		if (!s.server)
			printf("%10ld %14.2f %12.2f\n", n, (now - start) / (double)count / 2 * 1e6, trips[count / 2] / 2 * 1e6);
	}
	if (s.server)
		side_after(vi);
	else
		CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
