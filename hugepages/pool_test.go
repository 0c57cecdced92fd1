package hugepages

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// needPool skips a test on a machine on which the pool cannot be set.
func needPool(t *testing.T) {
	t.Helper()
	nstest.Require(t)
	if err := unix.Access(poolDir+fileNr, unix.W_OK); err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages cannot be set here: %v", err)
	}
}

// overcommit permits surplus pages for the length of a test. The permission is
// wide, because tests of other packages that run now may use it, too.
func overcommit(t *testing.T) (restore func() error) {
	t.Helper()
	needPool(t)
	restore, err := Overcommit(1024)
	nstest.Must(t, err)
	t.Cleanup(func() { nstest.Check(t, restore()) })
	return restore
}

// With surplus pages permitted, the first step is taken, and the pages outlive
// the permission but not the arena.
func TestHugetlb(t *testing.T) {
	for _, shared := range []bool{false, true} {
		restore := overcommit(t)
		a := open(t, Config{Size: 3 << 20, Shared: shared, Policy: Require})
		nstest.Must(t, restore())
		i := a.Info()
		if i.Kind != Hugetlb || i.Size != 4<<20 || i.Huge != i.Size || i.PageSize != hugeSize || len(i.Refused) != 0 {
			t.Errorf("shared=%v: %+v", shared, i)
		}
		if smaps := smapsOf(t, address(a.Bytes())); !strings.Contains(smaps, "KernelPageSize:     2048 kB") {
			t.Errorf("shared=%v: not on 2 MB pages:\n%s", shared, smaps)
		}
		for at := 0; at < i.Size; at += 4096 {
			a.Bytes()[at] = 1
		}
	}
}

// Users of the limit add up, restore works once each, and the limit is then
// what it was.
func TestOvercommitAddsUp(t *testing.T) {
	needPool(t)
	setting := func() int {
		t.Helper()
		n, err := readInt(poolDir + fileOverNr)
		nstest.Must(t, err)
		return n
	}
	await.Undisturbed(t, func() error {
		before := setting()
		first, err := Overcommit(3)
		nstest.Must(t, err)
		second, err := Overcommit(4)
		nstest.Must(t, err)
		during := setting()
		nstest.Check(t, errors.Join(first(), first(), first()))
		between := setting()
		nstest.Check(t, second())
		if after := setting(); during != before+7 || between != before+4 || after != before {
			return fmt.Errorf("limit %d, then %d, %d, %d", before, during, between, after)
		}
		return nil
	})
}

// /proc/meminfo describes the pool if the default page size is that of the pool.
func TestPoolInMeminfo(t *testing.T) {
	const meminfo = `MemTotal:       24731648 kB
AnonHugePages:      6144 kB
HugePages_Total:      12
HugePages_Free:        5
HugePages_Rsvd:        2
HugePages_Surp:        4
Hugepagesize:       2048 kB
Hugetlb:           24576 kB
`
	p, ok := poolInMeminfo(parseMeminfo(strings.NewReader(meminfo)))
	if want := (pool{total: 12, free: 5, reserved: 2, surplus: 4}); !ok || p != want || p.persistent() != 8 {
		t.Errorf("%+v, %v", p, ok)
	}
	for name, text := range map[string]string{
		"other size": strings.Replace(meminfo, "2048", "1048576", 1), "no surplus": strings.Replace(meminfo, "HugePages_Surp", "X", 1),
		"no number": strings.Replace(meminfo, " 12", " x", 1), "nothing": "",
	} {
		if p, ok := poolInMeminfo(parseMeminfo(strings.NewReader(text))); ok {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func poolNow(t *testing.T) pool {
	t.Helper()
	p, err := readPool()
	nstest.Must(t, err)
	return p
}

// useSurplus opens an arena of all free pages and two surplus ones.
func useSurplus(t *testing.T) *Arena {
	t.Helper()
	restore := overcommit(t)
	p := poolNow(t)
	a, err := New(Config{Size: (max(0, p.free-p.reserved) + 2) * hugeSize, Policy: Require})
	nstest.Must(t, errors.Join(err, restore()))
	return a
}

// A reservation adds free pages and takes them away, also when surplus pages
// are in use meanwhile: nr_hugepages counts those when it is read, and makes
// them stay when it is written.
func TestReservation(t *testing.T) {
	needPool(t)
	for _, surplus := range []string{"none", "before", "during"} {
		await.Undisturbed(t, func() error { return reserves(t, surplus) })
	}
}

func reserves(t *testing.T, surplus string) error {
	t.Helper()
	var arena *Arena
	before := poolNow(t)
	if surplus == "before" {
		arena = useSurplus(t)
	}
	r, err := Reserve(2)
	nstest.Must(t, err)
	during := poolNow(t)
	if surplus == "during" {
		arena = useSurplus(t)
	}
	nstest.Check(t, errors.Join(r.Restore(), Reservation{}.Restore()))
	if arena != nil {
		nstest.Check(t, arena.Close())
	}
	after := poolNow(t)
	if r.Pages < 2 || during.persistent() != before.persistent()+r.Pages || after.persistent() != before.persistent() {
		return fmt.Errorf("surplus %s: %+v\nbefore %+v\nduring %+v\nafter  %+v", surplus, r, before, during, after)
	}
	return nil
}

// What fails to go back is still there to be given back.
func TestGiveBackFails(t *testing.T) {
	locked := []error{errLocked, errLocked, nil}
	restore := succeedOnce(func() (err error) {
		err, locked = locked[0], locked[1:]
		return err
	})
	for i, want := range []error{errLocked, errLocked, nil, nil} {
		if err := restore(); err != want {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}

	// With two surplus pages, which become persistent, and three of four new ones.
	before, after := pool{total: 7, surplus: 2}, pool{total: 10}
	for failed, left := range map[error]int{nil: 0, errLocked: 5} {
		var gave Reservation
		r, err := found(4, before, after, func(r Reservation) error {
			gave = r
			return failed
		})
		if r.Pages != left || gave.Pages != 5 || err == nil || !strings.Contains(err.Error(), "found 3 pages") || !errors.Is(err, failed) && failed != nil {
			t.Errorf("given back %+v (%v): left %+v, %v", gave, failed, r, err)
		}
	}
}

func TestPoolArguments(t *testing.T) {
	for _, n := range []int{0, -1} {
		if _, err := Overcommit(n); err == nil {
			t.Errorf("Overcommit(%d): no error", n)
		}
		if _, err := Reserve(n); err == nil {
			t.Errorf("Reserve(%d): no error", n)
		}
	}
}

// More than the machine has is refused before the pool is touched, as is what would be less
// than nothing when it is added to the pool.
func TestReserveTooMuch(t *testing.T) {
	for _, n := range []int{1 << 24, math.MaxInt} { // 32 TiB
		if r, err := Reserve(n); err == nil || r.Pages != 0 || !strings.Contains(err.Error(), "there is free memory for") {
			t.Errorf("Reserve(%d): %+v, %v", n, r, err)
		}
	}
}

// Any user that can read the file can lock it. That does not block others for ever.
func TestLockOfAStranger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "setting")
	nstest.Must(t, os.WriteFile(path, nil, 0o644))
	stranger, err := os.Open(path)
	nstest.Must(t, err)
	defer stranger.Close()
	nstest.Must(t, unix.Flock(int(stranger.Fd()), unix.LOCK_EX))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	nstest.Must(t, err)
	defer f.Close()
	if err := takeTurn(f, 20*time.Millisecond); !errors.Is(err, errLocked) {
		t.Errorf("%v, want that it is locked", err)
	}
	got := make(chan error, 1)
	go func() { got <- takeTurn(f, time.Minute) }()
	nstest.Must(t, stranger.Close())
	nstest.WantErr(t, "after the stranger", <-got, nil)
}

// A limit that is none, the greatest number that the kernel takes, is read, and adding to what is
// read is still a number.
func TestBoundlessLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limit")
	for text, want := range map[string]int{"18446744073709551615\n": boundless, "1099511627775\n": boundless - 1, "0\n": 0} {
		nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
		if n, err := readInt(path); n != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", text, n, err, want)
		}
	}
}
