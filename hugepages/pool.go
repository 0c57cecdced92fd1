package hugepages

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Overcommit lets the kernel make up to n more 2 MB pages on demand, until restore is called: it raises
// nr_overcommit_hugepages of the 2 MB pool by n. Such surplus pages return to the system with the mapping that uses
// them, however its process ends. So a demonstration that must leave nothing behind uses this and not [Reserve].
//
// Call restore as soon as the arenas are open. It lowers the limit by n again; pages in use stay until they are
// freed. If it fails, call it again; once it has succeeded, further calls do nothing. Several users at the same
// time do not disturb each other.
//
// It needs root. The limit applies to the whole machine and guarantees nothing: there may still be too few free
// ranges of 2 MB.
func Overcommit(n int) (restore func() error, err error) {
	if n <= 0 {
		return nil, fmt.Errorf("hugepages: %d pages to overcommit: the number must be positive", n)
	}
	if err := overcommitBy(n); err != nil {
		return nil, err
	}
	return succeedOnce(func() error { return overcommitBy(-n) }), nil
}

// LowerOvercommit lowers the limit of [Overcommit] by n pages, on behalf of a dead process that raised it. It needs root.
// Several processes may call it and Overcommit at the same time.
func LowerOvercommit(n int) error { return overcommitBy(-n) }

func overcommitBy(by int) error {
	_, _, err := editPool(fileOverNr, func(p pool) int {
		if p.overcommit >= boundless {
			return p.overcommit // unchanged
		}
		return p.overcommit + by
	})
	return err
}

// succeedOnce returns a function that calls f until it has succeeded.
func succeedOnce(f func() error) func() error {
	var mu sync.Mutex
	done := false
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return nil
		}
		err := f()
		done = err == nil
		return err
	}
}

// Reservation is a number of 2 MB pages that were added to the machine's pool.
// It is plain data, so that a later process can undo it.
type Reservation struct {
	// Pages is the number of pages that Restore removes. It includes surplus pages that others used when the
	// reservation was made: the reservation made them persistent.
	Pages int `json:"pages"`
}

// Reserve adds n free pages of 2 MB to the machine's pool (nr_hugepages). They stay there until
// [Reservation.Restore], and nothing else can use that memory. If the kernel finds fewer than n, Reserve gives all
// of them back and returns an error. The Reservation that is returned with the error holds what could not be given
// back, for a later Restore.
//
// It needs root. It is for a test bed that outlives the process that makes it; otherwise use [Overcommit].
func Reserve(n int) (Reservation, error) {
	if n <= 0 {
		return Reservation{}, fmt.Errorf("hugepages: %d pages to reserve: the number must be positive", n)
	}
	// The kernel would take as much as it can find, even if others need it.
	free, ok := memAvailable()
	if !ok {
		free = boundless << 21
	}
	if n > free>>21 {
		return Reservation{}, fmt.Errorf("hugepages: %d pages of 2 MB: there is free memory for %d at most: ask for fewer, or free memory", n, free>>21)
	}
	before, after, err := editPool(fileNr, func(p pool) int { return p.total + n })
	if err != nil {
		return Reservation{}, err
	}
	return found(n, before, after, Reservation.Restore)
}

// found returns what Reserve has added between the two states of the pool.
func found(n int, before, after pool, restore func(Reservation) error) (Reservation, error) {
	r := Reservation{Pages: after.persistent() - before.persistent()}
	got := r.Pages - before.surplus
	if got >= n {
		return r, nil
	}
	err := restore(r)
	if err == nil {
		r = Reservation{}
	}
	return r, errors.Join(fmt.Errorf("hugepages: the kernel found %d pages of 2 MB instead of %d: "+
		"free memory (or echo 1 > /proc/sys/vm/compact_memory) and try again", got, n), err)
}

// Persistent returns how many persistent pages of 2 MB the machine's pool has, and how many surplus ones, which a
// Reserve would make persistent. From these a later process learns how far a process that was killed had come.
func Persistent() (pages, surplus int, err error) {
	p, err := readPool()
	return p.persistent(), p.surplus, err
}

// Restore removes the pages from the pool. Pages in use become surplus pages, which are released when they are
// freed. Call it once.
func (r Reservation) Restore() error {
	if r.Pages <= 0 {
		return nil
	}
	_, _, err := editPool(fileNr, func(p pool) int { return p.persistent() - r.Pages })
	return err
}

// editPool sets a counter of the 2 MB pool to the result of edit for its state, but not below 0, and returns the
// states before and after. A lock on the file serializes all callers, also in other processes; it ends with the
// process.
func editPool(name string, edit func(pool) int) (before, after pool, err error) {
	path := poolDir + name
	fail := func(err error) (pool, pool, error) { return pool{}, pool{}, settingError(path, err) }
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	if err := takeTurn(f, turnTime); err != nil {
		return fail(err)
	}
	if before, err = readPool(); err != nil {
		return fail(err)
	}
	to := max(0, edit(before))
	if name == fileOverNr && to == before.overcommit {
		return before, before, nil
	}
	if _, err := f.WriteString(strconv.Itoa(to)); err != nil {
		return fail(err)
	}
	if after, err = readPool(); err != nil {
		return fail(err)
	}
	return before, after, nil
}

// turnTime is how long takeTurn waits for the lock: each process holds it while the kernel makes its pages.
const turnTime = 30 * time.Second

var errLocked = errors.New("another process has locked it (lslocks names the process): end that process, or go on without hugepages")

// takeTurn locks the file. Every user can read the file and so lock it; the limit keeps such a user from blocking
// others for ever.
func takeTurn(f *os.File, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(end):
			return errLocked
		}
	}
}

func settingError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("hugepages: the kernel has no pool of 2 MB pages (CONFIG_HUGETLBFS): %w", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("hugepages: only root may set %s; run as root, or go on without hugepages: %w", path, err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("hugepages: %s is read-only, as in a container; set it on the host: %w", path, err)
	}
	return fmt.Errorf("hugepages: %s: %w", path, err)
}

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
			first, last, found := strings.Cut(name, "-")
			if !found {
				break // a count
			}
			from, err := strconv.ParseUint(first, 16, 64)
			if to, err2 := strconv.ParseUint(last, 16, 64); err == nil && err2 == nil {
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
