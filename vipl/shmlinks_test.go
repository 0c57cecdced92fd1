package vipl_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/shmlink"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// The program at the other end of a link never answers the bell. Sending and leaving the link
// still work, although the bell could block. When that program has gone, the bell stays until the
// last connection has ended.
func TestStoppedNeighbour(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	end, fars := linkEnd(t, shmlink.Size, unix.F_SEAL_SHRINK)
	mem, err := unix.Mmap(int(end.Memory.Fd()), 0, shmlink.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	far, err := shmlink.New(mem, 1)
	must(t, err)
	must(t, unix.SetNonblock(int(end.Bell.Fd()), false))
	bell := end.Bell
	send, leave, err := n.a.EnterLink(end)
	must(t, err)

	far.Sleep(true)
	sent := make(chan int)
	go func() {
		buf := make([]byte, shmlink.MaxFrame)
		for i := range 2000 { // many times what the socket takes
			if ok := send(64); !ok {
				sent <- i
				return
			}
			far.Receive(buf)
		}
		sent <- 2000
	}()
	select {
	case i := <-sent:
		errorIf(t, i != 2000, "frame %d was not sent", i)
	case <-time.After(20 * time.Second):
		t.Fatal("a full bell has stopped the sender")
	}

	// One that is gone, which the port has noticed when its reading ended.
	for _, f := range fars {
		f.Close()
	}
	errorIf(t, !send(64), "a lane whose bell is gone takes no frames")
	open := func() bool {
		raw, err := bell.SyscallConn()
		return err == nil && raw.Control(func(uintptr) {}) == nil
	}
	time.Sleep(20 * time.Millisecond) // a bell closed too early would be by now
	errorIf(t, !open(), "the bell has been closed while a connection uses it")
	leave()
	for start := time.Now(); open(); time.Sleep(time.Millisecond) {
		fatalIf(t, time.Since(start) > 20*time.Second, "the bell is still open")
	}
}

// linkEnd makes an end of a link, and gives the other side's files of wake and bell.
func linkEnd(t *testing.T, size int64, seals int) (end *kagent.ShmLinkEnd, fars [2]*os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("shmlink", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	end = &kagent.ShmLinkEnd{ID: 1, Memory: os.NewFile(uintptr(fd), "shmlink")}
	must(t, end.Memory.Truncate(size))
	must(t, errOf(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)))
	for i, f := range []**os.File{&end.Wake, &end.Bell} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		*f, fars[i] = os.NewFile(uintptr(fds[0]), "bell"), os.NewFile(uintptr(fds[1]), "far")
		t.Cleanup(func() { fars[i].Close() })
	}
	return end, fars
}

// transfer sends count messages of size bytes from one VI to the other, several
// at a time, and checks each.
func transfer(t *testing.T, va, vb *vipl.VI, xa, xb *box, count, size int) {
	t.Helper()
	const depth = 4
	postRecvs(t, vb, xb, depth, size)
	for k := range count {
		i := k % depth
		if k >= depth {
			sent(t, va, 0)
		}
		fillPattern(xa.buf[i][:size], k)
		if k >= depth {
			receivedMessage(t, vb, xb.buf[i][:size], k-depth)
			postRecv(t, vb, xb, i, size)
		}
		postSend(t, va, xa, i, size)
	}
	for k := max(0, count-depth); k < count; k++ {
		sent(t, va, 0)
		receivedMessage(t, vb, xb.buf[k%depth][:size], k)
	}
}

// Several handles of one interface share its only queue, and their VIs can be
// connected with each other; closing one leaves the other alone.
func TestHandlesShareAQueue(t *testing.T) {
	t.Parallel()
	na, nb := nstest.Pair(t, nstest.Options{})
	a1, a2, b := openNIC(t, na), openNIC(t, na), openNIC(t, nb)
	v1, v2 := openVI(t, a1, vipl.ReliableDelivery), openVI(t, a2, vipl.ReliableDelivery)
	join(t, a1, v1, a2, v2)
	transfer(t, v1, v2, openBox(t, a1), openBox(t, a2), 20, 100_000)

	far, w1 := openVI(t, b, vipl.ReliableDelivery), openVI(t, a1, vipl.ReliableDelivery)
	join(t, a1, w1, b, far)
	waits := starts(func() error { return errOf(v2.RecvWait(-1)) })
	time.Sleep(20 * time.Millisecond) // so that it sleeps
	must(t, a2.Close())
	wantError(t, "a wait on the closed handle", <-waits, vipl.ErrInvalidParameter)
	stateIs(t, v1, vipl.Error)
	transfer(t, w1, far, openBox(t, a1), openBox(t, b), 20, 100_000)
	for _, n := range []*vipl.NIC{a1, b} {
		noError(t, n.Close())
	}
	openNIC(t, na) // the queue is free
}

// sharing opens one more handle on the queue and the arena of h.
func (n *memoryNet) sharing(t *testing.T, h *memoryHost) *vipl.NIC {
	t.Helper()
	nic, err := vipl.Open(vipl.Provider{Port: h.queue, Agent: n.fabric.Agent("shares"), Arena: h.arena, Silence: time.Minute})
	must(t, err)
	t.Cleanup(func() { nic.Close() })
	return nic
}

// A region that is deregistered just as its handle is closed is freed once: its memory
// may be another handle's by then.
func TestDeregisterBesideClose(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	other := n.sharing(t, n.a)
	alloc := func(nic *vipl.NIC) *vipl.Region {
		t.Helper()
		r, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: mustTag(t, nic)})
		must(t, err)
		return r
	}
	r := alloc(n.a.NIC)
	at := r.Addr()
	var theirs *vipl.Region
	noError(t, r.DeregisterAround(func() {
		noError(t, n.a.Close())
		theirs = alloc(other)
	}))
	fatalIf(t, theirs.Addr() != at, "the memory was not given out again: %#x, then %#x", at, theirs.Addr())
	third := alloc(other)
	errorIf(t, third.Addr() == theirs.Addr(), "two regions have the same memory")
}

// VIs of one interface on different queues are peers like any others. Their frames go through a
// shared-memory link.
func TestOtherQueueOfTheInterface(t *testing.T) {
	t.Parallel()
	nics := openQueues(t)
	xa, xb := openBox(t, nics[0]), openBox(t, nics[1])
	for _, level := range []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception} {
		for range 2 { // the second time on a new link
			va, vb := openPair(t, nics[0], nics[1], level)
			transfer(t, va, vb, xa, xb, 300, 20_000)
			transfer(t, vb, va, xb, xa, 300, 64)
			fillPattern(xa.buf[0], 9)
			xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, boxSize))
			postDesc(t, va, xa, 0)
			sent(t, va, vipl.StatusOpRDMAWrite)
			transfer(t, va, vb, xa, xb, 1, 8) // which comes after it
			checkPattern(t, xb.buf[1], 9)
			disconnect(t, va, vb)
		}
	}
}

// The memory of a link cannot be shrunk.
func TestLinkMemory(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	for _, c := range []struct {
		size  int64
		seals int
	}{{shmlink.Size, 0}, {shmlink.Size - 1, unix.F_SEAL_SHRINK}} {
		end, _ := linkEnd(t, c.size, c.seals)
		if _, leave, err := n.a.EnterLink(end); err == nil {
			t.Errorf("%+v: no error", c)
			leave()
		}
		end.Close()
	}
}

// withoutLink is an agent on whose interface every VI is on another queue, to which there is no link.
type withoutLink struct {
	*kagenttest.Agent
	err error
}

func (a withoutLink) Path(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	path, err := a.Agent.Path(ctx, local, peer)
	path.Loopback = true
	return path, err
}

func (a withoutLink) ShmLink(uint32) (*kagent.ShmLinkEnd, error) { return nil, a.err }

// A connect that gets no shared-memory link says why: a lack of this host is no path that is missing.
func TestLinkFails(t *testing.T) {
	for name, test := range map[string]struct{ err, want error }{
		"descriptors":   {unix.EMFILE, vipl.ErrResource},
		"memory":        {unix.ENOMEM, vipl.ErrResource},
		"interface":     {kagent.ErrGone, vipl.ErrResource},
		"closed":        {kagent.ErrClosed, vipl.ErrInvalidParameter},
		"late agent":    {context.DeadlineExceeded, vipl.ErrTimeout},
		"no other part": {kagent.ErrUnreachable, vipl.ErrNotReachable},
	} {
		t.Run(name, func(t *testing.T) {
			n, va, vb := unconnected(t, memoryConfig{agent: func(a *kagenttest.Agent) kagent.Agent { return withoutLink{a, test.err} }}, vipl.ReliableDelivery)
			accepted := accepts(n.b.NIC, address(n.b, "other queue"), vb)
			err := request(va, address(n.b, "other queue"))
			wantError(t, "request", err, test.want)
			wantError(t, "its cause", err, test.err)
			wantError(t, "accept", <-accepted, vipl.ErrRejected)
		})
	}
}
