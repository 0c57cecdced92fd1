package memreg

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// One tag goes with no rights and the other with all. Whoever sees a mixture
// gets more than any setting grants, or is refused what the only setting with
// his tag allows.
func TestAttributesChangeTogether(t *testing.T) {
	f := newFixture(t, Limits{})
	trusted, err := f.CreatePtag()
	must(t, err)
	closed := Attributes{Ptag: f.tag}
	open := Attributes{Ptag: trusted, EnableRDMAWrite: true, EnableRDMARead: true}
	r, err := f.Register(f.buf, closed)
	must(t, err)
	const looks = 200_000
	var readers atomic.Int32
	var wg sync.WaitGroup
	reader := func(look func() bool) {
		readers.Add(1)
		wg.Go(func() {
			defer readers.Add(-1)
			for i := 0; i < looks && look(); i++ {
			}
		})
	}
	resolve := func(tag *Ptag, want Rights) error {
		_, r, err := f.ResolveRemote(r.Handle(), r.Addr(), 8, tag, want)
		if err == nil {
			r.Release()
		}
		return err
	}
	reader(func() bool {
		if err := resolve(f.tag, RemoteWrite); err != ErrRights && err != ErrPtag {
			t.Errorf("the tag without rights writes: %v", err)
			return false
		}
		if err := resolve(trusted, RemoteWrite|RemoteRead); err != nil && err != ErrPtag {
			t.Errorf("the tag with rights is refused: %v", err)
			return false
		}
		return true
	})
	reader(func() bool {
		if a := r.Attributes(); a != closed && a != open {
			t.Errorf("attributes that never were: %+v", a)
			return false
		}
		return true
	})
	for readers.Load() > 0 {
		if err := errors.Join(f.SetAttributes(r, open), f.SetAttributes(r, closed)); err != nil {
			t.Error(err)
			break
		}
	}
	wg.Wait()
	if f.tag.Users() != 1 || trusted.Users() != 0 || r.Users() != 0 {
		t.Errorf("%d and %d users of the tags, %d of the region", f.tag.Users(), trusted.Users(), r.Users())
	}
}

// An owner who has taken the rights back, and has then seen no users, is alone
// with the memory; so is one who has deregistered the region. The race
// detector sees it if not.
func TestOwnerAgainstRemote(t *testing.T) {
	for name, takeBack := range map[string]func(*Table, *Region) error{
		"SetAttributes": func(table *Table, r *Region) error {
			if err := table.SetAttributes(r, Attributes{Ptag: r.Ptag(), EnableRDMARead: true}); err != nil {
				return err
			}
			for r.Users() > 0 {
				runtime.Gosched()
			}
			return nil
		},
		"Deregister": func(table *Table, r *Region) error {
			for {
				if err := table.Deregister(r.Handle(), r.Addr()); !errors.Is(err, ErrBusy) {
					return err
				}
			}
		},
	} {
		f := newFixture(t, Limits{})
		for range 500 {
			buf := make([]byte, 8)
			r, err := f.Register(buf, Attributes{Ptag: f.tag, EnableRDMAWrite: true})
			must(t, err)
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					seg, r, err := f.ResolveRemote(r.Handle(), r.Addr(), 8, f.tag, RemoteWrite)
					if err != nil {
						if err != ErrRights && err != ErrHandle {
							t.Errorf("%s: %v", name, err)
						}
						return
					}
					if seg[0] != 0 {
						t.Errorf("%s: the owner has the bytes back, and a peer may write them", name)
						r.Release()
						return
					}
					seg[0] = 0
					r.Release()
				}
			})
			wg.Go(func() {
				if err := takeBack(f.Table, r); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				buf[0] = 1
			})
			wg.Wait()
			if buf[0] != 1 {
				t.Fatalf("%s: a peer wrote what the owner had taken back", name)
			}
		}
	}
}

// Destroying a tag and giving it to a region cannot both work.
func TestSetAttributesAgainstDestroy(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	for range 200 {
		tag, err := f.CreatePtag()
		must(t, err)
		var set, destroyed error
		var wg sync.WaitGroup
		wg.Go(func() { set = f.SetAttributes(r, Attributes{Ptag: tag}) })
		wg.Go(func() { destroyed = f.DestroyPtag(tag) })
		wg.Wait()
		if (set == nil) == (destroyed == nil) {
			t.Fatalf("SetAttributes: %v, DestroyPtag: %v", set, destroyed)
		}
		must(t, f.SetAttributes(r, Attributes{Ptag: f.tag}))
		if set == nil {
			must(t, f.DestroyPtag(tag))
		}
	}
}

// A region that is changed until it is deregistered releases every tag exactly
// once.
func TestSetAttributesAgainstDeregister(t *testing.T) {
	f := newFixture(t, Limits{})
	second, err := f.CreatePtag()
	must(t, err)
	for range 1000 {
		r := f.register(t, f.buf)
		var gone atomic.Bool
		changing := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			close(changing)
			for i := 0; !gone.Load(); i++ {
				err := f.SetAttributes(r, Attributes{Ptag: []*Ptag{second, f.tag}[i%2]})
				if err != nil && !errors.Is(err, ErrHandle) {
					t.Error(err)
				}
			}
		})
		<-changing
		err := f.Deregister(r.Handle(), r.Addr())
		gone.Store(true)
		wg.Wait()
		must(t, err)
		if f.tag.Users() != 0 || second.Users() != 0 {
			t.Fatalf("%d and %d users of the tags", f.tag.Users(), second.Users())
		}
	}
}
