/* Copies between a list of buffers and one. */
#include "viaxdp.h"

void vx_iov_copy(const struct iovec *iov, unsigned count, size_t at, void *flat, size_t length, enum vx_direction way)
{
	char *p = flat;
	unsigned i;

	for (i = 0; i < count && length; i++) {
		size_t n = iov[i].iov_len;
		char *there = (char *)iov[i].iov_base + at;

		if (at >= n) {
			at -= n;
			continue;
		}
		n -= at;
		if (n > length)
			n = length;
		if (way == VX_FROM_LIST)
			memcpy(p, there, n);
		else
			memcpy(there, p, n);
		p += n;
		length -= n;
		at = 0;
	}
}
