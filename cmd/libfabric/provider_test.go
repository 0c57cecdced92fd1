package libfabric

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/testsize"
	"viaxdp/internal/ops/status"
	"viaxdp/vipl"
)

// The suite passes over the provider, and over libfabric's tcp, so that it tests libfabric's promises.
func TestSuite(t *testing.T) {
	t.Parallel()
	program := build(t) + "/suite"
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, nstest.Options{MTU: 1500})
		suite(t, b, b, program, "tcp", b.A.IPv4.String())
	})
	t.Run("IPv6", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, nstest.Options{MTU: 1500})
		suite(t, b, b, program, "viaxdp", b.A.IPv6.String(), "info", "connections", "messages", "rdm")
	})
	if !testsize.Every() { // TestSanitizers has the whole suite
		return
	}
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint("MTU ", mtu), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, nstest.Options{MTU: mtu}, "VIA_ARENA=0") // the usual one
			suite(t, b, b, program, "viaxdp", b.A.IPv4.String())
		})
	}
	t.Run("key", func(t *testing.T) {
		t.Parallel()
		key := filepath.Join(t.TempDir(), "key")
		nstest.Must(t, os.WriteFile(key, []byte("32 bytes, and random where it is no test"), 0o600))
		b := newBed(t, nstest.Options{MTU: 1500}, "VIA_PSK="+key)
		suite(t, b, b, program, "viaxdp", b.A.IPv4.String(), "connections", "messages", "rma", "rdm")
	})
}

// An endpoint takes nothing of another interface.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	program := build(t) + "/suite"
	b := newBed(t, nstest.Options{MTU: 1500})
	nstest.Another(t, b.A, b.B, 1, nstest.Options{MTU: 1500})
	suite(t, b, b, program, "viaxdp", b.A.IPv4.String(), "interfaces")
}

// The suite passes with AddressSanitizer and UndefinedBehaviorSanitizer in it and in the provider, and leaks nothing.
func TestSanitizers(t *testing.T) {
	t.Parallel()
	dir := build(t)
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+dir+"/asan", "ASAN_OPTIONS=detect_leaks=1:halt_on_error=1")
	suite(t, b, b, dir+"/suite-asan", "viaxdp", b.A.IPv4.String())
}

// The sends of a list with FI_MORE leave by one doorbell, and those without it by one each. The pieces of a long message share
// GSO packets. On a machine that stops programs frames are lost and windows shrink, which parts packets: one of three runs has to be
// undisturbed.
func TestDoorbells(t *testing.T) {
	program := build(t) + "/suite"
	var err error
	for range 3 {
		if err = doorbells(t, program); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}

// doorbells runs the suite's part of that name, and returns what was more or less than expected.
func doorbells(t *testing.T, program string) error {
	const rounds, burst = 200, 3 // as in the suite
	dir := t.TempDir()
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_RUNTIME_DIR="+dir)
	args := []string{"viaxdp", b.A.IPv4.String(), "7117", "doorbells"}
	s := exec.CommandContext(t.Context(), program, append([]string{"server"}, args...)...)
	s.Env, s.Stderr = b.Env, os.Stderr
	in, err := s.StdinPipe()
	nstest.Must(t, err)
	out, err := s.StdoutPipe()
	nstest.Must(t, err)
	nstest.Must(t, b.A.Do(s.Start))
	c := b.Start(t, b.B, append([]string{program, "client"}, args...)...)
	said := bufio.NewReader(out)
	var kicks [4]uint64 // before bursts, after those without FI_MORE, after those with it, after long messages
	var sent [4]vipl.Counters
	for i := range kicks {
		if line, err := said.ReadString('\n'); line != "bursts\n" {
			c.Process.Kill()
			t.Fatalf("the server said %q, %v\n%s", line, err, &c.Out)
		}
		for _, p := range status.Take([]string{dir}).Programs {
			if p.PID == s.Process.Pid && len(p.Nics) == 1 {
				kicks[i], sent[i] = p.Nics[0].Socket["tx_kicks"], p.Nics[0].Counters
			}
		}
		_, err := in.Write([]byte("\n"))
		nstest.Must(t, err)
	}
	_, err = io.Copy(io.Discard, said)
	nstest.Must(t, err)
	nstest.Must(t, s.Wait())
	c.Finish(t)
	each, one := kicks[1]-kicks[0], kicks[2]-kicks[1]
	t.Logf("%d bursts of %d messages: %d doorbells without FI_MORE, %d with it", rounds, burst, each, one)
	// Where the CPUs are busy a few bursts are cut: what waits for more leaves after a millisecond.
	if each < rounds*burst*9/10 || one < rounds*9/10 || one > rounds*2 {
		return fmt.Errorf("%d doorbells without FI_MORE, want about %d; %d with it, want about %d", each, rounds*burst, one, rounds)
	}
	packets, frames := sent[3].GSOSent-sent[2].GSOSent, sent[3].GSOSentFrames-sent[2].GSOSentFrames
	t.Logf("long messages: %d frames in %d packets, %d sent again", frames, packets, sent[3].Resent-sent[2].Resent)
	if frames < rounds*40 || packets > rounds*3 { // of 47 frames in two packets; a piece has 12
		return fmt.Errorf("%d messages are %d frames in %d packets, want about %d in %d", rounds, frames, packets, rounds*47, rounds*2)
	}
	return nil
}

// A peer that is killed is noticed: its connection ends with FI_SHUTDOWN, and operations are cancelled.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := build(t)
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=3000")
	args := []string{"viaxdp", b.A.IPv4.String(), "7117", "killed"}
	s := b.Start(t, b.A, append([]string{dir + "/suite", "server"}, args...)...)
	if out := b.Start(t, b.B, append([]string{dir + "/suite", "client"}, args...)...).Finish(t); !strings.Contains(out, "checks\n") {
		t.Errorf("it said %q", out)
	}
	if err := s.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the server: %v\n%s", err, &s.Out)
	}
}

// A peer of FI_EP_RDM that is killed fails what is under way with it, and can be started again at its address.
func TestRDMKilled(t *testing.T) {
	t.Parallel()
	dir := build(t)
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=3000")
	suite(t, b, b, dir+"/suite", "viaxdp", b.A.IPv4.String(), "rdmkilled")
}

// Threads that get a CPU late lose no message, and do not connect again without need.
func TestRDMLate(t *testing.T) {
	t.Parallel()
	dir := build(t)
	b := newBed(t, nstest.Options{MTU: 1500}, preloaded(t, dir, "late"))
	suite(t, b, b, dir+"/suite", "viaxdp", b.A.IPv4.String(), "rdmlate")
}

// fi_info lists the provider, by itself and below ofi_rxm.
func TestInfo(t *testing.T) {
	build(t)
	b := newBed(t, nstest.Options{MTU: 1500})
	out := b.Start(t, b.A, "fi_info", "-p", "viaxdp").Finish(t)
	for _, want := range []string{"provider: viaxdp\n", "provider: viaxdp;ofi_rxm\n", "domain: via0\n", "type: FI_EP_MSG\n", "type: FI_EP_RDM\n    protocol: Provider specific\n", "fabric: 10.99.0.0/24\n"} {
		nstest.ErrorIf(t, !strings.Contains(out, want), "without %q:\n%s", want, out)
	}
	b.With("FI_VIAXDP_IFACE=").Start(t, b.A, "fi_info", "-p", "viaxdp").Finish(t) // empty variables are as those that are not set
	if out := b.With("FI_VIAXDP_IFACE=other").Start(t, b.A, "fi_info", "-p", "viaxdp"); out.Wait() == nil {
		t.Errorf("with FI_VIAXDP_IFACE=other:\n%s", &out.Out)
	}
}

// An address with a label, as of an alias of the interface, is one of the interface.
func TestInfoLabel(t *testing.T) {
	t.Parallel()
	program := build(t) + "/suite"
	b := newBed(t, nstest.Options{MTU: 1500})
	link := b.A.Link(t)
	alias, err := netlink.ParseAddr("10.99.0.88/24 " + b.A.Name + ":1")
	nstest.Must(t, err)
	nstest.Must(t, b.A.Netlink().AddrAdd(link, alias))
	suite(t, b, b, program, "viaxdp", alias.IP.String(), "info", "completions")
}

// A host's name stands for its address of the format that the program asks for, whichever comes first: in fi_getinfo, and in an address
// vector.
func TestInfoNames(t *testing.T) {
	build(t, "unshare")
	server, b := survivor(t, "rdm"), newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=3000", withoutRXM)
	hosts := filepath.Join(t.TempDir(), "hosts")
	nstest.Must(t, os.WriteFile(hosts, fmt.Appendf(nil, "%v both\n%v both\n", b.A.IPv4, b.A.IPv6), 0o644))
	named := func(args ...string) *cprogram.Process {
		return b.Start(t, b.B, append([]string{"unshare", "-m", "sh", "-c", `mount --bind "$1" /etc/hosts && shift && exec "$@"`, "sh", hosts}, args...)...)
	}
	for _, format := range []string{"FI_SOCKADDR_IN", "FI_SOCKADDR_IN6"} {
		out := named("fi_info", "-v", "-p", "viaxdp", "-t", "FI_EP_MSG", "-n", "both", "-a", format).Finish(t)
		if want := "addr_format: " + format + "\n"; !strings.Contains(out, want) {
			t.Errorf("without %q:\n%s", want, out)
		}
	}
	s := serve(t, b, b, server, b.A.IPv4.String(), "once")
	named(server, "client", "both", "once").Finish(t)
	s.End(t)
}

// pingpongKinds are FI_EP_MSG, FI_EP_RDM, and that of ofi_rxm.
var pingpongKinds = []string{"msg", "rdm", "rxm"}

// pingpong are fi_pingpong and its arguments; it checks data.
func pingpong(program, kind string, more ...string) []string {
	provider, endpoint := "viaxdp", kind
	if kind == "rxm" {
		provider, endpoint = "viaxdp;ofi_rxm", "rdm"
	}
	return append([]string{program, "-p", provider, "-e", endpoint, "-c", "-I", "10", "-S", "all"}, more...)
}

// withoutRXM keeps libfabric from ofi_rxm, which it lists first for a provider's name.
const withoutRXM = "FI_PROVIDER=^ofi_rxm"

// largest is the last size of fi_pingpong -S all.
const largest = "\n6m "

func runPingpong(t *testing.T, program string, a, b *cprogram.Bed, kind string) {
	t.Helper()
	if kind == "rdm" {
		a, b = a.With(withoutRXM), b.With(withoutRXM)
	}
	s := a.Start(t, a.A, pingpong(program, kind)...)
	listens(t, a.A, 47592)
	out := b.Start(t, b.B, pingpong(program, kind, a.A.IPv4.String())...).Finish(t)
	if t.Failed() {
		s.Process.Kill()
	}
	if said := s.Finish(t); !strings.Contains(said, largest) || !strings.Contains(out, largest) {
		t.Errorf("the server said %s\nthe client %s", said, out)
	}
}

func TestPingpong(t *testing.T) {
	t.Parallel()
	build(t)
	mtus := []int{1500, 9000}
	if !testsize.Every() {
		mtus = mtus[:1]
	}
	for _, kind := range pingpongKinds {
		for _, mtu := range mtus {
			t.Run(fmt.Sprint(kind, " ", mtu), func(t *testing.T) {
				t.Parallel()
				b := newBed(t, nstest.Options{MTU: mtu})
				runPingpong(t, "fi_pingpong", b, b, kind)
			})
		}
	}
}

// agentBed is a bed with two queues and an agent in each namespace, for users without privilege.
func agentBed(t *testing.T) (here, there *cprogram.Bed) {
	return agents(t, newBed(t, nstest.Options{MTU: 1500, Queues: 2}, "VIA_MODE=native"), 3*cprogram.Limit)
}

// The suite passes for users without privilege, who have interfaces by the agent: on two hosts, and on one.
func TestAgentSuite(t *testing.T) {
	t.Parallel()
	program := build(t) + "/suite"
	parts := []string{"connections", "messages", "rma", "ends", "rdm"}
	if !testsize.Every() {
		parts = []string{"connections", "rma"}
	}
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		here, there := agentBed(t)
		suite(t, here, there, program, "viaxdp", here.A.IPv4.String(), parts...)
	})
	t.Run("one host", func(t *testing.T) { // the programs share the queues
		t.Parallel()
		here, _ := agentBed(t)
		local := *here
		local.B = here.A
		suite(t, &local, &local, program, "viaxdp", here.A.IPv4.String(), parts...)
	})
}

// Programs of such users run, and say what they lack without an agent.
func TestAgent(t *testing.T) {
	t.Parallel()
	build(t, "unshare", "setpriv")
	here, there := agentBed(t)
	for _, kind := range pingpongKinds {
		t.Run(kind, func(t *testing.T) { runPingpong(t, "fi_pingpong", here, there, kind) })
	}
	t.Run("no agent", func(t *testing.T) {
		p := here.With("VIA_AGENT=none").Start(t, here.A, "fi_info", "-p", "viaxdp")
		nstest.ErrorIf(t, p.Wait() == nil, "a user without privilege and without an agent:\n%s", &p.Out)
	})
	t.Run("auto", func(t *testing.T) { // it starts none, and uses the one at the default place
		root := *here
		root.As = nil
		root.Start(t, here.A, "unshare", "-m", "sh", "-c", `mount -t tmpfs none /run && mkdir /run/via-xdp && ln -s "$VIA_AGENT" /run/via-xdp/agent.sock &&
			VIA_AGENT=auto exec setpriv --reuid 65534 --regid 65534 --clear-groups fi_info -p viaxdp`).Finish(t)
	})
}

// The provider exports what libfabric loads, and nothing else.
func TestSymbols(t *testing.T) {
	dir := build(t, "nm")
	out, err := exec.Command("nm", "-D", "--defined-only", dir+"/prov/libviaxdp-fi.so").Output()
	nstest.Must(t, err)
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); len(lines) != 1 || !strings.HasSuffix(lines[0], " fi_prov_ini") {
		t.Errorf("it exports\n%s", out)
	}
}

// make install puts the provider where libfabric looks for it, and the manual page; make deb packs both.
func TestInstall(t *testing.T) {
	dir := build(t, "man")
	root := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		nstest.FatalIf(t, err != nil, "%q: %v\n%s", args, err, out)
		return string(out)
	}
	run("make", "install", "OUT="+dir+"/prov", "LIBVIPL="+dir+"/lib", "LIBDIR=/opt/lib", "MANDIR=/opt/man", "DESTDIR="+root)
	if _, err := os.Stat(root + "/opt/lib/libfabric/libviaxdp-fi.so"); err != nil {
		t.Error(err)
	}
	page := root + "/opt/man/man7/fi_viaxdp.7"
	if text := run("man", "-l", page); !strings.Contains(text, "FI_VIAXDP_IFACE") {
		t.Errorf("the page is\n%s", text)
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		nstest.Lacks(t, "needs dpkg-deb: %v", err)
	}
	deb := root + "/it.deb"
	run("make", "deb", "OUT="+dir+"/prov", "LIBVIPL="+dir+"/lib", "DEB="+deb)
	list := run("dpkg-deb", "-c", deb)
	for _, want := range []string{"/libfabric/libviaxdp-fi.so", "/man7/fi_viaxdp.7.gz"} {
		nstest.ErrorIf(t, !strings.Contains(list, want), "the package has no %s:\n%s", want, list)
	}
	if control := run("dpkg-deb", "-f", deb); !strings.Contains(control, "libfabric1 (>= 1.17), libvipl (>= 1.0.0)") {
		t.Errorf("control is\n%s", control)
	}
}

// Data arrives whole where one frame in a hundred is lost.
func TestLoss(t *testing.T) {
	t.Parallel()
	dir := build(t)
	const loss = 0.01
	star, err := testbed.NewLossyStar(2, 1500, loss)
	if err != nil {
		nstest.Lacks(t, "%v", err)
	}
	t.Cleanup(func() { star.Close() })
	env := append(os.Environ(), "FI_PROVIDER_PATH="+dir+"/prov", "VIA_SILENCE=30000")
	start := func(i int, args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd, out := exec.CommandContext(t.Context(), args[0], args[1:]...), &bytes.Buffer{}
		cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
		nstest.Must(t, star.Start(i, -1, cmd))
		return cmd, out
	}
	args := func(side string) []string {
		return []string{dir + "/suite", side, "viaxdp", star.Ends[0].IPv4.Addr().String(), "7117", "connections", "messages", "rma", "ends", "rdm"}
	}
	s, said := start(0, args("server")...)
	c, out := start(1, args("client")...)
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), "checks\n") {
		s.Process.Kill()
		s.Wait()
		t.Fatalf("the client: %v\n%s\nthe server:\n%s", err, out, said)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the server: %v\n%s", err, said)
	}
	if _, lost, err := star.Counts(); err != nil || lost == 0 {
		t.Errorf("%d frames were lost, %v", lost, err)
	}
}
