package memreg

import (
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// The data path allocates nothing, in success and in failure.
func TestNoAllocations(t *testing.T) {
	f := newFixture(t, Limits{})
	r := f.register(t, f.buf)
	nstest.Must(t, f.SetAttributes(r, Attributes{Ptag: f.tag, EnableRDMAWrite: true}))
	other, err := f.CreatePtag()
	nstest.Must(t, err)
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

// BenchmarkResolve is what a message costs here, with as many regions as a busy program has
// registered: the lookup by its own VI, and the lookup and release by a peer.
func BenchmarkResolve(b *testing.B) {
	f := newFixture(b, Limits{})
	regions := make([]*Region, 1000)
	for i := range regions {
		regions[i] = f.register(b, f.buf)
		nstest.Must(b, f.SetAttributes(regions[i], Attributes{Ptag: f.tag, EnableRDMAWrite: true}))
	}
	b.Run("local", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			r := regions[i%len(regions)]
			if _, _, err := f.Resolve(r.handle, r.addr, 64, f.tag); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("remote", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			r := regions[i%len(regions)]
			_, r, err := f.ResolveRemote(r.handle, r.addr, 64, f.tag, RemoteWrite)
			nstest.Must(b, err)
			r.Release()
		}
	})
}

// BenchmarkRegisterForeign registers and deregisters a buffer of 256 KiB, as libfabric's ofi_rxm does for each message of
// that size.
func BenchmarkRegisterForeign(b *testing.B) {
	f := newFixture(b, Limits{})
	mem, err := unix.Mmap(-1, 0, 256<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	nstest.Must(b, err)
	defer unix.Munmap(mem)
	for b.Loop() {
		r, err := f.RegisterForeign(address(mem), uint64(len(mem)), Attributes{Ptag: f.tag})
		nstest.Must(b, err)
		nstest.Must(b, f.Deregister(r.Handle(), r.Addr()))
	}
}
