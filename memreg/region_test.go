package memreg

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"weak"

	"viaxdp/internal/lab/nstest"
)

// fixture is a table with one tag, and memory to register.
type fixture struct {
	*Table
	tag *Ptag
	buf []byte
}

func newFixture(t testing.TB, limits Limits) *fixture {
	t.Helper()
	f := &fixture{buf: make([]byte, 4000)}
	var err error
	f.Table, err = NewTable(limits)
	nstest.Must(t, err)
	f.tag, err = f.CreatePtag()
	nstest.Must(t, err)
	return f
}

func (f *fixture) register(t testing.TB, buf []byte) *Region {
	t.Helper()
	r, err := f.Register(buf, Attributes{Ptag: f.tag})
	nstest.Must(t, err)
	return r
}

// Bounds, by one on each side, and handles, tags and rights: through Resolve, Slice, ResolvePart and ResolveRemote
// alike. What ResolveRemote returns is held, and nothing is after an error.
func TestResolve(t *testing.T) {
	f, other := newFixture(t, Limits{}), newFixture(t, Limits{})
	second, err := f.CreatePtag()
	nstest.Must(t, err)
	r, err := f.Register(f.buf[100:200], Attributes{Ptag: f.tag, EnableRDMAWrite: true})
	nstest.Must(t, err)
	// check compares an answer with the first n bytes of the range.
	check := func(what string, off, n int, seg []byte, got *Region, err, want error) {
		t.Helper()
		switch {
		case err != want || err != nil && (seg != nil || got != nil):
			t.Errorf("%s of %d at %d: %d bytes, %v, want %v", what, n, off, len(seg), err, want)
		case err == nil && (got != r || len(seg) != n || cap(seg) != n || n > 0 && &seg[0] != &f.buf[100+off]):
			t.Errorf("%s of %d at %d: %d other bytes (capacity %d)", what, n, off, len(seg), cap(seg))
		}
	}
	for _, c := range []struct {
		h    Handle
		tag  *Ptag
		off  int // of the address, from the region's start
		n    uint32
		want error
		part int // bytes that ResolvePart returns; 0: it has the same error, or ErrRange
	}{
		{r.Handle(), f.tag, 0, 100, nil, 100}, {r.Handle(), nil, 0, 1, nil, 1}, {r.Handle(), nil, 99, 1, nil, 1},
		{r.Handle(), nil, 50, 50, nil, 50}, {r.Handle(), nil, 0, 0, nil, 0}, {r.Handle(), f.tag, 100, 0, nil, 0},
		{r.Handle(), nil, 0, 101, ErrRange, 100}, {r.Handle(), nil, 1, 100, ErrRange, 99},
		{r.Handle(), nil, 99, 2, ErrRange, 1}, {r.Handle(), nil, 50, math.MaxUint32, ErrRange, 50},
		{r.Handle(), nil, 100, 1, ErrRange, 0}, {r.Handle(), nil, 101, 0, ErrRange, 0},
		{r.Handle(), nil, 100, math.MaxUint32, ErrRange, 0}, {r.Handle(), nil, -1, 0, ErrRange, 0},
		{r.Handle(), nil, -1, 1, ErrRange, 0}, {r.Handle(), nil, -1, 200, ErrRange, 0},
		{r.Handle(), nil, -100, 300, ErrRange, 0}, {r.Handle(), nil, -1, math.MaxUint32, ErrRange, 0},
		{0, nil, 0, 1, ErrHandle, 0}, {^r.Handle(), nil, 0, 1, ErrHandle, 0},
		{r.Handle() ^ 1<<31, nil, 0, 1, ErrHandle, 0}, {r.Handle() ^ firstSlots, nil, 0, 1, ErrHandle, 0}, // the same slot
		{r.Handle(), second, 0, 1, ErrPtag, 0}, {r.Handle(), second, -1, 1, ErrPtag, 0},
		{r.Handle(), other.tag, 0, 1, ErrPtag, 0},
	} {
		addr := r.Addr() + uint64(c.off)
		seg, got, err := f.Resolve(c.h, addr, c.n, c.tag)
		check("Resolve", c.off, int(c.n), seg, got, err, c.want)
		if c.want == nil || c.want == ErrRange {
			direct, err := r.Slice(addr, c.n)
			nstest.ErrorIf(t, err != c.want || len(direct) != len(seg), "Slice of %d at %d: %v", c.n, c.off, err)
		}
		part := c.want
		if c.part > 0 {
			part = nil
		} else if part == nil {
			part = ErrRange
		}
		seg, got, err = f.ResolvePart(c.h, addr, c.n, c.tag)
		check("ResolvePart", c.off, c.part, seg, got, err, part)
		seg, got, err = f.ResolveRemote(c.h, addr, c.n, c.tag, RemoteWrite)
		check("ResolveRemote", c.off, int(c.n), seg, got, err, c.want)
		if err == nil {
			if err := f.Deregister(r.Handle(), r.Addr()); !errors.Is(err, ErrBusy) || r.Users() != 1 {
				t.Fatalf("not held: %v, %d users", err, r.Users())
			}
			got.Release()
		}
		nstest.ErrorIf(t, r.Users() != 0, "%d users after %d at %d", r.Users(), c.n, c.off)
	}
	for _, addr := range []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 99, 1 << 63} {
		for _, n := range []uint32{0, 1, 100, math.MaxUint32} {
			_, _, whole := f.Resolve(r.Handle(), addr, n, nil)
			_, _, part := f.ResolvePart(r.Handle(), addr, n, nil)
			nstest.ErrorIf(t, whole != ErrRange || part != ErrRange, "address %#x, %d bytes: %v, %v", addr, n, whole, part)
		}
	}
	for rights, addr := range map[Rights]uint64{RemoteRead: r.Addr() - 1, 1 << 31: r.Addr()} { // before the range
		_, _, err := f.ResolveRemote(r.Handle(), addr, 1, f.tag, rights)
		nstest.ErrorIf(t, err != ErrRights || r.Users() != 0, "rights %#x: %v, %d users", uint32(rights), err, r.Users())
	}
	_, _, err = other.Resolve(r.Handle(), r.Addr(), 1, nil)
	nstest.ErrorIf(t, err != ErrHandle, "another table knows the handle: %v", err)
	nstest.Must(t, f.Deregister(r.Handle(), r.Addr()))
	_, _, whole := f.Resolve(r.Handle(), r.Addr(), 1, f.tag)
	_, _, part := f.ResolvePart(r.Handle(), r.Addr(), 1, f.tag)
	_, _, remote := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, RemoteWrite)
	nstest.ErrorIf(t, whole != ErrHandle || part != ErrHandle || remote != ErrHandle,
		"deregistered: %v, %v, %v", whole, part, remote)
}

func TestRegionTellsWhatWasRegistered(t *testing.T) {
	f := newFixture(t, Limits{})
	attr := Attributes{Ptag: f.tag, EnableRDMAWrite: true}
	r, err := f.Register(f.buf[10:20:40], attr)
	nstest.Must(t, err)
	if r.Attributes() != attr || r.Len() != 10 || len(r.Bytes()) != 10 || cap(r.Bytes()) != 10 || &r.Bytes()[0] != &f.buf[10] {
		t.Errorf("%+v, %d bytes, capacity %d", r.Attributes(), r.Len(), cap(r.Bytes()))
	}
	nstest.ErrorIf(t, r.Addr() != address(f.buf)+10 || r.Handle() == 0 || f.Lookup(r.Handle()) != r,
		"address %#x, handle %#x", r.Addr(), r.Handle())
}

// Memory of Go lives as long as its region, and no longer.
func TestKeepsMemoryAlive(t *testing.T) {
	f := newFixture(t, Limits{})
	for name, register := range map[string]func(*[4096]byte) (*Region, error){
		"slice": func(p *[4096]byte) (*Region, error) { return f.Register(p[:], Attributes{Ptag: f.tag}) },
		"foreign": func(p *[4096]byte) (*Region, error) {
			return f.RegisterForeign(address(p[:]), 4096, Attributes{Ptag: f.tag})
		},
	} {
		memory := new([4096]byte)
		seen := weak.Make(memory)
		r, err := register(memory)
		if err != nil {
			t.Fatal(name, err)
		}
		handle, addr := r.Handle(), r.Addr()
		memory, r = nil, nil
		runtime.GC()
		nstest.FatalIf(t, seen.Value() == nil, "%s: collected while registered", name)
		nstest.Must(t, f.Deregister(handle, addr))
		runtime.GC()
		runtime.GC()
		nstest.ErrorIf(t, seen.Value() != nil, "%s: still held after it was deregistered", name)
	}
}

// A release too many, and one after deregistration, change nothing.
func TestReleaseTooMany(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	r.Release()
	nstest.FatalIf(t, r.Users() != 0 || !r.Alive(), "%d users after a release too many", r.Users())
	nstest.Must(t, f.Deregister(r.Handle(), r.Addr()))
	r.Release()
	nstest.ErrorIf(t, r.Acquire() || r.Alive() || r.Users() != 0, "a release brought the region back")
}

// A pinned region cannot be deregistered, nor closed with its table; pins
// are not users.
func TestPin(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	r.Pin()
	r.Pin()
	for pins := 2; pins > 0; pins-- {
		if err := f.Deregister(r.Handle(), r.Addr()); !errors.Is(err, ErrBusy) {
			t.Fatalf("pinned %d times: %v", pins, err)
		}
		if err := f.Close(); !errors.Is(err, ErrBusy) {
			t.Fatalf("pinned %d times: close: %v", pins, err)
		}
		if !r.Alive() || r.Users() != 0 {
			t.Fatalf("pinned %d times: alive %v, %d users", pins, r.Alive(), r.Users())
		}
		r.Unpin()
	}
	nstest.Must(t, f.Deregister(r.Handle(), r.Addr()))
}

// A closed table keeps regions that are in use; rights can still be taken away.
func TestSetAttributesAfterClose(t *testing.T) {
	f := newFixture(t, Limits{})
	r, err := f.Register(f.buf, Attributes{Ptag: f.tag, EnableRDMAWrite: true})
	nstest.Must(t, err)
	r.Acquire()
	if err := f.Close(); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	nstest.Must(t, f.SetAttributes(r, Attributes{Ptag: f.tag}))
	if _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, RemoteWrite); err != ErrRights {
		t.Errorf("ResolveRemote: %v", err)
	}
	r.Release()
	nstest.Check(t, errors.Join(f.Close(), f.DestroyPtag(f.tag)))
}

// Attributes that come and go allocate nothing, and each time the right ones are in force.
func TestSetAttributesAgain(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	var all []Attributes
	for i := range 8 {
		all = append(all, Attributes{EnableRDMARead: i&1 != 0, EnableRDMAWrite: i&2 != 0, CopySends: i&4 != 0})
	}
	turn := func() {
		for _, a := range all {
			a.Ptag = f.tag
			nstest.Must(t, f.SetAttributes(r, a))
			if r.Attributes() != a || r.CopySends() != a.CopySends {
				t.Fatalf("%+v are in force, not %+v", r.Attributes(), a)
			}
		}
	}
	nstest.Equal(t, "allocations", testing.AllocsPerRun(100, turn), 0)
}
