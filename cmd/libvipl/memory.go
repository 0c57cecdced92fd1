//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"viaxdp/cmd/libvipl/bigstack"
	"viaxdp/vipl"
)

// ptag is a protection tag.
type ptag struct {
	*vipl.Ptag
	nic    *nic
	handle C.uintptr_t
}

func (p *ptag) object() any { return p.Ptag }

//export viago_create_ptag
func viago_create_ptag(h C.uintptr_t, out *C.uintptr_t) C.int {
	bigstack.Reserve()
	n := find[nic](h)
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	tag, err := n.CreatePtag()
	if err != nil {
		return fail("VipCreatePtag", err)
	}
	p := &ptag{Ptag: tag, nic: n}
	if p.handle = add(ptagKind, p, n, nil); p.handle == 0 {
		tag.Destroy()
		return n.refused()
	}
	*out = p.handle
	return C.VIP_SUCCESS
}

//export viago_destroy_ptag
func viago_destroy_ptag(h, tag C.uintptr_t) C.int {
	bigstack.Reserve()
	n, p := find[nic](h), find[ptag](tag)
	if n == nil || p == nil || p.nic != n {
		return C.VIP_INVALID_PARAMETER
	}
	if err := p.Destroy(); err != nil {
		return fail("VipDestroyPtag", err)
	}
	remove(tag)
	return C.VIP_SUCCESS
}

// attributes reads those of the program; false: the tag is none of n's. Many
// programs give no attributes, or no tag, and expect that their VIs, whatever the
// tag, may use the memory.
func (n *nic) attributes(a *C.VIP_MEM_ATTRIBUTES) (vipl.MemAttributes, bool) {
	if a == nil {
		return vipl.MemAttributes{Ptag: n.CommonPtag()}, true
	}
	tag := n.CommonPtag()
	if h := C.uintptr_t(uintptr(a.Ptag)); h != 0 {
		p := find[ptag](h)
		if p == nil || p.nic != n {
			return vipl.MemAttributes{}, false
		}
		tag = p.Ptag
	}
	return vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: a.EnableRdmaWrite != 0, EnableRDMARead: a.EnableRdmaRead != 0}, true
}

//export viago_register
func viago_register(h, at C.uintptr_t, length C.VIP_ULONG, a *C.VIP_MEM_ATTRIBUTES, out *C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	n := find[nic](h)
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	attrs, ok := n.attributes(a)
	if !ok {
		return C.VIP_INVALID_PTAG
	}
	r, err := n.RegisterAddress(uint64(at), uint64(length), attrs)
	if err != nil {
		return fail("VipRegisterMem", err)
	}
	*out = n.keep(r)
	return C.VIP_SUCCESS
}

//export viago_alloc
func viago_alloc(h C.uintptr_t, length C.VIP_ULONG, a *C.VIP_MEM_ATTRIBUTES, at *C.uintptr_t, out *C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	n := find[nic](h)
	if n == nil {
		return C.VIP_INVALID_PARAMETER
	}
	attrs, ok := n.attributes(a)
	if !ok {
		return C.VIP_INVALID_PTAG
	}
	if length > mostArena {
		return C.VIP_ERROR_RESOURCE
	}
	r, err := n.AllocMem(int(length), attrs)
	if err != nil {
		return fail("VipxAllocMem", err)
	}
	*at, *out = C.uintptr_t(r.Addr()), n.keep(r)
	return C.VIP_SUCCESS
}

func (n *nic) keep(r *vipl.Region) C.VIP_MEM_HANDLE {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.regions[r.Handle()] = r
	return C.VIP_MEM_HANDLE(r.Handle())
}

// regionOf finds a NIC and what it has registered at that address under that handle;
// nil if there is no such NIC, or no such memory of it.
func regionOf(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE) (*nic, *vipl.Region) {
	n := find[nic](h)
	if n == nil {
		return nil, nil
	}
	return n, n.region(at, handle)
}

// region is the one with that handle that begins at that address, or nil.
func (n *nic) region(at C.uintptr_t, handle C.VIP_MEM_HANDLE) *vipl.Region {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.regions[vipl.MemHandle(handle)]
	if r == nil || r.Addr() != uint64(at) {
		return nil
	}
	return r
}

//export viago_deregister
func viago_deregister(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	n, r := regionOf(h, at, handle)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if err := r.Deregister(); err != nil {
		return fail("VipDeregisterMem", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.regions[r.Handle()] == r { // else the handle was given out again at once
		delete(n.regions, r.Handle())
	}
	return C.VIP_SUCCESS
}

//export viago_query_mem
func viago_query_mem(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE, out *C.VIP_MEM_ATTRIBUTES) C.int {
	bigstack.Reserve()
	_, r := regionOf(h, at, handle)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	a, err := r.Query()
	if err != nil {
		return fail("VipQueryMem", err)
	}
	setPointer(unsafe.Pointer(&out.Ptag), known(a.Ptag))
	out.EnableRdmaWrite, out.EnableRdmaRead = boolean(a.EnableRDMAWrite), boolean(a.EnableRDMARead)
	return C.VIP_SUCCESS
}

//export viago_set_mem
func viago_set_mem(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE, a *C.VIP_MEM_ATTRIBUTES) C.int {
	bigstack.Reserve()
	n, r := regionOf(h, at, handle)
	if r == nil {
		return C.VIP_INVALID_PARAMETER
	}
	attrs, ok := n.attributes(a)
	if !ok {
		return C.VIP_INVALID_PTAG
	}
	return result("VipSetMemAttributes", r.SetAttributes(attrs))
}
