package hugepages

import (
	"strings"
	"testing"
)

// Whatever /proc says, what is read of it is no less than nothing.
func FuzzProc(f *testing.F) {
	f.Add("HugePages_Total:  8\nHugePages_Free: 3\nHugePages_Rsvd: 1\nHugePages_Surp: 0\nHugepagesize:    2048 kB\n", uint64(0x1000), uint64(0x401000))
	f.Add("HugePages_Total: -8\nHugePages_Free: 3\nHugePages_Rsvd: 1\nHugePages_Surp: 0\nHugepagesize: 2048 kB", uint64(0), uint64(0))
	f.Add("1000-2000 rw-p\nAnonHugePages:      2048 kB\nShmemPmdMapped: -4 kB\nFilePmdMapped: 9999999999999999999 kB", uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, text string, start, end uint64) {
		if p, ok := poolInMeminfo(strings.NewReader(text)); ok {
			if p.total < 0 || p.free < 0 || p.reserved < 0 || p.surplus < 0 {
				t.Fatalf("%q is a pool of %+v", text, p)
			}
		}
		if n, err := hugeInSmaps(strings.NewReader(text), start, end); err == nil && n < 0 {
			t.Fatalf("%q has %d bytes on huge pages", text, n)
		}
	})
}
