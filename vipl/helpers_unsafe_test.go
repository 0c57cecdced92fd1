package vipl_test

import (
	"unsafe"

	"viaxdp/vipl"
)

// misaligned is a descriptor at an address that is no multiple of 64.
func misaligned(r *vipl.Region) *vipl.Descriptor {
	return (*vipl.Descriptor)(unsafe.Pointer(&r.Bytes()[32]))
}
