/*
 * unreliable: a message library that makes an Unreliable Delivery VI reliable
 * enough by credits alone, as libraries did on links that lose nothing: a sender
 * never has more messages under way than the peer has receives posted. Nothing
 * may be lost: there is no retransmission. The client goes first, when the server has
 * told it that it has everything.
 *
 *	unreliable server|client DEVICE [ADDRESS] [COUNT]
 */
#include "pair.h"

#define RING 32
#define SLOT 4096
#define NOTHING 0xffffffff /* number of a message of nothing but credits */
#define END 0xfffffffe     /* the same, of the server that has everything */

struct header {
	VIP_UINT32 number, credits, bytes;
};

int main(int argc, char **argv)
{
	struct side s;
	VIP_VI_HANDLE vi;
	VIP_MEM_HANDLE handle;
	VIP_DESCRIPTOR *in, *out, *d;
	VIP_RETURN got;
	char *memory, *inbuf, *outbuf;
	long count = 5000, k, data = 0, sent = 0, done = 0, taken = 0, mine = RING, owed = 0;
	int ended = 0;
	struct header h;
	VIP_UINT32 i;

	side_open(&s, argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = atol(argv[k]);
	memory = side_memory(&s, 2 * RING * (64 + SLOT), &handle);
	in = (VIP_DESCRIPTOR *)memory;
	out = in + RING;
	inbuf = memory + 2 * 64 * RING;
	outbuf = inbuf + RING * SLOT;
	vi = side_vi(&s, VIP_SERVICE_UNRELIABLE, NULL);
	for (k = 0; k < RING; k++) {
		describe(&in[k], inbuf + k * SLOT, SLOT, handle);
		CHECK(VipPostRecv(vi, &in[k], handle));
	}
	side_connect(&s, vi, "unreliable");

	/*
	 * Both send count messages, which carry the credits of the other direction;
	 * one of nothing but credits takes the last one, which is kept for it.
	 */
	while (data < count || taken < count || done < sent || !ended) {
		int only = data == count || mine == 1;
		int last = s.server && data == count && taken == count && !ended;

		if (mine > 0 && sent - done < RING && (last || (only ? owed >= RING / 2 : mine > 1))) {
			char *buffer = outbuf + sent % RING * SLOT;

			h.number = last ? END : only ? NOTHING : (VIP_UINT32)data;
			h.credits = (VIP_UINT32)owed;
			h.bytes = only ? 0 : (VIP_UINT32)(data * 37 % (SLOT - (long)sizeof h));
			memcpy(buffer, &h, sizeof h);
			for (i = 0; i < h.bytes; i++)
				buffer[sizeof h + i] = (char)(h.number + i);
			describe(&out[sent % RING], buffer, sizeof h + h.bytes, handle);
			CHECK(VipPostSend(vi, &out[sent % RING], handle));
			owed = 0;
			mine--;
			sent++;
			data += !only;
			ended |= last;
		}
		got = VipSendDone(vi, &d);
		if (got == VIP_SUCCESS)
			done++;
		else
			ASSERT(got == VIP_NOT_DONE || (got == VIP_DESCRIPTOR_ERROR && !d));
		got = VipRecvDone(vi, &d);
		if (got == VIP_NOT_DONE)
			continue;
		/* the client may part before the server has looked again */
		if (s.server && ended && got == VIP_DESCRIPTOR_ERROR && d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR)
			continue;
		CHECK(got);
		{
			char *buffer = (char *)d->DS[0].Local.Data.Address;

			memcpy(&h, buffer, sizeof h);
			ASSERT(d->CS.Length == sizeof h + h.bytes);
			mine += h.credits;
			ASSERT(mine <= RING);
			if (h.number == END) {
				ended = 1;
			} else if (h.number != NOTHING) {
				ASSERT(h.number == (VIP_UINT32)taken);
				for (i = 0; i < h.bytes; i++)
					ASSERT(buffer[sizeof h + i] == (char)(h.number + i));
				taken++;
			}
			describe(d, buffer, SLOT, handle);
			CHECK(VipPostRecv(vi, d, handle));
			owed++;
		}
	}
	if (!s.server)
		printf("unreliable: %ld messages each way, none lost\n", count);
	if (s.server)
		side_after(vi);
	CHECK(VipDisconnect(vi));
	CHECK(VipCloseNic(s.nic));
	return 0;
}
