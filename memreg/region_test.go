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

// Bounds, by one on each side, through Resolve and Slice alike.
func TestRange(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf[100:200])
	for _, c := range []struct {
		off  int // of the address, from the region's start
		n    uint32
		want error
	}{
		{0, 100, nil}, {0, 0, nil}, {0, 1, nil}, {99, 1, nil}, {50, 50, nil}, {100, 0, nil},
		{0, 101, ErrRange}, {1, 100, ErrRange}, {99, 2, ErrRange}, {100, 1, ErrRange}, {101, 0, ErrRange},
		{-1, 0, ErrRange}, {-1, 1, ErrRange}, {-1, 2, ErrRange},
		{0, math.MaxUint32, ErrRange}, {-1, math.MaxUint32, ErrRange}, {100, math.MaxUint32, ErrRange},
	} {
		addr := r.Addr() + uint64(c.off)
		seg, got, err := f.Resolve(r.Handle(), addr, c.n, nil)
		direct, directErr := r.Slice(addr, c.n)
		if err != c.want || directErr != c.want {
			t.Errorf("offset %d, %d bytes: %v and %v, want %v", c.off, c.n, err, directErr, c.want)
			continue
		}
		if err != nil {
			nstest.ErrorIf(t, seg != nil || got != nil || direct != nil,
				"offset %d, %d bytes: an error, and memory", c.off, c.n)
			continue
		}
		nstest.ErrorIf(t, got != r || len(seg) != int(c.n) || cap(seg) != int(c.n) || len(direct) != int(c.n),
			"offset %d: %d bytes (capacity %d), want %d", c.off, len(seg), cap(seg), c.n)
		nstest.ErrorIf(t, c.n > 0 && (&seg[0] != &f.buf[100+c.off] || &direct[0] != &seg[0]),
			"offset %d: other bytes", c.off)
	}
	for _, addr := range []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 99, 1 << 63} {
		for _, n := range []uint32{0, 1, 100, math.MaxUint32} {
			if _, _, err := f.Resolve(r.Handle(), addr, n, nil); err != ErrRange {
				t.Errorf("address %#x, %d bytes: %v", addr, n, err)
			}
		}
	}
}

// What a region has of a range that reaches past its end: never a byte that is not the region's.
func TestPart(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf[100:200])
	for _, c := range []struct {
		off  int // of the address, from the region's start
		n    uint32
		want int // bytes, 0: ErrRange
	}{
		{0, 100, 100}, {0, 1, 1}, {0, 101, 100}, {1, 100, 99}, {99, 1, 1}, {99, 2, 1}, {50, math.MaxUint32, 50},
		{0, math.MaxUint32, 100}, {0, 0, 0}, {100, 1, 0}, {100, math.MaxUint32, 0}, {101, 1, 0}, {-1, 1, 0}, {-1, 200, 0},
		{-1, math.MaxUint32, 0}, {-100, 300, 0},
	} {
		seg, got, err := f.ResolvePart(r.Handle(), r.Addr()+uint64(c.off), c.n, f.tag)
		if c.want == 0 {
			nstest.ErrorIf(t, err != ErrRange || seg != nil || got != nil,
				"offset %d, %d bytes: %d bytes, %v", c.off, c.n, len(seg), err)
			continue
		}
		if err != nil || got != r || len(seg) != c.want || cap(seg) != c.want || &seg[0] != &f.buf[100+c.off] {
			t.Errorf("offset %d, %d bytes: %d bytes (capacity %d), want %d: %v", c.off, c.n, len(seg), cap(seg), c.want, err)
		}
	}
	for _, addr := range []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 99, 1 << 63} {
		if _, _, err := f.ResolvePart(r.Handle(), addr, math.MaxUint32, nil); err != ErrRange {
			t.Errorf("address %#x: %v", addr, err)
		}
	}
	other, err := f.CreatePtag()
	nstest.Must(t, err)
	if _, _, err := f.ResolvePart(r.Handle(), r.Addr(), 200, other); err != ErrPtag {
		t.Errorf("another tag: %v", err)
	}
	nstest.Must(t, f.Deregister(r.Handle(), r.Addr()))
	if _, _, err := f.ResolvePart(r.Handle(), r.Addr(), 200, f.tag); err != ErrHandle {
		t.Errorf("deregistered: %v", err)
	}
}

func TestRegionTellsWhatWasRegistered(t *testing.T) {
	f := newFixture(t, Limits{})
	attr := Attributes{Ptag: f.tag, EnableRDMAWrite: true}
	r, err := f.Register(f.buf[10:20:40], attr)
	nstest.Must(t, err)
	if r.Attributes() != attr || r.Len() != 10 || len(r.Bytes()) != 10 || cap(r.Bytes()) != 10 || &r.Bytes()[0] != &f.buf[10] {
		t.Errorf("%+v, %d bytes, capacity %d", r.Attributes(), r.Len(), cap(r.Bytes()))
	}
	if r.Addr() != address(f.buf)+10 || r.Handle() == 0 || f.Lookup(r.Handle()) != r {
		t.Errorf("address %#x, handle %#x", r.Addr(), r.Handle())
	}
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
		if seen.Value() == nil {
			t.Fatalf("%s: collected while registered", name)
		}
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
	if r.Users() != 0 || !r.Alive() {
		t.Fatalf("%d users after a release too many", r.Users())
	}
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
