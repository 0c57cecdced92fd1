/*
 * The calls of a program's loops: SendDone, RecvDone, CQDone. What they look at
 * most of the time has not changed, and a call into Go costs as much as a tenth
 * of a message's way; so they look at the engine's words themselves, take what
 * has completed, and enter Go only when frames are there, or when time may have
 * made work.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "abi.h"
#include "enter.h"
#include "find.h"

struct via_slot via_slots[VIA_SLOTS];

/*
 * Polls in vain between two looks at the clock, and time between two entries for
 * it; and polls between two looks at a ring that poll_pause, see vipl/pollpause.go.
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

struct via_poll via_polls[VIA_POLLS];
uint32_t via_polls_used;

static __thread struct via_poll *my_poll __attribute__((tls_model("initial-exec")));

/* membarrier(2), of <linux/membarrier.h>, which not every C library's headers have. */
enum { EXPEDITED = 1 << 3, REGISTER_EXPEDITED = 1 << 4 };

static int unordered; /* the kernel has no such barrier: every poll has one of its own */

void via_barrier_init(void)
{
	unordered = syscall(SYS_membarrier, REGISTER_EXPEDITED, 0, 0) != 0;
}

int via_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return unordered || syscall(SYS_membarrier, EXPEDITED, 0, 0) == 0;
}

/* 1: the entry is free, of a thread that had our number before, or, if dead, of one that has ended. */
static int claimable(uint64_t owner, uint32_t self, int dead)
{
	uint32_t thread = (uint32_t)owner;

	return owner == 0 || thread == self ||
		(dead && syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH);
}

static void claim(uint32_t self, int dead)
{
	uint32_t i, used;

	for (i = 0; i < VIA_POLLS && !my_poll; i++) {
		struct via_poll *p = &via_polls[i];
		uint64_t owner = __atomic_load_n(&p->owner, __ATOMIC_ACQUIRE);

		if (__atomic_load_n(&p->slot, __ATOMIC_ACQUIRE) != 0 || !claimable(owner, self, dead) ||
			!__atomic_compare_exchange_n(&p->owner, &owner, ((owner >> 32) + 1) << 32 | self, 0,
				__ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		used = __atomic_load_n(&via_polls_used, __ATOMIC_RELAXED);
		while (used <= i && !__atomic_compare_exchange_n(&via_polls_used, &used, i + 1, 0,
			__ATOMIC_RELEASE, __ATOMIC_RELAXED))
			;
		my_poll = p;
	}
}

/*
 * Finds an entry of via_polls for this thread; NULL: all are in use, which is asked again
 * after many polls. It takes no memory, since it may run in a signal handler.
 */
static struct via_poll *claim_poll(void)
{
	enum { POLLS_PER_CLAIM = 1 << 16 };
	static __thread uint32_t polls __attribute__((tls_model("initial-exec")));
	int saved = errno;

	if (polls++ % POLLS_PER_CLAIM == 0) {
		claim((uint32_t)syscall(SYS_gettid), 0);
		if (!my_poll)
			claim((uint32_t)syscall(SYS_gettid), 1);
	}
	errno = saved;
	return my_poll;
}

/*
 * Keeps what a slot points to in its place until release. It returns 0 where a signal has
 * interrupted another poll of this thread, or too many threads poll: then Go has to look.
 *
 * The caller checks the handle after hold. The compiler keeps that order; the processor
 * need not, since via_barrier interrupts every thread of the process (reclaim in table.go).
 */
static inline int hold(struct via_slot *s)
{
	struct via_poll *p = my_poll;

	if (__builtin_expect(!p, 0) && !(p = claim_poll()))
		return 0;
	if (__builtin_expect(p->slot != 0, 0))
		return 0;
	__atomic_store_n(&p->slot, (uint32_t)(s - via_slots) + 1, __ATOMIC_RELAXED);
	if (__builtin_expect(unordered, 0))
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return 1;
}

static inline void release(void)
{
	__atomic_store_n(&my_poll->slot, 0, __ATOMIC_RELEASE);
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

	if (__builtin_expect(via_forked, 0) || word64(p->shm_links))
		return SOMETHING;
	polls = word32(p->idle) + 1;
	if ((!word64(p->poll_pause) || polls % POLLS_PER_RING == 0) && word32(p->produced) != word32(p->consumed))
		return SOMETHING;
	__atomic_store_n((uint32_t *)p->idle, polls, __ATOMIC_RELAXED);
	if (word32(p->waits) && polls - word32(p->idle_at_post) >= COALESCE_POLLS)
		return SOMETHING;
	return polls % POLLS_PER_LOOK == 0 && clock_due(p) ? TIME : NOTHING;
}

/*
 * Takes the oldest completed descriptor off a queue; VIP_NOT_DONE: there is none.
 * The compare-and-swap decides which thread gets it: another thread may change what was
 * read before, but then the exchange fails. See package vipl, QueueWatch.
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

/* What a poll of a queue finds without Go; ASK_GO: Go has to look. */
enum { ASK_GO = -1 };

static inline int poll_queue(struct via_slot *s, int recv, VIP_DESCRIPTOR **descriptor, int *why)
{
	struct via_queue *q = &s->queue[recv];
	VIP_RETURN got;
	uint64_t head;

	seen();
	if (!via_forked && (got = take(&s->port, q, descriptor)) != VIP_NOT_DONE)
		return (int)got;
	/* Where a status is just being written, which the program may have seen, Go waits for that. */
	if ((*why = look(&s->port)) != NOTHING || (int64_t)(word64(q->settling) - word64(q->dequeued)) > 0)
		return ASK_GO;
	head = word64(q->dequeued); /* first: others may post and take meanwhile */
	return word64(q->posted) == head ? VIP_DESCRIPTOR_ERROR : VIP_NOT_DONE;
}

static inline VIP_RETURN done(VIP_VI_HANDLE vi, int recv, VIP_DESCRIPTOR **descriptor)
{
	struct via_slot *s = via_find(vi, VIA_VI);
	uintptr_t d = 0;
	int why = SOMETHING, code = ASK_GO;

	if (!descriptor)
		return VIP_INVALID_PARAMETER;
	*descriptor = NULL;
	if (!s)
		return VIP_INVALID_PARAMETER;
	if (hold(s)) {
		code = via_find(vi, VIA_VI) ? poll_queue(s, recv, descriptor, &why) : VIP_INVALID_PARAMETER;
		release();
	}
	if (code != ASK_GO)
		return (VIP_RETURN)code;
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

static inline int poll_cq(struct via_slot *s, int *why)
{
	uint64_t settling;

	seen();
	settling = word64(s->settling); /* first */
	return word64(s->entries) == 0 && (*why = look(&s->port)) == NOTHING && !settling ? VIP_NOT_DONE : ASK_GO;
}

VIP_RETURN VipCQDone(VIP_CQ_HANDLE cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
	struct via_slot *s = via_find(cq, VIA_CQ);
	uintptr_t v = 0;
	int why = SOMETHING, r = 0, code = ASK_GO;

	if (!s || !vi || !recv)
		return VIP_INVALID_PARAMETER;
	if (hold(s)) {
		code = via_find(cq, VIA_CQ) ? poll_cq(s, &why) : VIP_INVALID_PARAMETER;
		release();
	}
	if (code != ASK_GO)
		return (VIP_RETURN)code;
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
	int why = SOMETHING, code = ASK_GO;

	if (!s)
		return VIP_INVALID_PARAMETER;
	if (hold(s)) {
		code = !via_find(nic, VIA_NIC) ? VIP_INVALID_PARAMETER : (why = look(&s->port)) == NOTHING ? VIP_SUCCESS : ASK_GO;
		release();
	}
	if (code != ASK_GO)
		return (VIP_RETURN)code;
	if (!via_enter())
		return VIP_ERROR_RESOURCE;
	return via_leave(viago_poll((uintptr_t)nic, why == TIME));
}
