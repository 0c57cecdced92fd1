package memreg

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// One tag goes with no rights and the other with all. A reader that sees a mixture
// gets more than any setting grants, or is refused what the only setting with
// its tag allows.
func TestAttributesChangeTogether(t *testing.T) {
	f := newFixture(t, Limits{})
	trusted, err := f.CreatePtag()
	nstest.Must(t, err)
	closed := Attributes{Ptag: f.tag}
	open := Attributes{Ptag: trusted, EnableRDMAWrite: true, EnableRDMARead: true}
	r, err := f.Register(f.buf, closed)
	nstest.Must(t, err)
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
	nstest.ErrorIf(t, f.tag.Users() != 1 || trusted.Users() != 0 || r.Users() != 0,
		"%d and %d users of the tags, %d of the region", f.tag.Users(), trusted.Users(), r.Users())
}

// An owner that has taken the rights back and has then seen no users is alone with the
// memory. So is one that has deregistered the region. The race detector reports it if not.
func TestOwnerAgainstUsers(t *testing.T) {
	deregister := func(f *fixture, r *Region) error {
		for {
			if err := f.Deregister(r.Handle(), r.Addr()); !errors.Is(err, ErrBusy) {
				return err
			}
		}
	}
	remote := func(f *fixture, r *Region) ([]byte, error) {
		seg, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 8, f.tag, RemoteWrite)
		return seg, err
	}
	for name, c := range map[string]struct {
		use      func(*fixture, *Region) ([]byte, error)
		takeBack func(*fixture, *Region) error
	}{
		"peer, SetAttributes": {remote, func(f *fixture, r *Region) error {
			if err := f.SetAttributes(r, Attributes{Ptag: r.Ptag(), EnableRDMARead: true}); err != nil {
				return err
			}
			for r.Users() > 0 {
				runtime.Gosched()
			}
			return nil
		}},
		"peer, Deregister": {remote, deregister},
		"VI, Deregister": {func(f *fixture, r *Region) ([]byte, error) {
			seg, r, err := f.Resolve(r.Handle(), r.Addr(), 8, nil)
			if err == nil && !r.Acquire() {
				err = ErrHandle
			}
			return seg, err
		}, deregister},
	} {
		f := newFixture(t, Limits{})
		for range 500 {
			buf := make([]byte, 8)
			r, err := f.Register(buf, Attributes{Ptag: f.tag, EnableRDMAWrite: true})
			nstest.Must(t, err)
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					seg, err := c.use(f, r)
					if err != nil {
						nstest.ErrorIf(t, err != ErrRights && err != ErrHandle, "%s: %v", name, err)
						return
					}
					if seg[0] != 0 {
						t.Errorf("%s: the owner has the bytes back while they are in use", name)
						r.Release()
						return
					}
					seg[0] = 0
					r.Release()
				}
			})
			wg.Go(func() {
				nstest.WantErr(t, name, c.takeBack(f, r), nil)
				buf[0] = 1
			})
			wg.Wait()
			nstest.FatalIf(t, buf[0] != 1, "%s: a user wrote what the owner had taken back", name)
		}
	}
}

// Destroying a tag and giving it to a region, a new one or an existing one, cannot both work.
func TestDestroyPtagAgainstUse(t *testing.T) {
	f := newFixture(t, Limits{})
	existing := f.register(t, f.buf)
	var made *Region
	for name, c := range map[string]struct{ use, undo func(*Ptag) error }{
		"Register": {
			func(tag *Ptag) (err error) { made, err = f.Register(f.buf, Attributes{Ptag: tag}); return err },
			func(tag *Ptag) error {
				return errors.Join(f.Deregister(made.Handle(), made.Addr()), f.DestroyPtag(tag))
			},
		},
		"SetAttributes": {
			func(tag *Ptag) error { return f.SetAttributes(existing, Attributes{Ptag: tag}) },
			func(tag *Ptag) error {
				return errors.Join(f.SetAttributes(existing, Attributes{Ptag: f.tag}), f.DestroyPtag(tag))
			},
		},
	} {
		for range 200 {
			tag, err := f.CreatePtag()
			nstest.Must(t, err)
			var used, destroyed error
			var wg sync.WaitGroup
			wg.Go(func() { used = c.use(tag) })
			wg.Go(func() { destroyed = f.DestroyPtag(tag) })
			wg.Wait()
			nstest.FatalIf(t, (used == nil) == (destroyed == nil), "%s: %v, DestroyPtag: %v", name, used, destroyed)
			if used == nil {
				nstest.Must(t, c.undo(tag))
			}
		}
	}
}

// A region that is changed until it is deregistered releases every tag exactly
// once.
func TestSetAttributesAgainstDeregister(t *testing.T) {
	f := newFixture(t, Limits{})
	second, err := f.CreatePtag()
	nstest.Must(t, err)
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
		nstest.Must(t, err)
		nstest.FatalIf(t, f.tag.Users() != 0 || second.Users() != 0,
			"%d and %d users of the tags", f.tag.Users(), second.Users())
	}
}

// Goroutines register, look up and deregister while the array grows: a region
// is found as long as it is registered, and never another goroutine's.
func TestConcurrentRegistration(t *testing.T) {
	f := newFixture(t, Limits{})
	const workers, rounds, batch = 4, 4, 60 // 240 at a time: three growths
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			buf := make([]byte, batch)
			for range rounds {
				var mine [batch]*Region
				for i := range mine {
					r, err := f.Register(buf[i:], Attributes{Ptag: f.tag})
					if err != nil {
						t.Error(err)
						return
					}
					mine[i] = r
				}
				for i, r := range mine {
					seg, got, err := f.Resolve(r.Handle(), r.Addr(), uint32(r.Len()), f.tag)
					if err != nil || got != r || &seg[0] != &buf[i] {
						t.Errorf("worker %d: region %d resolves to %p, %v", w, i, got, err)
						return
					}
					nstest.Check(t, f.Deregister(r.Handle(), r.Addr()))
					nstest.ErrorIf(t, f.Lookup(r.Handle()) == r, "found after it was deregistered")
				}
			}
		})
	}
	wg.Wait()
	if got, want := f.Stats(), (Stats{Ptags: 1, Registered: workers * rounds * batch}); got != want || f.tag.Users() != 0 {
		t.Errorf("%+v, %d users of the tag", got, f.tag.Users())
	}
}

// A lookup that still reads the array from before a growth finds what is
// registered, and not what has died since.
func TestLookupInOldArray(t *testing.T) {
	f := newFixture(t, Limits{})
	stays, goes := f.register(t, f.buf), f.register(t, f.buf)
	old := f.slots.Load()
	for f.slots.Load() == old {
		f.register(t, f.buf)
	}
	nstest.Must(t, f.Deregister(goes.Handle(), goes.Addr()))
	f.slots.Store(old)
	nstest.ErrorIf(t, f.Lookup(stays.Handle()) != stays || f.Lookup(goes.Handle()) != nil, "the old array misleads")
}
