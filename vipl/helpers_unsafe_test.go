package vipl_test

import (
	"sync/atomic"
	"unsafe"

	"viaxdp/vipl"
)

// misaligned is a descriptor at an address that is no multiple of 64.
func misaligned(r *vipl.Region) *vipl.Descriptor {
	return (*vipl.Descriptor)(unsafe.Pointer(&r.Bytes()[32]))
}

// wordOf is the word of 8 bytes that b begins with, which is aligned.
func wordOf(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }
