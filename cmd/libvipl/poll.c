/*
 * The calls of a program's loops: SendDone, RecvDone, CQDone. What they look at
 * most of the time has not changed, and a call into Go costs as much as a tenth
 * of a message's way; so they look at the engine's words themselves, take what
 * has completed, and enter Go only when frames are there, or when time may have
 * made work.
 */
#include <time.h>

#include "_cgo_export.h"
#include "abi.h"
#include "enter.h"
#include "find.h"

struct via_slot via_slots[VIA_SLOTS];

/*
 * Polls in vain between two looks at the clock, and time between two entries for
 * it; and polls between two looks at a ring that rests, see vipl/rest.go.
 */
enum { POLLS_PER_LOOK = 256, TEND_EVERY = 20000 /* ns */, POLLS_PER_RING = 16 };

enum { NOTHING, SOMETHING, TIME };

static inline uint64_t word64(uintptr_t at)
{
	return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

static inline uint32_t word32(uintptr_t at)
{
	return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
}

/* Between the program's look at a status, by a plain load, and ours at what was written before it. */
static inline void seen(void)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

void via_publish(struct via_slot *slot, uint64_t handle)
{
	__atomic_store_n(&slot->handle, handle, __ATOMIC_RELEASE);
}

static int clock_due(struct via_port *p)
{
	struct timespec t;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
	if (now - __atomic_load_n(&p->tended, __ATOMIC_RELAXED) < TEND_EVERY)
		return 0;
	__atomic_store_n(&p->tended, now, __ATOMIC_RELAXED);
	return 1;
}

/* Looks whether the engine has anything to do. */
static inline int look(struct via_port *p)
{
	uint32_t polls;

	if (__builtin_expect(via_forked, 0) || word64(p->lanes))
		return SOMETHING;
	polls = word32(p->idle) + 1;
	if ((!word64(p->rests) || polls % POLLS_PER_RING == 0) && word32(p->produced) != word32(p->consumed))
		return SOMETHING;
	__atomic_store_n((uint32_t *)p->idle, polls, __ATOMIC_RELAXED);
	if (word32(p->waits) && polls - word32(p->idle_at_post) >= HELD_POLLS)
		return SOMETHING;
	return polls % POLLS_PER_LOOK == 0 && clock_due(p) ? TIME : NOTHING;
}

/*
 * Takes the oldest completed descriptor off a queue; VIP_NOT_DONE: there is none.
 * The exchange decides who has it: what is read before it may be written
 * meanwhile, but then it fails. See package vipl, QueueWatch.
 */
static inline VIP_RETURN take(struct via_port *p, struct via_queue *q, VIP_DESCRIPTOR **descriptor)
{
	uint64_t *dequeued = (uint64_t *)q->dequeued, head = word64(q->dequeued);

	while ((int64_t)(word64(q->completed) - head) > 0) {
		uintptr_t ring = word64(q->ring);
		uintptr_t entry = ring + 16 + 16 * (head & word64(ring));
		uint64_t d = word64(entry), status = word64(entry + 8);

		if (__atomic_compare_exchange_n(dequeued, &head, head + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			__atomic_store_n((uint32_t *)p->taken, word32(p->taken) + 1, __ATOMIC_RELAXED);
			*descriptor = (VIP_DESCRIPTOR *)(uintptr_t)d;
			return status & VIP_STATUS_ERROR_MASK ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS;
		}
	}
	return VIP_NOT_DONE;
}

static inline VIP_RETURN done(VIP_VI_HANDLE vi, int recv, VIP_DESCRIPTOR **descriptor)
{
	struct via_slot *s = via_find(vi, VIA_VI);
	struct via_queue *q;
	VIP_RETURN got;
	uint64_t head;
	uintptr_t d = 0;
	int why, code;

	if (!descriptor)
		return VIP_INVALID_PARAMETER;
	*descriptor = NULL;
	if (!s)
		return VIP_INVALID_PARAMETER;
	seen();
	q = &s->queue[recv];
	if (!via_forked && (got = take(&s->port, q, descriptor)) != VIP_NOT_DONE)
		return got;
	/* Where a status is just being written, which the program may have seen, Go waits for that. */
	if ((why = look(&s->port)) == NOTHING && (int64_t)(word64(q->settling) - word64(q->dequeued)) <= 0) {
		head = word64(q->dequeued); /* first: others may post and take meanwhile */
		return word64(q->posted) == head ? VIP_DESCRIPTOR_ERROR : VIP_NOT_DONE;
	}
	if (!via_enter())
		return VIP_ERROR_RESOURCE;
	code = viago_done((uintptr_t)vi, recv, why == TIME, &d);
	*descriptor = (VIP_DESCRIPTOR *)d;
	return via_leave(code);
}

VIP_RETURN VipSendDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
	return done(vi, 0, descriptor);
}

VIP_RETURN VipRecvDone(VIP_VI_HANDLE vi, VIP_DESCRIPTOR **descriptor)
{
	return done(vi, 1, descriptor);
}

VIP_RETURN VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
	struct via_slot *s = via_find(cq, VIA_CQ);
	uintptr_t v = 0;
	uint64_t settling;
	int why = SOMETHING, r = 0, code;

	if (!s || !vi || !recv)
		return VIP_INVALID_PARAMETER;
	seen();
	settling = word64(s->settling); /* first */
	if (word64(s->entries) == 0 && (why = look(&s->port)) == NOTHING && !settling)
		return VIP_NOT_DONE;
	if (!via_enter())
		return VIP_ERROR_RESOURCE;
	code = viago_cq_done((uintptr_t)cq, why == TIME, &v, &r);
	if (code == VIP_SUCCESS) {
		*vi = (void *)v;
		*recv = r;
	}
	return via_leave(code);
}

VIP_RETURN VipxPoll(VIP_NIC_HANDLE nic)
{
	struct via_slot *s = via_find(nic, VIA_NIC);
	int why;

	if (!s)
		return VIP_INVALID_PARAMETER;
	if ((why = look(&s->port)) == NOTHING)
		return VIP_SUCCESS;
	if (!via_enter())
		return VIP_ERROR_RESOURCE;
	return via_leave(viago_poll((uintptr_t)nic, why == TIME));
}
