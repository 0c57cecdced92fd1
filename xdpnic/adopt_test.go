package xdpnic

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// adopted opens a queue on shared memory and takes it over by copies of its
// descriptors, as another process would.
func adopted(t *testing.T, ns *nstest.NS, cfg Config) (first, second *Queue) {
	t.Helper()
	shared := func(fd int) []byte {
		mem, err := unix.Mmap(fd, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		nstest.Must(t, err)
		t.Cleanup(func() { unix.Munmap(mem) })
		return mem
	}
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	nstest.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	nstest.Must(t, unix.Ftruncate(fd, 4<<20))
	cfg.Memory = shared(fd)
	first, err = openIn(ns, cfg)
	nstest.Must(t, err)
	h, err := first.Handout()
	nstest.Must(t, err)
	nstest.ErrorIf(t, h.Config.Memory != nil, "the handout has an address of this process")
	socket, err := unix.FcntlInt(uintptr(first.FD()), unix.F_DUPFD_CLOEXEC, 0)
	nstest.Must(t, err)
	second, err = Adopt(socket, h, shared(fd))
	nstest.Must(t, err)
	t.Cleanup(func() {
		nstest.Check(t, second.Close())
	})
	return first, second
}

// A queue that was handed out continues to work, with all its chunks, after the one that opened it has closed.
func TestAdopt(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	first, qa := adopted(t, na, Config{Mode: ModeGeneric, RxChunks: 64, TxChunks: 64})
	nstest.Must(t, first.Close())
	if _, err := first.Handout(); err == nil {
		t.Error("a closed queue was handed out")
	}
	b := openEnd(t, nb, pairOptions{generic: true})
	var r *redirect
	nstest.Must(t, na.Do(func() (err error) {
		r, err = attachRedirect(na.Index, true, false)
		return err
	}))
	t.Cleanup(r.close)
	nstest.Must(t, r.register(qa, 0))
	a := &end{ns: na, q: qa}
	for i := range 200 { // more than there are chunks
		a.pass(t, b, 100+i, byte(i))
		b.pass(t, a, 100+i, byte(i))
	}
	audit(t, qa, b.q)
	if s := stats(t, qa); s.TxFrames != 200 || s.RxFrames != 200 || s.Filled < 64 {
		t.Errorf("stats: %+v", s)
	}
}

// Inconsistent parts are refused, and the socket is closed.
func TestAdoptRefuses(t *testing.T) {
	nstest.Require(t)
	good, err := Config{Ifindex: 1, ChunkSize: 4096, RxChunks: 16, TxChunks: 16}.WithDefaults()
	nstest.Must(t, err)
	short := good
	short.RxChunks = 17
	fewer, beyond := good, good
	fewer.RxChunks = -1
	beyond.PoolOffset = math.MaxInt / 4096 * 4096
	one := Info{MaxSegs: 1}
	mem := mapped(t, 1<<20)
	for name, c := range map[string]struct {
		cfg  Config
		mem  []byte
		info Info
	}{
		"no memory": {good, nil, one}, "rings too short": {short, mem, one}, "no rings": {good, mem, one},
		"fewer chunks than none": {fewer, mem, one}, "a pool beyond everything": {beyond, mem, one},
		"frames of no entries": {good, mem, Info{}}, "fewer entries than none": {good, mem, Info{MaxSegs: -1}},
		"frames of any length":   {good, mem, Info{MaxSegs: math.MaxInt}},
		"another kind of socket": {good, mem, one}, "no socket": {good, mem, one},
	} {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		switch name {
		case "another kind of socket":
			unix.Close(fd)
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		case "no socket":
			unix.Close(fd)
			fd, err = unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		}
		nstest.Must(t, err)
		switch _, err := Adopt(fd, Handout{Config: c.cfg, Info: c.info}, c.mem); {
		case err != nil && c.info.MaxSegs != 1 && !errors.Is(err, errConfig):
			t.Errorf("%s: %v", name, err)
		case err == nil:
			t.Errorf("%s: no error", name)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s: the socket is open", name)
		}
	}
}
