//go:build cgo

package main

import "testing"

// What is created while another thread closes the NIC gets no handle: nothing would
// ever give its slot back.
func TestNoHandleAfterClose(t *testing.T) {
	n := &nic{handles: map[uintptr]struct{}{}}
	n.handle = add(nicKind, n, nil, nil)
	if n.handle == 0 {
		t.Fatal("no handle for a NIC")
	}
	tag := &ptag{nic: n}
	if add(ptagKind, tag, n, nil) == 0 {
		t.Error("no handle before the NIC is closed")
	}
	removeAll(n, n.handle)
	if h := add(ptagKind, tag, n, nil); h != 0 {
		t.Errorf("handle %#x after the NIC was closed", h)
	}
	if len(n.handles) != 0 {
		t.Errorf("%d handles go with a NIC that was closed", len(n.handles))
	}
}
