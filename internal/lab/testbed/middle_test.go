package testbed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

func testSite(t *testing.T) *Site {
	t.Helper()
	nstest.Require(t)
	// At this MTU the interfaces have no IPv6, and no frames of its own.
	s, err := NewSite(Pair{Names: [2]string{"via0", "via0"}, Net4: XDPNet4, Net6: XDPNet6, MTU: 1000}, true)
	must(t, err)
	t.Cleanup(func() { nstest.Check(t, s.Close()) })
	return s
}

// sockets are two UDP sockets of the sides, with their neighbours known, so
// that no other frames are under way.
func sockets(t *testing.T, s *Site) (from, to *net.UDPConn) {
	t.Helper()
	open := func(side int, local, remote string) (c *net.UDPConn) {
		must(t, s.Do(side, func() error {
			l, err := netlink.LinkByName("via0")
			if err != nil {
				return err
			}
			mac, err := net.ParseMAC(s.Ends[1-side].MAC)
			if err != nil {
				return err
			}
			if err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, IP: s.Ends[1-side].IPv4.Addr().AsSlice(),
				HardwareAddr: mac, State: netlink.NUD_PERMANENT,
			}); err != nil {
				return err
			}
			c, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local)),
				net.UDPAddrFromAddrPort(netip.MustParseAddrPort(remote)))
			if err == nil {
				err = c.SetReadBuffer(4 << 20)
			}
			return err
		}))
		t.Cleanup(func() { c.Close() })
		return c
	}
	return open(0, "10.77.0.1:7001", "10.77.0.2:7002"), open(1, "10.77.0.2:7002", "10.77.0.1:7001")
}

const datagram = 200

// flood sends count numbered datagrams and returns the numbers that arrived, in
// order of arrival, and the counters. The forwarder must stay on one CPU: frames
// that are given to the kernel on two of them may overtake each other.
func flood(t *testing.T, s *Site, from, to *net.UDPConn, count int, f Faults) (arrived []int, n EmulatorCounters) {
	t.Helper()
	const few = 200 // as many find room in every queue of the kernel, whatever gets no CPU
	before, end := s.Middle.Counters(0), time.Now().Add(2*time.Minute)
	s.Middle.SetFaults(0, f)
	b, got := bytes.Repeat([]byte{0x5a}, datagram), make([]byte, 2*datagram)
	read := func() (number uint32, ok bool) {
		t.Helper()
		if time.Now().After(end) {
			t.Fatalf("%d have arrived, and still under way: %+v", len(arrived), s.Middle.Counters(0).Since(before))
		}
		to.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		size, err := to.Read(got)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, false
		}
		nstest.FatalIf(t, err != nil || size != datagram, "%d bytes, %v", size, err)
		return binary.BigEndian.Uint32(got), true
	}
	write := func(number uint32) {
		t.Helper()
		binary.BigEndian.PutUint32(b, number)
		must(t, nstest.Err(from.Write(b)))
	}
	until := func(enough func() bool) {
		t.Helper()
		for n = s.Middle.Counters(0).Since(before); !enough(); n = s.Middle.Counters(0).Since(before) {
			if k, ok := read(); ok {
				arrived = append(arrived, int(k))
			}
		}
	}
	for i := range count {
		write(uint32(i))
		if i%(few/2) == 0 { // corrupted ones may not arrive
			until(func() bool { return i-int(n.Taken) < few && int(n.Passed-n.Corrupted)-len(arrived) < few })
		}
	}
	until(func() bool { return int(n.Taken) == count && s.Middle.Counters(0).Waiting == 0 })
	n = s.Middle.Counters(0).Since(before)
	if in, out := n.Taken+n.Duplicated, n.Passed+n.Lost+n.LostInBurst+n.Limited+n.Refused; in != out || n.Overrun > 0 {
		t.Errorf("%d frames came and %d went: %+v", in, out, n)
	}
	const last = math.MaxUint32 // has everything before it
	s.Middle.SetFaults(0, Faults{})
	write(last)
	for {
		switch k, ok := read(); {
		case ok && k == last:
			return arrived, n
		case ok:
			arrived = append(arrived, int(k))
		}
	}
}

// onOneCPU keeps the forwarder on one CPU.
func onOneCPU(t *testing.T, s *Site) {
	t.Helper()
	cpus, err := AllowedCPUs()
	must(t, err)
	must(t, s.Middle.Prefer([2]int{cpus[0], cpus[0]}))
}

// order looks at what arrived: how often a number followed a greater one, and
// how many came twice.
func order(arrived []int) (overtaken, twice int) {
	seen, last := map[int]bool{}, -1
	for _, k := range arrived {
		if seen[k] {
			twice++
			continue
		}
		seen[k] = true
		if k < last {
			overtaken++
		}
		last = max(last, k)
	}
	return overtaken, twice
}

// near reports whether a count is within five standard deviations of its share.
func near(n uint64, share float64, of int) bool {
	mean := share * float64(of)
	return math.Abs(float64(n)-mean) <= 5*math.Sqrt(mean)+1
}

// Each fault occurs, is counted, and has the counted effect at the receiver.
func TestFaults(t *testing.T) {
	s := testSite(t)
	onOneCPU(t, s)
	from, to := sockets(t, s)
	const count = 3000
	for _, c := range []struct {
		name   string
		faults Faults
		check  func(n EmulatorCounters, arrived, overtaken, twice int) bool
	}{
		{"none", Faults{}, func(n EmulatorCounters, arrived, overtaken, twice int) bool {
			return arrived == count && overtaken+twice == 0 && n.Passed == count && n.Delayed == 0
		}},
		{"loss", Faults{Seed: 1, Loss: 0.1}, func(n EmulatorCounters, arrived, overtaken, twice int) bool {
			return near(n.Lost, 0.1, count) && arrived == count-int(n.Lost) && overtaken+twice == 0
		}},
		{"bursts", Faults{Seed: 2, Burst: 0.01}, func(n EmulatorCounters, arrived, _, _ int) bool {
			return n.LostInBurst > 100 && n.Lost == 0 && arrived == count-int(n.LostInBurst)
		}},
		{"duplicates", Faults{Seed: 3, Duplicate: 0.2}, func(n EmulatorCounters, arrived, _, twice int) bool {
			return near(n.Duplicated, 0.2, count) && twice == int(n.Duplicated) && arrived == count+twice
		}},
		{"reordering", Faults{Seed: 4, Reorder: 0.1, ReorderBy: 5 * time.Millisecond}, func(n EmulatorCounters, arrived, overtaken, _ int) bool {
			return near(n.Reordered, 0.1, count) && arrived == count && overtaken > 0
		}},
		{"corruption", Faults{Seed: 5, Corrupt: 0.1}, func(n EmulatorCounters, arrived, _, _ int) bool {
			return near(n.Corrupted, 0.1, count) && arrived < count && arrived >= count-int(n.Corrupted)
		}},
		{"delay", Faults{Seed: 6, Delay: 20 * time.Millisecond}, func(n EmulatorCounters, arrived, overtaken, _ int) bool {
			return n.Delayed == count && arrived == count && overtaken == 0
		}},
		{"jitter", Faults{Seed: 7, Jitter: 20 * time.Millisecond}, func(n EmulatorCounters, arrived, overtaken, _ int) bool {
			return n.Delayed > count*9/10 && arrived == count && overtaken > count/4
		}},
		// Six seconds of frames; no sender takes so long.
		{"rate", Faults{Seed: 8, Rate: 1_000_000, Queue: 100}, func(n EmulatorCounters, arrived, overtaken, _ int) bool {
			return n.Limited > 0 && n.Delayed >= 100 && arrived == count-int(n.Limited) && overtaken == 0
		}},
		{"rate, queue in bytes", Faults{Seed: 9, Rate: 1_000_000, QueueBytes: 20_000}, func(n EmulatorCounters, arrived, overtaken, _ int) bool {
			return n.Limited > 0 && n.Delayed >= 20_000/(datagram+42) && n.Queued > 0 && arrived == count-int(n.Limited) && overtaken == 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			arrived, n := flood(t, s, from, to, count, c.faults)
			overtaken, twice := order(arrived)
			if !c.check(n, len(arrived), overtaken, twice) {
				t.Errorf("%d arrived, %d overtaken, %d twice; %+v", len(arrived), overtaken, twice, n)
			}
		})
	}
}

// A seed selects the same frames each time, and another seed selects others.
func TestFaultsReplay(t *testing.T) {
	s := testSite(t)
	onOneCPU(t, s)
	from, to := sockets(t, s)
	f := Faults{Seed: 42, Loss: 0.2, Burst: 0.01}
	first, _ := flood(t, s, from, to, 500, f)
	again, _ := flood(t, s, from, to, 500, f)
	f.Seed++
	other, _ := flood(t, s, from, to, 500, f)
	nstest.ErrorIf(t, !slices.Equal(first, again), "the same seed: %v, then %v", first, again)
	nstest.ErrorIf(t, slices.Equal(first, other), "another seed chose the same frames")
}

// Delay is at least what was asked for, on the way there only.
func TestDelay(t *testing.T) {
	s := testSite(t)
	from, to := sockets(t, s)
	s.Middle.SetFaults(0, Faults{Delay: 50 * time.Millisecond})
	start := time.Now()
	must(t, nstest.Err(from.Write([]byte("there"))))
	b := make([]byte, 10)
	must(t, nstest.Err(to.Read(b)))
	if d := time.Since(start); d < 50*time.Millisecond {
		t.Errorf("arrived after %v", d)
	}
}

// One kind of fault does not change the choices of another.
func TestFaultsAreIndependent(t *testing.T) {
	alone, both := newRandomSource(), newRandomSource()
	a, b := Faults{Seed: 9, Loss: 0.1}, Faults{Seed: 9, Loss: 0.1, Duplicate: 0.5, Reorder: 0.5, Corrupt: 0.5}
	for i := range 1000 {
		if x, y := alone.next(&a), both.next(&b); x.lost != y.lost {
			t.Fatalf("frame %d: lost %v and %v", i, x.lost, y.lost)
		}
	}
}

// ARP is left alone by corruption: a wrong address would be believed.
func TestCorruptSparesARP(t *testing.T) {
	arp, ip := make([]byte, 60), make([]byte, 60)
	copy(arp[etherTypeAt:], []byte{8, 6})
	copy(ip[etherTypeAt:], []byte{8, 0})
	nstest.ErrorIf(t, canCorrupt(arp) || canCorrupt(ip[:etherLen]) || !canCorrupt(ip), "ARP, an empty frame, or IP is judged wrongly")
	p := copyPlan{flips: 3, flip: [mostFlips]uint64{1, 99, 12345}}
	damaged := bytes.Clone(ip)
	p.damage(damaged)
	nstest.ErrorIf(t, bytes.Equal(damaged, ip) || !bytes.Equal(damaged[:etherLen], ip[:etherLen]), "%x became %x", ip, damaged)
}

// residentMain is the process that TestSiteOutlivesItsProcesses starts: it prints its addresses
// and stays until its control connection ends.
func residentMain() error {
	c, err := Control()
	if err != nil {
		return err
	}
	via0, err := net.InterfaceByName("via0")
	if err != nil {
		return err
	}
	addrs, err := via0.Addrs()
	fmt.Fprintln(c, addrs)
	io.Copy(io.Discard, c)
	return err
}

// A holder's thread is one that can end, never the main thread: when a goroutine locked to the
// main thread exits, Go keeps the thread. The test uses up all existing threads.
func TestHolderThread(t *testing.T) {
	for range 64 {
		k := newHolder()
		defer k.end()
		k.do(func() {
			nstest.ErrorIf(t, unix.Gettid() == unix.Getpid(), "a holder has the main thread")
		})
	}
}

// A process of a site lives in its side, and another one takes its place with
// the same addresses.
func TestSiteOutlivesItsProcesses(t *testing.T) {
	s := testSite(t)
	for range 2 {
		p, err := s.Spawn(1, []string{asResident}, os.Stderr)
		must(t, err)
		line := make([]byte, 64)
		n, err := p.Control.Read(line)
		if err != nil || !bytes.Contains(line[:n], []byte("10.77.0.2/24")) {
			t.Errorf("the process sees %q, %v", line[:n], err)
		}
		must(t, p.Signal(unix.SIGKILL))
		<-p.exited
		nstest.Check(t, nstest.Err(io.ReadAll(p.Control)))
		if err := p.Close(); err == nil {
			t.Error("a process that was killed ended well")
		}
	}
	p, err := s.Spawn(0, []string{asResident}, os.Stderr)
	must(t, err)
	nstest.Check(t, p.Close())
	p, err = s.Spawn(0, []string{asResident}, os.Stderr)
	must(t, err)
	must(t, s.Close())
	await.Until(t, "the process is gone with its site", func() bool { return gone(p.Pid) })
}

// A bed whose pairs lead through forwarders: each pair has its own, which counts what
// crosses it, does its faults, and can be given a CPU.
func TestStartThrough(t *testing.T) {
	nstest.Require(t)
	cfg := testConfig()
	cfg.Pairs[0].MTU = 1000 // no IPv6, and no frames of its own
	cfg.Through = true
	bed, err := Start(cfg)
	must(t, err)
	defer func() { nstest.Check(t, bed.Close()) }()
	middles := bed.Middles()
	nstest.FatalIf(t, len(middles) != 2, "%d middles for two pairs", len(middles))
	cpus, err := AllowedCPUs()
	must(t, err)
	must(t, middles[0].Prefer([2]int{cpus[0], cpus[len(cpus)-1]}))
	// Those of a forwarder before may be about to end.
	await.Until(t, "two threads of this process, those of one forwarder, come before others", func() bool { return preferred(t) == 2 })
	var ends [2]*net.UDPConn
	for i := range ends {
		s := bed.Side(i)
		nstest.FatalIf(t, len(s.Ends) != 2 || s.Ends[0].Name != "via0" || s.Ends[1].Name != "tcp0", "side %d has %+v", i, s.Ends)
		ends[i] = bed.udp(t, i, s.Ends[0].IPv4.Addr())
	}
	to := netip.AddrPortFrom(bed.Side(1).Ends[0].IPv4.Addr(), 7001)
	send := func(arrives bool) {
		t.Helper()
		must(t, nstest.Err(ends[0].WriteToUDPAddrPort([]byte("hello"), to)))
		wait := 20 * time.Second
		if !arrives {
			wait = 50 * time.Millisecond
		}
		ends[1].SetReadDeadline(time.Now().Add(wait))
		b := make([]byte, 16)
		if n, err := ends[1].Read(b); (err == nil) != arrives || arrives && string(b[:n]) != "hello" {
			t.Errorf("read %q, %v; it should arrive: %v", b[:n], err, arrives)
		}
	}
	send(true)
	if n, other := middles[0].Counters(0), middles[1].Counters(0); n.Taken < 2 || n.Passed != n.Taken || other.Taken > n.Taken && other.Passed == 0 {
		t.Errorf("the datagram and the question for its address crossed: %+v, and on the other pair %+v", n, other)
	}
	middles[1].SetBoth(Faults{Loss: 1})
	send(true)
	middles[0].SetBoth(Faults{Loss: 1})
	send(false)
	if n := middles[0].Counters(0); n.Lost == 0 {
		t.Errorf("lost without a count: %+v", n)
	}
}

// preferred counts the threads of this process that run before all others.
func preferred(t *testing.T) (n int) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		must(t, err)
		if a, err := unix.SchedGetAttr(id, 0); err == nil && a.Policy == unix.SCHED_FIFO {
			n++
		}
	}
	return n
}

// Watched frames are also counted separately, including delayed ones.
func TestWatched(t *testing.T) {
	w := &emulator{in: -1, out: -1, epoch: time.Now(), randomSource: newRandomSource()} // whose kernel refuses all
	w.watch = func(frame []byte) bool { return frame[0] == 1 }
	w.faults = Faults{Seed: 1, Loss: 0.1, Burst: 0.02, Duplicate: 0.2, Reorder: 0.2}
	const count = 3000
	other := make([]byte, 60)
	frame := append([]byte{1}, other...)
	for range count {
		w.receive(frame, 0)
		w.receive(other, 0)
	}
	for len(w.line) > 0 {
		w.turn()
	}
	all, n := w.counters(), w.watched()
	if n.Taken != count || all.Taken != 2*count || !near(n.Lost, 0.1, count) || !near(n.Duplicated, 0.2, count) ||
		n.Lost == all.Lost || n.Reordered == 0 || n.LostInBurst == 0 || n.Refused == 0 {
		t.Errorf("%+v of %+v", n, all)
	}
	for _, n := range []EmulatorCounters{n, all.Since(n)} {
		nstest.ErrorIf(t, n.Taken+n.Duplicated != n.Lost+n.LostInBurst+n.Refused || n.Waiting != 0, "not balanced: %+v", n)
	}
}

// The queue of watched frames is counted separately, too, whichever frame is at hand when they leave it.
func TestWatchedQueue(t *testing.T) {
	w := &emulator{in: -1, out: -1, epoch: time.Now(), randomSource: newRandomSource()}
	w.watch = func(frame []byte) bool { return frame[0] == 1 }
	w.faults = Faults{Rate: 8e9} // a byte takes a nanosecond
	watched, other := append([]byte{1}, make([]byte, 99)...), make([]byte, 300)
	w.receive(watched, 0)
	w.receive(other, 0)
	w.receive(watched, 0)
	w.receive(other, time.Millisecond)
	if n := w.watched().Queued; n != 100*100+100*500 {
		t.Errorf("watched frames waited for %d byte nanoseconds, want %d; all for %d", n, 100*100+100*500, w.counters().Queued)
	}
}
