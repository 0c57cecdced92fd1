//go:build cgo

package main

import (
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// An object that is created while another thread closes the NIC gets no handle: nothing
// would ever release its slot.
func TestNoHandleAfterClose(t *testing.T) {
	n := &nic{handles: map[uintptr]struct{}{}}
	var err error
	n.handle, err = add(nicKind, n, nil, nil)
	nstest.Must(t, err)
	tag := &ptag{nic: n}
	if _, err := add(ptagKind, tag, n, nil); err != nil {
		t.Errorf("before the NIC is closed: %v", err)
	}
	removeAll(n, n.handle)
	if h, err := add(ptagKind, tag, n, nil); err != vipl.ErrInvalidParameter {
		t.Errorf("after the NIC was closed: handle %#x, %v", h, err)
	}
	nstest.ErrorIf(t, len(n.handles) != 0, "%d handles go with a NIC that was closed", len(n.handles))
}
