//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"viaxdp/vipl"
)

// ptag is a protection tag.
type ptag struct {
	*vipl.Ptag
	nic *nic
}

func (p *ptag) object() any { return p.Ptag }

// ptag finds a tag of the NIC, or fails with ErrInvalidPtag.
func (n *nic) ptag(h C.uintptr_t) (*ptag, error) {
	p := find[ptag](h)
	if p == nil || p.nic != n {
		return nil, vipl.ErrInvalidPtag
	}
	return p, nil
}

//export viago_create_ptag
func viago_create_ptag(h C.uintptr_t, out *C.uintptr_t) C.int {
	return control("VipCreatePtag", h, func(n *nic) error {
		tag, err := n.CreatePtag()
		if err != nil {
			return err
		}
		p, err := add(ptagKind, &ptag{tag, n}, n, nil)
		if err != nil {
			tag.Destroy()
			return err
		}
		*out = p
		return nil
	})
}

//export viago_destroy_ptag
func viago_destroy_ptag(h, tag C.uintptr_t) C.int {
	return control("VipDestroyPtag", h, func(n *nic) error {
		p, err := n.ptag(tag)
		if err != nil {
			return vipl.ErrInvalidParameter
		}
		return destroy(tag, p.Destroy)
	})
}

// attributes reads the program's memory attributes. Many programs give no attributes, or
// no tag, and expect that their VIs may use the memory, whatever the VI's tag.
func (n *nic) attributes(a *C.VIP_MEM_ATTRIBUTES) (vipl.MemAttributes, error) {
	out := vipl.MemAttributes{Ptag: n.CommonPtag()}
	if a == nil {
		return out, nil
	}
	out.EnableRDMAWrite, out.EnableRDMARead = a.EnableRdmaWrite != 0, a.EnableRdmaRead != 0
	err := n.setTag(&out.Ptag, C.uintptr_t(uintptr(a.Ptag)))
	return out, err
}

// setTag sets tag to that of a handle; without a handle it stays.
func (n *nic) setTag(tag **vipl.Ptag, h C.uintptr_t) error {
	if h == 0 {
		return nil
	}
	p, err := n.ptag(h)
	if err == nil {
		*tag = p.Ptag
	}
	return err
}

//export viago_register
func viago_register(h, at C.uintptr_t, length C.VIP_ULONG, a *C.VIP_MEM_ATTRIBUTES, out *C.VIP_MEM_HANDLE) C.int {
	return control("VipRegisterMem", h, func(n *nic) error {
		attrs, err := n.attributes(a)
		if err != nil {
			return err
		}
		r, err := n.RegisterAddress(uint64(at), uint64(length), attrs)
		if err == nil {
			*out = n.keep(r)
		}
		return err
	})
}

//export viago_alloc
func viago_alloc(h C.uintptr_t, length C.VIP_ULONG, a *C.VIP_MEM_ATTRIBUTES, at *C.uintptr_t, out *C.VIP_MEM_HANDLE) C.int {
	return control("VipxAllocMem", h, func(n *nic) error {
		attrs, err := n.attributes(a)
		if err != nil {
			return err
		}
		if length > mostArena {
			return vipl.ErrResource
		}
		r, err := n.AllocMem(int(length), attrs)
		if err == nil {
			*at, *out = C.uintptr_t(r.Addr()), n.keep(r)
		}
		return err
	})
}

func (n *nic) keep(r *vipl.Region) C.VIP_MEM_HANDLE {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.regions[r.Handle()] = r
	return C.VIP_MEM_HANDLE(r.Handle())
}

// withRegion is control for the region of a NIC with that handle that begins at that address.
func withRegion(op string, h, at C.uintptr_t, handle C.VIP_MEM_HANDLE, do func(*nic, *vipl.Region) error) C.int {
	return control(op, h, func(n *nic) error {
		n.mu.Lock()
		r := n.regions[vipl.MemHandle(handle)]
		n.mu.Unlock()
		if r == nil || r.Addr() != uint64(at) {
			return vipl.ErrInvalidParameter
		}
		return do(n, r)
	})
}

//export viago_deregister
func viago_deregister(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE) C.int {
	return withRegion("VipDeregisterMem", h, at, handle, func(n *nic, r *vipl.Region) error {
		if err := r.Deregister(); err != nil {
			return err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.regions[r.Handle()] == r { // otherwise a new region has the handle already
			delete(n.regions, r.Handle())
		}
		return nil
	})
}

//export viago_query_mem
func viago_query_mem(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE, out *C.VIP_MEM_ATTRIBUTES) C.int {
	return withRegion("VipQueryMem", h, at, handle, func(_ *nic, r *vipl.Region) error {
		a, err := r.Query()
		if err != nil {
			return err
		}
		setPointer(unsafe.Pointer(&out.Ptag), known(a.Ptag))
		out.EnableRdmaWrite, out.EnableRdmaRead = boolean(a.EnableRDMAWrite), boolean(a.EnableRDMARead)
		return nil
	})
}

//export viago_set_mem
func viago_set_mem(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE, a *C.VIP_MEM_ATTRIBUTES) C.int {
	return withRegion("VipSetMemAttributes", h, at, handle, func(n *nic, r *vipl.Region) error {
		attrs, err := n.attributes(a)
		if err != nil {
			return err
		}
		return r.SetAttributes(attrs)
	})
}
