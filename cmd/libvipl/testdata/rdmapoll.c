/*
 * rdmapoll: ping-pong by RDMA writes. No receives are posted and there are no notifications:
 * each side looks at the last word of its own memory until it changes, and then
 * everything before it must be there, too. The first round trips call the library
 * while they look; in the last ones the server only looks.
 *
 *	rdmapoll server|client DEVICE [ADDRESS] [COUNT [BYTES]]
 */
#include "pair.h"

#define MOST 65536

struct where {
	VIP_UINT64 address;
	VIP_MEM_HANDLE handle;
};

int main(int argc, char **argv)
{
	struct side s;
	VIP_VI_HANDLE vi;
	VIP_MEM_HANDLE handle;
	VIP_DESCRIPTOR *d, *got;
	struct where mine, theirs;
	char *memory, *out, *in;
	long count = 300, bytes = 5000, quiet = 50, i, k;
	volatile VIP_UINT32 *last;
	VIP_RETURN code;

	side_open(&s, argc, argv);
	k = s.server ? 3 : 4;
	if (argc > k)
		count = atol(argv[k]);
	if (argc > k + 1)
		bytes = atol(argv[k + 1]) & ~3L;
	ASSERT(bytes >= 8 && bytes <= MOST);
	memory = side_memory(&s, 128 + 2 * MOST, &handle);
	d = (VIP_DESCRIPTOR *)memory;
	out = memory + 128;
	in = out + MOST;
	last = (volatile VIP_UINT32 *)(in + bytes - 4);
	vi = side_vi(&s, VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	describe(d, out, sizeof theirs, handle);
	CHECK(VipPostRecv(vi, d, handle));
	side_connect(&s, vi, "rdmapoll");

	/* Each tells the other where to write. Nothing was written there before. */
	mine.address = (VIP_UINT64)in;
	mine.handle = handle;
	memcpy(out + sizeof theirs, &mine, sizeof mine);
	describe(d + 1, out + sizeof theirs, sizeof mine, handle);
	CHECK(VipPostSend(vi, d + 1, handle));
	CHECK(VipRecvWait(vi, PATIENCE, &got));
	memcpy(&theirs, out, sizeof theirs);
	CHECK(VipSendWait(vi, PATIENCE, &got));

	for (i = 1; i <= count; i++) {
		if (s.server || i > 1) {
			while (*last != (VIP_UINT32)i - !s.server)
				if (i <= count - quiet)
					CHECK(VipxPoll(s.nic));
			for (k = 0; k < bytes; k += 4)
				if (*(volatile VIP_UINT32 *)(in + k) != (VIP_UINT32)i - !s.server) {
					fprintf(stderr, "word %ld is %u when the last is %u\n", k, *(VIP_UINT32 *)(in + k), *last);
					return 1;
				}
		}
		for (k = 0; k < bytes; k += 4)
			*(VIP_UINT32 *)(out + k) = (VIP_UINT32)i;
		d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
		d->CS.SegCount = 2;
		d->CS.Length = (VIP_UINT32)bytes;
		d->DS[0].Remote.Data.AddressBits = theirs.address;
		d->DS[0].Remote.Handle = theirs.handle;
		d->DS[0].Remote.Reserved = 0;
		d->DS[1].Local.Data.Address = out;
		d->DS[1].Local.Handle = handle;
		d->DS[1].Local.Length = (VIP_UINT32)bytes;
		CHECK(VipPostSend(vi, d, handle));
		while ((code = VipSendDone(vi, &got)) == VIP_NOT_DONE)
			;
		CHECK(code);
	}
	if (!s.server) {
		while (*last != (VIP_UINT32)count)
			CHECK(VipxPoll(s.nic));
		printf("rdmapoll: %ld round trips of %ld bytes\n", count, bytes);
	} else
		side_after(vi);
	CHECK(VipCloseNic(s.nic));
	return 0;
}
