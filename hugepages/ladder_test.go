package hugepages

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefusalsNameCauseAndRemedy(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Refusal
		want []string
	}{
		{"cgroup", hugetlbRefusal(unix.EFAULT, 8), []string{"hugetlb", "cgroup", "hugetlb.2MB.max"}},
		{"no thp", thpRefusal(unix.EINVAL, false), []string{"thp", "invalid argument"}},
		{"old kernel", pagesRefusal(unix.EINVAL, 1<<20), []string{"MADV_POPULATE_WRITE", "5.14"}},
		{"limits", pagesRefusal(unix.ENOMEM, 1<<20), []string{"1024 KB", "smaller"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(c.r.Error(), w) {
				t.Errorf("%s: %q does not say %q", c.name, c.r.Error(), w)
			}
		}
		if !errors.Is(c.r, c.r.Err) {
			t.Errorf("%s: does not unwrap to the errno", c.name)
		}
	}
}

func TestHugeInSmaps(t *testing.T) {
	const smaps = `7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
AnonHugePages:      2048 kB
7f0000200000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr mr mw me ac sd
7f0000800000-7f0000a00000 rw-s 00000000 00:01 1  /memfd:via-xdp (deleted)
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
`
	for _, c := range []struct {
		start, end uint64
		want       int
	}{
		{0x7f0000000000, 0x7f0000200000, 2 << 20},
		{0x7f0000200000, 0x7f0000800000, 4 << 20},
		{0x7f0000000000, 0x7f0000800000, 6 << 20},
		{0x7f0000800000, 0x7f0000a00000, 2 << 20},
		{0x7f0000900000, 0x7f0000a00000, 0},
	} {
		got, err := hugeInSmaps(strings.NewReader(smaps), c.start, c.end)
		if err != nil || got != c.want {
			t.Errorf("%#x-%#x: %d, %v, want %d", c.start, c.end, got, err, c.want)
		}
	}
}

func TestCheckMemory(t *testing.T) {
	if err := checkMemory(1 << 44); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("16 TB: %v", err)
	}
	if err := checkMemory(1 << 12); err != nil {
		t.Errorf("4 KB: %v", err)
	}
}

// For any content of /proc, no parsed value is negative.
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
