package memreg

import (
	"errors"
	"sync"
	"testing"
)

// Goroutines register, look up and deregister while the array grows: a region
// is found as long as it is registered, and never one that is someone else's.
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
					noError(t, f.Deregister(r.Handle(), r.Addr()))
					if f.Lookup(r.Handle()) == r {
						t.Error("found after it was deregistered")
					}
				}
			}
		})
	}
	wg.Wait()
	if got, want := f.Stats(), (Stats{Ptags: 1, Registered: workers * rounds * batch}); got != want || f.tag.Users() != 0 {
		t.Errorf("%+v, %d users of the tag", got, f.tag.Users())
	}
}

// Of a holder and a deregistration one wins: the bytes of a region that is held
// are never written by the owner who got it deregistered. The race detector
// sees it if they are.
func TestAcquireAgainstDeregister(t *testing.T) {
	f := newFixture(t, Limits{})
	for range 50 {
		buf := make([]byte, 8)
		r := f.register(t, buf)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					seg, r, err := f.Resolve(r.Handle(), r.Addr(), 8, nil)
					if err != nil {
						if err != ErrHandle {
							t.Error(err)
						}
						return
					}
					if !r.Acquire() {
						return
					}
					if seg[0] != 0 {
						t.Error("the owner took the bytes back while they were held")
					}
					r.Release()
				}
			})
		}
		wg.Go(func() {
			for {
				err := f.Deregister(r.Handle(), r.Addr())
				if err == nil {
					break
				}
				if !errors.Is(err, ErrBusy) {
					t.Error(err)
					break
				}
			}
			buf[0] = 1
		})
		wg.Wait()
	}
}

// The same for a tag: destroying it and registering with it cannot both work.
func TestPtagAgainstDestroy(t *testing.T) {
	f := newFixture(t, Limits{})
	for range 200 {
		tag, err := f.CreatePtag()
		must(t, err)
		var registered, destroyed error
		var r *Region
		var wg sync.WaitGroup
		wg.Go(func() { r, registered = f.Register(f.buf, Attributes{Ptag: tag}) })
		wg.Go(func() { destroyed = f.DestroyPtag(tag) })
		wg.Wait()
		if (registered == nil) == (destroyed == nil) {
			t.Fatalf("Register: %v, DestroyPtag: %v", registered, destroyed)
		}
		if registered == nil {
			must(t, errors.Join(f.Deregister(r.Handle(), r.Addr()), f.DestroyPtag(tag)))
		}
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
	must(t, f.Deregister(goes.Handle(), goes.Addr()))
	f.slots.Store(old)
	if f.Lookup(stays.Handle()) != stays || f.Lookup(goes.Handle()) != nil {
		t.Error("the old array misleads")
	}
}
