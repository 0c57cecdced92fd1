/* Handles, checked. */
#ifndef FIND_H
#define FIND_H

#include <stddef.h>

#include "abi.h"

/* The slot of a handle, or NULL for one that is not valid or of another kind. */
static inline struct via_slot *via_find(const void *handle, enum via_kind kind)
{
	uint64_t h = (uintptr_t)handle;
	struct via_slot *s = &via_slots[h % VIA_SLOTS];

	if (h >> 40 != (VIA_MARK << 8 | kind) || __atomic_load_n(&s->handle, __ATOMIC_ACQUIRE) != h)
		return NULL;
	return s;
}

#endif
