package memreg

import (
	"errors"
	"math"
	"testing"

	"viaxdp/internal/lab/nstest"
)

func TestSetAttributesRefused(t *testing.T) {
	f, other := newFixture(t, Limits{}), newFixture(t, Limits{})
	gone, err := f.CreatePtag()
	nstest.Must(t, err)
	nstest.Must(t, f.DestroyPtag(gone))
	r, foreign, dead := f.register(t, f.buf), other.register(t, other.buf), f.register(t, f.buf)
	nstest.Must(t, f.Deregister(dead.Handle(), dead.Addr()))
	before := r.Attributes()
	for _, c := range []struct {
		name string
		r    *Region
		tag  *Ptag
		want error
	}{
		{"no region", nil, f.tag, ErrHandle},
		{"region of another table", foreign, f.tag, ErrHandle},
		{"region of another table, with its tag", foreign, other.tag, ErrHandle},
		{"deregistered", dead, f.tag, ErrHandle},
		{"no tag", r, nil, ErrPtag},
		{"tag of another table", r, other.tag, ErrPtag},
		{"destroyed tag", r, gone, ErrPtag},
	} {
		attr := Attributes{Ptag: c.tag, EnableRDMAWrite: true, EnableRDMARead: true}
		if err := f.SetAttributes(c.r, attr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for _, r := range []*Region{r, foreign, dead} {
		if a := r.Attributes(); a.EnableRDMAWrite || a.EnableRDMARead {
			t.Errorf("a refused change left %+v", a)
		}
	}
	if r.Attributes() != before || f.tag.Users() != 1 || other.tag.Users() != 1 {
		t.Errorf("%+v, %d and %d users of the tags", r.Attributes(), f.tag.Users(), other.tag.Users())
	}
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

// What is returned is held, and nothing is after an error.
func TestResolveRemoteHolds(t *testing.T) {
	f := newFixture(t, Limits{})
	second, err := f.CreatePtag()
	nstest.Must(t, err)
	r, err := f.Register(f.buf[100:200], Attributes{Ptag: f.tag, EnableRDMAWrite: true})
	nstest.Must(t, err)
	for _, c := range []struct {
		name string
		h    Handle
		off  int
		n    uint32
		tag  *Ptag
		want error
	}{
		{"all", r.Handle(), 0, 100, f.tag, nil},
		{"any tag", r.Handle(), 99, 1, nil, nil},
		{"no bytes", r.Handle(), 100, 0, f.tag, nil},
		{"handle", r.Handle() ^ firstSlots, 0, 1, f.tag, ErrHandle},
		{"tag", r.Handle(), 0, 1, second, ErrPtag},
		{"too long", r.Handle(), 0, 101, f.tag, ErrRange},
		{"too early", r.Handle(), -1, 1, f.tag, ErrRange},
		{"longest", r.Handle(), 1, math.MaxUint32, f.tag, ErrRange},
		{"tag before range", r.Handle(), -1, 1, second, ErrPtag},
	} {
		seg, got, err := f.ResolveRemote(c.h, r.Addr()+uint64(c.off), c.n, c.tag, RemoteWrite)
		nstest.ErrorIf(t, err != c.want, "%s: %v, want %v", c.name, err, c.want)
		if err != nil {
			if seg != nil || got != nil || r.Users() != 0 {
				t.Errorf("%s: an error, %d bytes, region %p, %d users", c.name, len(seg), got, r.Users())
			}
			continue
		}
		if got != r || len(seg) != int(c.n) || cap(seg) != int(c.n) || c.n > 0 && &seg[0] != &f.buf[100+c.off] {
			t.Errorf("%s: %d bytes (capacity %d), want %d", c.name, len(seg), cap(seg), c.n)
		}
		if err := f.Deregister(r.Handle(), r.Addr()); !errors.Is(err, ErrBusy) || r.Users() != 1 {
			t.Fatalf("%s: not held: %v, %d users", c.name, err, r.Users())
		}
		got.Release()
	}
	if _, _, err := f.ResolveRemote(r.Handle(), r.Addr()-1, 1, f.tag, RemoteRead); err != ErrRights || r.Users() != 0 {
		t.Errorf("right and range: %v, %d users", err, r.Users())
	}
	if _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, 1<<31); err != ErrRights {
		t.Errorf("a right that does not exist: %v", err)
	}
	nstest.Must(t, f.Deregister(r.Handle(), r.Addr()))
	if _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, RemoteWrite); err != ErrHandle {
		t.Errorf("deregistered: %v", err)
	}
}

// Rights that come and go allocate nothing, and each time the right ones are in force.
func TestSetAttributesAgain(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	all := []Attributes{{}, {EnableRDMARead: true}, {EnableRDMAWrite: true}, {EnableRDMARead: true, EnableRDMAWrite: true}}
	turn := func() {
		for _, a := range all {
			a.Ptag = f.tag
			nstest.Must(t, f.SetAttributes(r, a))
			if r.Attributes() != a {
				t.Fatalf("%+v are in force, not %+v", r.Attributes(), a)
			}
		}
	}
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
