package hugepages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// The kernel's settings. poolDir is that of 2 MB pages. /proc/sys/vm has the same counters for the default page
// size, which the kernel's command line can change (admin-guide/mm/hugetlbpage.rst).
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

// pool is the state of the 2 MB pool, in pages. nr_hugepages reads as the total, surplus pages included, but
// writing it sets the number of persistent pages.
type pool struct {
	total, free, reserved, surplus, overcommit int
}

func (p pool) persistent() int { return p.total - p.surplus }

// available returns what a new mapping could take: free pages without a reservation, and surplus pages that the
// limit still allows.
func (p pool) available() int {
	return p.free - p.reserved + max(0, p.overcommit-p.surplus)
}

// readPool reads the pool. In /sys each counter is a separate file, so counters read one after the other may not
// belong to the same moment. /proc/meminfo has all counters but the limit, for the default page size, microseconds
// apart.
func readPool() (p pool, err error) {
	if p, err = readCounters(); err != nil {
		return p, err
	}
	if m, ok := poolInMeminfo(meminfo()); ok {
		m.overcommit = p.overcommit
		return m, nil
	}
	return p, nil
}

// meminfo reads /proc/meminfo; nil if it cannot be read.
func meminfo() map[string]int {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseMeminfo(f)
}

// parseMeminfo reads the values of /proc/meminfo by their names, those in kB as bytes.
func parseMeminfo(text io.Reader) map[string]int {
	values := make(map[string]int)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if n, ok := kilobytes(value); ok && strings.HasSuffix(value, "kB") {
			values[name] = n
		} else if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31); err == nil {
			values[name] = int(n)
		}
	}
	return values
}

// poolInMeminfo returns the pool of the default page size. ok is false if that is not 2 MB, or if the kernel does
// not report it.
func poolInMeminfo(values map[string]int) (p pool, ok bool) {
	for name, v := range map[string]*int{
		"HugePages_Total": &p.total, "HugePages_Free": &p.free, "HugePages_Rsvd": &p.reserved, "HugePages_Surp": &p.surplus,
	} {
		if *v, ok = values[name]; !ok {
			return pool{}, false
		}
	}
	return p, values["Hugepagesize"] == hugeSize
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

// boundless is more pages than any machine has. Larger numbers are read as boundless, since a limit may be the
// largest number that the kernel accepts.
const boundless = 1 << 40

// thpSetting returns the selected word of a transparent hugepage setting such as "always [madvise] never", or "" if
// the kernel does not have the setting.
func thpSetting(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	_, s, _ := strings.Cut(string(b), "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

// memAvailable returns the kernel's estimate of the memory that is available without swapping, in bytes
// (MemAvailable of /proc/meminfo). ok is false if the kernel does not report it.
func memAvailable() (n int, ok bool) {
	n, ok = meminfo()["MemAvailable"]
	return n, ok
}

// hugeMapped counts the bytes of [addr, addr+size) that transparent 2 MB pages map now. Guard pages keep the kernel
// from merging the mapping with a neighbour, so its entry in smaps covers only the arena.
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

// kilobytes parses " 123 kB" and returns bytes.
func kilobytes(s string) (int, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s), "kB")), 10, 40)
	return int(n) << 10, err == nil
}
