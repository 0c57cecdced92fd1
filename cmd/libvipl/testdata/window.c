/*
 * window: the bandwidth test of old. The client sends COUNT messages one way, as
 * fast as its send queue and the receiver's credits allow; the server gives
 * credits back by messages of immediate data alone, and says so when it has all.
 *
 *	window server|client DEVICE [ADDRESS] [COUNT [SIZE]]
 */
#include "pair.h"

#define WINDOW 64 /* messages that the receiver has room for */
#define MOST 32768

int main(int argc, char **argv)
{
	struct side s;
	VIP_VI_HANDLE vi;
	VIP_MEM_HANDLE handle;
	VIP_DESCRIPTOR *ring, *other, *d;
	VIP_RETURN got;
	char *memory, *data;
	long count = 2000, size = 0, n, i, k, credits, sent = 0, done = 0, taken = 0, end = 0, owed = 0, said = 0;

	side_open(&s, argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = atol(argv[k]);
	if (argc > k + 1)
		size = atol(argv[k + 1]);
	memory = side_memory(&s, WINDOW * (2 * 64 + MOST), &handle);
	ring = (VIP_DESCRIPTOR *)memory; /* of data */
	other = ring + WINDOW;           /* of credits */
	data = memory + 2 * 64 * WINDOW;
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	for (i = 0; i < WINDOW; i++) {
		describe(&ring[i], data + i * MOST, MOST, handle);
		describe(&other[i], data, 0, handle);
		other[i].CS.SegCount = 0;
		CHECK(VipPostRecv(vi, s.server ? &ring[i] : &other[i], handle));
	}
	side_connect(&s, vi, "window");
	if (!s.server)
		printf("%10s %12s %12s\n", "bytes", "MB/s", "messages/s");
	for (n = size ? size : 64; n <= (size ? size : MOST); n *= 4) {
		double start = seconds();

		credits = WINDOW;
		end += count;
		while (s.server ? taken < end : sent < end || done < sent || credits < WINDOW) {
			if (!s.server && credits > 0 && sent < end && sent - done < WINDOW) {
				d = &ring[sent % WINDOW];
				describe(d, data + sent % WINDOW * MOST, (unsigned long)n, handle);
				*(volatile int *)d->DS[0].Local.Data.Address = (int)sent;
				CHECK(VipPostSend(vi, d, handle));
				credits--;
				sent++;
			}
			got = VipSendDone(vi, &d);
			if (got == VIP_SUCCESS)
				done++;
			else
				ASSERT(got == VIP_NOT_DONE || (got == VIP_DESCRIPTOR_ERROR && d == NULL));
			got = VipRecvDone(vi, &d);
			if (got == VIP_NOT_DONE)
				continue;
			CHECK(got);
			if (!s.server) {
				ASSERT(d->CS.Status & VIP_STATUS_IMMEDIATE);
				credits += d->CS.ImmediateData;
				describe(d, data, 0, handle);
				d->CS.SegCount = 0;
				CHECK(VipPostRecv(vi, d, handle));
				continue;
			}
			ASSERT(d == &ring[taken % WINDOW] && d->CS.Length == (VIP_UINT32)n);
			ASSERT(*(int *)d->DS[0].Local.Data.Address == (int)taken);
			describe(d, data + taken % WINDOW * MOST, MOST, handle);
			CHECK(VipPostRecv(vi, d, handle));
			taken++;
			owed++;
			if (owed == WINDOW / 4 || taken == end) {
				VIP_DESCRIPTOR *c = &other[said++ % WINDOW];

				describe(c, data, 0, handle);
				c->CS.SegCount = 0;
				c->CS.Control |= VIP_CONTROL_IMMEDIATE;
				c->CS.ImmediateData = (VIP_UINT32)owed;
				CHECK(VipPostSend(vi, c, handle));
				owed = 0;
			}
		}
		/* The server's last credits may still be on its send queue. */
		while ((got = VipSendDone(vi, &d)) == VIP_NOT_DONE || got == VIP_SUCCESS)
			;
		if (!s.server)
			printf("%10ld %12.1f %12.0f\n", n, (double)(n * count) / (seconds() - start) / 1e6,
				(double)count / (seconds() - start));
	}
	if (s.server)
		side_after(vi);
	else
		CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
