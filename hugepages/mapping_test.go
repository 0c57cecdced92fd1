package hugepages

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// If the kernel refuses a mapping, memory that other threads map meanwhile stays mapped.
func TestRefusedMappingBesideOthers(t *testing.T) {
	const size, rounds = 4 << 20, 50_000
	over := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				mem, err := unix.Mmap(-1, 0, size/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
				if err != nil {
					t.Error(err)
					return
				}
				for range 20 {
					if !mapped(mem) {
						t.Error("another thread unmapped it")
						return
					}
				}
				nstest.Check(t, unix.Munmap(mem))
			}
		})
	}
	// A socket's mmap fails as late as a lack of huge pages does: after the kernel has unmapped what was there.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	for range rounds {
		m := mapping{fd: fd}
		if err := m.place(size, unix.MAP_SHARED); err == nil {
			t.Fatal("a socket was mapped")
		}
		m.fd = -1
		nstest.Must(t, m.close())
	}
	nstest.Check(t, unix.Close(fd))
	close(over)
	others.Wait()
}
