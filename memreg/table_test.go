package memreg

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// No memory, and tags and regions that are not of the table or are gone, are refused; nothing changes.
func TestRefused(t *testing.T) {
	f, other := newFixture(t, Limits{}), newFixture(t, Limits{})
	gone, err := f.CreatePtag()
	nstest.Must(t, err)
	nstest.Must(t, f.DestroyPtag(gone))
	for name, buf := range map[string][]byte{"nil": nil, "empty": f.buf[5:5]} {
		_, err := f.Register(buf, Attributes{Ptag: f.tag})
		nstest.ErrorIf(t, !errors.Is(err, ErrLength), "%s: %v", name, err)
	}
	r, foreign, dead := f.register(t, f.buf), other.register(t, other.buf), f.register(t, f.buf)
	nstest.Must(t, f.Deregister(dead.Handle(), dead.Addr()))
	before, stats := r.Attributes(), f.Stats()
	for name, tag := range map[string]*Ptag{"no tag": nil, "tag of another table": other.tag, "destroyed tag": gone} {
		attr := Attributes{Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: true}
		made, err := f.Register(f.buf, attr)
		nstest.ErrorIf(t, !errors.Is(err, ErrPtag) || made != nil, "%s: Register: %v", name, err)
		err = f.SetAttributes(r, attr)
		nstest.ErrorIf(t, !errors.Is(err, ErrPtag), "%s: SetAttributes: %v", name, err)
	}
	for name, x := range map[string]*Region{"no region": nil, "region of another table": foreign, "deregistered": dead} {
		for _, tag := range []*Ptag{f.tag, other.tag} {
			err := f.SetAttributes(x, Attributes{Ptag: tag, EnableRDMAWrite: true})
			nstest.ErrorIf(t, !errors.Is(err, ErrHandle), "%s: SetAttributes: %v", name, err)
		}
	}
	for _, x := range []*Region{r, foreign, dead} {
		a := x.Attributes()
		nstest.ErrorIf(t, a.EnableRDMAWrite || a.EnableRDMARead, "a refused change left %+v", a)
	}
	if r.Attributes() != before || f.Stats() != stats || f.tag.Users() != 1 || other.tag.Users() != 1 {
		t.Errorf("%+v, %+v, %d and %d users of the tags", r.Attributes(), f.Stats(), f.tag.Users(), other.tag.Users())
	}
}

func TestForeign(t *testing.T) {
	f := newFixture(t, Limits{MaxBlockBytes: 1 << 20})
	const page = 4096
	mem, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	nstest.Must(t, err)
	defer unix.Munmap(mem)
	nstest.Must(t, unix.Mprotect(mem[2*page:3*page], unix.PROT_NONE))
	start := address(mem)
	for _, c := range []struct {
		name    string
		addr, n uint64
		want    error
	}{
		{"all that is readable", start, 2 * page, nil},
		{"no alignment", start + 1, 2*page - 1, nil},
		{"last byte", start + 2*page - 1, 1, nil},
		{"one byte too far", start, 2*page + 1, ErrAddress},
		{"one byte too early", start + 3*page - 1, 2, ErrAddress},
		{"last byte and one more", start + 2*page - 1, 2, ErrAddress},
		{"no bytes", start, 0, ErrLength},
		{"nil", 0, 10, ErrAddress},
		{"first page", 4095, 1, ErrAddress},
		{"into the first page by wrapping", math.MaxUint64, 2, ErrAddress},
		{"wraps", start, math.MaxUint64 - start + 1, ErrLimit},
		{"kernel's half", 1 << 63, 1, ErrAddress},
		{"hole", 1 << 46, page, ErrAddress},
		{"larger than a block", start, 1<<20 + 1, ErrLimit},
	} {
		r, err := f.RegisterForeign(c.addr, c.n, Attributes{Ptag: f.tag})
		nstest.ErrorIf(t, !errors.Is(err, c.want), "%s: %v, want %v", c.name, err, c.want)
		if err != nil {
			continue
		}
		nstest.ErrorIf(t, r.Addr() != c.addr || uint64(r.Len()) != c.n || &r.Bytes()[0] != &mem[c.addr-start],
			"%s: %d bytes at %#x", c.name, r.Len(), r.Addr())
		nstest.Check(t, f.Deregister(r.Handle(), r.Addr()))
	}
	unlimited := newFixture(t, Limits{})
	for _, n := range []uint64{math.MaxInt64, math.MaxUint64, math.MaxUint64 - start + 1, math.MaxInt64 - start + 1} {
		if _, err := unlimited.RegisterForeign(start, n, Attributes{Ptag: unlimited.tag}); !errors.Is(err, ErrAddress) && !errors.Is(err, ErrLimit) {
			t.Errorf("%#x bytes: %v", n, err)
		}
	}
	const last = math.MaxInt64 // the end of both together wraps to the first page
	if _, err := unlimited.RegisterForeign(last-100, last, Attributes{Ptag: unlimited.tag}); !errors.Is(err, ErrAddress) {
		t.Errorf("an end behind the address space: %v", err)
	}
}

// Peers cannot write where the program cannot: that would end it by a signal. What it sends may be there.
func TestReadOnlyMemory(t *testing.T) {
	const page = 4096
	f := newFixture(t, Limits{})
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	nstest.Must(t, err)
	defer unix.Munmap(mem)
	nstest.Must(t, unix.Mprotect(mem[page:2*page], unix.PROT_READ))
	write := Attributes{Ptag: f.tag, EnableRDMAWrite: true, EnableRDMARead: true}
	for _, c := range []struct {
		name     string
		bytes    []byte
		writable bool
	}{
		{"before it", mem[:page], true},
		{"from its first byte on", mem[page:], false},
		{"up to its first byte", mem[:page+1], false},
		{"some of it", mem[page+10 : page+20], false},
		{"behind it", mem[2*page:], true},
	} {
		check := func(call string, r *Region, err error) {
			t.Helper()
			nstest.Must(t, err)
			_, _, err = f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, RemoteWrite)
			if err == nil {
				r.Release()
			}
			nstest.ErrorIf(t, (err == nil) != c.writable || err != nil && err != ErrRights || r.Attributes().EnableRDMAWrite != c.writable ||
				!r.Attributes().EnableRDMARead, "%s, %s: a peer's write gives %v, %+v", c.name, call, err, r.Attributes())
		}
		r, err := f.Register(c.bytes, write)
		check("Register", r, err)
		r, err = f.RegisterForeign(address(c.bytes), uint64(len(c.bytes)), write)
		check("RegisterForeign", r, err)
		r = f.register(t, c.bytes)
		check("SetAttributes", r, f.SetAttributes(r, write))
	}
}

// Memory that was registered before is checked again: it must be there, and readable if another mapping has its place.
func TestForeignAgain(t *testing.T) {
	const page, size = 4096, 8 * 4096
	remap := func(mem []byte, prot, flags uintptr) error {
		_, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(address(mem)), uintptr(len(mem)), prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags, ^uintptr(0), 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	var file int
	for name, c := range map[string]struct {
		change func(mem []byte) error
		want   error
	}{
		"as it was":                  {func([]byte) error { return nil }, nil},
		"given back to the kernel":   {func(mem []byte) error { return unix.Madvise(mem, unix.MADV_DONTNEED) }, nil},
		"mapped again":               {func(mem []byte) error { return remap(mem, unix.PROT_READ, unix.MAP_FIXED) }, nil},
		"mapped again, not readable": {func(mem []byte) error { return remap(mem, unix.PROT_NONE, unix.MAP_FIXED) }, ErrAddress},
		"its file has become short":  {func([]byte) error { return unix.Ftruncate(file, page) }, ErrAddress},
		"not mapped": {func(mem []byte) error {
			_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(address(mem)), uintptr(len(mem)), 0)
			if errno != 0 {
				return errno
			}
			return nil
		}, ErrAddress},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Limits{})
			var err error
			file, err = unix.MemfdCreate("memreg", unix.MFD_CLOEXEC)
			nstest.Must(t, err)
			defer unix.Close(file)
			nstest.Must(t, unix.Ftruncate(file, size))
			mem, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			nstest.Must(t, err)
			register := func(from, n uint64) error {
				r, err := f.RegisterForeign(address(mem)+from, n, Attributes{Ptag: f.tag})
				if err == nil {
					err = f.Deregister(r.Handle(), r.Addr())
				}
				return err
			}
			nstest.Must(t, register(0, size))
			nstest.Must(t, c.change(mem))
			whole, part := register(0, size), register(2*page+1, page)
			if err := remap(mem, unix.PROT_NONE, unix.MAP_FIXED_NOREPLACE); err == nil || name != "not mapped" { // nobody else has its place
				nstest.Must(t, unix.Munmap(mem))
			}
			nstest.ErrorIf(t, !errors.Is(whole, c.want) || !errors.Is(part, c.want),
				"the same bytes: %v; some of them: %v; want %v", whole, part, c.want)
		})
	}
}

// A region with the common tag is for every VI of its table, whatever its tag; a VI
// with the common tag is for no other region.
func TestCommonPtag(t *testing.T) {
	f, other := newFixture(t, Limits{MaxPtags: 1}), newFixture(t, Limits{})
	nstest.WantErr(t, "Register with another table's",
		nstest.Err(f.Register(f.buf, Attributes{Ptag: other.CommonPtag()})), ErrPtag)
	r, err := f.Register(f.buf, Attributes{Ptag: f.CommonPtag(), EnableRDMARead: true})
	nstest.Must(t, err)
	own := f.register(t, f.buf)
	for _, tag := range []*Ptag{f.tag, f.CommonPtag(), nil} {
		if _, _, err := f.Resolve(r.Handle(), r.Addr(), 1, tag); err != nil {
			t.Error(err)
		}
		if _, held, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, tag, RemoteRead); err != nil {
			t.Error(err)
		} else {
			held.Release()
		}
		if _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, tag, RemoteWrite); err != ErrRights {
			t.Errorf("a right that it does not give: %v", err)
		}
	}
	if _, _, err := f.Resolve(own.Handle(), own.Addr(), 1, f.CommonPtag()); err != ErrPtag {
		t.Errorf("a VI with the common tag: %v", err)
	}
	if err := f.SetAttributes(r, Attributes{Ptag: f.tag}); err != nil || f.CommonPtag().Users() != 0 {
		t.Errorf("%v, %d users are left", err, f.CommonPtag().Users())
	}
	nstest.Equal(t, "DestroyPtag", f.DestroyPtag(f.CommonPtag()), ErrPtag)
}

func TestPtagLife(t *testing.T) {
	f, other := newFixture(t, Limits{MaxPtags: 2}), newFixture(t, Limits{})
	for _, wrong := range []*Ptag{nil, other.tag} {
		nstest.WantErr(t, "DestroyPtag", f.DestroyPtag(wrong), ErrPtag)
		nstest.WantErr(t, "AcquirePtag", f.AcquirePtag(wrong), ErrPtag)
	}
	nstest.ErrorIf(t, (*Ptag)(nil).Acquire(), "no tag can be held")
	tag, err := f.CreatePtag()
	nstest.Must(t, err)
	nstest.WantErr(t, "third tag of two", nstest.Err(f.CreatePtag()), ErrLimit)
	if err := f.AcquirePtag(tag); err != nil { // a VI
		t.Fatal(err)
	}
	tag.Release()
	nstest.Check(t, f.DestroyPtag(tag))
	nstest.WantErr(t, "destroyed twice", f.DestroyPtag(tag), ErrPtag)
	nstest.ErrorIf(t, tag.Acquire() || f.AcquirePtag(tag) == nil, "a destroyed tag can be held")
	nstest.WantErr(t, "room after destroying", nstest.Err(f.CreatePtag()), nil)
}

func TestLimits(t *testing.T) {
	for _, l := range []Limits{{MaxRegions: -1}, {MaxRegions: MaxRegions + 1}, {MaxPtags: -1}, {MaxPtags: MaxPtags + 1}} {
		if _, err := NewTable(l); err == nil {
			t.Errorf("%+v: no error", l)
		}
	}
	want := Limits{MaxRegions: MaxRegions, MaxPtags: MaxPtags, MaxBlockBytes: math.MaxInt64, MaxBytes: math.MaxInt64}
	nstest.Equal(t, "defaults", newFixture(t, Limits{}).Limits(), want)
}

// The bytes of all regions together are limited, those of memory that is registered twice count twice.
func TestMaxBytes(t *testing.T) {
	f := newFixture(t, Limits{MaxBytes: 1000})
	half, more := f.register(t, f.buf[:500]), Attributes{Ptag: f.tag}
	nstest.WantErr(t, "one byte too many", nstest.Err(f.Register(f.buf[:501], more)), ErrLimit)
	again := f.register(t, f.buf[:500])
	nstest.WantErr(t, "one byte more", nstest.Err(f.Register(f.buf[:1], more)), ErrLimit)
	nstest.Must(t, f.Deregister(half.Handle(), half.Addr()))
	nstest.WantErr(t, "as many as are free", nstest.Err(f.Register(f.buf[500:1000], more)), nil)
	nstest.Check(t, f.Deregister(again.Handle(), again.Addr()))
}

// Handles keep their value and meaning while the array grows to its end, and
// the array is never more than half full.
func TestGrow(t *testing.T) {
	f := newFixture(t, Limits{})
	regions := make([]*Region, MaxRegions)
	seen := make(map[Handle]bool, MaxRegions)
	for i := range regions {
		r := f.register(t, f.buf[i%1000:i%1000+8])
		nstest.FatalIf(t, r.Handle() == 0 || seen[r.Handle()], "handle %#x of region %d", r.Handle(), i)
		seen[r.Handle()] = true
		regions[i] = r
		if slots := len(*f.slots.Load()); slots < 2*(i+1) {
			t.Fatalf("%d regions in %d slots", i+1, slots)
		}
	}
	nstest.WantErr(t, "one more", nstest.Err(f.Register(f.buf, Attributes{Ptag: f.tag})), ErrLimit)
	for i, r := range regions {
		nstest.FatalIf(t, f.Lookup(r.Handle()) != r, "region %d of handle %#x is lost", i, r.Handle())
	}
	nstest.Check(t, f.Close())
	if got, want := f.Stats(), (Stats{Ptags: 1, Registered: MaxRegions}); got != want || f.tag.Users() != 0 {
		t.Errorf("after Close %+v, %d users of the tag", got, f.tag.Users())
	}
}

// A handle of 0, and a handle whose slot is in use, are skipped.
func TestHandleCollision(t *testing.T) {
	f := newFixture(t, Limits{})
	script := []Handle{7, 0, 7 + firstSlots, 7, firstSlots, 8}
	f.random = func() Handle {
		h := script[0]
		script = script[1:]
		return h
	}
	for _, want := range []Handle{7, firstSlots, 8} {
		nstest.Equal(t, "handle", f.register(t, f.buf).Handle(), want)
	}
}

// Handles are spread over all 32 bits.
func TestHandlesAreRandom(t *testing.T) {
	var ones, zeros Handle
	for range 200 {
		h := randomHandle()
		ones |= h
		zeros |= ^h
	}
	nstest.ErrorIf(t, ones != math.MaxUint32 || zeros != math.MaxUint32,
		"bits that were ever 1: %#x; ever 0: %#x", ones, zeros)
}

func TestClose(t *testing.T) {
	f := newFixture(t, Limits{})
	free, held := f.register(t, f.buf), f.register(t, f.buf)
	held.Acquire()
	nstest.WantErr(t, "with a posted descriptor", f.Close(), ErrBusy)
	nstest.ErrorIf(t, free.Alive() || !held.Alive() || f.Lookup(held.Handle()) != held, "the wrong regions went")
	nstest.WantErr(t, "Register", nstest.Err(f.Register(f.buf, Attributes{Ptag: f.tag})), ErrClosed)
	nstest.WantErr(t, "CreatePtag", nstest.Err(f.CreatePtag()), ErrClosed)
	held.Release()
	nstest.Check(t, errors.Join(f.Close(), f.Close()))
	nstest.WantErr(t, "DestroyPtag", f.DestroyPtag(f.tag), nil)
}
