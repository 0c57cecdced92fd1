//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"viaxdp/cmd/libvipl/bigstack"
	"viaxdp/vipl"
)

// firstPage is the end of the first page, where no program has memory. Go rejects a pointer
// there as corrupt, unless start.c has set invalidptr=0. A library of plain go build
// -buildmode=c-shared lacks that setting.
const firstPage = 4096

// descriptor returns the program's descriptor in place. The pointer is read from the
// argument's memory rather than converted: it may be any number, one within Go's heap too
// (invalidptr=0), until package vipl has found registered memory there.
func descriptor(at *C.uintptr_t) *vipl.Descriptor {
	if *at < firstPage {
		return nil
	}
	return *(**vipl.Descriptor)(unsafe.Pointer(at))
}

//export viago_post
func viago_post(h C.uintptr_t, recv C.int, at C.uintptr_t, handle C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	v := find[vi](h)
	if v == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if recv != 0 {
		return code(v.PostRecv(descriptor(&at), vipl.MemHandle(handle)))
	}
	return code(v.PostSend(descriptor(&at), vipl.MemHandle(handle)))
}

//export viago_post_later
func viago_post_later(h, at C.uintptr_t, handle C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	v := find[vi](h)
	if v == nil {
		return C.VIP_INVALID_PARAMETER
	}
	return code(v.PostSendLater(descriptor(&at), vipl.MemHandle(handle)))
}

// viago_post_list posts the first wanted descriptors of list, and adds to *count how many it has posted.
//
//export viago_post_list
func viago_post_list(h C.uintptr_t, recv C.int, list *C.uintptr_t, wanted C.VIP_ULONG, count *C.VIP_ULONG, handle C.VIP_MEM_HANDLE) C.int {
	bigstack.Reserve()
	v := find[vi](h)
	if v == nil {
		return C.VIP_INVALID_PARAMETER
	}
	post := v.PostSends
	if recv != 0 {
		post = v.PostRecvs
	}
	for wanted > 0 { // a queue that is full ends it, whatever the program's number is
		var ds [32]*vipl.Descriptor
		some := ds[:min(wanted, C.VIP_ULONG(len(ds)))]
		for i, at := range unsafe.Slice(list, len(some)) {
			some[i] = descriptor(&at)
		}
		n, err := post(some, vipl.MemHandle(handle))
		*count += C.VIP_ULONG(n)
		if err != nil {
			return code(err)
		}
		list = (*C.uintptr_t)(unsafe.Add(unsafe.Pointer(list), uintptr(n)*unsafe.Sizeof(*list)))
		wanted -= C.VIP_ULONG(n)
	}
	return C.VIP_SUCCESS
}

//export viago_done
func viago_done(h C.uintptr_t, recv, tend C.int, out *C.uintptr_t) C.int {
	bigstack.Reserve()
	v := find[vi](h)
	if v == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if tend != 0 {
		v.nic.Tend()
	}
	var d *vipl.Descriptor
	var err error
	if recv != 0 {
		d, err = v.RecvDone()
	} else {
		d, err = v.SendDone()
	}
	*out = address(d)
	return code(err)
}

//export viago_wait
func viago_wait(h C.uintptr_t, recv C.int, ms C.VIP_ULONG, out *C.uintptr_t) C.int {
	bigstack.Reserve()
	*out = 0
	v := find[vi](h)
	if v == nil {
		return C.VIP_INVALID_PARAMETER
	}
	var d *vipl.Descriptor
	var err error
	if recv != 0 {
		d, err = v.RecvWait(timeout(ms))
	} else {
		d, err = v.SendWait(timeout(ms))
	}
	*out = address(d)
	return code(err)
}

//export viago_notify
func viago_notify(h C.uintptr_t, recv C.int, context, handler C.uintptr_t) C.int {
	op, notify := "VipSendNotify", (*vipl.VI).SendNotify
	if recv != 0 {
		op, notify = "VipRecvNotify", (*vipl.VI).RecvNotify
	}
	return control(op, h, func(v *vi) error {
		return notify(v.VI, func(_ *vipl.VI, d *vipl.Descriptor) {
			C.via_call_vi(handler, context, v.nic.handle, v.handle, address(d))
		})
	})
}

//export viago_cq_done
func viago_cq_done(h C.uintptr_t, tend C.int, out *C.uintptr_t, recv *C.int) C.int {
	bigstack.Reserve()
	c := find[cq](h)
	if c == nil {
		return C.VIP_INVALID_PARAMETER
	}
	if tend != 0 {
		c.nic.Tend()
	}
	v, r, err := c.Done()
	return entryDone(v, r, err, out, recv)
}

//export viago_cq_wait
func viago_cq_wait(h C.uintptr_t, ms C.VIP_ULONG, out *C.uintptr_t, recv *C.int) C.int {
	bigstack.Reserve()
	c := find[cq](h)
	if c == nil {
		return C.VIP_INVALID_PARAMETER
	}
	v, r, err := c.Wait(timeout(ms))
	return entryDone(v, r, err, out, recv)
}

func entryDone(v *vipl.VI, r bool, err error, out *C.uintptr_t, recv *C.int) C.int {
	if err != nil {
		return code(err)
	}
	*out, *recv = handleOf(v), C.int(boolean(r))
	return C.VIP_SUCCESS
}

//export viago_cq_notify
func viago_cq_notify(h, context, handler C.uintptr_t) C.int {
	return control("VipCQNotify", h, func(c *cq) error {
		return c.Notify(func(v *vipl.VI, recv bool) {
			C.via_call_cq(handler, context, c.nic.handle, handleOf(v), C.int(boolean(recv)))
		})
	})
}
