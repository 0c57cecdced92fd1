/* The way into Go and out, from the C files. */
#ifndef ENTER_H
#define ENTER_H

#include "abi.h"

#define VIA_HIDDEN __attribute__((visibility("hidden")))

extern int via_started VIA_HIDDEN; /* Go runs */
extern int via_forked VIA_HIDDEN;  /* this process is a child of the one that started Go */

/*
 * Where this thread is. While it is in Go a signal handler of the program may run,
 * on Go's stack, and must not call it again.
 */
enum via_where { VIA_NEW, VIA_OUTSIDE, VIA_INSIDE }; /* new: it never was in Go */

extern __thread enum via_where via_where VIA_HIDDEN __attribute__((tls_model("initial-exec")));

void via_bind(void) VIA_HIDDEN; /* its first time in Go; it is outside then */

/* 1: in Go from here on; 0: it does not run, or not for this thread now. */
static inline int via_enter(void)
{
	if (via_where == VIA_INSIDE || via_forked || !__atomic_load_n(&via_started, __ATOMIC_ACQUIRE))
		return 0;
	if (__builtin_expect(via_where == VIA_NEW, 0))
		via_bind();
	via_where = VIA_INSIDE;
	return 1;
}

static inline VIP_RETURN via_leave(int code)
{
	via_where = VIA_OUTSIDE;
	return (VIP_RETURN)code;
}

void via_barrier_init(void) VIA_HIDDEN; /* before any handle is valid */

int via_start_and_enter(void) VIA_HIDDEN; /* as via_enter, starts Go */

#endif
