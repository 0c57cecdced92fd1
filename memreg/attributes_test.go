package memreg

import (
	"errors"
	"math"
	"testing"
)

func TestSetAttributes(t *testing.T) {
	f := newFixture(t, Limits{})
	second, err := f.CreatePtag()
	must(t, err)
	r := f.register(t, f.buf)
	r.Acquire() // a posted descriptor
	want := Attributes{Ptag: second, EnableRDMARead: true}
	must(t, f.SetAttributes(r, want))
	if r.Attributes() != want || r.Ptag() != second {
		t.Errorf("attributes %+v, tag %p, want %+v", r.Attributes(), r.Ptag(), want)
	}
	if _, _, err := f.Resolve(r.Handle(), r.Addr(), 1, f.tag); err != ErrPtag {
		t.Errorf("by the old tag: %v", err)
	}
	if _, _, err := f.Resolve(r.Handle(), r.Addr(), 1, second); err != nil {
		t.Errorf("by the new tag: %v", err)
	}
	if err := f.DestroyPtag(f.tag); err != nil {
		t.Errorf("the old tag is still held: %v", err)
	}
	if err := f.DestroyPtag(second); !errors.Is(err, ErrBusy) {
		t.Errorf("the new tag is not held: %v", err)
	}

	want.EnableRDMAWrite = true // the same tag once more
	must(t, f.SetAttributes(r, want))
	if r.Attributes() != want || second.Users() != 1 || r.Users() != 1 {
		t.Errorf("%+v, %d users of the tag, %d of the region", r.Attributes(), second.Users(), r.Users())
	}

	r.Release()
	must(t, f.Deregister(r.Handle(), r.Addr()))
	if r.Attributes() != want {
		t.Errorf("after Deregister %+v, want %+v", r.Attributes(), want)
	}
	if err := f.DestroyPtag(second); err != nil {
		t.Errorf("Deregister released another tag than the region's: %v", err)
	}
}

func TestSetAttributesRefused(t *testing.T) {
	f, other := newFixture(t, Limits{}), newFixture(t, Limits{})
	gone, err := f.CreatePtag()
	must(t, err)
	must(t, f.DestroyPtag(gone))
	r, foreign, dead := f.register(t, f.buf), other.register(t, other.buf), f.register(t, f.buf)
	must(t, f.Deregister(dead.Handle(), dead.Addr()))
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
	must(t, err)
	r.Acquire()
	if err := f.Close(); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	must(t, f.SetAttributes(r, Attributes{Ptag: f.tag}))
	if _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, RemoteWrite); err != ErrRights {
		t.Errorf("ResolveRemote: %v", err)
	}
	r.Release()
	noError(t, errors.Join(f.Close(), f.DestroyPtag(f.tag)))
}

// Every right that is needed against every right that the region gives, as
// registered and as set later.
func TestResolveRemoteRights(t *testing.T) {
	f := newFixture(t, Limits{})
	all := []Attributes{
		{Ptag: f.tag},
		{Ptag: f.tag, EnableRDMAWrite: true},
		{Ptag: f.tag, EnableRDMARead: true},
		{Ptag: f.tag, EnableRDMAWrite: true, EnableRDMARead: true},
	}
	check := func(r *Region) {
		t.Helper()
		a := r.Attributes()
		for _, c := range []struct {
			want    Rights
			allowed bool
		}{
			{0, true},
			{RemoteWrite, a.EnableRDMAWrite},
			{RemoteRead, a.EnableRDMARead},
			{RemoteWrite | RemoteRead, a.EnableRDMAWrite && a.EnableRDMARead},
			{1 << 31, false}, // no such right
		} {
			_, got, err := f.ResolveRemote(r.Handle(), r.Addr(), 1, f.tag, c.want)
			if c.allowed && (err != nil || got != r) || !c.allowed && err != ErrRights {
				t.Errorf("%+v, rights %#x: %v, %v", a, c.want, got, err)
			}
			if got != nil {
				got.Release()
			}
		}
	}
	changed := f.register(t, f.buf)
	for _, a := range all {
		r, err := f.Register(f.buf, a)
		must(t, err)
		check(r)
		must(t, f.SetAttributes(changed, a))
		check(changed)
	}
}

// What is returned is held, and nothing is after an error.
func TestResolveRemoteHolds(t *testing.T) {
	f := newFixture(t, Limits{})
	second, err := f.CreatePtag()
	must(t, err)
	r, err := f.Register(f.buf[100:200], Attributes{Ptag: f.tag, EnableRDMAWrite: true})
	must(t, err)
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
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
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
	must(t, f.Deregister(r.Handle(), r.Addr()))
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
			must(t, f.SetAttributes(r, a))
			if r.Attributes() != a {
				t.Fatalf("%+v are in force, not %+v", r.Attributes(), a)
			}
		}
	}
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations", n)
	}
	second, err := f.CreatePtag()
	must(t, err)
	for _, tag := range []*Ptag{second, f.tag} {
		want := Attributes{Ptag: tag, EnableRDMARead: true}
		if err := f.SetAttributes(r, want); err != nil || r.Attributes() != want {
			t.Errorf("%+v are in force, not %+v: %v", r.Attributes(), want, err)
		}
	}
	if second.Users() != 0 || f.tag.Users() != 1 {
		t.Errorf("%d users of a tag that no region has, %d of the other", second.Users(), f.tag.Users())
	}
}
