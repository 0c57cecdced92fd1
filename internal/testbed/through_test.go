package testbed

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/await"
	"viaxdp/internal/nstest"
	"viaxdp/internal/thread"
)

// A bed whose pairs lead through forwarders: each pair has its own, which counts what
// crosses it, does its faults, and can be given a CPU.
func TestStartThrough(t *testing.T) {
	nstest.Require(t)
	cfg := testConfig()
	cfg.Pairs[0].MTU = 1000 // no IPv6, and no frames of its own
	bed, middles, err := StartThrough(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		bed.Close()
		for _, m := range middles {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	if len(middles) != 2 {
		t.Fatalf("%d middles for two pairs", len(middles))
	}
	cpus, err := AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if err := middles[0].Prefer([2]int{cpus[0], cpus[len(cpus)-1]}); err != nil {
		t.Fatal(err)
	}
	// Those of a forwarder before may be about to end.
	await.Until(t, "two threads of this process, those of one forwarder, come before others", func() bool { return preferred(t) == 2 })
	var ends [2]*net.UDPConn
	for i := range ends {
		s := bed.Side(i)
		if len(s.Ends) != 2 || s.Ends[0].Name != "via0" || s.Ends[1].Name != "tcp0" {
			t.Fatalf("side %d has %+v", i, s.Ends)
		}
		ns, err := netns.GetFromPid(s.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		err = thread.In(int(ns), func() (err error) {
			ends[i], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.Ends[0].IPv4.Addr(), 7001)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	to := netip.AddrPortFrom(bed.Side(1).Ends[0].IPv4.Addr(), 7001)
	send := func(arrives bool) {
		t.Helper()
		if _, err := ends[0].WriteToUDPAddrPort([]byte("hello"), to); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id := 0
		for _, c := range thread.Name() {
			id = 10*id + int(c-'0')
		}
		if a, err := unix.SchedGetAttr(id, 0); err == nil && a.Policy == unix.SCHED_FIFO {
			n++
		}
	}
	return n
}

// On an error nothing is left: neither the bed nor a middle.
func TestStartThroughFails(t *testing.T) {
	nstest.Require(t)
	cfg := testConfig()
	cfg.Pairs[1].MTU = 1
	bed, middles, err := StartThrough(cfg)
	if err == nil {
		bed.Close()
		t.Fatal("a pair with an MTU of 1")
	}
	if bed != nil || len(middles) != 0 {
		t.Errorf("%v and %d middles beside %v", bed, len(middles), err)
	}
}
