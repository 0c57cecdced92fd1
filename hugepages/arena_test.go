package hugepages

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

func open(t *testing.T, cfg Config) *Arena {
	t.Helper()
	a, err := New(cfg)
	nstest.Must(t, err)
	t.Cleanup(func() { nstest.Check(t, a.Close()) })
	return a
}

// eachForm runs a test on a private and a shared arena, of the best and of
// ordinary pages.
func eachForm(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, policy := range []Policy{Auto, Avoid} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v,shared=%v", policy, shared), func(t *testing.T) {
				test(t, Config{Size: 3<<20 + 1, Policy: policy, Shared: shared})
			})
		}
	}
}

// Every page of a new arena is populated, which mincore(2) reports without touching it.
func TestPopulated(t *testing.T) {
	eachForm(t, func(t *testing.T, cfg Config) {
		a := open(t, cfg)
		mem := a.Bytes()
		if len(mem) < cfg.Size || len(mem) != a.Info().Size {
			t.Fatalf("%d bytes, asked for %d, info says %d", len(mem), cfg.Size, a.Info().Size)
		}
		present, err := residentPages(mem)
		nstest.Must(t, err)
		for i, p := range present {
			nstest.FatalIf(t, p&1 == 0, "page %d of %d is not present", i, len(present))
		}
		nstest.ErrorIf(t, !bytes.Equal(mem, make([]byte, len(mem))), "new memory is not zero")
	})
}

func TestInfoAgreesWithItself(t *testing.T) {
	eachForm(t, func(t *testing.T, cfg Config) {
		i := open(t, cfg).Info()
		nstest.ErrorIf(t, i.Shared != cfg.Shared || len(i.Refused) != int(i.Kind), "%+v", i)
		for k, r := range i.Refused {
			nstest.ErrorIf(t, r.Step != Kind(k) || r.Cause == "" || r.Remedy == "", "refusal %d: %+v", k, r)
			nstest.ErrorIf(t, !strings.Contains(i.String(), r.Cause), "%q does not say %q", i, r.Cause)
		}
		nstest.ErrorIf(t, (i.PageSize == hugeSize) != (i.Huge == i.Size) || i.Huge > i.Size,
			"page size %d with %d of %d bytes huge", i.PageSize, i.Huge, i.Size)
		nstest.ErrorIf(t, (i.Kind == Pages) != (i.Huge == 0), "kind %v with %d bytes huge", i.Kind, i.Huge)
		nstest.ErrorIf(t, cfg.Policy == Avoid && (i.Kind != Pages || i.Size != 3<<20+os.Getpagesize()),
			"avoided: %+v", i)
	})
}

// A shared arena's descriptor maps to the same bytes, and it can neither
// shrink nor grow.
func TestShared(t *testing.T) {
	for _, policy := range []Policy{Auto, Avoid} {
		a := open(t, Config{Size: 2 << 20, Shared: true, Policy: policy})
		other, err := unix.Mmap(a.FD(), 0, len(a.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		nstest.Must(t, err)
		a.Bytes()[12345] = 42
		nstest.ErrorIf(t, other[12345] != 42, "the second mapping shows other bytes")
		nstest.Check(t, unix.Munmap(other))
		for _, size := range []int64{0, 4 << 20} {
			if err := unix.Ftruncate(a.FD(), size); !errors.Is(err, unix.EPERM) {
				t.Errorf("ftruncate(%d): %v, want EPERM", size, err)
			}
		}
		flags, err := unix.FcntlInt(uintptr(a.FD()), unix.F_GETFD, 0)
		nstest.ErrorIf(t, err != nil || flags&unix.FD_CLOEXEC == 0,
			"descriptor flags %#x, %v: not close-on-exec", flags, err)
	}
	nstest.Equal(t, "private arena has descriptor", open(t, Config{Size: 4096, Policy: Avoid}).FD(), -1)
}

func TestAllocFree(t *testing.T) {
	const reserve = 1<<20 + 1
	a := open(t, Config{Size: 4 << 20, Reserve: reserve, Policy: Avoid})
	base := a.Bytes()
	for align := 1; align <= 2<<20; align *= 2 {
		b, err := a.Alloc(100, align)
		nstest.FatalIf(t, err != nil, "alignment %d: %v", align, err)
		off, ok := offsetIn(base, b)
		nstest.FatalIf(t, !ok || off < reserve || len(b) != 100 || cap(b) != 100,
			"offset %d (%v), len %d, cap %d", off, ok, len(b), cap(b))
		nstest.FatalIf(t, address(b)%uintptr(align) != 0 || off%align != 0,
			"address %#x, offset %d: not aligned to %d", address(b), off, align)
		b[99] = 1
		nstest.Must(t, a.Free(b[:0]))
		if err := a.Free(b); !errors.Is(err, ErrNotAllocated) {
			t.Fatalf("double free: %v", err)
		}
	}
	b, err := a.Alloc(100, 0)
	nstest.Must(t, err)
	nstest.ErrorIf(t, !bytes.Equal(b, make([]byte, 100)), "a block that was used before is not zero")
	for name, wrong := range map[string][]byte{
		"middle": b[1:], "reserve": base[:10], "heap": make([]byte, 64), "nil": nil, "empty": b[100:],
	} {
		if err := a.Free(wrong); !errors.Is(err, ErrForeign) && !errors.Is(err, ErrNotAllocated) {
			t.Errorf("Free of %s: %v", name, err)
		}
	}
	nstest.Check(t, a.Free(b))
}

func TestClose(t *testing.T) {
	a, err := New(Config{Size: 1 << 20, Shared: true, Policy: Avoid})
	nstest.Must(t, err)
	b, err := a.Alloc(1000, 0)
	nstest.Must(t, err)
	if err := a.Close(); !errors.Is(err, ErrBlocksOut) {
		t.Fatalf("Close with a block out: %v", err)
	}
	b[0] = 1 // still mapped
	nstest.Must(t, a.Free(b))
	start, fd := address(a.Bytes()), a.FD()
	nstest.Must(t, errors.Join(a.Close(), a.Close()))
	nstest.ErrorIf(t, a.Bytes() != nil || a.FD() != -1, "a closed arena shows memory")
	nstest.WantErr(t, "Alloc after Close", nstest.Err(a.Alloc(1, 0)), ErrClosed)
	nstest.WantErr(t, "Free after Close", a.Free(b), ErrClosed)
	if maps := mapsLine(t, start); strings.Contains(maps, "via-xdp") {
		t.Errorf("still mapped: %s", maps)
	}
	if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && strings.Contains(link, "via-xdp") {
		t.Errorf("descriptor still open: %s", link)
	}
}

// The pages before and behind an arena cannot be touched.
func TestGuardPages(t *testing.T) {
	a := open(t, Config{Size: 1 << 20, Policy: Avoid})
	start := address(a.Bytes())
	for _, at := range []uintptr{start - 1, start + uintptr(len(a.Bytes()))} {
		if line := mapsLine(t, at); !strings.Contains(line, "---p") {
			t.Errorf("address %#x: %q, want a page without access", at, line)
		}
	}
}

// A child process does not get the arena: flag "dc" of smaps, do not copy.
func TestNotForked(t *testing.T) {
	eachForm(t, func(t *testing.T, cfg Config) {
		a := open(t, cfg)
		_, flags, _ := strings.Cut(smapsOf(t, address(a.Bytes())), "VmFlags:")
		nstest.ErrorIf(t, !strings.Contains(flags, " dc "), "flags %q", flags)
	})
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{
		{}, {Size: -1}, {Size: math.MaxInt}, {Size: 4096, Reserve: 4097}, {Size: 4096, Reserve: -1},
		{Size: 4096, Policy: 3}, {Size: 4096, Policy: -1},
	} {
		if a, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
			_ = a.Close()
		}
	}
}

// More than the machine has is an error, and does not end the process.
func TestTooLarge(t *testing.T) {
	_, err := New(Config{Size: 1 << 44, Policy: Avoid})
	var r Refusal
	nstest.ErrorIf(t, !errors.Is(err, unix.ENOMEM) || !errors.As(err, &r) || r.Remedy == "", "16 TB: %v", err)
}

// If required hugepages are missing, New returns an error that names what is missing and the remedy, for
// private and shared memory.
func TestRequireRefused(t *testing.T) {
	p, err := readPool()
	if err != nil {
		nstest.Lacks(t, "no pool of 2 MB pages: %v", err)
	}
	for _, shared := range []bool{false, true} {
		_, err := New(Config{Size: (p.available() + 4096) * hugeSize, Shared: shared, Policy: Require})
		var r Refusal
		nstest.FatalIf(t, !errors.As(err, &r) || !errors.Is(err, unix.ENOMEM),
			"shared=%v: %v, want a Refusal with ENOMEM", shared, err)
		nstest.ErrorIf(t, r.Step != Hugetlb || !strings.Contains(r.Remedy, " > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "%+v", r)
	}
}

// Without a pool, both forms get transparent hugepages where the owner of the
// machine has nothing against it.
func TestTransparent(t *testing.T) {
	if thpSetting(thpAnon) == "" || thpSetting(thpAnon) == "never" || thpSetting(thpShmem) == "deny" {
		nstest.Lacks(t, "transparent hugepages are turned off")
	}
	for _, shared := range []bool{false, true} {
		// There may be no memory in one piece for a moment.
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			i := open(t, Config{Size: 4 << 20, Shared: shared}).Info()
			if i.Kind != Pages {
				break
			}
			nstest.FatalIf(t, time.Now().After(end), "shared=%v: %v", shared, i)
		}
	}
}

// An adopted arena has the same bytes, and gives out all but the reserve.
func TestAdopt(t *testing.T) {
	for _, policy := range []Policy{Auto, Avoid} {
		a := open(t, Config{Size: 4 << 20, Reserve: 1 << 20, Shared: true, Policy: policy})
		fd, err := unix.FcntlInt(uintptr(a.FD()), unix.F_DUPFD_CLOEXEC, 0)
		nstest.Must(t, err)
		b, err := Adopt(fd, a.Info())
		nstest.Must(t, err)
		a.Bytes()[77] = 7
		nstest.ErrorIf(t, b.Bytes()[77] != 7 || len(b.Bytes()) != len(a.Bytes()) || b.FD() != fd, "not the same memory")
		if address(b.Bytes())%(4<<20) != 0 {
			t.Errorf("address %#x: not on the boundary of an arena", address(b.Bytes()))
		}
		block, err := b.Alloc(2<<20, 0)
		nstest.Must(t, err)
		if off, _ := offsetIn(b.Bytes(), block); off < 1<<20 {
			t.Errorf("block at %d: in the reserve", off)
		}
		nstest.Check(t, errors.Join(b.Free(block), b.Close()))
	}
}

// What an agent hands over that is no arena is an error, whatever it is, and its descriptor is
// closed.
func TestAdoptRefusesFiles(t *testing.T) {
	const size = 1 << 20
	memfd := func(seals int) func() (int, error) {
		return func() (int, error) {
			fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err == nil {
				err = unix.Ftruncate(fd, size)
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			}
			return fd, err
		}
	}
	good := memfd(unix.F_SEAL_SHRINK)
	open := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }
	}
	file := filepath.Join(t.TempDir(), "file")
	nstest.Must(t, os.WriteFile(file, make([]byte, size), 0o600))
	for name, c := range map[string]struct {
		file func() (int, error)
		info Info
	}{
		"no size":                        {good, Info{}},
		"less than none":                 {good, Info{Size: -size}},
		"more than the file has":         {good, Info{Size: size + os.Getpagesize()}},
		"more than an address space has": {good, Info{Size: math.MaxInt}},
		"half a page":                    {good, Info{Size: size - 64}},
		"reserved more than all":         {good, Info{Size: size, Reserve: size + 1}},
		"reserved less than nothing":     {good, Info{Size: size, Reserve: -1}},
		"not sealed":                     {memfd(0), Info{Size: size}},
		"sealed against writing":         {memfd(unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE), Info{Size: size}},
		"a file":                         {open(file, unix.O_RDWR), Info{Size: size}},
		"a file to read":                 {open(file, unix.O_RDONLY), Info{Size: size}},
		"a directory":                    {open(t.TempDir(), unix.O_RDONLY), Info{Size: 4096}},
		"a device":                       {open("/dev/zero", unix.O_RDWR), Info{Size: size}},
		"a socket":                       {func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }, Info{Size: size}},
	} {
		fd, err := c.file()
		if err != nil {
			t.Fatal(name, err)
		}
		if a, err := Adopt(fd, c.info); err == nil {
			t.Errorf("%s: no error", name)
			a.Close()
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s: the descriptor is open", name)
		}
	}
	fd, err := good()
	nstest.Must(t, err)
	a, err := Adopt(fd, Info{Size: size, Reserve: 4096})
	nstest.Must(t, err)
	nstest.Check(t, a.Close())
}

// If the kernel refuses a mapping, memory that other threads map meanwhile stays mapped.
func TestRefusedMappingBesideOthers(t *testing.T) {
	const size, rounds = 4 << 20, 50_000
	over := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				mem, err := unix.Mmap(-1, 0, size/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
				if err != nil {
					t.Error(err)
					return
				}
				for range 20 {
					if !mapped(mem) {
						t.Error("another thread unmapped it")
						return
					}
				}
				nstest.Check(t, unix.Munmap(mem))
			}
		})
	}
	// A socket's mmap fails as late as a lack of huge pages does: after the kernel has unmapped what was there.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	for range rounds {
		m := mapping{fd: fd}
		if err := m.place(size, unix.MAP_SHARED); err == nil {
			t.Fatal("a socket was mapped")
		}
		m.fd = -1
		nstest.Must(t, m.close())
	}
	nstest.Check(t, unix.Close(fd))
	close(over)
	others.Wait()
}

func TestRefusalsNameCauseAndRemedy(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Refusal
		want []string
	}{
		{"cgroup", hugetlbRefusal(unix.EFAULT, 8), []string{"hugetlb", "cgroup", "hugetlb.2MB.max"}},
		{"enough free pages", hugetlbRefusal(unix.ENOMEM, 0), []string{"hugetlb", "cgroup", "hugetlb.2MB.rsvd.max", "cpuset.mems"}},
		{"no thp", thpRefusal(unix.EINVAL, false), []string{"thp", "invalid argument"}},
		{"old kernel", pagesRefusal(unix.EINVAL, 1<<20), []string{"MADV_POPULATE_WRITE", "5.14"}},
		{"limits", pagesRefusal(unix.ENOMEM, 1<<20), []string{"1024 KB", "smaller"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(c.r.Error(), w) {
				t.Errorf("%s: %q does not say %q", c.name, c.r.Error(), w)
			}
		}
		nstest.ErrorIf(t, !errors.Is(c.r, c.r.Err), "%s: does not unwrap to the errno", c.name)
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
		nstest.ErrorIf(t, err != nil || got != c.want, "%#x-%#x: %d, %v, want %d", c.start, c.end, got, err, c.want)
	}
}

func TestCheckMemory(t *testing.T) {
	nstest.WantErr(t, "16 TB", checkMemory(1<<44), unix.ENOMEM)
	nstest.WantErr(t, "4 KB", checkMemory(1<<12), nil)
}

// For any content of /proc, no parsed value is negative.
func FuzzProc(f *testing.F) {
	f.Add("HugePages_Total:  8\nHugePages_Free: 3\nHugePages_Rsvd: 1\nHugePages_Surp: 0\nHugepagesize:    2048 kB\n", uint64(0x1000), uint64(0x401000))
	f.Add("HugePages_Total: -8\nHugePages_Free: 3\nHugePages_Rsvd: 1\nHugePages_Surp: 0\nHugepagesize: 2048 kB", uint64(0), uint64(0))
	f.Add("1000-2000 rw-p\nAnonHugePages:      2048 kB\nShmemPmdMapped: -4 kB\nFilePmdMapped: 9999999999999999999 kB", uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, text string, start, end uint64) {
		if p, ok := poolInMeminfo(parseMeminfo(strings.NewReader(text))); ok {
			nstest.FatalIf(t, p.total < 0 || p.free < 0 || p.reserved < 0 || p.surplus < 0,
				"%q is a pool of %+v", text, p)
		}
		if n, err := hugeInSmaps(strings.NewReader(text), start, end); err == nil && n < 0 {
			t.Fatalf("%q has %d bytes on huge pages", text, n)
		}
	})
}

// Mappings that are made at once do not take each other's room until none is left to try.
func TestPlaceAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5_000 {
				m := mapping{fd: -1}
				if err := m.place(128<<20, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
					t.Error(err)
					return
				}
				nstest.Check(t, m.close())
			}
		})
	}
	all.Wait()
}
