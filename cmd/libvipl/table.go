//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"viaxdp/vipl"
)

// kind of a handle.
type kind uint64

const (
	nicKind  kind = C.VIA_NIC
	ptagKind kind = C.VIA_PTAG
	viKind   kind = C.VIA_VI
	cqKind   kind = C.VIA_CQ
	connKind kind = C.VIA_CONN
)

const slots = C.VIA_SLOTS

// entry is what a handle stands for.
type entry struct {
	handle uintptr
	value  any
	nic    *nic           // that it goes with
	pin    runtime.Pinner // of what poll.c looks at
}

// table is the handles of the process. Looking up takes no lock.
var table struct {
	entries [slots]atomic.Pointer[entry]

	mu    sync.Mutex
	uses  [slots]uint32
	fresh uint32   // slots from here on were never used
	free  []uint32 // others, the one that was freed first in front
	// What was freed, and its slots. A poll of another thread may still use it. Once there are
	// due of them, reclaim finds out.
	late []*entry
	due  int
}

// reclaimEvery is how many handles are freed between two calls of reclaim, which interrupts
// the CPUs on which threads of the process run.
const reclaimEvery = 64

// handles finds the handle of what package vipl gives: *vipl.CQ and *vipl.Ptag, the objects of entries. handleOf
// finds that of a VI.
var handles sync.Map

// known is the handle of x, 0 if it has none (any more).
func known(x any) C.uintptr_t {
	h, _ := handles.Load(x)
	n, _ := h.(C.uintptr_t)
	return n
}

// find gives the object of a handle, or nil.
func find[T any](h C.uintptr_t) *T {
	if e := entryOf(h); e != nil {
		v, _ := e.value.(*T)
		return v
	}
	return nil
}

func entryOf(h C.uintptr_t) *entry {
	e := table.entries[h%slots].Load()
	if e == nil || e.handle != uintptr(h) {
		return nil
	}
	return e
}

// add gives value a handle. It fails with ErrResource if there are too many, and with
// ErrInvalidParameter if n has been closed. watch fills in what poll.c reads, and pins it.
func add(k kind, value any, n *nic, watch func(*C.struct_via_slot, *runtime.Pinner)) (C.uintptr_t, error) {
	t := &table
	t.mu.Lock()
	defer t.mu.Unlock()
	if n != nil && n.removed {
		return 0, vipl.ErrInvalidParameter // nothing would remove it any more
	}
	var i uint32
	switch {
	case t.fresh < slots:
		i = t.fresh
		t.fresh++
	default:
		if len(t.free) == 0 {
			reclaim()
		}
		if len(t.free) == 0 {
			return 0, vipl.ErrResource
		}
		i = t.free[0]
		t.free = t.free[1:]
	}
	t.uses[i]++
	h := C.VIA_MARK<<48 | uint64(k)<<40 | uint64(t.uses[i]&0xffffff)<<16 | uint64(i)
	e := &entry{handle: uintptr(h), value: value, nic: n}
	slot := &C.via_slots[i]
	if watch != nil {
		watch(slot, &e.pin)
	}
	if o, ok := value.(interface{ object() any }); ok {
		handles.Store(o.object(), C.uintptr_t(h))
	}
	t.entries[i].Store(e)
	C.via_publish(slot, C.uint64_t(h))
	if n != nil {
		n.handles[e.handle] = struct{}{}
	}
	return C.uintptr_t(h), nil
}

// destroy ends an object, and then its handle.
func destroy(h C.uintptr_t, object func() error) error {
	err := object()
	if err == nil {
		remove(h)
	}
	return err
}

// remove ends a handle. The second time it does nothing.
func remove(h C.uintptr_t) {
	table.mu.Lock()
	defer table.mu.Unlock()
	removeLocked(h)
}

func removeLocked(h C.uintptr_t) {
	t := &table
	e := entryOf(h)
	if e == nil {
		return
	}
	i := uint32(h % slots)
	C.via_publish(&C.via_slots[i], 0)
	t.entries[i].Store(nil)
	if e.nic != nil {
		delete(e.nic.handles, e.handle)
	}
	if o, ok := e.value.(interface{ object() any }); ok {
		handles.Delete(o.object())
	}
	t.late = append(t.late, e)
	if len(t.late) >= max(t.due, reclaimEvery) {
		reclaim()
	}
}

// reclaim releases what was freed and no poll uses. A poll stores its slot in via_polls before
// it reads the slot's handle (poll.c, hold). So after the barrier each poll is either visible
// there, or finds that the handle is invalid. Under table.mu.
func reclaim() {
	t := &table
	kept := t.late[:0]
	if C.via_barrier() == 0 {
		kept = t.late
	} else {
		at := map[uint32]bool{}
		for i := range atomic.LoadUint32((*uint32)(&C.via_polls_used)) {
			if slot := atomic.LoadUint32((*uint32)(&C.via_polls[i].slot)); slot != 0 {
				at[slot-1] = true
			}
		}
		for _, e := range t.late {
			i := uint32(e.handle % slots)
			if at[i] {
				kept = append(kept, e)
				continue
			}
			e.pin.Unpin()
			t.free = append(t.free, i)
		}
		clear(t.late[len(kept):])
	}
	t.late, t.due = kept, len(kept)+reclaimEvery
}

// removeAll ends all handles that go with n, its own included. It gets no others from then on. Requests that have no
// answer are rejected, since nobody can answer them any more. The caller waits for that.
func removeAll(n *nic, own C.uintptr_t) *sync.WaitGroup {
	var rejecting sync.WaitGroup
	table.mu.Lock()
	defer table.mu.Unlock()
	n.removed = true
	for h := range n.handles {
		if c := find[conn](C.uintptr_t(h)); c != nil {
			rejecting.Go(func() { _ = c.Reject() }) // the requester may have given up
		}
		removeLocked(C.uintptr_t(h))
	}
	removeLocked(own)
	return &rejecting
}

func address[T any](p *T) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(p))) }

// poll.c counts as many polls in vain as package vipl does.
var _ [C.COALESCE_POLLS]struct{} = [vipl.CoalescePolls]struct{}{}

// watchPort gives poll.c the addresses to check for frames.
func (n *nic) watchPort(s *C.struct_via_slot, pin *runtime.Pinner) {
	w := n.words
	pin.Pin(w.Idle)
	s.port.produced, s.port.consumed = address(w.Produced), address(w.Consumed)
	s.port.idle, s.port.waits, s.port.idle_at_post = address(w.Idle), address(w.Waits), address(w.IdleAtPost)
	s.port.shm_links, s.port.poll_pause = address(w.ShmLinks), address(w.PollPause)
	s.port.taken = address(w.Taken)
}

func watchQueue(q *C.struct_via_queue, w vipl.QueueWatch, pin *runtime.Pinner) {
	pin.Pin(w.Completed)
	q.posted, q.completed, q.dequeued = address(w.Posted), address(w.Completed), address(w.Dequeued)
	q.settling, q.ring = address(w.Settling), address(w.Ring)
}
