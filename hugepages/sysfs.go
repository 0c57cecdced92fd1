package hugepages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Where the kernel keeps its settings. The hugetlb directory is that of 2 MB
// pages; /proc/sys/vm has the same counters for the default page size, which
// the kernel's command line can change (admin-guide/mm/hugetlbpage.rst).
const (
	poolDir      = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	thpAnon      = "/sys/kernel/mm/transparent_hugepage/enabled"
	thpShmem     = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
	fileNr       = "nr_hugepages"
	fileOverNr   = "nr_overcommit_hugepages"
	fileFree     = "free_hugepages"
	fileReserved = "resv_hugepages"
	fileSurplus  = "surplus_hugepages"
)

// pool is the state of the 2 MB pool, in pages. nr_hugepages reads as the
// total, surplus pages included, but what is written to it is the number of
// persistent ones.
type pool struct {
	total, free, reserved, surplus, overcommit int
}

func (p pool) persistent() int { return p.total - p.surplus }

// available is what a new mapping could take: free pages that nobody has
// reserved, and surplus pages that the limit still allows.
func (p pool) available() int {
	return p.free - p.reserved + max(0, p.overcommit-p.surplus)
}

// readPool reads the pool. In /sys each counter is a file of its own: what one says
// may be over when the next is read, and their difference is then that of no moment.
// /proc/meminfo has all but the limit, of the default page size, microseconds apart.
func readPool() (p pool, err error) {
	if p, err = readCounters(); err != nil {
		return p, err
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return p, nil
	}
	defer f.Close()
	if m, ok := poolInMeminfo(f); ok {
		m.overcommit = p.overcommit
		return m, nil
	}
	return p, nil
}

// poolInMeminfo is the pool of the default page size; ok is false when that is not
// 2 MB, or the kernel does not say.
func poolInMeminfo(meminfo io.Reader) (p pool, ok bool) {
	found := 0
	for lines := bufio.NewScanner(meminfo); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		v := map[string]*int{
			"HugePages_Total": &p.total, "HugePages_Free": &p.free,
			"HugePages_Rsvd": &p.reserved, "HugePages_Surp": &p.surplus,
		}[name]
		if v != nil {
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return pool{}, false
			}
			*v = int(n)
			found++
		}
		if size, is := kilobytes(value); name == "Hugepagesize" {
			return p, is && size == hugeSize && found == 4
		}
	}
	return pool{}, false
}

func readCounters() (p pool, err error) {
	for name, v := range map[string]*int{
		fileNr: &p.total, fileFree: &p.free, fileReserved: &p.reserved,
		fileSurplus: &p.surplus, fileOverNr: &p.overcommit,
	} {
		if *v, err = readInt(poolDir + name); err != nil {
			return pool{}, err
		}
	}
	return p, nil
}

func readInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return int(min(n, boundless)), err
}

// boundless is more pages than any machine has, and what a greater number is read as: a limit
// may be the greatest that the kernel takes.
const boundless = 1 << 40

// thpSetting returns the chosen word of a transparent hugepage setting such as
// "always [madvise] never", or "" when the kernel does not have it.
func thpSetting(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	_, s, _ := strings.Cut(string(b), "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

// memAvailable is the kernel's estimate of what can be had without swapping,
// in bytes (MemAvailable of /proc/meminfo); ok is false when it does not say.
func memAvailable() (n int, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if v, found := strings.CutPrefix(lines.Text(), "MemAvailable:"); found {
			return kilobytes(v)
		}
	}
	return 0, false
}

// hugeMapped counts the bytes of [addr, addr+size) that transparent 2 MB pages
// map now. Guard pages keep the mapping from melting into a neighbour, so that
// the figures of its entry in smaps are its own.
func hugeMapped(addr uintptr, size int) (int, error) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return hugeInSmaps(f, uint64(addr), uint64(addr)+uint64(size))
}

func hugeInSmaps(smaps io.Reader, start, end uint64) (int, error) {
	sum, inside := 0, false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case "AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:":
			if n, ok := kilobytes(value); ok && inside {
				sum += n
			}
		default:
			var from, to uint64
			if n, _ := fmt.Sscanf(name, "%x-%x", &from, &to); n == 2 {
				inside = from >= start && to <= end
			}
		}
	}
	return sum, lines.Err()
}

// kilobytes reads "  123 kB" as bytes.
func kilobytes(s string) (int, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s), "kB")), 10, 40)
	return int(n) << 10, err == nil
}
