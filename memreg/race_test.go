package memreg

import (
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
)

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
	if f.Lookup(stays.Handle()) != stays || f.Lookup(goes.Handle()) != nil {
		t.Error("the old array misleads")
	}
}
