package device

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// The error for a queue in use names its holder and the remedy, also before it has been handed out.
func TestInUse(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := small(an)
	cfg.Mode, cfg.Queue, cfg.Holder = xdpnic.ModeGeneric, kagent.AnyQueue, kagent.Holder{PID: 4711, UID: 1001, Comm: "trader"}
	mustOpen(t, an, cfg)
	_, err := openOn(t, an, cfg)
	nstest.FatalIf(t, !errors.Is(err, kagent.ErrQueueInUse), "%v, want ErrQueueInUse", err)
	for _, part := range []string{"queue 0 is open in process 4711 (trader) of user 1001", "native mode, which has all 2"} {
		nstest.ErrorIf(t, !strings.Contains(err.Error(), part), "%q does not say %q", err, part)
	}
	cfg.Queue = 0
	if _, err := openOn(t, an, cfg); !errors.Is(err, kagent.ErrQueueInUse) || !strings.Contains(err.Error(), "end that program, or") {
		t.Errorf("queue 0: %v", err)
	}
}

// Opens of one interface in one process share the objects of which there is one for an interface.
func TestSeveralOpens(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{Queues: 2})
	native := native(an, kagent.AnyQueue)
	a0 := mustOpen(t, an, native)
	a1 := mustOpen(t, an, native)
	nstest.ErrorIf(t, a0.Info().Queue == a1.Info().Queue || a0.Queue() == a1.Queue(), "both have queue %d", a0.Info().Queue)
	_, err := openOn(t, an, native)
	nstest.ErrorIf(t, !errors.Is(err, kagent.ErrQueueInUse) || kagent.Unavailable(err), "a third open on two queues: %v", err)
	t.Logf("no queue left: %v", err)
	native.ShareQueue = true
	a2 := mustOpen(t, an, native)
	if a2.Queue() != a0.Queue() && a2.Queue() != a1.Queue() || a2.Arena() != a0.Arena() && a2.Arena() != a1.Arena() {
		t.Error("the shared queue is not one of the two")
	}

	// Numbers are one set; one agent's end is not the other's.
	n0, err0 := a0.NewVI()
	n2, err2 := a2.NewVI()
	nstest.FatalIf(t, err0 != nil || err2 != nil || n0 == n2, "numbers %#x %#x, %v %v", n0, n2, err0, err2)
	nstest.ErrorIf(t, a0.Enter(n2, 1, bn.IPv4) == nil, "an agent entered another's VI")
	nstest.Must(t, nstest.Err(a0.Listen(kagent.Address{Disc: []byte("d")})))
	nstest.WantErr(t, "one discriminator, two listeners", nstest.Err(a1.Listen(kagent.Address{Disc: []byte("d")})), kagent.ErrListening)
	waiting := make(chan error, 1)
	go func() {
		_, err := a2.Wait(t.Context(), kagent.Address{Disc: []byte("w")})
		waiting <- err
	}()
	nstest.Must(t, a2.Close())
	nstest.WantErr(t, "Wait on a closed agent", <-waiting, kagent.ErrClosed)
	nstest.ErrorIf(t, an.Program(t) == 0, "the program is gone with the first of three")
	nstest.Must(t, a0.Close())
	nstest.WantErr(t, "the listener outlived its agent", nstest.Err(a1.Listen(kagent.Address{Disc: []byte("d")})), nil)

	// Generic mode: one queue, and one way to attach.
	generic := small(an)
	generic.Mode, generic.RequireMode, generic.Queue = xdpnic.ModeGeneric, true, kagent.AnyQueue
	if _, err := openOn(t, an, generic); err == nil {
		t.Error("generic mode beside native mode on one interface")
	} else {
		t.Logf("another mode: %v", err)
	}
	gb := small(bn)
	mustOpen(t, bn, gb)
	gb.Queue = 1
	gb.Mode, gb.RequireMode = xdpnic.ModeGeneric, true
	nstest.ErrSays(t, "queue 1 in generic mode", nstest.Err(openOn(t, bn, gb)), "queue 0")
}

// setChannels is ethtool -L.
func setChannels(t *testing.T, n *nstest.NS, rx, tx uint32) {
	t.Helper()
	nstest.Must(t, n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		c, err := e.GetChannels(n.Name)
		if err != nil {
			return err
		}
		c.RxCount, c.TxCount = rx, tx
		_, err = e.SetChannels(n.Name, c)
		return err
	}))
}

// Of a queue that was closed the slot is empty, although another process may still have the socket, and no VI is in
// the table.
func TestCloseEmptiesTables(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := native(an, kagent.AnyQueue)
	closed, err := openOn(t, an, cfg)
	nstest.Must(t, err)
	other := mustOpen(t, an, cfg)
	num, err := closed.NewVI()
	nstest.Must(t, err)
	nstest.Must(t, closed.Enter(num, 1, bn.IPv4))
	kept, err := unix.FcntlInt(uintptr(closed.Queue().FD()), unix.F_DUPFD_CLOEXEC, 0)
	nstest.Must(t, err)
	defer unix.Close(kept)
	nstest.Must(t, closed.Close())
	nstest.Same(t, "slots in use", other.demux.Slots(), []int{other.lease.slot})
	other.demux.EachVI(func(num uint32, e bpf.VIEntry) { t.Errorf("VI %#x is in the table: %+v", num, e) })
}

// A user that follows the advice to give the interface more queues can do so while others use theirs.
func TestQueuesAdded(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{Queues: 2})
	setChannels(t, bn, 1, 1) // or a's one queue is too few for native mode
	setChannels(t, an, 1, 1)
	cfg := native(an, kagent.AnyQueue)
	mustOpen(t, an, cfg)
	if _, err := openOn(t, an, cfg); !errors.Is(err, kagent.ErrQueueInUse) || !strings.Contains(err.Error(), "more queues") {
		t.Fatalf("%v, want ErrQueueInUse and what to do", err)
	}
	setChannels(t, an, 2, 2)
	if i := mustOpen(t, an, cfg).Info(); i.Queue != 1 || i.Queues != 2 {
		t.Errorf("queue %d of %d", i.Queue, i.Queues)
	}
}

// A program that was detached by force is reported as detached, and is attached again when the next queue is
// opened.
func TestProgramTakenOff(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := native(an, kagent.AnyQueue)
	l := mustOpen(t, an, cfg)
	objects, ok := l.demux.Descriptors()
	nstest.FatalIf(t, !ok, "no descriptors")
	fd, err := unix.FcntlInt(uintptr(objects.Link), unix.F_DUPFD_CLOEXEC, 0)
	nstest.Must(t, err)
	same, err := link.NewFromFD(fd)
	nstest.Must(t, err)
	nstest.Must(t, errors.Join(same.Detach(), same.Close()))
	if m := LocalStatus().NICs[0].Mode; m != "" || an.Program(t) != 0 {
		t.Errorf("the program is off, and the status says %q", m)
	}
	mustOpen(t, an, cfg)
	if m := LocalStatus().NICs[0].Mode; m != "native" || an.Program(t) == 0 {
		t.Errorf("after another open the status says %q, want native", m)
	}
}

// A queue that receives and does not send is not leased: the kernel accepts what is sent on it, reports
// nothing, and leaves it on the ring. It counts for steering.
func TestQueuesThatOnlyReceive(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{Queues: 4})
	setChannels(t, an, 4, 2)
	cfg := native(an, kagent.AnyQueue)
	for range 2 {
		l := mustOpen(t, an, cfg)
		if info := l.Info(); info.Queues != 2 || l.dev.inputs != 4 {
			t.Errorf("%d queues to be had, frames come in on %d; want 2 and 4", info.Queues, l.dev.inputs)
		}
		q := l.Queue()
		addr, _, _ := q.Alloc()
		nstest.ErrorIf(t, !q.Send(addr, 64, false) || q.Flush() != nil || q.Pending() != 0,
			"queue %d sends nothing: %d entries pending", l.Info().Queue, q.Pending())
	}
	refused := func(what string) error {
		l, err := openOn(t, an, cfg)
		if err == nil {
			t.Errorf("%s: opened", what)
			return l.Close()
		}
		return err
	}
	nstest.WantErr(t, "a third", refused("a third"), kagent.ErrQueueInUse)
	for queue, text := range []string{2: "queue 2 receives and does not send", 3: "queue 3 receives", 4: "no queue 4: the interface has 4"} {
		if cfg.Queue = queue; text == "" {
			continue
		}
		if err := refused(text); err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("queue %d: %v, want %q", queue, err, text)
		}
	}
}

// A failed Open returns the reason and leaves nothing behind.
func TestOpenErrors(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	for _, c := range []struct {
		name   string
		change func(*Config)
		text   string
	}{
		{"no interface", func(c *Config) { c.Interface = "" }, "no interface"},
		{"unknown interface", func(c *Config) { c.Interface = "nosuch0" }, "via0"},
		{"queue", func(c *Config) { c.Queue = 7 }, "no queue 7"},
		{"arena", func(c *Config) { c.ArenaBytes = 4096 }, "does not hold"},
		{"VIs", func(c *Config) { c.MaxVIs = 1 }, "MaxVIs"},
		{"no such mode", func(c *Config) { c.Mode = 99 }, "mode(99)"},
		{"mode", func(c *Config) { c.Mode, c.RequireMode = xdpnic.ModeZeroCopy, true }, "zero-copy"},
	} {
		cfg := small(an)
		c.change(&cfg)
		_, err := openOn(t, an, cfg)
		var op *kagent.OpError
		nstest.ErrorIf(t, !errors.As(err, &op) || !strings.Contains(err.Error(), c.text) || kagent.Unavailable(err), "%s: %v", c.name, err)
		nstest.ErrorIf(t, an.Program(t) != 0 || len(registry.devices) != 0, "%s: something stayed behind", c.name)
	}

	// Another owner's program stays attached.
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Name: "stranger", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, License: "GPL"})
	nstest.Must(t, err)
	defer p.Close()
	nic := an.Link(t)
	nstest.Must(t, an.Do(func() error { return netlink.LinkSetXdpFdWithFlags(nic, p.FD(), nl.XDP_FLAGS_SKB_MODE) }))
	_, err = openOn(t, an, small(an))
	nstest.ErrorIf(t, !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "stranger"), "with another's program: %v", err)
	nstest.ErrorIf(t, an.Program(t) == 0, "the other's program is gone")
}

// An Open that runs out of descriptors, at whatever step, says so. It is no lack of the machine, and nothing is left open.
func TestOutOfDescriptors(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	nstest.Check(t, mustOpen(t, an, small(an)).Close())
	opened := false
	for free := 0; !opened; free++ {
		nstest.WithDescriptors(t, free, func() {
			l, err := openOn(t, an, small(an))
			if opened = err == nil; opened {
				nstest.Check(t, l.Close())
			} else if !errors.Is(err, unix.EMFILE) || kagent.Unavailable(err) {
				t.Errorf("%d descriptors: %v (unavailable: %v)", free, err, kagent.Unavailable(err))
			}
			await.Until(t, "as many descriptors as before", func() bool { return nstest.FreeDescriptors() >= free })
		})
		nstest.ErrorIf(t, an.Program(t) != 0 || len(registry.devices) != 0, "%d descriptors: something stayed behind", free)
	}
}

// TestMain also runs the program of TestSecondProcess and TestKill: it opens the interface and enters a VI.
func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asOpener: func() error {
		l, err := Open(kagent.Config{Interface: "via0", ArenaBytes: 4 << 20})
		if err != nil {
			fmt.Println(errors.Is(err, unix.EADDRINUSE), kagent.Unavailable(err), err)
			return nil
		}
		num, err := l.NewVI()
		fmt.Println("open", errors.Join(err, l.Enter(num, 1, netip.MustParseAddr("10.99.0.2"))))
		return nstest.Forever()
	}})
}

const asOpener = "open"

// The error names another process that has the interface.
func TestSecondProcess(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	mustOpen(t, an, small(an))
	_, said := nstest.Spawn(t, an.Do, asOpener)
	for _, s := range []string{"true false ", "another via-xdp program", "4793", "via0", "process"} {
		nstest.ErrorIf(t, !strings.Contains(said, s), "%q does not say %q", said, s)
	}
}

// The error names no process that has the port on other interfaces only.
func TestSecondProcessOfTwoInterfaces(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	other, _ := nstest.Another(t, an, bn, 1, nstest.Options{})
	cmd, said := nstest.Spawn(t, an.Do, asOpener)
	nstest.Equal(t, "what the program says", said, "open <nil>")
	mustOpen(t, other, small(other))
	_, err := openOn(t, an, small(an))
	nstest.FatalIf(t, !errors.Is(err, unix.EADDRINUSE), "%v, want EADDRINUSE", err)
	holder, self := fmt.Sprintf("(process %d (", cmd.Process.Pid), fmt.Sprintf("process %d (", os.Getpid())
	nstest.ErrorIf(t, !strings.Contains(err.Error(), holder) || strings.Contains(err.Error(), self), "%v, want %q without %q", err, holder, self)
}

// A program killed with SIGKILL leaves nothing, and the queue opens again.
func TestKill(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	for range 3 {
		cmd, said := nstest.Spawn(t, an.Do, asOpener)
		nstest.Equal(t, "what the program says", said, "open <nil>")
		nstest.Must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		l, err := openOn(t, an, small(an))
		nstest.FatalIf(t, err != nil, "after the kill: %v", err)
		nstest.Must(t, l.Close())
		nstest.ErrorIf(t, an.Program(t) != 0, "a program stayed")
	}
}

// Without privilege there is one error that names what is missing.
func TestUnprivileged(t *testing.T) {
	if os.Getenv("KAGENT_NOBODY") != "" {
		_, err := Open(kagent.Config{Interface: "lo", ArenaBytes: 4 << 20})
		if err == nil || !kagent.Unavailable(err) {
			os.Exit(3)
		}
		os.Stdout.WriteString(err.Error())
		os.Exit(0)
	}
	cmd := nstest.AsNobody(t, "TestUnprivileged")
	cmd.Env = append(os.Environ(), "KAGENT_NOBODY=1")
	out, err := cmd.CombinedOutput()
	nstest.FatalIf(t, err != nil, "%v: %s", err, out)
	t.Logf("%s", out)
	for _, s := range []string{"CAP_BPF", "CAP_NET_ADMIN", "root"} {
		nstest.ErrorIf(t, !strings.Contains(string(out), s), "%q does not say %q", out, s)
	}
}

// An open that waits for a busy queue delays no other call, and ends with its context.
func TestOpenCancelled(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	stranger := mustBind(t, an, 0)
	defer stranger.Close()
	defer func(was time.Duration) { busyTime = was }(busyTime)
	busyTime = waitLimit
	cfg := native(an, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- an.Do(func() error {
			_, err := OpenContext(ctx, cfg)
			return err
		})
	}()
	await.Until(t, "the queue is reserved", func() bool {
		registry.mu.Lock()
		defer registry.mu.Unlock()
		for _, d := range registry.devices {
			if d.key.index == an.Index && d.mu.TryLock() {
				reserved := d.opening[0] != nil
				d.mu.Unlock()
				return reserved
			}
		}
		return false
	})
	other := cfg
	other.Queue = 1
	mustOpen(t, an, other)
	cancel()
	nstest.WantErr(t, "the open", <-ended, context.Canceled)
	nstest.Must(t, stranger.Close())
	mustOpen(t, an, cfg)
}

// On an overloaded machine the kernel frees a queue seconds after its socket is closed. An open waits for it.
func TestQueueFreedLate(t *testing.T) {
	t.Parallel()
	an, _ := nstest.Pair(t, nstest.Options{})
	stranger := mustBind(t, an, 0)
	const late = 3 * time.Second
	timer := time.AfterFunc(late, func() { stranger.Close() })
	defer timer.Stop()
	cfg := native(an, 0)
	start := time.Now()
	mustOpen(t, an, cfg)
	if took := time.Since(start); took < late/2 {
		t.Errorf("it is open after %v: the queue was not busy", took)
	}
}

// An open that waits for the carrier delays no other operation on the interface.
func TestWaitForCarrier(t *testing.T) {
	t.Parallel()
	an, bn := nstest.Pair(t, nstest.Options{})
	d := mustOpen(t, an, small(an)).dev
	link := bn.Link(t)
	nstest.Must(t, bn.Netlink().LinkSetDown(link))
	await.Until(t, "there is no carrier", func() bool {
		link, err := d.router.Link()
		return err == nil && !link.Up
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d.mu.Lock()
	go func() {
		ended <- d.awaitCarrier(ctx)
		d.mu.Unlock()
	}()
	await.Until(t, "the device is unlocked", d.mu.TryLock)
	waits := len(ended) == 0
	d.mu.Unlock()
	nstest.ErrorIf(t, !waits, "another operation had to wait for the end")
	cancel()
	nstest.WantErr(t, "the wait", <-ended, context.Canceled)
}

// mustBind opens a queue as another program does.
func mustBind(t *testing.T, ns *nstest.NS, queue int) *xdpnic.Queue {
	t.Helper()
	return nstest.In(t, ns, func() (*xdpnic.Queue, error) {
		return xdpnic.Open(xdpnic.Config{Ifindex: ns.Index, QueueID: queue, Mode: xdpnic.ModeNative, RxChunks: 64, TxChunks: 64})
	})
}

// A queue without support for frames of several chunks is opened without them. The error of a queue that
// refuses the mode is returned, although the queue tried last is busy.
func TestReasonsOfAllQueues(t *testing.T) {
	opened := new(xdpnic.Queue)
	for _, c := range []struct {
		name  string
		multi bool
		first func(xdpnic.Config) error // of queue 0; queue 1 is busy
		want  error
	}{
		{"no multi-buffer", true, func(nic xdpnic.Config) error {
			if nic.MultiBuffer {
				return unix.EOPNOTSUPP
			}
			return nil
		}, nil},
		{"not even without", true, func(xdpnic.Config) error { return unix.EINVAL }, unix.EINVAL},
		{"refused", false, func(xdpnic.Config) error { return unix.EOPNOTSUPP }, unix.EOPNOTSUPP},
		{"busy", true, func(xdpnic.Config) error { return unix.EBUSY }, unix.EBUSY},
	} {
		var l lease
		err := l.openQueue(t.Context(), xdpnic.Config{MultiBuffer: c.multi}, []int{0, 1}, func(nic xdpnic.Config) (*xdpnic.Queue, error) {
			err := error(unix.EBUSY)
			if nic.QueueID == 0 {
				err = c.first(nic)
			}
			if err != nil {
				return nil, err
			}
			return opened, nil
		})
		nstest.ErrorIf(t, !errors.Is(err, c.want), "%s: %v, want %v", c.name, err, c.want)
		nstest.ErrorIf(t, c.want == nil && (l.queue != opened || l.queueID != 0), "%s: queue %d", c.name, l.queueID)
	}
}

// While all queues are busy none is waited for alone: the first that is free is taken. The wait ends with ctx, and where
// every queue has an owner in this process there is none.
func TestWaitForSeveralQueues(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		name   string
		ctx    context.Context
		frees  int // the call that finds queue 0 free; 0: none
		busy   error
		opened bool
		calls  int
	}{
		{"freed", t.Context(), 7, unix.EBUSY, true, 7},
		{"ended", ended, 7, unix.EBUSY, false, 2},
		{"owned", t.Context(), 0, fmt.Errorf("%w: %w", kagent.ErrQueueInUse, unix.EBUSY), false, 2},
		{"being opened", t.Context(), 0, fmt.Errorf("%w: %w", errOpening, unix.EBUSY), false, 2},
	} {
		var l lease
		calls := 0
		err := l.openQueue(c.ctx, xdpnic.Config{BusyTimeout: waitLimit}, []int{0, 1}, func(nic xdpnic.Config) (*xdpnic.Queue, error) {
			if calls++; calls >= c.frees && c.frees > 0 && nic.QueueID == 0 {
				return new(xdpnic.Queue), nil
			}
			nstest.ErrorIf(t, nic.BusyTimeout > waitLimit/10, "%s: it waits %v for queue %d", c.name, nic.BusyTimeout, nic.QueueID)
			return nil, c.busy
		})
		nstest.ErrorIf(t, (err == nil) != c.opened || calls != c.calls || c.opened && l.queueID != 0,
			"%s: %v, queue %d, after %d calls", c.name, err, l.queueID, calls)
	}
}

// A lingering device is there after Close, and gone after its time, after EndLinger, and with its interface; an Open
// without a Linger leaves none.
func TestEndLinger(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	use := func(linger time.Duration) {
		t.Helper()
		cfg := small(ns)
		cfg.Linger = linger
		l, err := openOn(t, ns, cfg)
		nstest.Must(t, err)
		nstest.Must(t, l.Close())
	}
	lingers := func(want bool) {
		t.Helper()
		nstest.Equal(t, "a program is attached", ns.Program(t) != 0, want)
		nstest.Equal(t, "an interface is open", len(LocalStatus().NICs) == 1, want)
	}
	use(time.Hour)
	lingers(true)
	use(time.Hour)
	lingers(true)
	nstest.Check(t, EndLinger())
	lingers(false)
	use(time.Hour)
	use(0)
	lingers(false)
	use(time.Millisecond)
	await.Until(t, "the time is over", func() bool { return len(LocalStatus().NICs) == 0 })
	lingers(false)
	use(time.Hour)
	ns.Remove(t)
	await.Until(t, "the interface is gone", func() bool { return len(LocalStatus().NICs) == 0 })
}

// A process waits for an open of its user that takes longer than a busy queue is waited for, and joins its queue.
func TestJoinsAfterLongOpen(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	defer func(was time.Duration) { busyTime = was }(busyTime)
	busyTime = time.Second
	cfg := small(ns)
	cfg.Mode, cfg.Processes, cfg.Shared, cfg.Holder = xdpnic.ModeGeneric, 4, true, kagent.Holder{PID: 1, UID: 60001}
	first := mustOpen(t, ns, cfg)
	handOut(t, first)
	d, g := first.dev, first.Group()
	// As if the first open were still under way.
	d.mu.Lock()
	delete(d.groups, g.queue)
	delete(d.leases, first.lease.id())
	d.reserve(first.lease)
	d.mu.Unlock()
	time.AfterFunc(3*busyTime/2, func() {
		d.mu.Lock()
		d.announce() // another open has ended
		d.mu.Unlock()
	})
	time.AfterFunc(3*busyTime, func() {
		d.mu.Lock()
		d.groups[g.queue] = g
		d.leases[first.lease.id()] = first.lease
		d.unreserve(first.lease)
		d.mu.Unlock()
	})
	if second := mustOpen(t, ns, cfg); second.Group() != g {
		t.Error("the second process has a queue of its own")
	}
}
