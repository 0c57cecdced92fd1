package agentd_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// stream sends numbered messages from one end to the other until stopped, and
// checks that each arrives once, in order and whole.
type stream struct {
	from, to *end
	sent     uint64
	received uint64
}

const streamDepth = 32

// newStream connects new ends of two NICs.
func newStream(t testing.TB, from, to *vipl.NIC, disc string) *stream {
	t.Helper()
	s := &stream{from: newEnd(t, from), to: newEnd(t, to)}
	connect(t, s.from, s.to, disc)
	return s
}

// steps is step, n times.
func (s *stream) steps(t testing.TB, n int) {
	t.Helper()
	for range n {
		nstest.Must(t, s.step())
	}
}

// awaitBroken waits until the VIs are in Error.
func awaitBroken(t testing.TB, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		await.Until(t, "the connection ends", func() bool {
			st, err := e.vi.Query()
			return err == nil && st.State == vipl.Error
		})
	}
}

// step sends and receives some.
func (s *stream) step() error {
	if s.sent == 0 {
		for i := range streamDepth {
			if err := s.post(i); err != nil {
				return err
			}
		}
	}
	for s.sent-s.received < streamDepth {
		d, err := s.from.mem.Descriptor(64*int(s.sent%streamDepth), 1)
		if err != nil {
			return err
		}
		at := 8192 + 2048*int(s.sent%streamDepth)
		b := s.from.mem.Bytes()[at : at+1024]
		for i := 0; i < len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], s.sent*1000003+uint64(i))
		}
		d.SetSegments(s.from.mem.Segment(at, len(b)))
		if err := s.from.vi.PostSend(d, s.from.mem.Handle()); err != nil {
			return fmt.Errorf("send %d: %w", s.sent, err)
		}
		s.sent++
		if s.sent > streamDepth {
			if _, err := s.from.vi.SendWait(waitLimit); err != nil {
				return fmt.Errorf("send %d is not done: %w", s.sent, err)
			}
		}
	}
	if _, err := s.to.vi.RecvWait(waitLimit); err != nil {
		return fmt.Errorf("receive %d: %w", s.received, err)
	}
	i := int(s.received % streamDepth)
	b := s.to.mem.Bytes()[8192+2048*i:][:1024]
	for k := 0; k < len(b); k += 8 {
		if got := binary.LittleEndian.Uint64(b[k:]); got != s.received*1000003+uint64(k) {
			return fmt.Errorf("message %d: bytes at %d are wrong", s.received, k)
		}
	}
	s.received++
	return s.post(i)
}

func (s *stream) post(i int) error {
	d, err := s.to.mem.Descriptor(64*i, 1)
	if err != nil {
		return err
	}
	d.SetSegments(s.to.mem.Segment(8192+2048*i, 1024))
	return s.to.vi.PostRecv(d, s.to.mem.Handle())
}

// The death of an agent affects no program: a stream continues without an agent, and when the next one runs,
// programs connect again, on the same NIC.
func TestKillAgent(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nstest.Options{}, agentConfig{})
	na, nb := a.nic(), b.nic()
	s := newStream(t, na, nb, "before")
	run := func(d time.Duration) {
		t.Helper()
		for end := time.Now().Add(d); ; { // at least one, however late it is then
			nstest.Must(t, s.step())
			if time.Now().After(end) {
				return
			}
		}
	}
	run(100 * time.Millisecond)
	for round := range 3 {
		before := s.received
		// A server waits for a request all the while.
		late := newEnd(t, nb)
		disc := fmt.Sprintf("after %d", round)
		accepted := accept(late, disc)
		b.kill()
		if round > 0 {
			a.kill()
		}
		run(300 * time.Millisecond)
		nstest.FatalIf(t, s.received == before, "nothing arrived without an agent")
		if round > 0 {
			a.start()
		}
		b.start()
		run(100 * time.Millisecond)
		early := newEnd(t, na)
		// Until the program has come back there is nobody at the discriminator.
		nstest.Must(t, errors.Join(request(early, late, disc, func() { run(10 * time.Millisecond) }), <-accepted))
		exchange(t, early, late, "the next agent")
		run(100 * time.Millisecond)
	}
	// What one agent has opened, another closes.
	st := a.status(t)
	nstest.ErrorIf(t, len(st.NICs) != 1 || len(st.NICs[0].Leases) != 1 || len(st.NICs[0].Leases[0].VIs) != 4, "status after three agents: %+v", st.NICs)
	t.Logf("%d messages", s.received)
}

// If an agent is killed at any point of opening, closing or restoring, the next one finds no more than what
// programs have, and nothing if they have nothing.
func TestKillAgentAnywhere(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{})
	rounds := 15
	if testing.Short() {
		rounds = 5
	}
	stop := make(chan struct{})
	var programs sync.WaitGroup
	var opened atomic.Int32
	for range 3 {
		programs.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, err := g.open(vipl.WithMode(xdpnic.ModeNative, true), vipl.WithArena(4<<20), vipl.WithChunks(64, 64))
				if err != nil { // there is no agent, or no queue
					time.Sleep(time.Millisecond)
					continue
				}
				opened.Add(1)
				_, _ = n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)
				nstest.Check(t, n.Close())
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		before := opened.Load()
		await.Until(t, "a queue is opened", func() bool { return opened.Load() > before })
		time.Sleep(time.Duration(rnd.Uint64N(uint64(30 * time.Millisecond))))
		g.restart()
	}
	close(stop)
	programs.Wait()
	await.Until(t, "no user has anything", func() bool {
		st := g.status(t)
		return len(st.NICs) == 0 && len(st.Users) == 1 && st.Users[0].Queues == 0 && st.Users[0].VIs == 0 && st.Users[0].PinnedBytes == 0
	})
	// A descriptor store that leaves has it until its process has ended.
	await.Until(t, "the interface is free", func() bool { return g.ns.Program(t) == 0 })
	t.Logf("%d queues opened beside %d agents that died", opened.Load(), rounds)
}

// A program that dies frees its queue at once, and its peer is notified, also by an agent that came after the
// connection was made, or after the death.
func TestKillProgram(t *testing.T) {
	t.Parallel()
	for name, death := range map[string]func(a *agent, program *sharer){
		"agent stays": func(_ *agent, program *sharer) { program.kill() },
		"agent came later": func(a *agent, program *sharer) {
			a.restart()
			program.kill()
		},
		"agent is away": func(a *agent, program *sharer) {
			a.kill()
			program.kill()
			a.start()
		},
	} {
		t.Run(name, func(t *testing.T) { killProgram(t, death) })
	}
}

func killProgram(t *testing.T, death func(a *agent, program *sharer)) {
	a, b := pair(t, nstest.Options{}, agentConfig{})
	eb := newEnd(t, b.nic(vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSilence(waitLimit)))
	// Another program, so that the descriptor store has a reason to stay.
	other, err := vipl.OpenNIC("lo", vipl.WithAgent(a.socket), vipl.WithArena(16<<20))
	nstest.Must(t, err)
	defer other.Close()
	program := startSharer(t, a, b.ns.IPv4, 60001, 0, allQueuesEnv+"=1")
	program.connect(t, eb, "server 0", "server")
	death(a, program)
	awaitBroken(t, eb)
	vi, err := eb.vi.Query()
	nstest.ErrorIf(t, err != nil || vi.Cause == nil || eb.nic.Counters().PeersLost > 0, "the peer was not told, it found out by its own clock: %v, %v", vi.Cause, err)
	// The queue is there for the next one, and the dead one's VIs are not.
	n := a.nic()
	nstest.Equal(t, "the queue, that of the dead program", n.Info().Queue, 0)
	st := a.status(t)
	i := slices.IndexFunc(st.NICs, func(n kagent.NICStatus) bool { return n.Interface == "via0" })
	if l := st.NICs[i].Leases; len(l) != 1 || l[0].Holder.PID != os.Getpid() || len(l[0].VIs) != 0 {
		t.Errorf("leases: %+v", l)
	}
	nstest.ErrorIf(t, st.Counts.Deaths != 1, "counts: %+v", st.Counts)
	// The queue is free before all of it is refunded.
	await.Until(t, "the dead program has nothing", func() bool {
		users := a.status(t).Users
		return len(users) == 1 && users[0].UID == 0
	})
}

// If agent and program die together, the descriptor store exits and closes everything.
func TestKillBoth(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	program := startSharer(t, g, g.ns.IPv4, 60001, 0)
	g.kill()
	nstest.ErrorIf(t, g.ns.Program(t) == 0, "the program went with the agent")
	program.kill()
	await.Until(t, "the descriptor store leaves", func() bool {
		_, err := os.Stat(g.socket + ".fds")
		return errors.Is(err, os.ErrNotExist)
	})
	await.Until(t, "the interface is free", func() bool { return g.ns.Program(t) == 0 })
	nstest.Check(t, errors.Join(os.Remove(g.socket), os.Remove(g.socket+".lock"))) // which SIGKILL has left
	if _, err := agentclient.Probe(g.socket); !agentclient.Absent(err) {
		t.Errorf("an agent answers: %v", err)
	}
}

// Programs of one host, of any users, on queues of their own, can connect with each other; when one dies, the other
// is notified.
func TestLocalPeers(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 3}, agentConfig{})
	native, one := vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSteering(vipl.SteerOff)
	s := newStream(t, g.nic(native, one), g.nic(native, one), "neighbour")
	nstest.FatalIf(t, s.from.nic.Info().Queue == s.to.nic.Info().Queue, "both on one queue")
	s.steps(t, 5000)
	g.kill() // it has no part in it
	s.steps(t, 5000)
	g.start()

	e := newEnd(t, s.to.nic)
	program := startSharer(t, g, g.ns.IPv4, 60001, 0)
	program.connect(t, e, "server 0", "server")
	program.kill()
	awaitBroken(t, e)
	s.steps(t, 100)
}

// The death of a descriptor store affects no program: its agent starts another one, from which the next agent
// takes over the programs.
func TestKillFDStored(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nstest.Options{}, agentConfig{})
	s := newStream(t, a.nic(), b.nic(), "kept")
	some := func() {
		t.Helper()
		s.steps(t, 200)
	}
	some()
	for round := range 2 {
		first := a.fdstored()
		nstest.Must(t, unix.Kill(first, unix.SIGKILL))
		await.Until(t, "another descriptor store has everything", func() bool {
			return a.log.count("another one has all of it now") == round+1
		})
		if k := a.fdstored(); k == 0 || k == first {
			t.Errorf("keeper %d, after %d", k, first)
		}
		some()
	}
	late := newEnd(t, s.from.nic)
	a.kill()
	some()
	a.start()
	if st := a.status(t); len(st.NICs) != 1 || len(st.NICs[0].Leases) != 1 || len(st.NICs[0].Leases[0].VIs) != 2 {
		t.Errorf("status: %+v", st.NICs)
	}
	other := newEnd(t, s.to.nic)
	connect(t, late, other, "after")
	exchange(t, late, other, "the next agent")
	some()
}

// fdstored returns the process of the descriptor store that the agent has started; 0: none.
func (a *agent) fdstored() int {
	a.t.Helper()
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(a.cmd.Process.Pid) + "/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, p := range strings.Fields(string(b)) {
			if cmd, _ := os.ReadFile("/proc/" + p + "/cmdline"); len(cmd) > 0 { // no zombie
				pid, _ := strconv.Atoi(p)
				return pid
			}
		}
	}
	return 0
}

// An invalid entry of the descriptor store costs no program its queue.
func TestBadRecordsKept(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	opened, err := g.raw(t).hello().ask(openOf(agentproto.Open{}))
	nstest.Must(t, err)
	g.kill()
	k, err := fdstore.Start(g.socket+".fds", nil, "/bin/false")
	nstest.Must(t, err)
	entries, err := k.List()
	nstest.Must(t, err)
	for i := range entries {
		kind, place, _ := strings.Cut(entries[i].Key, "/")
		entries[i].Close()
		if kind != "nic" {
			continue
		}
		for _, key := range []string{"lease/" + place + "/7", "vi/" + place + "/none", "vi/" + place + "/00000001", "listen/" + place + "/x", "odd/" + place} {
			nstest.Must(t, k.Put(key, []byte("?")))
		}
	}
	nstest.Must(t, k.Close())
	g.start()
	r := g.raw(t).hello()
	nstest.Must(t, nstest.Err(r.ask(agentproto.Request{ID: 2, Op: agentproto.OpResume, Token: opened.Opened.Token})))
	nstest.Check(t, nstest.Err(r.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})))
}
