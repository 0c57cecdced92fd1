package xdpnic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// A queue opens again right after it was closed, although the kernel keeps it
// busy for some milliseconds; while it is in use, Open names the process that holds it.
func TestRebind(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	b := openEnd(t, nb, pairOptions{generic: true})
	a := openEnd(t, na, pairOptions{generic: true})
	for i := range 5 {
		nstest.Must(t, a.q.Close())
		if err := na.Do(func() (err error) { a.q, err = a.open(Config{}); return err }); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		a.pass(t, b, 64, byte(i))
	}
	_, err := openIn(na, Config{BusyTimeout: -1})
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Fatalf("second Open: %v", err)
	}
}

// An Open that waits for a queue ends with its context.
func TestOpenContext(t *testing.T) {
	na, _ := nstest.Pair(t, nstest.Options{})
	openEnd(t, na, pairOptions{generic: true})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel) // while it waits, or before
	err := na.Do(func() error {
		_, err := OpenContext(ctx, Config{Ifindex: na.Index, BusyTimeout: waitLimit})
		return err
	})
	nstest.ErrorIf(t, !errors.Is(err, context.Canceled) || !errors.Is(err, unix.EBUSY),
		"%v, want that it was cancelled while the queue was busy", err)
}

// After Close every call is harmless.
func TestClosedQueue(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	a.mustSend(t, b, 64, 1)
	q := a.q
	held, _, _ := q.Alloc()
	for range 2 {
		nstest.Must(t, q.Close())
	}
	var frames [4]Frame
	if _, _, ok := q.Alloc(); ok || q.Send(held, 64, false) || q.SendSegs([]Desc{{Addr: held, Len: 64}}, false) ||
		q.Receive(frames[:]) != 0 || q.Ready() || q.Pending() != 0 || q.Reap() != 0 || q.InFlight(held) || q.TxFree() != 0 {
		t.Error("a closed queue does something")
	}
	q.Release(held)
	q.Recycle(0)
	q.Refill()
	q.Wake()
	nstest.WantErr(t, "Flush", q.Flush(), ErrClosed)
	nstest.WantErr(t, "Wait", q.Wait(-1), ErrClosed)
	nstest.WantErr(t, "Share", nstest.Err(q.Share()), ErrClosed)
	if s := stats(t, q); s.TxFrames != 1 || q.FD() != -1 {
		t.Errorf("stats: %+v", s)
	}
}

// An interface that is down or gone is a real error with a remedy.
func TestFlushErrors(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	send := func() error {
		addr, buf, _ := a.q.Alloc()
		header(buf, b.ns, a.ns)
		a.q.Send(addr, 64, false)
		return a.q.Flush()
	}
	a.ns.SetLink(t, false)
	if err := send(); err != ErrLinkDown || !errors.Is(err, unix.ENETDOWN) || !strings.Contains(err.Error(), "set it up") {
		t.Errorf("link down: %v", err)
	}
	nstest.Equal(t, "pending", a.q.Pending(), 1)
	nstest.Equal(t, "transmitted while it is down", stats(t, a.q).Transmitted, 0)
	a.ns.SetLink(t, true)
	eventually(t, "link up", func() bool { return a.q.Flush() == nil && a.q.Pending() == 0 })
	nstest.Equal(t, "transmitted", stats(t, a.q).Transmitted, 1)
	a.ns.Remove(t)
	if err := send(); err != ErrGone || !errors.Is(err, unix.ENXIO) {
		t.Errorf("link gone: %v", err)
	}
	audit(t, a.q)
}

// Sending and receiving allocate nothing.
func TestNoAllocations(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true, frags: true, cfg: Config{MultiBuffer: true}})
	frames := make([]Frame, 32)
	segs := make([]Desc, 2)
	lost := 0
	end := time.Now().Add(waitLimit)
	if n := testing.AllocsPerRun(200, func() {
		for a.q.TxFree() < 3 && time.Now().Before(end) {
			a.q.Reap()
		}
		addr, buf, _ := a.q.Alloc()
		header(buf, b.ns, a.ns)
		a.q.Send(addr, 64, false)
		first, buf, _ := a.q.Alloc()
		header(buf, b.ns, a.ns)
		second, _, _ := a.q.Alloc()
		segs[0], segs[1] = Desc{Addr: first, Len: 64}, Desc{Addr: second, Len: 100}
		if !a.q.SendSegs(segs, true) || a.q.Flush() != nil {
			lost++
		}
		got := 0
		for got < 2 && time.Now().Before(end) {
			if b.q.Wait(time.Second) != nil {
				lost++
			}
			b.q.Wake()
			n := b.q.Receive(frames)
			for _, f := range frames[:n] {
				b.q.Recycle(f.Addr)
			}
			b.q.Refill()
			got += n
		}
		if got != 2 {
			lost++
		}
		a.q.Reap()
		a.q.Release(first)
		a.q.Release(second)
		a.q.Stats()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	nstest.ErrorIf(t, lost != 0, "%d errors", lost)
}

// A goroutine that polls while the owner closes the queue finds it empty: the rings'
// memory stays readable.
func TestReadyBesideClose(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	for range 5 {
		q, err := openIn(a, Config{Mode: ModeGeneric, BusyTimeout: waitLimit})
		nstest.Must(t, err)
		stop := make(chan struct{})
		var pollers sync.WaitGroup
		for range 2 {
			pollers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						q.Ready()
					}
				}
			})
		}
		nstest.Check(t, q.Close())
		nstest.ErrorIf(t, q.Ready(), "a closed queue has frames")
		close(stop)
		pollers.Wait()
	}
}

// A veth's carrier is its peer: it goes when the peer is taken down.
func TestRunning(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	nstest.Check(t, a.Do(func() error {
		if !AwaitRunning(a.Index, waitLimit) {
			return errors.New("a veth with its peer up is not running")
		}
		b.SetLink(t, false)
		if ok, err := Running(a.Index); ok || err != nil {
			return errors.Join(errors.New("a veth with its peer down is running"), err)
		}
		if AwaitRunning(a.Index, time.Millisecond) {
			return errors.New("it came back by itself")
		}
		b.SetLink(t, true)
		if !AwaitRunning(a.Index, waitLimit) {
			return errors.New("it did not come back")
		}
		if _, err := Running(1 << 30); err == nil {
			return errors.New("an interface that is not there: no error")
		}
		return nil
	}))
}

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
	nstest.ErrorIf(t, nstest.Err(first.Handout()) == nil, "a closed queue was handed out")
	b := openEnd(t, nb, pairOptions{generic: true})
	r := nstest.In(t, na, func() (*redirect, error) { return attachRedirect(na.Index, true, false) })
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
		nstest.ErrorIf(t, nstest.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)) == nil, "%s: the socket is open", name)
	}
}
