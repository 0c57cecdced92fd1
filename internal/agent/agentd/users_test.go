package agentd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
)

// The environment of a program that runs rules of the suite.
const (
	socketsEnv = "AGENTD_TEST_SOCKETS" // of the two agents
	queueEnv   = "AGENTD_TEST_QUEUE"
)

// program returns a command that runs a test of this binary as a user.
func program(t testing.TB, uid uint32, test string, env ...string) *exec.Cmd {
	t.Helper()
	nstest.Require(t)
	// Only root can enter the directory that go test builds the binary in. This link leads to the file itself, so that tests of
	// many programs need no copies.
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+test+"$")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// If no queue is left, the error names the holders. A program that shares one is not refused.
func TestQueuesOut(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{})
	native, one := vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSteering(vipl.SteerOff)
	first, second := g.nic(native, one), g.nic(native, one)
	if q, r := first.Info().Queue, second.Info().Queue; q == r {
		t.Errorf("both on queue %d", q)
	}
	third := g.nic(vipl.WithMode(xdpnic.ModeNative, true)) // shares, for it is of the same program
	ea, eb := newEnd(t, first), newEnd(t, third)
	connect(t, ea, eb, "shared")
	exchange(t, ea, eb, "one queue")

	refused(t, g, 60001, kagent.ErrQueueInUse.Error(), "queue 0", "queue 1",
		fmt.Sprintf("process %d (", os.Getpid()), "of user 0", "end one of them")
}

// If frames come in on several queues, an ordinary user's program gets a note about the steering that it may
// not have, also if it sends on one queue only.
func TestSteeringNote(t *testing.T) {
	for _, c := range []struct {
		rx, tx, uid int
		want        bool
	}{{2, 2, 0, false}, {2, 2, 60001, true}, {2, 1, 60001, true}, {1, 1, 60001, false}} {
		ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
		nstest.Must(t, ns.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			_, err = e.SetChannels(ns.Name, ethtool.Channels{RxCount: uint32(c.rx), TxCount: uint32(c.tx)})
			return err
		}))
		r := startAgent(t, ns, agentConfig{Processes: 1}).rawAs(t, c.uid).hello()
		reply, err := r.ask(openOf(agentproto.Open{Queue: -1, Mode: xdpnic.ModeNative, Steer: kagent.SteerByRSS}))
		nstest.Must(t, err)
		if notes := strings.Join(reply.Opened.Info.Info.Notes, "; "); strings.Contains(notes, "indirection table") != c.want {
			t.Errorf("%+v: notes %q", c, notes)
		}
	}
}

// A program in another network namespace than the interface sends no GSO packets: its sockets would send them from another
// interface with the same index. It is told so, and messages of any length arrive all the same.
func TestOtherNamespace(t *testing.T) {
	a, b := pair(t, nstest.Options{}, agentConfig{Processes: 1})
	outside, inside := newEnd(t, a.nic()), (*end)(nil)
	nstest.Must(t, b.ns.Do(func() error { inside = newEnd(t, b.nic()); return nil }))
	connect(t, outside, inside, "namespaces")
	for range 100 {
		exchange(t, outside, inside, strings.Repeat("12345678", 512))
		exchange(t, inside, outside, strings.Repeat("87654321", 512))
	}
	for _, c := range []struct {
		name string
		end  *end
		want bool // GSO packets
	}{{"outside", outside, false}, {"inside", inside, true}} {
		sent, why, notes := c.end.nic.Counters().GSOSent, c.end.nic.Status().NoGSO, strings.Join(c.end.nic.Info().Notes, "; ")
		if (sent > 0) != c.want || (why == "") != c.want || strings.Contains(notes, "another network namespace") == c.want {
			t.Errorf("%s: %d packets, %q, notes %q", c.name, sent, why, notes)
		}
	}
}

// leastPrivilege is an agent with the privileges of its systemd unit.
var leastPrivilege = agentConfig{
	UID: 60003, Caps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_IPC_LOCK},
}

// The agent needs no more than the capabilities of its systemd unit, and does not run as root; neither do its
// programs. Nor does it need access to the directory of its socket if it is started by socket activation. An agent of
// root, in the second case with its state elsewhere, does not remove the socket.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	for _, activated := range []bool{false, true} {
		t.Run(fmt.Sprint("activated ", activated), func(t *testing.T) {
			cfg := leastPrivilege
			cfg.Activated = activated
			a, b := pair(t, nstest.Options{}, cfg)
			end := busy(t, a, b)
			second := agentd.Daemon{Socket: a.socket}
			var taken *agentd.BusyError
			if err := a.ns.Do(func() error { return second.Run(t.Context()) }); !errors.As(err, &taken) {
				t.Errorf("a second agent: %v, want a BusyError", err)
			}
			a.restart()
			end()
		})
	}
}

// overAgents has two agents open NICs, each two at the ends of a veth pair of their own. When they are closed,
// nothing of them may be left. If joined, another process has each queue already, which they share. With several queues,
// a veth in native mode, the ends send on different ones, and receive from all.
func overAgents(t *testing.T, joined bool, queues int) vipltest.Config {
	a, b := pair(t, nstest.Options{}, agentConfig{Processes: 2})
	pairs := 0
	open := func(t testing.TB, silence time.Duration) (nics []*vipl.NIC, ends []*nstest.NS) {
		pairs++
		na, nb := nstest.Another(t, a.ns, b.ns, pairs, nstest.Options{Queues: queues})
		ends = []*nstest.NS{na, nb}
		for i, g := range []*agent{a, b} {
			leave := func() {}
			if joined {
				first := g.raw(t).hello()
				open := agentproto.Open{Interface: ends[i].Name, Queue: kagent.AnyQueue}
				if queues > 1 {
					open.Queue, open.Mode, open.Steer = i, xdpnic.ModeNative, kagent.SteerAll
				}
				nstest.Must(t, nstest.Err(first.use(openOf(open))))
				leave = func() { first.c.Close() }
			}
			opts := []vipl.Option{vipl.WithAgent(g.socket), vipl.WithArena(48 << 20), vipl.WithSilence(silence)}
			if queues > 1 {
				opts = append(append(opts, allQueues()...), vipl.WithQueue(i))
			}
			n, err := vipl.OpenNIC(ends[i].Name, opts...)
			nstest.Must(t, err)
			if part := n.Info().NIC.Sharing.Partition; part > 0 != joined {
				t.Fatalf("the NIC is process %d of its queue", part)
			}
			has := func() bool {
				return slices.ContainsFunc(g.status(t).NICs, func(n kagent.NICStatus) bool { return n.Interface == ends[i].Name })
			}
			t.Cleanup(func() {
				nstest.Check(t, n.Close())
				leave()
				if joined {
					await.Until(t, "the agent has nothing of the interface", func() bool { return !has() })
				} else if has() {
					t.Errorf("after Close the agent still has %+v", g.status(t).NICs)
				}
			})
			nics = append(nics, n)
		}
		return nics, ends
	}
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.NIC) {
			nics, _ := open(t, vipl.DefaultSilence)
			return nics[0], nics[1]
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.NIC, silence func()) {
			nics, ends := open(t, 300*time.Millisecond)
			return nics[0], nics[1], func() {
				nstest.Must(t, ends[1].Netlink().LinkSetDown(ends[1].Link(t)))
			}
		},
	}
}

// Every rule of the VIPL holds for a NIC that an agent has opened.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := overAgents(t, false, 1)
	if testing.Short() { // what the agent has most part in
		c.Groups = []string{"client-server", "peer-to-peer"}
	}
	vipltest.Run(t, c)
}

// dataGroups are the groups of rules about data.
var dataGroups = []string{"send-receive", "rdma-write", "rdma-read", "reliability", "cq"}

// Every rule about data holds for a NIC that shares its queue with another process.
func TestConformanceShared(t *testing.T) {
	t.Parallel()
	c := overAgents(t, true, 1)
	c.Groups = []string{"send-receive", "local"}
	if testsize.Every() {
		c.Groups = append(dataGroups, "local")
	}
	vipltest.Run(t, c)
}

// Nor does it matter on which queue a frame comes in.
func TestConformanceAllQueues(t *testing.T) {
	t.Parallel()
	c := overAgents(t, true, 2)
	c.Groups = []string{"send-receive"}
	if testsize.Every() {
		c.Groups = append(c.Groups, "rdma-write", "reliability")
	}
	vipltest.Run(t, c)
}

// oneAgent makes a host with an agent. Another host is at the other end of its link.
func oneAgent(t *testing.T, o nstest.Options, cfg agentConfig) *agent {
	t.Helper()
	ns, _ := nstest.Pair(t, o)
	return startAgent(t, ns, cfg)
}

// pair makes two hosts with an agent each.
func pair(t *testing.T, o nstest.Options, cfg agentConfig) (a, b *agent) {
	t.Helper()
	na, nb := nstest.Pair(t, o)
	return startAgent(t, na, cfg), startAgent(t, nb, cfg)
}

// nic opens a NIC by an agent, from this process, which is in another namespace.
func (a *agent) nic(opts ...vipl.Option) *vipl.NIC {
	a.t.Helper()
	n, err := a.open(opts...)
	nstest.Must(a.t, err)
	a.t.Cleanup(func() { nstest.Check(a.t, n.Close()) })
	return n
}

func (a *agent) open(opts ...vipl.Option) (*vipl.NIC, error) {
	opts = append([]vipl.Option{vipl.WithAgent(a.socket), vipl.WithArena(16 << 20)}, opts...)
	return vipl.OpenNIC(a.ns.Name, opts...)
}

// end is one end of a connection, with memory.
type end struct {
	nic *vipl.NIC
	vi  *vipl.VI
	mem *vipl.Region
}

func newEnd(t testing.TB, n *vipl.NIC) *end {
	t.Helper()
	tag, err := n.CreatePtag()
	nstest.Must(t, err)
	e := &end{nic: n}
	e.mem, err = n.AllocMem(1<<20, vipl.MemAttributes{Ptag: tag})
	nstest.Must(t, err)
	e.vi, err = n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	nstest.Must(t, err)
	return e
}

// connect connects two ends, b at host.
func connect(t testing.TB, a, b *end, disc string) {
	t.Helper()
	accepted := accept(b, disc)
	nstest.Must(t, errors.Join(request(a, b, disc, func() {}), <-accepted))
}

// accept has e accept a request to a discriminator.
func accept(e *end, disc string) (accepted chan error) {
	accepted = make(chan error, 1)
	go func() {
		c, err := e.nic.ConnectWait(vipl.NetAddress{Discriminator: []byte(disc)}, waitLimit)
		if err == nil {
			if err = c.Accept(e.vi); err != nil {
				err = errors.Join(err, c.Reject()) // unless the requester has ended it
			}
		}
		accepted <- err
	}()
	return accepted
}

// request lets a request a connection with b until a program waits at the discriminator; it calls meanwhile in
// between.
func request(a, b *end, disc string, meanwhile func()) (err error) {
	remote := vipl.NetAddress{Host: b.nic.Query().Address, Discriminator: []byte(disc)}
	for end := time.Now().Add(waitLimit); time.Now().Before(end); meanwhile() {
		if _, err = a.vi.ConnectRequest(vipl.NetAddress{}, remote, waitLimit); !errors.Is(err, vipl.ErrNoMatch) {
			break
		}
	}
	return err
}

// exchange sends a message and checks that it arrives.
func exchange(t testing.TB, from, to *end, text string) {
	t.Helper()
	recv, err := to.mem.Descriptor(0, 1)
	nstest.Must(t, err)
	recv.SetSegments(to.mem.Segment(4096, 4096))
	nstest.Must(t, to.vi.PostRecv(recv, to.mem.Handle()))
	send, err := from.mem.Descriptor(64, 1)
	nstest.Must(t, err)
	copy(from.mem.Bytes()[8192:], text)
	send.SetSegments(from.mem.Segment(8192, len(text)))
	nstest.Must(t, from.vi.PostSend(send, from.mem.Handle()))
	d, err := to.vi.RecvWait(waitLimit)
	nstest.Must(t, err)
	if got := to.mem.Bytes()[4096 : 4096+d.Length]; !bytes.Equal(got, []byte(text)) {
		t.Fatalf("%q arrived, want %q", got, text)
	}
	nstest.Must(t, nstest.Err(from.vi.SendWait(waitLimit)))
}

// If an agent refuses a user and another program has the interface, the error of an open names both reasons, not only that
// the interface is in use.
func TestRefusedAndInUse(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]agentConfig{
		"zero_copy":                  {Ifaces: map[string]agentd.Interface{"via0": {}}},
		"connect: permission denied": {Defaults: true},
	} {
		g := oneAgent(t, nstest.Options{}, cfg)
		holder := g.nic()
		cmd := program(t, 60001, "TestProgramThatIsRefused", nicEnv+"="+g.ns.Name)
		var out bytes.Buffer
		cmd.Stdout = &out
		nstest.Must(t, g.ns.Do(func() error { // in a thread that ends with it
			return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
				unix.Mount("none", "/run", "tmpfs", 0, "mode=755"), os.Mkdir(filepath.Dir(agentclient.DefaultSocket), 0o755),
				unix.Mount(filepath.Dir(g.socket), filepath.Dir(agentclient.DefaultSocket), "", unix.MS_BIND, ""), cmd.Start())
		}))
		nstest.Must(t, cmd.Wait())
		for _, want := range []string{"control port", want} {
			nstest.ErrorIf(t, !strings.Contains(out.String(), want), "%q lacks %q", out.String(), want)
		}
		nstest.Check(t, holder.Close())
	}
}

// TestProgramThatIsRefused is a program of TestRefusedAndInUse.
func TestProgramThatIsRefused(t *testing.T) {
	name, ok := os.LookupEnv(nicEnv)
	if !ok {
		t.Skip("a program of TestRefusedAndInUse")
	}
	_, err := vipl.OpenNIC(name, vipl.WithMode(xdpnic.ModeZeroCopy, true))
	fmt.Println(err)
}
