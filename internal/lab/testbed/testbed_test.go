package testbed

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

var must = nstest.Must

// The test program is its own child in these parts.
const (
	asChild    = "testbed-child"
	asResident = "testbed-resident"
	asGuard    = "testbed-guard"
	asParent   = "testbed-parent"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asChild: childMain, asResident: residentMain, asGuard: GuardMain, asParent: parentMain})
}

// childMain echoes what it receives, until the parent is gone.
func childMain() error {
	c, err := Control()
	if err == nil {
		io.Copy(c, c)
	}
	return err
}

// parentMain makes a bed, raises the allowance of hugepages, prints the process numbers
// and waits to be killed.
func parentMain() error {
	bed, err := Start(testConfig())
	if err != nil {
		return err
	}
	guard := NewGuard([]string{asGuard})
	if err := guard.Raise(3); err != nil {
		return err
	}
	fmt.Println(bed.Side(0).Pid, bed.Side(1).Pid, guard.child.cmd.Process.Pid)
	time.Sleep(time.Minute)
	return nil
}

func testConfig() Config {
	return Config{
		Args: []string{asChild}, CPUs: [2]int{-1, -1}, Stderr: os.Stderr,
		Pairs: []Pair{
			{Names: [2]string{"via0", "via0"}, Net4: XDPNet4, Net6: XDPNet6, MTU: 4000},
			{Names: [2]string{"tcp0", "tcp0"}, Net4: KernelNet4, Net6: KernelNet6},
		},
	}
}

// gone reports whether a process no longer runs.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// allowance of surplus hugepages. Other test programs may raise it for a
// while, so that tests ask whether it comes down to what it was.
func allowance(t *testing.T) int {
	t.Helper()
	return pool(t, "nr_overcommit_hugepages")
}

// pool is a number of the kernel's pool of 2 MB pages.
func pool(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name)
	if err != nil {
		nstest.Lacks(t, "no hugepages in this kernel: %v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	return n
}

// udp is a socket in a namespace, at port 7001 of an address.
func (g *group) udp(t *testing.T, i int, at netip.Addr) (c *net.UDPConn) {
	t.Helper()
	must(t, g.Do(i, func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 7001)))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// allowanceIs waits until the allowance is not more than before. It waits longer than
// usual, because other test programs must lower it, too.
func allowanceIs(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(3 * await.WaitLimit); allowance(t) > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the allowance of hugepages is %d, was %d", allowance(t), before)
		}
	}
}

func startBed(t *testing.T) *Bed {
	t.Helper()
	nstest.Require(t)
	bed, err := Start(testConfig())
	must(t, err)
	t.Cleanup(func() { bed.Close() })
	return bed
}

// Both children live in separate namespaces, with both pairs up and addressed, and
// nothing of them is visible outside.
func TestBedHasItsPairs(t *testing.T) {
	bed := startBed(t)
	nstest.Check(t, bed.Ended(0))
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	for i := range 2 {
		s := bed.Side(i)
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", s.Pid))
		nstest.ErrorIf(t, err != nil || ns == own, "side %d lives in %s (%v), as we do", i, ns, err)
		nl, err := netlink.NewHandleAt(bed.spaces[i], unix.NETLINK_ROUTE)
		must(t, err)
		defer nl.Close()
		must(t, bed.Do(i, func() error {
			if same, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || same != ns {
				t.Errorf("side %d lives in %s, and the bed takes %s for its namespace (%v)", i, ns, same, err)
			}
			return nil
		}))
		for j, want := range []struct {
			name string
			addr string
			mtu  int
		}{{"via0", fmt.Sprintf("10.77.0.%d/24", i+1), 4000}, {"tcp0", fmt.Sprintf("10.78.0.%d/24", i+1), 1500}} {
			end := s.Ends[j]
			if end.Name != want.name || end.IPv4 != netip.MustParsePrefix(want.addr) || end.MTU != want.mtu {
				t.Errorf("side %d: got %+v, want %+v", i, end, want)
			}
			l, err := nl.LinkByName(want.name)
			nstest.FatalIf(t, err != nil, "side %d: %v", i, err)
			if l.Attrs().RawFlags&unix.IFF_UP == 0 || l.Attrs().MTU != want.mtu {
				t.Errorf("side %d: %s is not up with MTU %d", i, want.name, want.mtu)
			}
			addrs, err := nl.AddrList(l, netlink.FAMILY_ALL)
			must(t, err)
			if !strings.Contains(fmt.Sprint(addrs), want.addr) || !strings.Contains(fmt.Sprint(addrs), end.IPv6.String()) {
				t.Errorf("side %d: %s has %v, want %s and %v", i, want.name, addrs, want.addr, end.IPv6)
			}
		}
	}
}

// The control connection reaches the child, and its end ends the child.
func TestControlConnection(t *testing.T) {
	bed := startBed(t)
	for i := range 2 {
		c := bed.Side(i).Control
		fmt.Fprintln(c, "hello", i)
		line, err := bufio.NewReader(c).ReadString('\n')
		if want := fmt.Sprintln("hello", i); err != nil || line != want {
			t.Fatalf("side %d answered %q, %v", i, line, err)
		}
	}
	bed.Side(0).Control.Close()
	// The race detector holds a process for a second before it exits.
	if err := bed.Ended(time.Minute); err == nil || bed.Side(0).ended() == nil {
		t.Error("side 0 still runs without its control connection")
	}
	if err := bed.Side(1).ended(); err != nil {
		t.Errorf("side 1: %v", err)
	}
}

// Each child, and what is started beside it, runs on its CPU from its start, and where
// it has none, on any.
func TestBedPinsItsChildren(t *testing.T) {
	nstest.Require(t)
	cpus, err := AllowedCPUs()
	must(t, err)
	first, last := cpus[0], cpus[len(cpus)-1]
	for _, on := range [][2]int{{first, last}, {last, -1}} {
		cfg := testConfig()
		cfg.CPUs = on
		bed, err := Start(cfg)
		must(t, err)
		defer bed.Close()
		for i := range 2 {
			beside := exec.Command("sleep", "60")
			must(t, bed.Start(i, on[i], beside))
			for _, pid := range []int{bed.Side(i).Pid, beside.Process.Pid} {
				var set unix.CPUSet
				must(t, unix.SchedGetaffinity(pid, &set))
				if on[i] >= 0 && (set.Count() != 1 || !set.IsSet(on[i])) || on[i] < 0 && set.Count() != len(cpus) {
					t.Errorf("side %d of %v may run on %d of %d CPUs", i, on, set.Count(), len(cpus))
				}
			}
			_, _ = beside.Process.Kill(), beside.Wait()
		}
	}
}

// The error for a CPU that does not exist names it, with the existing ones.
func TestPinToNoCPU(t *testing.T) {
	for _, cpu := range []int{-1, 1000} {
		if err := pin(0, cpu); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no CPU %d for this process: it may use ", cpu)) {
			t.Errorf("CPU %d: %v", cpu, err)
		}
	}
	if err := PinProcess(1000); err == nil {
		t.Error("the process is on CPU 1000")
	}
}

// A child that is killed is reported as such, and Close takes down the rest.
func TestKilledChild(t *testing.T) {
	bed := startBed(t)
	must(t, unix.Kill(bed.Side(1).Pid, unix.SIGKILL))
	if err := bed.Side(1).Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that it was killed", err)
	}
	if err := bed.Ended(time.Minute); err == nil || !strings.Contains(err.Error(), "side 1") {
		t.Errorf("got %v, want that side 1 has ended", err)
	}
	bed.Close()
	nstest.ErrorIf(t, !gone(bed.Side(0).Pid), "the other child still runs")
}

// Start leaves nothing when a pair cannot be made: neither the bed nor a middle.
func TestStartFails(t *testing.T) {
	nstest.Require(t)
	for name, c := range map[string]struct {
		spoil func(c *Config)
		want  string
	}{
		"two interfaces of one name": {func(c *Config) { c.Pairs[1].Names[0] = "via0" }, ""},
		"MTU":                        {func(c *Config) { c.Pairs[0].MTU = MaxMTU + 1 }, "MTU"},
		"MTU, through a middle":      {func(c *Config) { c.Pairs[1].MTU, c.Through = 1, true }, "MTU"},
	} {
		cfg := testConfig()
		c.spoil(&cfg)
		bed, err := Start(cfg)
		nstest.FatalIf(t, bed != nil || err == nil || !strings.Contains(err.Error(), c.want), "%s: %v, %v", name, bed, err)
	}
}

// A parent that is killed takes its children with it, and the allowance of
// hugepages goes back.
func TestKilledParent(t *testing.T) {
	nstest.Require(t)
	before := allowance(t)
	cmd := exec.Command("/proc/self/exe", asParent)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var pids [3]int
	if _, err := fmt.Fscan(out, &pids[0], &pids[1], &pids[2]); err != nil {
		cmd.Process.Kill()
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for _, pid := range pids {
		await.Until(t, "child gone", func() bool { return gone(pid) })
	}
	allowanceIs(t, before)
}

func TestPairCheck(t *testing.T) {
	for _, p := range []Pair{
		{Names: [2]string{"a", "b"}, MTU: MinMTU - 1},
		{Names: [2]string{"a", "b"}, MTU: MaxMTU + 1},
		{Names: [2]string{"a", ""}, MTU: 1500},
		{Names: [2]string{"a", "sixteen-bytes-xx"}, MTU: 1500},
	} {
		nstest.ErrorIf(t, p.Check() == nil, "%+v is accepted", p)
	}
}
