package steer

import (
	"testing"
	"unsafe"

	"viaxdp/internal/lab/nstest"
)

// The kernel's layout (<linux/ethtool.h>, 64-bit).
func TestLayout(t *testing.T) {
	var c rxnfc
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"spec", unsafe.Offsetof(c.spec), 16}, {"mask", unsafe.Offsetof(c.spec.mask), 76},
		{"queue", unsafe.Offsetof(c.spec.queue), 152}, {"location", unsafe.Offsetof(c.spec.location), 160},
		{"count", unsafe.Offsetof(c.count), 184}, {"whole", unsafe.Sizeof(c), 192},
	} {
		nstest.ErrorIf(t, tc.got != tc.want, "%s at %d, want %d", tc.name, tc.got, tc.want)
	}
}
