package agentd_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// talker is one end of a connection over which both sides send messages of any length up to talkMost, and check them.
type talker struct {
	*end
	sent, received int
}

const talkMost = 200_000

// talkLen is the length of message number n: most are small, some take many frames.
func talkLen(n int) int {
	if n%7 == 3 {
		return 1 + n*7919%talkMost
	}
	return 1 + n*131%1400
}

func (k *talker) message(n int) []byte {
	b := make([]byte, talkLen(n))
	for i := range b {
		b[i] = byte(i*7 + i>>8 + n)
	}
	return b
}

// expect posts the next receive.
func (k *talker) expect() error {
	d, err := k.mem.Descriptor(64*(1+k.received%2), 1)
	if err != nil {
		return err
	}
	d.SetSegments(k.mem.Segment(4096+(1+k.received%2)*talkMost, talkMost))
	return k.vi.PostRecv(d, k.mem.Handle())
}

func (k *talker) send() error {
	d, err := k.mem.Descriptor(0, 1)
	if err != nil {
		return err
	}
	m := k.message(k.sent)
	copy(k.mem.Bytes()[4096:], m)
	d.SetSegments(k.mem.Segment(4096, len(m)))
	if err := k.vi.PostSend(d, k.mem.Handle()); err != nil {
		return err
	}
	if _, err := k.vi.SendWait(waitLimit); err != nil {
		return fmt.Errorf("send %d: %w", k.sent, err)
	}
	k.sent++
	return nil
}

func (k *talker) receive(limit time.Duration) error {
	d, err := k.vi.RecvWait(limit)
	if err != nil {
		return fmt.Errorf("receive %d: %w", k.received, err)
	}
	got := k.mem.Bytes()[4096+(1+k.received%2)*talkMost:][:d.Length]
	if !bytes.Equal(got, k.message(k.received)) {
		return fmt.Errorf("message %d: %d bytes arrived, or others than were sent", k.received, len(got))
	}
	k.received++
	return k.expect()
}

// serve answers messages until the connection ends. It waits for each without a limit: while a slow machine connects others, a
// connection may be idle for longer than waitLimit.
func (k *talker) serve() error {
	for {
		if err := k.receive(-1); err != nil {
			return err
		}
		if err := k.send(); err != nil {
			return err
		}
	}
}

func newTalker(t testing.TB, n *vipl.NIC) *talker {
	t.Helper()
	k := &talker{end: newEnd(t, n)}
	nstest.Must(t, k.expect())
	return k
}

// answer accepts connections to a discriminator, and serves each.
func answer(t testing.TB, n *vipl.NIC, disc string) {
	l, err := n.Listen(vipl.NetAddress{Discriminator: []byte(disc)})
	nstest.Must(t, err)
	go func() {
		var k *talker
		for {
			c, err := l.Wait(context.Background())
			if err != nil {
				return
			}
			if k == nil {
				k = newTalker(t, n)
			}
			if c.Accept(k.vi) == nil {
				go k.serve()
				k = nil
			}
		}
	}()
}

// sharer is a program that connects and talks as a test tells it.
type sharer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startSharer(t *testing.T, a *agent, peer netip.Addr, uid uint32, id int, env ...string) *sharer {
	t.Helper()
	s := launchSharer(t, a, peer, uid, id, env...)
	s.opened(t)
	return s
}

// launchSharer is startSharer, except that the program has not opened its NIC yet.
func launchSharer(t *testing.T, a *agent, peer netip.Addr, uid uint32, id int, env ...string) *sharer {
	t.Helper()
	env = append(env, socketsEnv+"="+a.socket, fmt.Sprintf("AGENTD_TEST_PEER=%v %v %d", peer, a.ns.IPv4, id))
	s := &sharer{cmd: program(t, uid, "TestProgramThatShares", env...)}
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	nstest.Must(t, err)
	out, err := s.cmd.StdoutPipe()
	nstest.Must(t, err)
	s.in, s.out = in, bufio.NewReader(out)
	nstest.Must(t, s.cmd.Start())
	t.Cleanup(s.kill)
	return s
}

// connect has the program connect, as the command what says, with e, which takes the request at a discriminator.
func (s *sharer) connect(t *testing.T, e *end, what, disc string) {
	t.Helper()
	l, err := e.nic.Listen(vipl.NetAddress{Discriminator: []byte(disc)})
	nstest.Must(t, err)
	defer l.Close()
	s.ask(t, what)
	c, err := l.Wait(t.Context())
	nstest.Must(t, err)
	nstest.Must(t, c.Accept(e.vi))
	s.want(t, "done "+strings.Fields(what)[0])
}

// kill is kill -9. The program's descriptors are closed when it returns.
func (s *sharer) kill() { _, _ = s.cmd.Process.Kill(), s.cmd.Wait() }

// opened waits until the program has opened its NIC.
func (s *sharer) opened(t *testing.T) {
	t.Helper()
	if got := s.line(t); !strings.HasPrefix(got, "open") {
		t.Fatalf("a program: %s", got)
	}
}

func (s *sharer) line(t *testing.T) string {
	t.Helper()
	for {
		line, err := s.out.ReadString('\n')
		nstest.FatalIf(t, err != nil, "a program ends: %q %v", line, err)
		if !strings.HasPrefix(line, "=== ") { // of the test binary
			return strings.TrimSpace(line)
		}
	}
}

func (s *sharer) ask(t *testing.T, what string) {
	t.Helper()
	nstest.Must(t, nstest.Err(fmt.Fprintln(s.in, what)))
}

func (s *sharer) want(t *testing.T, what string) {
	t.Helper()
	if got := s.line(t); got != what {
		t.Fatalf("a program says %q, want %q", got, what)
	}
}

// TestProgramThatShares is the program of a sharer. It connects with a server of another host and with programs of its
// own, and exchanges messages as it is told.
func TestProgramThatShares(t *testing.T) {
	socket, ok := os.LookupEnv(socketsEnv)
	if !ok {
		t.Skip("the program of a sharer")
	}
	var id int
	var texts [2]string
	nstest.Must(t, nstest.Err(fmt.Sscan(os.Getenv("AGENTD_TEST_PEER"), &texts[0], &texts[1], &id)))
	peer, self := netip.MustParseAddr(texts[0]), netip.MustParseAddr(texts[1])
	opts := []vipl.Option{vipl.WithAgent(socket), vipl.WithArena(8 << 20), vipl.WithSilence(waitLimit)}
	if mib, err := strconv.Atoi(os.Getenv(arenaEnv)); err == nil {
		opts = append(opts, vipl.WithArena(mib<<20))
	}
	if os.Getenv(allQueuesEnv) != "" {
		opts = append(opts, allQueues()...)
	}
	n, err := vipl.OpenNIC(cmp.Or(os.Getenv(nicEnv), "via0"), opts...)
	if err != nil {
		fmt.Println(err)
		t.FailNow()
	}
	answer(t, n, fmt.Sprint("program ", id))
	fmt.Println("open on queue", n.Info().Queue)
	var all []*talker
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var what string
		var number int
		nstest.Must(t, nstest.Err(fmt.Sscan(in.Text(), &what, &number)))
		switch what {
		case "server", "remote", "program": // connect
			k := newTalker(t, n)
			remote := vipl.NetAddress{Host: peer, Discriminator: []byte("server")}
			switch what {
			case "program":
				remote = vipl.NetAddress{Host: self, Discriminator: []byte(in.Text())}
			case "remote":
				remote.Discriminator = fmt.Append(nil, "program ", number)
			}
			if _, err := k.vi.ConnectRequest(vipl.NetAddress{}, remote, waitLimit); err != nil {
				fmt.Println(what, err)
				continue
			}
			all = append(all, k)
		case "talk":
			for range number {
				for _, k := range all {
					if err := errors.Join(k.send(), k.receive(waitLimit)); err != nil {
						fmt.Println(err)
						t.FailNow()
					}
				}
			}
		case "forget": // the connections from that number on
			all = all[:number]
		case "end":
			if err := n.Close(); err != nil {
				fmt.Println(err)
			}
		}
		fmt.Println("done", what)
	}
}

// allQueuesEnv has TestProgramThatShares receive from all queues.
const allQueuesEnv = "AGENTD_TEST_ALL_QUEUES"

// arenaEnv is the size of a program's registered memory in MiB; without it, 8.
const arenaEnv = "AGENTD_TEST_ARENA"

// nicEnv names the interface of a program; without it, it is via0.
const nicEnv = "AGENTD_TEST_NIC"

// allQueues are the options of a handle that receives from all queues of a veth.
func allQueues() []vipl.Option {
	return []vipl.Option{vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSteering(vipl.SteerAll)}
}

// Eight programs of one user share the only queue of their interface. Each talks with a server on another host, and with
// the next one on its own. Programs die and others come, the first one among them; the agent dies, too. Nothing of
// what the others send is lost, and in the end nothing is charged to the user.
func TestSharedQueue(t *testing.T) {
	t.Parallel()
	testSharedQueue(t, nstest.Options{}, agentConfig{}, 8)
}

// Three programs share two queues, and nine: a frame that the server sends comes in on another queue than the one they
// send on, since a veth in native mode carries what is sent on queue n to queue n.
func TestSharedQueues(t *testing.T) {
	t.Parallel()
	counts := []int{2, 9}
	if testing.Short() {
		counts = counts[:1]
	}
	for _, queues := range counts {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			testSharedQueue(t, nstest.Options{Queues: queues}, agentConfig{Processes: 4, Users: map[uint32]agentd.Quota{60001: {Queues: queues}}}, 3, allQueuesEnv+"=1")
		})
	}
}

// All programs of one host talk with all of the other, which share the only queue on each side.
func TestSharedQueueAllToAll(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nstest.Options{}, agentConfig{})
	endAll(t, allToAll(t, a, b, 60001, 10)...)
}

// allToAll has programs of a user on two hosts talk each with all of the other host, with that many messages on each connection: 1, 2,
// 4, 8 and 16 programs on each host, those that are there and new ones. It returns them. With -short there are 4 at most.
func allToAll(t *testing.T, a, b *agent, uid uint32, messages int, env ...string) (all []*sharer) {
	t.Helper()
	var asked []func()
	ask := func(s *sharer, what string, number int) {
		s.ask(t, fmt.Sprint(what, " ", number))
		asked = append(asked, func() { s.want(t, "done "+what) })
	}
	answers := func() {
		for _, want := range asked {
			want()
		}
		asked = nil
	}
	const most, connects = 16, 4
	env = append(env, fmt.Sprint(arenaEnv, "=", 8+most)) // a MiB for each end
	was, start := 0, time.Now()
	for _, programs := range []int{1, 2, 4, 8, most} {
		if testing.Short() && programs > 4 {
			break
		}
		for id := was; id < programs; id++ { // those of a have even indices
			all = append(all, launchSharer(t, a, b.ns.IPv4, uid, id, append(env, nicEnv+"="+a.ns.Name)...),
				launchSharer(t, b, a.ns.IPv4, uid, id, append(env, nicEnv+"="+b.ns.Name)...))
		}
		for _, s := range all[2*was:] {
			s.opened(t)
		}
		for apart := range programs {
			for i := range programs {
				j := (i + apart) % programs
				switch { // either program of a pair connects
				case i < was && j < was: // they are connected
				case apart%2 == 0:
					ask(all[2*i], "remote", j)
				default:
					ask(all[2*j+1], "remote", i)
				}
				if len(asked) == connects { // more at a time would time out on a starved machine
					answers()
				}
			}
		}
		answers()
		connected := time.Since(start)
		talk(t, messages, all...)()
		t.Logf("%d programs on each host: connected after %v, talked after %v", programs, connected.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		for _, g := range []*agent{a, b} {
			st := g.status(t)
			nstest.ErrorIf(t, len(st.NICs) != 1 || len(st.NICs[0].Leases) != programs, "%d programs, status: %+v", programs, st.NICs)
		}
		was = programs
	}
	return all
}

// talk has programs exchange that many messages on each of their connections, and returns what waits for the end of
// that.
func talk(t *testing.T, messages int, all ...*sharer) (talked func()) {
	t.Helper()
	for _, s := range all {
		s.ask(t, fmt.Sprint("talk ", messages))
	}
	return func() {
		t.Helper()
		for _, s := range all {
			s.want(t, "done talk")
		}
	}
}

// endAll has programs close their NICs.
func endAll(t *testing.T, all ...*sharer) {
	t.Helper()
	for _, s := range all {
		s.ask(t, "end 0")
	}
	for _, s := range all {
		s.want(t, "done end")
	}
}

func testSharedQueue(t *testing.T, options nstest.Options, cfg agentConfig, programs int, env ...string) {
	const user = 60001
	queues, room := max(options.Queues, 1), cmp.Or(cfg.Processes, agentd.DefaultProcesses)
	a, b := pair(t, options, cfg)
	opts := []vipl.Option{vipl.WithSilence(waitLimit), vipl.WithArena(64 << 20)}
	if queues > 1 {
		opts = append(append(opts, allQueues()...), vipl.WithQueue(queues-1))
	}
	server := b.nic(opts...)
	answer(t, server, "server")
	var all []*sharer
	for id := range programs {
		all = append(all, startSharer(t, a, b.ns.IPv4, user, id, env...))
	}
	each := func(f func(id int, s *sharer)) {
		t.Helper()
		for id, s := range all {
			f(id, s)
		}
	}
	each(func(_ int, s *sharer) { s.ask(t, "server 0") })
	each(func(_ int, s *sharer) { s.want(t, "done server") })
	each(func(id int, s *sharer) { s.ask(t, fmt.Sprint("program ", (id+1)%programs)) })
	each(func(_ int, s *sharer) { s.want(t, "done program") })
	talk(t, 20, all...)()

	leases := func(want int) []kagent.LeaseStatus {
		t.Helper()
		var l []kagent.LeaseStatus
		await.Until(t, fmt.Sprint(want, " programs share the queue"), func() bool {
			st := a.status(t)
			if len(st.NICs) != 1 {
				return false
			}
			l = st.NICs[0].Leases
			return len(l) == want && l[0].Processes == want
		})
		return l
	}
	for _, l := range leases(programs) {
		nstest.ErrorIf(t, l.Queue != 0 || len(l.ExtraQueues) != queues-1 || l.Room != room || l.Holder.UID != user || len(l.VIs) < 2, "lease: %+v", l)
	}
	if u := userOf(a.status(t), user); u.Processes != programs || u.Queues != queues {
		t.Errorf("user: %+v", u)
	}

	// The first program dies, and another one, which some talk with. What others send arrives.
	for round, id := range []int{0, programs / 2, 0} {
		others := all
		all = nil
		for n, s := range others {
			if n != id && n != (id+programs-1)%programs { // the one before talks with it
				all = append(all, s)
			}
		}
		talked := talk(t, 30, all...)
		time.Sleep(5 * time.Millisecond)
		if round == 1 {
			a.kill()
		}
		others[id].kill()
		if round == 1 {
			a.start()
		}
		talked()
		leases(programs - 1)
		all = others
		before := all[(id+programs-1)%programs]
		before.ask(t, "forget 1")
		before.want(t, "done forget")
		all[id] = startSharer(t, a, b.ns.IPv4, user, id, env...)
		all[id].ask(t, "server 0")
		all[id].want(t, "done server")
		talk(t, 3, all...)()
	}
	// The agent dies, and the next one knows all.
	talked := talk(t, 50, all...)
	a.kill()
	talked()
	a.start()
	leases(programs)
	talk(t, 5, all...)()

	endAll(t, all...)
	await.Until(t, "nothing is charged", func() bool {
		return userOf(a.status(t), user).UID == 0 && len(a.status(t).NICs) == 0
	})
}

// userOf is a user's entry; the zero value: there is none.
func userOf(st kagent.Status, uid uint32) kagent.UserStatus {
	for _, u := range st.Users {
		if u.UID == uid {
			return u
		}
	}
	return kagent.UserStatus{}
}

// Programs of different users, and with and without a pre-shared key, do not share a queue. The error names the reason
// and who has the queue. A quota of queues does not keep a program from a queue that its user has.
func TestSharedQueuePolicy(t *testing.T) {
	ns, peer := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Processes: 3, Users: map[uint32]agentd.Quota{60001: {Queues: 1, Processes: 2}}})
	first := startSharer(t, g, peer.IPv4, 60001, 0)
	refused(t, g, 60002, "processes of user 60001 share it", fmt.Sprintf("process %d", first.cmd.Process.Pid))
	second := startSharer(t, g, peer.IPv4, 60001, 1)
	refused(t, g, 60001, "processes with a NIC handle", "of at most 2")
	if u := userOf(g.status(t), 60001); u.Queues != 1 || u.Processes != 2 || u.MaxProcs != 2 {
		t.Errorf("user: %+v", u)
	}
	psk, err := vipl.NewPSK(bytes.Repeat([]byte{7}, 32))
	nstest.Must(t, err)
	nstest.ErrSays(t, "root, with a key", nstest.Err(g.open(vipl.WithPSK(psk))), "user 60001")
	endAll(t, first, second)
}

// refused checks what the error says to a program of a user that gets no queue.
func refused(t *testing.T, g *agent, uid uint32, why ...string) {
	t.Helper()
	cmd := program(t, uid, "TestProgramThatShares", socketsEnv+"="+g.socket,
		fmt.Sprintf("AGENTD_TEST_PEER=%[1]v %[1]v 1", g.ns.IPv4))
	out, _ := cmd.Output()
	for _, want := range append(why, "vipl: OpenNIC") {
		nstest.ErrorIf(t, !strings.Contains(string(out), want), "user %d: %q lacks %q", uid, out, want)
	}
	nstest.ErrorIf(t, strings.Contains(string(out), "this process") || strings.Count(string(out), "kagent: open") != 1,
		"of an agent: %q", out)
}

// A program that joins others on a queue is told so once, also by an agent that has taken over from the one before.
func TestSharedQueueNotes(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	join := func() []string {
		reply, err := g.raw(t).hello().ask(openOf(agentproto.Open{Queue: kagent.AnyQueue}))
		nstest.Must(t, err)
		return reply.Opened.Info.Info.Notes
	}
	join()
	for range 6 {
		if notes := join(); len(notes) != 1 || !strings.Contains(notes[0], "is shared with other processes") {
			t.Fatalf("notes: %q", notes)
		}
		g.restart()
	}
}
