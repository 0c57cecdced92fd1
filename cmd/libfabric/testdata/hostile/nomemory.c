/* A malloc for LD_PRELOAD that has no memory for messages of 12345 bytes, whatever it is that is kept with them. */
#include <stddef.h>

void *__libc_malloc(size_t n);

void *malloc(size_t n)
{
	return n >= 12345 && n < 12345 + 256 ? NULL : __libc_malloc(n);
}
