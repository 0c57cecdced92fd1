package memreg

import (
	"sync"
	"testing"
)

// The data path allocates nothing, in success and in failure.
func TestNoAllocations(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	must(t, f.SetAttributes(r, Attributes{Ptag: f.tag, EnableRDMAWrite: true}))
	other, err := f.CreatePtag()
	must(t, err)
	for name, call := range map[string]func() error{
		"resolve": func() error {
			_, r, err := f.Resolve(r.Handle(), r.Addr()+7, 64, f.tag)
			if err == nil && r.Acquire() {
				r.Release()
			}
			return err
		},
		"lookup":     func() error { f.Lookup(r.Handle()); return nil },
		"attributes": func() error { _, _ = r.Attributes(), r.Ptag(); return nil },
		"remote": func() error {
			_, r, err := f.ResolveRemote(r.Handle(), r.Addr()+7, 64, f.tag, RemoteWrite)
			if err == nil {
				r.Release()
			}
			return err
		},
	} {
		if n := testing.AllocsPerRun(1000, func() { err = call() }); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
	for name, call := range map[string]func() error{
		"handle": func() error { _, _, err := f.Resolve(0, r.Addr(), 64, nil); return err },
		"tag":    func() error { _, _, err := f.Resolve(r.Handle(), r.Addr(), 64, other); return err },
		"range":  func() error { _, _, err := f.Resolve(r.Handle(), r.Addr(), 1<<20, nil); return err },

		"remote handle": func() error { _, _, err := f.ResolveRemote(0, r.Addr(), 64, nil, 0); return err },
		"remote tag":    func() error { _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 64, other, 0); return err },
		"remote rights": func() error { _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 64, nil, RemoteRead); return err },
		"remote range":  func() error { _, _, err := f.ResolveRemote(r.Handle(), r.Addr(), 1<<20, nil, 0); return err },
	} {
		if n := testing.AllocsPerRun(1000, func() { err = call() }); n != 0 || err == nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

// benchmarkRegions is what a busy program has registered.
const benchmarkRegions = 1000

func benchmarkTable(b *testing.B) (*fixture, []*Region) {
	f := newFixture(b, Limits{})
	regions := make([]*Region, benchmarkRegions)
	for i := range regions {
		regions[i] = f.register(b, f.buf)
	}
	return f, regions
}

func BenchmarkResolve(b *testing.B) {
	f, regions := benchmarkTable(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := regions[i%benchmarkRegions]
		if _, _, err := f.Resolve(r.handle, r.addr, 64, f.tag); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResolveAcquireRelease(b *testing.B) {
	f, regions := benchmarkTable(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := regions[i%benchmarkRegions]
		_, r, err := f.Resolve(r.handle, r.addr, 64, f.tag)
		if err != nil || !r.Acquire() {
			b.Fatal(err)
		}
		r.Release()
	}
}

func BenchmarkResolveRemoteRelease(b *testing.B) {
	f, regions := benchmarkTable(b)
	for _, r := range regions {
		must(b, f.SetAttributes(r, Attributes{Ptag: f.tag, EnableRDMAWrite: true}))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := regions[i%benchmarkRegions]
		_, r, err := f.ResolveRemote(r.handle, r.addr, 64, f.tag, RemoteWrite)
		must(b, err)
		r.Release()
	}
}

func BenchmarkSetAttributes(b *testing.B) {
	f, regions := benchmarkTable(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		must(b, f.SetAttributes(regions[i%benchmarkRegions], Attributes{Ptag: f.tag, EnableRDMARead: true}))
	}
}

// lockedMap is the plain way, to compare with.
type lockedMap struct {
	mu      sync.RWMutex
	regions map[Handle]*Region
}

func (m *lockedMap) resolve(h Handle, addr uint64, n uint32, tag *Ptag) ([]byte, *Region, error) {
	m.mu.RLock()
	r := m.regions[h]
	m.mu.RUnlock()
	if r == nil {
		return nil, nil, ErrHandle
	}
	if r.Ptag() != tag {
		return nil, nil, ErrPtag
	}
	seg, err := r.Slice(addr, n)
	return seg, r, err
}

func BenchmarkResolveLockedMap(b *testing.B) {
	f, regions := benchmarkTable(b)
	m := lockedMap{regions: map[Handle]*Region{}}
	for _, r := range regions {
		m.regions[r.handle] = r
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := regions[i%benchmarkRegions]
		if _, _, err := m.resolve(r.handle, r.addr, 64, f.tag); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResolveParallel(b *testing.B) {
	f, regions := benchmarkTable(b)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			r := regions[i%benchmarkRegions]
			if _, _, err := f.Resolve(r.handle, r.addr, 64, f.tag); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkResolveLockedMapParallel(b *testing.B) {
	f, regions := benchmarkTable(b)
	m := lockedMap{regions: map[Handle]*Region{}}
	for _, r := range regions {
		m.regions[r.handle] = r
	}
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			r := regions[i%benchmarkRegions]
			if _, _, err := m.resolve(r.handle, r.addr, 64, f.tag); err != nil {
				b.Error(err)
			}
		}
	})
}
