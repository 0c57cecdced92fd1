/* A calloc for LD_PRELOAD that has no memory for an operation, which the read of a long message needs. */
#include "../../src/viaxdp.h"

void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
	return n == 1 && size == sizeof(struct vx_op) ? NULL : __libc_calloc(n, size);
}
