//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"runtime"
	"time"
	"unsafe"

	"viaxdp/vipl"
)

// vi is a VI handle, cq one of a completion queue.
type (
	vi struct {
		*vipl.VI
		nic    *nic
		handle C.uintptr_t
	}
	cq struct {
		*vipl.CQ
		nic *nic
	}
)

// handleOf is the handle of a VI, also of one that another thread has just destroyed.
func handleOf(v *vipl.VI) C.uintptr_t { return v.Value().(*vi).handle }

func (c *cq) object() any { return c.CQ }

// setPointer stores a handle in memory of the program, which may hold anything: as a
// number, since Go's write barrier would follow the old pointer.
func setPointer(at unsafe.Pointer, h C.uintptr_t) { *(*C.uintptr_t)(at) = h }

// viAttributes reads a VI's attributes from the program.
func (n *nic) viAttributes(a *C.VIP_VI_ATTRIBUTES) (vipl.VIAttributes, error) {
	out := vipl.VIAttributes{
		Level: vipl.ReliabilityLevel(a.ReliabilityLevel), MaxTransferSize: int(a.MaxTransferSize),
		EnableRDMAWrite: a.EnableRdmaWrite != 0, EnableRDMARead: a.EnableRdmaRead != 0,
	}
	if a.MaxTransferSize > C.VIP_ULONG(vipl.MaxTransferSize) {
		return out, vipl.ErrInvalidMTU
	}
	if uintptr(a.QoS) != 0 {
		out.QoS = 1 // package vipl refuses it
	}
	err := n.setTag(&out.Ptag, C.uintptr_t(uintptr(a.Ptag)))
	return out, err
}

//export viago_create_vi
func viago_create_vi(h C.uintptr_t, a *C.VIP_VI_ATTRIBUTES, send, recv C.uintptr_t, out *C.uintptr_t) C.int {
	return control("VipCreateVi", h, func(n *nic) error {
		attrs, err := n.viAttributes(a)
		if err != nil {
			return err
		}
		var queues [2]*vipl.CQ
		for i, h := range [2]C.uintptr_t{send, recv} {
			if h == 0 {
				continue
			}
			c := find[cq](h)
			if c == nil {
				return vipl.ErrInvalidParameter
			}
			queues[i] = c.CQ
		}
		made, err := n.CreateVI(attrs, queues[0], queues[1])
		if err != nil {
			return err
		}
		v := &vi{VI: made, nic: n}
		made.SetValue(v)
		v.handle, err = add(viKind, v, n, func(s *C.struct_via_slot, pin *runtime.Pinner) {
			n.watchPort(s, pin)
			send, recv := made.Watch()
			watchQueue(&s.queue[0], send, pin)
			watchQueue(&s.queue[1], recv, pin)
		})
		if err != nil {
			made.Destroy()
			return err
		}
		*out = v.handle
		return nil
	})
}

//export viago_destroy_vi
func viago_destroy_vi(h C.uintptr_t) C.int {
	return control("VipDestroyVi", h, func(v *vi) error { return destroy(h, v.Destroy) })
}

//export viago_query_vi
func viago_query_vi(h C.uintptr_t, state *C.int, a *C.VIP_VI_ATTRIBUTES, send, recv *C.VIP_BOOLEAN) C.int {
	return control("VipQueryVi", h, func(v *vi) error {
		q, err := v.Query()
		if err != nil {
			return err
		}
		if state != nil {
			*state = C.int(q.State)
		}
		if a != nil {
			putAttributes(a, vipl.RemoteAttributes{
				Level: q.Attributes.Level, MaxTransferSize: q.Attributes.MaxTransferSize,
				EnableRDMAWrite: q.Attributes.EnableRDMAWrite, EnableRDMARead: q.Attributes.EnableRDMARead,
			})
			if q.Attributes.Ptag != nil {
				setPointer(unsafe.Pointer(&a.Ptag), known(q.Attributes.Ptag))
			}
		}
		if send != nil {
			*send = boolean(q.SendEmpty)
		}
		if recv != nil {
			*recv = boolean(q.RecvEmpty)
		}
		return nil
	})
}

//export viago_query_cause
func viago_query_cause(h C.uintptr_t, out *C.char, length *C.VIP_ULONG) C.int {
	return control("VipxQueryCause", h, func(v *vi) error {
		q, err := v.Query()
		switch {
		case err != nil:
			return err
		case q.Lost == nil:
			return vipl.ErrInvalidState
		}
		return putText(out, length, q.Lost.Error())
	})
}

// putAttributes gives the program a VI's attributes, without a tag.
func putAttributes(out *C.VIP_VI_ATTRIBUTES, a vipl.RemoteAttributes) {
	out.ReliabilityLevel, out.MaxTransferSize = C.VIP_RELIABILITY_LEVEL(a.Level), C.VIP_ULONG(a.MaxTransferSize)
	setPointer(unsafe.Pointer(&out.QoS), 0)
	setPointer(unsafe.Pointer(&out.Ptag), 0)
	out.EnableRdmaWrite, out.EnableRdmaRead = boolean(a.EnableRDMAWrite), boolean(a.EnableRDMARead)
}

//export viago_set_vi
func viago_set_vi(h C.uintptr_t, a *C.VIP_VI_ATTRIBUTES) C.int {
	return control("VipSetViAttributes", h, func(v *vi) error {
		attrs, err := v.nic.viAttributes(a)
		if err != nil {
			return err
		}
		return v.SetAttributes(attrs)
	})
}

//export viago_create_cq
func viago_create_cq(h C.uintptr_t, entries C.VIP_ULONG, out *C.uintptr_t) C.int {
	return control("VipCreateCQ", h, func(n *nic) error {
		if entries > vipl.MaxCQEntries {
			return vipl.ErrInvalidParameter
		}
		made, err := n.CreateCQ(int(entries))
		if err != nil {
			return err
		}
		c, err := add(cqKind, &cq{made, n}, n, func(s *C.struct_via_slot, pin *runtime.Pinner) {
			n.watchPort(s, pin)
			entries, settling := made.Watch()
			pin.Pin(entries)
			s.entries, s.settling = address(entries), address(settling)
		})
		if err != nil {
			made.Destroy()
			return err
		}
		*out = c
		return nil
	})
}

//export viago_resize_cq
func viago_resize_cq(h C.uintptr_t, entries C.VIP_ULONG) C.int {
	return control("VipResizeCQ", h, func(c *cq) error {
		if entries > vipl.MaxCQEntries {
			return vipl.ErrInvalidParameter
		}
		return c.Resize(int(entries))
	})
}

//export viago_destroy_cq
func viago_destroy_cq(h C.uintptr_t) C.int {
	return control("VipDestroyCQ", h, func(c *cq) error { return destroy(h, c.Destroy) })
}

// timeout reads milliseconds. A number with a low half of all ones means no limit.
func timeout(ms C.VIP_ULONG) time.Duration {
	if uint32(ms) == 0xffffffff || ms > 1<<40 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
