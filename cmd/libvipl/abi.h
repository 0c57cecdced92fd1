/* What the C and the Go half of the library share. */
#ifndef ABI_H
#define ABI_H

#include <stdint.h>

#include "vipl.h"

/*
 * A handle is not an address. It holds the number of a slot, how often the slot was
 * used before, and the kind of object. So freed handles, handles of another kind and
 * numbers that were never handles are recognized.
 *
 *	63      48 47  40 39       16 15     0
 *	| MARK    | kind | use       | slot  |
 */
enum via_kind { VIA_NIC = 1, VIA_PTAG, VIA_VI, VIA_CQ, VIA_CONN };

#define VIA_MARK 0x5649ULL
#define VIA_SLOTS 65536

/* Addresses of words of the engine; see package vipl, PortWatch and QueueWatch. */
struct via_port {
	uintptr_t produced, consumed, idle, taken, waits, idle_at_post, shm_links, poll_pause;
	uint64_t tended; /* when time was last asked for work, in ns */
};

struct via_queue {
	uintptr_t posted, completed, settling, dequeued, ring;
};

/* As vipl.CoalescePolls; table.go holds them alike. */
enum { COALESCE_POLLS = 4 };

/* A slot: what polls of its handle look at. Never freed, so always readable. */
struct via_slot {
	uint64_t handle;           /* 0: free */
	struct via_queue queue[2]; /* send, receive */
	struct via_port port;
	uintptr_t entries, settling; /* of a completion queue */
	uint8_t address[16]; /* a NIC's own */
} __attribute__((aligned(64)));

extern struct via_slot via_slots[VIA_SLOTS];

/* Makes handle valid, or with 0 invalid, for all threads. */
void via_publish(struct via_slot *slot, uint64_t handle);

/*
 * The slot that a thread's poll is looking at. What a slot points to stays where it is
 * for as long as a poll is at the slot: see hold in poll.c, reclaim in table.go.
 */
struct via_poll {
	uint64_t owner; /* how often it was claimed << 32 | the thread's number; 0: free */
	uint32_t slot;  /* number of the slot + 1; 0: none */
} __attribute__((aligned(64)));

#define VIA_POLLS 4096

extern struct via_poll via_polls[VIA_POLLS];
extern uint32_t via_polls_used; /* those from here on were never claimed */

/*
 * From here on via_polls has the slot of every poll that has seen a handle which is
 * not valid any more. 0: the kernel did not do it, this time.
 */
int via_barrier(void);

/* The present value of an environment variable; "" if it is not set, and in a setuid or setgid program. */
const char *via_variable(const char *name);

/* From Go to the program: its handlers, called outside of the library. */
void via_call_error(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi, uintptr_t cq,
	uintptr_t descriptor, uint64_t op, int resource, int code);
void via_call_vi(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi,
	uintptr_t descriptor);
void via_call_cq(uintptr_t handler, uintptr_t context, uintptr_t nic, uintptr_t vi, int recv);

#endif
