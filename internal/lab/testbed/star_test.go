package testbed

import (
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// A lossy star loses about the configured share of frames in both directions, and counts
// what it loses; without a loss everything arrives.
func TestLossyStar(t *testing.T) {
	nstest.Require(t)
	for _, loss := range []float64{0, 0.1, 1} {
		s, err := NewLossyStar(2, 1500, loss)
		must(t, err)
		defer s.Close()
		var ends [2]*net.UDPConn
		for i, e := range s.Ends {
			ends[i] = s.udp(t, i, e.IPv4.Addr())
		}
		// Once the neighbours are known, no other frames are sent.
		b := make([]byte, 16)
		meet := func(i int) bool {
			ends[i].WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(s.Ends[1-i].IPv4.Addr(), 7001))
			ends[1-i].SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			_, err := ends[1-i].Read(b)
			return err == nil
		}
		for i := range ends {
			met := false
			for tries := 0; !met && tries < 20 && loss < 1; tries++ {
				met = meet(i)
			}
			nstest.FatalIf(t, !met && loss < 1, "loss %v: side %d is not heard", loss, i)
		}
		nstest.ErrorIf(t, loss == 1 && (meet(0) || meet(1)), "a message has come though everything is lost")
		const messages = 2000
		before, lostBefore, err := s.Counts()
		must(t, err)
		var taken, lost uint64
		waitFor := func(least uint64) {
			t.Helper()
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				taken, lost, err = s.Counts()
				must(t, err)
				if taken >= least || time.Now().After(end) {
					return
				}
			}
		}
		waitFor(0)
		if loss < 1 {
			for i := range messages {
				if i%50 == 0 && i > 0 { // 50 fit in the kernel's queue, however late it handles them
					waitFor(before + uint64(i-50))
				}
				side := i % 2
				must(t, nstest.Err(ends[side].WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(s.Ends[1-side].IPv4.Addr(), 7001))))
			}
			waitFor(before + messages)
		}
		n, gone := float64(taken-before), float64(lost-lostBefore)
		switch {
		case loss == 0 && (n < messages || lost > 0):
			t.Errorf("%v of %v frames were lost, none should be", lost, n)
		case loss == 0.1 && (n < messages || math.Abs(gone/n-loss) > 0.04): // six standard deviations
			t.Errorf("%v of %v frames were lost, want a share of %v", gone, n, loss)
		case loss == 1 && (taken == 0 || lost != taken):
			t.Errorf("%v of %v frames were lost", lost, taken)
		}
	}
}

// A lossy star that is closed has no map, program or link open.
func TestLossyStarCloses(t *testing.T) {
	nstest.Require(t)
	open := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "anon_inode:bpf") {
				n++
			}
		}
		return n
	}
	before := open()
	s, err := NewLossyStar(2, 1500, 0.1)
	must(t, err)
	nstest.ErrorIf(t, open() < before+3, "%d are open, %d were before", open(), before) // the map, and a link for each spoke
	nstest.Check(t, s.Close())
	nstest.ErrorIf(t, open() > before, "%d are open, %d were before", open(), before)
}

func TestLossyStarWrong(t *testing.T) {
	for _, loss := range []float64{-0.1, 1.1, math.NaN()} {
		if s, err := NewLossyStar(2, 1500, loss); err == nil {
			s.Close()
			t.Errorf("a loss of %v was taken", loss)
		}
	}
	if _, _, err := (&Star{}).Counts(); err == nil {
		t.Error("a star without a loss counts")
	}
}

// Processes start one after the other in one namespace, each with its /sys, and not only
// in turns with others.
func TestStarStartsAgain(t *testing.T) {
	nstest.Require(t)
	s, err := NewStar(2, 1500)
	must(t, err)
	defer s.Close()
	for n, i := range []int{0, 0, 1, 1, 0, 0} {
		cmd := exec.Command("ls", "/sys/class/net")
		var out strings.Builder
		cmd.Stdout = &out
		if err := s.Start(i, -1, cmd); err != nil {
			t.Fatalf("process %d: %v", n, err)
		}
		if err := cmd.Wait(); err != nil || strings.TrimSpace(out.String()) != "lo\n"+StarInterface {
			t.Errorf("process %d: %q, %v", n, out.String(), err)
		}
	}
}
