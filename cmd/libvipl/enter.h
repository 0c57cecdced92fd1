/* The way into Go and out, from the C files. */
#ifndef ENTER_H
#define ENTER_H

#include "abi.h"

#define VIA_HIDDEN __attribute__((visibility("hidden")))

extern int via_started VIA_HIDDEN; /* Go runs */
extern int via_forked VIA_HIDDEN;  /* this process is a child of the one that started Go */

/*
 * Whether this thread is in Go. A signal handler of the program may run then,
 * on Go's stack, and must not call it again.
 */
extern __thread int via_inside VIA_HIDDEN __attribute__((tls_model("initial-exec")));

/* 1: in Go from here on; 0: it does not run, or not for this thread now. */
static inline int via_enter(void)
{
	if (via_inside || via_forked || !__atomic_load_n(&via_started, __ATOMIC_ACQUIRE))
		return 0;
	via_inside = 1;
	return 1;
}

static inline VIP_RETURN via_leave(int code)
{
	via_inside = 0;
	return (VIP_RETURN)code;
}

int via_start_and_enter(void) VIA_HIDDEN; /* as via_enter, starts Go */

#endif
