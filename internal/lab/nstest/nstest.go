// Package nstest gives a test its own network: two unnamed namespaces joined
// by a veth pair, gone with the test.
//
//	 namespace A                    namespace B
//	+--------------+   veth pair   +--------------+
//	| via0 .1 ::1  |===============| via0 .2 ::2  |
//	+--------------+               +--------------+
//
// The namespaces have no name and belong to file descriptors of the test
// process only, so that nothing stays behind even after a kill.
package nstest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/veth"
)

// Require ends a test that needs root: with a failure when CI=true, so that a
// green run there means that the test ran, and with a skip elsewhere.
func Require(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Lacks(t, "needs root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
}

// Lacks ends a test that needs something that the machine does not have, such
// as a kernel feature: with a failure when CI=true, and with a skip elsewhere.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// LacksProgram ends a test that needs other people's programs, which .ci/run installs: with a failure when
// VIA_PEERS=require, as there, and with a skip elsewhere.
func LacksProgram(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("VIA_PEERS") == "require" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NS is one end: a namespace and the veth interface in it.
type NS struct {
	Name    string           // interface name, "via0" in both namespaces of a Pair
	Index   int              // interface index inside the namespace
	MAC     net.HardwareAddr // hardware address of the interface
	IPv4    netip.Addr       // address in 10.99.0.0/24
	IPv6    netip.Addr       // address in fd99::/64
	MTU     int
	handle  netns.NsHandle
	netlink *netlink.Handle
}

// Options of a pair.
type Options struct {
	MTU    int // 0: 1500
	Queues int // RX and TX queues of each end; 0: 1
}

// Do runs f on a thread of its own that lives in the namespace; sockets and
// files that f opens stay usable everywhere. Goroutines that f starts run
// outside of the namespace. The thread ends with f.
func (n *NS) Do(f func() error) error {
	return thread.In(int(n.handle), f)
}

// In returns the result of f, which runs in a namespace as by NS.Do, and ends the test by its error.
func In[V any](t testing.TB, place interface{ Do(func() error) error }, f func() (V, error)) (v V) {
	t.Helper()
	Must(t, place.Do(func() (err error) { v, err = f(); return err }))
	return v
}

// Inside returns a command that runs its further arguments as a command in the namespace, for
// programs that start others. It is valid while the test runs.
func (n *NS) Inside(t testing.TB) []string {
	t.Helper()
	path, err := exec.LookPath("nsenter")
	if err != nil {
		Lacks(t, "nsenter is not installed (Debian: util-linux)")
	}
	return []string{path, fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.handle)}
}

// Netlink is a netlink handle bound to the namespace.
func (n *NS) Netlink() *netlink.Handle { return n.netlink }

// Link is the interface as the kernel has it.
func (n *NS) Link(t testing.TB) netlink.Link {
	t.Helper()
	l, err := n.netlink.LinkByIndex(n.Index)
	Must(t, err)
	return l
}

// SetLink sets the interface up or down.
func (n *NS) SetLink(t testing.TB, up bool) {
	t.Helper()
	set := n.netlink.LinkSetDown
	if up {
		set = n.netlink.LinkSetUp
	}
	Must(t, set(n.Link(t)))
}

// Program is the ID of the interface's XDP program; 0: there is none.
func (n *NS) Program(t testing.TB) uint32 {
	t.Helper()
	if x := n.Link(t).Attrs().Xdp; x != nil && x.Attached {
		return x.ProgId
	}
	return 0
}

// Pair makes two namespaces joined by a veth pair that is up, addressed and
// free of duplicate address detection. It calls Require first.
func Pair(t testing.TB, o Options) (a, b *NS) {
	t.Helper()
	Require(t)
	a, b = &NS{}, &NS{}
	for _, n := range []*NS{a, b} {
		h, err := veth.NewNamespace()
		n.enter(t, h, err)
	}
	join(t, a, b, 0, o)
	return a, b
}

// enter has the end in a namespace, which is closed with the test.
func (n *NS) enter(t testing.TB, h netns.NsHandle, err error) {
	t.Helper()
	Must(t, err)
	n.handle = h
	t.Cleanup(func() { h.Close() })
	n.netlink, err = netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	Must(t, err)
	t.Cleanup(n.netlink.Close)
}

// Another joins the namespaces of a pair once more, by interfaces "viaN" with addresses in
// 10.99.N.0/24 and fd99:N::/64, which are gone with t. N is from 1 to 255.
func Another(t testing.TB, a, b *NS, n int, o Options) (x, y *NS) {
	t.Helper()
	x, y = &NS{handle: a.handle, netlink: a.netlink}, &NS{handle: b.handle, netlink: b.netlink}
	join(t, x, y, n, o)
	t.Cleanup(func() { x.Remove(t) })
	return x, y
}

// join makes the nth veth pair of two namespaces.
func join(t testing.TB, a, b *NS, n int, o Options) {
	t.Helper()
	a.Name = fmt.Sprintf("via%d", n)
	a.IPv4 = netip.AddrFrom4([4]byte{10, 99, byte(n), 1})
	a.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd99:%x::1", n))
	b.Name, b.IPv4, b.IPv6 = a.Name, a.IPv4.Next(), a.IPv6.Next()
	Must(t, veth.Make([2]netns.NsHandle{a.handle, b.handle}, veth.Pair{Names: [2]string{a.Name, b.Name}, MTU: o.MTU, Queues: o.Queues}, nil))
	Must(t, a.setUp())
	Must(t, b.setUp())
}

func (n *NS) setUp() error {
	end, err := veth.Up(n.handle, n.Name, netip.PrefixFrom(n.IPv4, 24), netip.PrefixFrom(n.IPv6, 64))
	if err != nil {
		return fmt.Errorf("interface %s: %w", n.Name, err)
	}
	n.Index, n.MTU = end.Index, end.MTU
	n.MAC, err = net.ParseMAC(end.MAC)
	return err
}

// Remove takes the interface away, and with it that of the other end.
func (n *NS) Remove(t testing.TB) {
	t.Helper()
	err := n.netlink.LinkDel(n.Link(t))
	FatalIf(t, err != nil, "remove %s: %v", n.Name, err)
}

// Rejoin makes another pair for a and b after Remove, with the same names and addresses.
func Rejoin(t testing.TB, a, b *NS, o Options) {
	t.Helper()
	join(t, a, b, 0, o)
}

// MoveAway moves the interface to another namespace, as to a container's; the other end of the
// pair stays. What it returns brings the interface back with its addresses, and with another index
// if taken has another interface take the old one.
func (n *NS) MoveAway(t testing.TB) (back func(taken bool)) {
	t.Helper()
	away := &NS{}
	h, err := veth.NewNamespace()
	away.enter(t, h, err)
	Must(t, n.netlink.LinkSetNsFd(n.Link(t), int(h)))
	return func(taken bool) {
		t.Helper()
		if taken {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.Index = "other", n.Index
			Must(t, n.netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "otherpeer"}))
		}
		l, err := away.netlink.LinkByName(n.Name)
		Must(t, err)
		Must(t, away.netlink.LinkSetNsFd(l, int(n.handle)))
		was := n.Index
		Must(t, n.setUp())
		if (n.Index == was) == taken {
			t.Fatalf("%s is number %d, and was %d", n.Name, n.Index, was)
		}
	}
}

// Forever blocks until the process is killed. In a program without cgo select {} would end it where no other goroutine runs: the
// runtime takes that for a deadlock.
func Forever() error {
	for {
		time.Sleep(time.Hour)
	}
}

// Main is TestMain of a test binary that also contains programs of its tests.
func Main(m *testing.M, programs map[string]func() error) {
	RunProgram(programs)
	os.Exit(m.Run())
}

// RunProgram runs a program of the tests if the first argument names one, and ends the process: with status 1 if the
// program fails.
func RunProgram(programs map[string]func() error) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Spawn starts this test program as one of its programs, where do runs it, and gives the first
// line that it prints. It is killed when the test ends.
func Spawn(t testing.TB, do func(func() error) error, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	Must(t, err)
	out, err := cmd.StdoutPipe()
	Must(t, err)
	Must(t, do(cmd.Start))
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	FatalIf(t, err != nil, "%s says %q: %v", args, line, err)
	return cmd, strings.TrimSpace(line)
}

// EndWithTest ends a program of Spawn with the test, even if the test is killed.
func EndWithTest() {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}

// nobody is the user and group without any rights.
const nobody = 65534

// AsNobody is a command that runs this test binary again, one test of it, as
// a user without privilege. It calls Require first.
func AsNobody(t testing.TB, test string) *exec.Cmd {
	t.Helper()
	Require(t)
	exe, err := os.ReadFile("/proc/self/exe")
	Must(t, err)
	dir, err := os.MkdirTemp("", "nobody") // t.TempDir is root's alone
	Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	Must(t, errors.Join(os.Chmod(dir, 0o755), writeProgram(dir+"/test", exe)))
	cmd := exec.Command(dir+"/test", "-test.v", "-test.run=^"+test+"$")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// writeProgram writes a file that can be executed at once. A process that a parallel test starts meanwhile would inherit the open
// file, and the program could not be executed before that process executes its own (ETXTBSY).
func writeProgram(path string, b []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, b, 0o755)
}

// NICsEnv names two interfaces that are joined by a wire and that tests may
// use, each with the network namespace it is in, with an address of IPv4 and
// one of IPv6:
//
//	VIA_NICS=eth0@/proc/1/ns/net,eth1@/run/netns/peer
//
// ModeEnv is the mode that they must reach, zero-copy unless it says otherwise.
const (
	NICsEnv = "VIA_NICS"
	ModeEnv = "VIA_NICS_MODE"
)

// NICs are the interfaces that the environment names, for tests of real drivers. Without them
// the test is skipped; go run ./internal/lab/vm runs it in a VM. The interfaces' settings
// stay unchanged.
func NICs(t testing.TB) (a, b *NS, mode string) {
	t.Helper()
	names := os.Getenv(NICsEnv)
	if names == "" {
		t.Skipf("%s names no NICs; go run ./internal/lab/vm has some", NICsEnv)
	}
	if mode = os.Getenv(ModeEnv); mode == "" {
		mode = "zero-copy"
	}
	list := strings.Split(names, ",")
	if len(list) != 2 {
		t.Fatalf("%s=%q: want two interfaces", NICsEnv, names)
	}
	ends := []*NS{{}, {}}
	for i, n := range ends {
		name, path, ok := strings.Cut(list[i], "@")
		if !ok {
			t.Fatalf("%s: %s: want INTERFACE@NAMESPACE", NICsEnv, list[i])
		}
		n.Name = name
		h, err := netns.GetFromPath(path)
		n.enter(t, h, err)
		if err := n.probe(); err != nil {
			t.Fatalf("%s: %s: %v", NICsEnv, list[i], err)
		}
	}
	return ends[0], ends[1], mode
}

// probe notes what an interface is that the test has not made.
func (n *NS) probe() error {
	l, err := n.netlink.LinkByName(n.Name)
	if err != nil {
		return err
	}
	n.Index, n.MAC, n.MTU = l.Attrs().Index, l.Attrs().HardwareAddr, l.Attrs().MTU
	addrs, err := n.netlink.AddrList(l, unix.AF_UNSPEC)
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		switch ip = ip.Unmap(); {
		case !ok || ip.IsLinkLocalUnicast():
		case ip.Is4():
			n.IPv4 = ip
		default:
			n.IPv6 = ip
		}
	}
	return err
}
