package testbed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/veth"
)

// A Middle is a third namespace through which two others are joined, and a forwarder in it that does to
// the frames what [Faults] say.
//
//	  side 0                       middle                         side 1
//	+--------+     +------------------------------------+     +--------+
//	|  via0  |=====| side0 --> emulator 0 (faults) -->  |=====|  via0  |
//	|        |     |       <-- emulator 1 (faults) <--  |     |        |
//	+--------+     +------------------------------------+     +--------+
//
// The forwarder is two goroutines of this process on packet sockets, not the kernel's netem: many kernels
// are built without netem, and its choices cannot be repeated. The cost is two more system calls for each
// frame.
//
// Frames are as on a wire: the sides' checksum and segmentation offloads are off, so that kernel TCP meets
// the same faults, frame by frame, as we do.
//
// Methods may be called concurrently.
type Middle struct {
	emulators [2]*emulator
	ns        netns.NsHandle
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenModeNone = 1

// middleNames are its interfaces, inside its namespace.
var middleNames = [2]string{"side0", "side1"}

// newMiddle joins two namespaces through a new one.
func newMiddle(sides [2]netns.NsHandle, p Pair) (_ *Middle, ends [2]End) {
	fail.If(p.Check())
	m := &Middle{ns: newNamespace()}
	made := false
	defer func() {
		if !made {
			m.close()
		}
	}()
	var indices [2]int
	for i := range sides {
		fail.During(fmt.Sprintf("interface %s of side %d", p.Names[i], i), func() { ends[i], indices[i] = m.link(sides[i], p, i, nil) })
	}
	m.ready(sides, p.Names)
	fail.If(thread.In(int(m.ns), func() (err error) {
		defer fail.Catch(&err)
		for i := range m.emulators {
			m.emulators[i] = fail.Must(openEmulator(indices[i], indices[1-i]))
			thread.Go(m.emulators[i].run)
		}
		return nil
	}))
	made = true
	return m, ends
}

// replug makes another pair between one side and the middle, where the first was removed.
func (m *Middle) replug(sides [2]netns.NsHandle, p Pair, i int, mac net.HardwareAddr) End {
	fail.If(p.Check())
	end, index := m.link(sides[i], p, i, mac)
	m.ready(sides, p.Names)
	fail.If(thread.In(int(m.ns), func() error { return errors.Join(m.emulators[i].readFrom(index), m.emulators[1-i].writeTo(index)) }))
	return end
}

// link makes the pair between one side and the middle; mac is the side's hardware address, if any.
func (m *Middle) link(side netns.NsHandle, p Pair, i int, mac net.HardwareAddr) (_ End, index int) {
	name, inner := p.Names[i], middleNames[i]
	p.Names = [2]string{name, inner}
	fail.If(explain(veth.Make([2]netns.NsHandle{side, m.ns}, p, func(v *netlink.Veth) { v.HardwareAddr = mac }), "veth pair"))
	err := veth.OnLink(m.ns, inner, func(h *netlink.Handle, l netlink.Link) error {
		index = l.Attrs().Index
		// The middle's kernel sends no frames of its own, and adds no address.
		err := h.LinkSetIP6AddrGenMode(l, addrGenModeNone)
		if errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6: the MTU is too small, or the kernel has none
			err = nil
		}
		return errors.Join(err, h.LinkSetUp(l))
	})
	fail.Wrap(err, "middle")
	fail.If(thread.In(int(side), func() error { return plainFrames(name) }))
	return fail.Must(veth.Up(side, name, veth.Nth(p.Net4, i+1), veth.Nth(p.Net6, i+1))), index
}

// ready waits until all interfaces are operational.
func (m *Middle) ready(sides [2]netns.NsHandle, names [2]string) {
	ready(place{m.ns, middleNames[0]}, place{m.ns, middleNames[1]}, place{sides[0], names[0]}, place{sides[1], names[1]})
}

// plainFrames makes the kernel finish frames before they reach the interface,
// which lies in the calling thread's namespace.
func plainFrames(name string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("ethtool: %w", err)
	}
	defer e.Close()
	err = e.Change(name, map[string]bool{
		"tx-checksum-ip-generic": false, "tx-checksum-sctp": false,
		"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false, "tx-udp-segmentation": false,
	})
	if err != nil {
		return fmt.Errorf("turn offloads off: %w", err)
	}
	return nil
}

// SetFaults sets what happens to the frames that a side sends, from the next
// one on, and restarts the choices at the seed.
func (m *Middle) SetFaults(side int, f Faults) { m.emulators[side].setFaults(f) }

// SetBoth sets the faults of both emulators; those of side 1 have a seed of their
// own that follows from f's.
func (m *Middle) SetBoth(f Faults) {
	m.SetFaults(0, f)
	f.Seed ^= 0x9e3779b97f4a7c15
	m.SetFaults(1, f)
}

// Prefer puts the forwarder of what each side sends on a CPU, as a rule the side's, and makes it run there
// before any other program, as a wire does. Without it, programs that never sleep delay the forwarder, and
// the measurement shows the scheduler. It needs CAP_SYS_NICE. Call it at most once.
func (m *Middle) Prefer(cpus [2]int) error {
	for i, e := range m.emulators {
		var set unix.CPUSet
		set.Set(cpus[i])
		thread := <-e.thread
		err := unix.SchedSetaffinity(thread, &set)
		if err == nil {
			err = unix.SchedSetAttr(thread, &unix.SchedAttr{
				Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1,
			}, 0)
		}
		if err != nil {
			return explain(err, "CPU and real-time priority of the forwarder")
		}
	}
	return nil
}

// Dropped returns how many frames to a side were dropped since its link was made, because the link had no
// room.
func (m *Middle) Dropped(side int) (n uint64, err error) {
	err = veth.OnLink(m.ns, middleNames[side], func(_ *netlink.Handle, l netlink.Link) error {
		n = l.Attrs().Statistics.TxDropped
		return nil
	})
	return n, err
}

// Counters are those of the frames that a side has sent.
func (m *Middle) Counters(side int) EmulatorCounters { return m.emulators[side].counters() }

// Watch also counts separately, from now on, the frames for which is returns true, by the side that has
// sent them. is gets each frame before any fault. It is called for both sides at the same time, and must
// not keep the frame.
func (m *Middle) Watch(is func(side int, frame []byte) bool) {
	for side, e := range m.emulators {
		e.mu.Lock()
		e.watch = func(frame []byte) bool { return is(side, frame) }
		e.mu.Unlock()
	}
}

// Watched are the counters of a side's frames for which Watch's is returned true, without Overrun and
// Waiting.
func (m *Middle) Watched(side int) EmulatorCounters { return m.emulators[side].watched() }

// SetMTU changes the largest frame that the middle takes and gives; the sides'
// interfaces are not touched.
func (m *Middle) SetMTU(mtu int) error {
	return m.eachLink(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetMTU(l, mtu) })
}

func (m *Middle) eachLink(f func(*netlink.Handle, netlink.Link) error) error {
	return errors.Join(veth.OnLink(m.ns, middleNames[0], f), veth.OnLink(m.ns, middleNames[1], f))
}

// close ends the forwarder and removes the pairs. Counters stay readable.
func (m *Middle) close() error {
	for _, e := range m.emulators {
		if e != nil {
			e.close()
		}
	}
	// Closing the namespace's last descriptor removes the links only some time later.
	m.eachLink(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
	return m.ns.Close()
}

// Forger sends frames of its own to both sides of a [Middle], made of those that
// pass to each side, as fast as the kernel takes them.
type Forger struct {
	middle *Middle
	change func(rng *rand.Rand, frame []byte) []byte
	theirs int32     // niceness of this process
	ways   []*Sender // as each side does, and to the middle's loopback interface
	sent   atomic.Uint64
	spare  atomic.Bool
	nice   atomic.Int32
	stop   chan struct{}
	run    sync.WaitGroup
}

const (
	samples      = 64  // frames that a forger has to make others of
	forgedAtOnce = 512 // frames made of the same samples

	// idle is the niceness of a flood that simulates another machine's: it takes only the CPU time that is
	// left.
	idle = 19
)

// Forge begins to send frames to both sides. change makes each of them from a frame that has passed to the
// same side, in place or in another slice; it returns nil for none. A goroutine for each side calls
// change, whose result must depend on rng and the frame only.
func (m *Middle) Forge(seed uint64, change func(rng *rand.Rand, frame []byte) []byte) (_ *Forger, err error) {
	f := &Forger{middle: m, change: change, stop: make(chan struct{})}
	defer func() {
		if err != nil {
			f.closeWays()
		}
	}()
	defer fail.Catch(&err)
	f.theirs = int32(20 - fail.Must(unix.Getpriority(unix.PRIO_PROCESS, 0))) // 20-prio, as the system call returns it
	f.Compete(false)
	for side := range m.emulators {
		f.ways = append(f.ways, fail.Must(m.Sender(side)))
	}
	fail.If(thread.In(int(m.ns), func() (err error) {
		defer fail.Catch(&err)
		lo := fail.Must(netlink.LinkByName("lo"))
		fail.If(netlink.LinkSetUp(lo))
		f.ways = append(f.ways, &Sender{fail.Must(packetSocket(lo.Attrs().Index, 0))})
		return nil
	}))
	for side, e := range m.emulators {
		e.sample(true)
		f.run.Add(1)
		thread.Go(func() { f.forge(side, rand.New(rand.NewPCG(seed, uint64(side)))) })
	}
	return f, nil
}

// Compete sets the forger's priority. With true it runs at the priority of all others. With false, the
// initial setting, it runs only when the CPU is otherwise idle.
func (f *Forger) Compete(on bool) {
	if on {
		f.nice.Store(f.theirs)
	} else {
		f.nice.Store(idle)
	}
}

// Spare(true) makes the forger send to the middle's own loopback interface, whose kernel drops the frames
// as another host's. Spare(false) sends to the sides again. The forger's own work is the same, so the
// difference is the cost of the frames to the sides.
func (f *Forger) Spare(on bool) { f.spare.Store(on) }

// Sent is how many frames the kernel has taken for the sides.
func (f *Forger) Sent() uint64 { return f.sent.Load() }

// Close ends it, once, before the Middle is closed.
func (f *Forger) Close() {
	close(f.stop)
	f.run.Wait()
	for _, e := range f.middle.emulators {
		e.sample(false)
	}
	f.closeWays()
}

func (f *Forger) closeWays() {
	for _, way := range f.ways {
		way.Close()
	}
}

// forge forges frames from those that a side sends.
func (f *Forger) forge(side int, rng *rand.Rand) {
	defer f.run.Done()
	nice := f.theirs
	var frames [][]byte
	buf := make([]byte, 0, maxFrame)
	for {
		select {
		case <-f.stop:
			return
		default:
		}
		if frames = f.middle.emulators[side].sampled(frames[:0]); len(frames) == 0 {
			time.Sleep(time.Millisecond) // nothing has passed yet
			continue
		}
		if want := f.nice.Load(); want != nice {
			nice = want
			unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), int(nice)) // as it is, if it may not
		}
		way, counted := f.ways[side], uint64(1)
		if f.spare.Load() {
			way, counted = f.ways[2], 0
		}
		for range forgedAtOnce {
			buf = append(buf[:0], frames[rng.IntN(len(frames))]...)
			if b := f.change(rng, buf); b != nil && way.Send(b) {
				f.sent.Add(counted)
			}
		}
	}
}

// sample begins, or ends, to keep frames that pass.
func (e *emulator) sample(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = nil
	if on {
		e.kept = make([][]byte, 0, samples)
	}
}

// keep remembers a frame if a forger wants some. Locked.
func (e *emulator) keep(frame []byte) {
	switch {
	case e.kept == nil:
	case len(e.kept) < samples:
		e.kept = append(e.kept, append([]byte(nil), frame...))
	default:
		old := &e.kept[e.n.Taken%samples]
		*old = append((*old)[:0], frame...)
	}
}

// sampled copies what was kept.
func (e *emulator) sampled(into [][]byte) [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.kept {
		into = append(into, append([]byte(nil), b...))
	}
	return into
}

// Sender sends frames of its own to one side of a [Middle].
type Sender struct{ out int }

// Sender makes one that sends as the side from does, past faults and counters.
func (m *Middle) Sender(from int) (*Sender, error) {
	out, err := unix.FcntlInt(uintptr(m.emulators[from].out), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return &Sender{out}, nil
}

// Send sends a frame, and reports whether the kernel has taken it.
func (s *Sender) Send(frame []byte) bool { return unix.Sendto(s.out, frame, 0, nil) == nil }

// Close ends it, once, before the Middle is closed.
func (s *Sender) Close() error { return unix.Close(s.out) }
