package agentd_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// raw is a connection to an agent on which a test sends any messages.
type raw struct {
	t testing.TB
	c *net.UnixConn
	r agentproto.Reader
}

func (a *agent) raw(t testing.TB) *raw {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.socket, Net: "unix"})
	nstest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(waitLimit))
	return &raw{t, c, agentproto.Reader{C: c}}
}

// say sends a message and ignores errors.
func (r *raw) say(q agentproto.Request) {
	b, err := agentproto.Encode(&q, agentproto.MaxRequest)
	nstest.Must(r.t, err)
	_, _ = r.c.Write(b)
}

// exchange sends a message and reads the answer. The files are the caller's.
func (r *raw) exchange(q agentproto.Request) (agentproto.Reply, []*os.File, error) {
	_ = r.c.SetDeadline(time.Now().Add(waitLimit))
	r.say(q)
	reply, files, err := r.r.ReadReply()
	if err == nil && reply.Error != nil {
		err = reply.Error
	}
	return reply, files, err
}

// ask is exchange. Files stay open until the test ends.
func (r *raw) ask(q agentproto.Request) (agentproto.Reply, error) {
	reply, files, err := r.exchange(q)
	r.t.Cleanup(func() { fds.CloseFiles(files...) })
	return reply, err
}

// use is ask with the sockets and the memory of the queues closed, so that they are free when the session has ended. The
// program's sign of life stays.
func (r *raw) use(q agentproto.Request) (agentproto.Reply, error) {
	reply, files, err := r.exchange(q)
	const life = 2
	for i, f := range files {
		if i == life {
			r.t.Cleanup(func() { f.Close() })
		} else {
			f.Close()
		}
	}
	return reply, err
}

// files is exchange for a request whose reply has three files.
func (r *raw) files(q agentproto.Request) []*os.File {
	r.t.Helper()
	_, files, err := r.exchange(q)
	nstest.FatalIf(r.t, err != nil || len(files) != 3, "%s: %v, %d files", q.Op, err, len(files))
	return files
}

var helloRequest = agentproto.Request{ID: agentproto.HelloID, Op: agentproto.OpHello,
	Versions: []int{agentproto.Version}}

func (r *raw) hello() *raw {
	r.t.Helper()
	nstest.Must(r.t, nstest.Err(r.ask(helloRequest)))
	return r
}

// openOf is the request for a queue, by default of via0 with 8 MiB of memory.
func openOf(o agentproto.Open) agentproto.Request {
	o.Interface, o.ArenaBytes = cmp.Or(o.Interface, "via0"), cmp.Or(o.ArenaBytes, 8<<20)
	return agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &o}
}

func openNative(queue int) agentproto.Request {
	return openOf(agentproto.Open{Queue: queue, Mode: xdpnic.ModeNative})
}

func (r *raw) open(queue int) error { return nstest.Err(r.ask(openNative(queue))) }

func resumeOf(token []byte) agentproto.Request {
	return agentproto.Request{ID: 2, Op: agentproto.OpResume, Token: token}
}

// hungUp reports whether the agent has closed the connection.
func (r *raw) hungUp() bool {
	_, err := io.Copy(io.Discard, r.c)
	return err == nil || errors.Is(err, unix.ECONNRESET)
}

// busy starts a pair of programs that exchange messages continuously. The returned function stops them and checks
// that nothing was lost.
func busy(t *testing.T, a, b *agent, opts ...vipl.Option) (end func()) {
	t.Helper()
	na, nb := a.nic(opts...), b.nic(opts...)
	s := newStream(t, na, nb, "busy")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := s.step(); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		nstest.Check(t, <-done)
		newStream(t, na, nb, "and once more").steps(t, 1)
	}
}

// A program that breaks the protocol in any way is disconnected and has nothing afterwards. Others do not notice.
func TestHostile(t *testing.T) {
	native := vipl.WithMode(xdpnic.ModeNative, true)
	a, b := pair(t, nstest.Options{Queues: 2}, agentConfig{})
	end := busy(t, a, b, native, vipl.WithSteering(vipl.SteerOff)) // the other queue is for the programs of the test

	frame := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	for name, bytes := range map[string][]byte{
		"no JSON":        frame("hello?"),
		"too long":       binary.BigEndian.AppendUint32(nil, agentproto.MaxRequest+1),
		"nothing":        binary.BigEndian.AppendUint32(nil, 0),
		"not hello":      frame(`{"id":1,"op":"open"}`),
		"unknown field":  frame(`{"id":1,"op":"hello","versions":[1],"root":true}`),
		"two values":     frame(`{"id":1,"op":"hello","versions":[1]}{}`),
		"no such number": frame(`{"id":-1,"op":"hello","versions":[1]}`),
		"other version":  frame(`{"id":1,"op":"hello","versions":[1,99]}`),
	} {
		r := a.raw(t)
		nstest.Must(t, nstest.Err(r.c.Write(bytes)))
		nstest.ErrorIf(t, !r.hungUp(), "%s: the agent goes on listening", name)
	}
	for name, q := range map[string]agentproto.Request{
		"call before open": {ID: 2, Op: agentproto.OpNewVI},
		"second hello":     {ID: 2, Op: agentproto.OpHello, Versions: []int{agentproto.Version}},
		"no such mode":     {ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{Interface: "via0", Queue: -1, Mode: 99}},
	} {
		r := a.raw(t).hello()
		r.say(q)
		nstest.ErrorIf(t, !r.hungUp(), "%s: the agent goes on listening", name)
	}
	old := a.raw(t)
	if _, err := old.ask(agentproto.Request{ID: 1, Op: agentproto.OpHello, Versions: []int{agentproto.Version - 1}}); err == nil ||
		!strings.Contains(err.Error(), "update the older") || !old.hungUp() {
		t.Errorf("a program of the version before: %v", err)
	}
	r := a.raw(t).hello()
	nstest.WantErr(t, "a guessed token", nstest.Err(r.ask(resumeOf(make([]byte, agentproto.TokenLen)))),
		agentproto.ErrToken)
	for name, o := range map[string]agentproto.Open{
		"queue": {Queue: -7}, "arena": {ArenaBytes: -1}, "large arena": {ArenaBytes: math.MaxInt},
		"chunk size": {ChunkSize: -2048}, "large chunks": {ChunkSize: 1 << 62}, "chunks": {RxChunks: -1},
		"many chunks": {TxChunks: math.MaxInt, RxChunks: math.MaxInt},
	} {
		o.Mode, o.Queue = xdpnic.ModeNative, cmp.Or(o.Queue, 1)
		if _, err := r.ask(openOf(o)); !errors.As(err, new(*agentproto.Error)) {
			t.Errorf("open with a bad %s: %v, want an answer that says why", name, err)
		}
	}
	nstest.Must(t, r.open(1)) // the connection is still good
	for name, q := range map[string]agentproto.Request{
		"VI of nobody":  {ID: 3, Op: agentproto.OpEnter, VI: 77, Key: 1, Peer: b.ns.IPv4},
		"offer of a VI": {ID: 4, Op: agentproto.OpRequest, Local: &kagent.Address{}, Remote: &kagent.Address{Host: b.ns.IPv4}, Offer: &kagent.Offer{VI: 77}},
		"no exchange":   {ID: 5, Op: agentproto.OpAccept, Handle: 99, Offer: &kagent.Offer{}},
	} {
		_, err := r.ask(q)
		nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "not of this NIC") && !errors.Is(err, kagent.ErrCancelled), "%s: %v", name, err)
	}
	// VIs of the other program: their numbers are known, they are not this one's.
	for _, l := range a.status(t).NICs[0].Leases {
		for _, v := range l.VIs {
			if _, err := r.ask(agentproto.Request{ID: 6, Op: agentproto.OpEnter, VI: v.Num, Key: 1, Peer: b.ns.IPv4}); err == nil {
				t.Errorf("VI %#x of another program was entered", v.Num)
			}
			for _, op := range []agentproto.Op{agentproto.OpRemove, agentproto.OpFreeVI} {
				_, _ = r.ask(agentproto.Request{ID: 7, Op: op, VI: v.Num}) // does nothing
			}
		}
	}
	// As many requests that wait, and as many listeners, as a program may have.
	waits := agentproto.Request{Op: agentproto.OpWait, Local: &kagent.Address{Disc: []byte("waits")}}
	for waits.ID = 1000; waits.ID < 1512; waits.ID++ {
		r.say(waits)
	}
	nstest.WantErr(t, "one more request that waits", nstest.Err(r.ask(waits)), agentproto.ErrQuota)
	listens := agentproto.Request{ID: 8, Op: agentproto.OpListen}
	for i := range uint16(1025) {
		listens.Local = &kagent.Address{Disc: binary.BigEndian.AppendUint16(nil, i)}
		err := nstest.Err(r.ask(listens))
		nstest.FatalIf(t, errors.Is(err, agentproto.ErrQuota) != (i == 1024), "listener %d: %v", i, err)
	}
	r.c.Close()
	await.Until(t, "the queue is free", func() bool { return len(a.status(t).NICs[0].Leases) == 1 })
	end()
	if c := a.status(t).Counts; c.Invalid < 8 {
		t.Errorf("counts: %+v", c)
	}
}

// A connection that asks for the status again and again, and opens and resumes nothing, is closed.
func TestStatusAgainAndAgain(t *testing.T) {
	t.Parallel()
	r := oneAgent(t, nstest.Options{}, agentConfig{}).raw(t).hello()
	begin := time.Now()
	await.Until(t, "the agent hangs up", func() bool {
		nstest.FatalIf(t, time.Since(begin) > 20*time.Second, "the agent still answers after 20 s")
		time.Sleep(100 * time.Millisecond)
		return nstest.Err(r.ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})) != nil
	})
	nstest.ErrorIf(t, time.Since(begin) < 9*time.Second, "it hung up after %v", time.Since(begin))
}

// A session belongs to the user that opened it, even if another user has its token, and has one connection.
func TestTokenOfAnother(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	r := g.raw(t).hello()
	reply, err := r.ask(openOf(agentproto.Open{}))
	nstest.Must(t, err)
	resume := func(r *raw) error { return nstest.Err(r.hello().ask(resumeOf(reply.Opened.Token))) }
	nstest.WantErr(t, "a second connection", resume(g.raw(t)), agentproto.ErrToken)
	g.restart()
	nstest.WantErr(t, "another user", resume(g.rawAs(t, 60001)), agentproto.ErrToken)
	own := g.raw(t)
	nstest.WantErr(t, "its own", resume(own), nil)
	nstest.Check(t, nstest.Err(own.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})))
}

// A program that does not get the answer to its resume has not died: it tries again. It may do so until its first
// request other than for listeners.
func TestResumeUnanswered(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	opened, err := g.raw(t).hello().ask(openOf(agentproto.Open{}))
	nstest.Must(t, err)
	g.restart()
	resume := resumeOf(opened.Opened.Token)
	deaf := g.raw(t).hello()
	nstest.Must(t, deaf.c.CloseRead())
	deaf.say(resume)
	await.Until(t, "the agent hangs up", func() bool {
		_, err := deaf.c.Write(nil)
		if err == nil {
			_, err = deaf.c.Write([]byte{0})
		}
		return err != nil
	})
	for _, how := range []string{"without an answer", "with one", "with a listener"} {
		again := g.raw(t).hello()
		_, err := again.ask(resume)
		nstest.FatalIf(t, err != nil, "after an attempt %s: %v", how, err)
		switch how {
		case "with one":
			local := kagent.Address{Host: g.ns.IPv4, Disc: []byte("x")}
			nstest.Must(t, nstest.Err(again.ask(agentproto.Request{ID: 3, Op: agentproto.OpListen, Local: &local})))
		case "with a listener":
			nstest.Must(t, nstest.Err(again.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})))
		}
		// Close alone does not hang up while another test starts a program: the forked process has a copy until its exec.
		nstest.Must(t, again.c.CloseWrite())
		again.c.Close()
	}
	nstest.WantErr(t, "after a session that went on", nstest.Err(g.raw(t).hello().ask(resume)), agentproto.ErrToken)
	nstest.Equal(t, "deaths", g.status(t).Counts.Deaths, 1)
}

// Descriptors that a program sends do not reach the agent, which would have to close them.
func TestDescriptorsRefused(t *testing.T) {
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	r := g.raw(t)
	err := fds.With(r.c, func(fd int) error {
		return nstest.Err(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS))
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("this kernel lets everything pass")
	}
	if _, _, err := r.c.WriteMsgUnix([]byte{0}, unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("a message with a descriptor: %v, want EPERM", err)
	}
	r.hello()
}

// Programs that do not receive their descriptors do not use up the limit of descriptors in flight, which for an
// agent other than root is its limit of open files: neither with one connection nor with many that they then
// abandon.
func TestDescriptorsUnread(t *testing.T) {
	t.Parallel()
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 3})
	const most, connections = 80, 10
	cfg := leastPrivilege
	cfg.Files, cfg.Users = most, map[uint32]agentd.Quota{0: {Connections: connections}}
	g := startAgent(t, ns, cfg)
	other := g.rawAs(t, 60001).hello()
	nstest.Must(t, other.open(1))
	reply, err := other.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})
	nstest.Must(t, err)
	// hog opens a queue, requests a number of links without receiving any, and gives the queue back.
	hog := func(shmLinks uint64) error {
		r := g.raw(t)
		if _, err := r.ask(helloRequest); err != nil {
			return err
		}
		files := r.files(openNative(0))
		for i := range shmLinks {
			r.say(agentproto.Request{ID: 10 + i, Op: agentproto.OpShmLink, VI: reply.VI})
		}
		await.Until(t, "a link is there", func() bool {
			n := 0
			err := fds.With(r.c, func(fd int) (err error) {
				n, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
				return err
			})
			return err == nil && n > 0
		})
		fds.CloseFiles(files...) // which ends the session
		return nil
	}
	refused := false
	for range most {
		if err := hog(most); err != nil {
			if refused = errors.Is(err, agentproto.ErrQuota); !refused {
				t.Fatal(err)
			}
			break
		}
	}
	nstest.ErrorIf(t, !refused, "more than %d connections with something to take", connections)
	nstest.Equal(t, "failures of the descriptor store", g.log.count("the descriptor store fails"), 0)
	nstest.WantErr(t, "another user's queue", g.rawAs(t, 60001).hello().open(-1), nil)
}

// Ten thousand connections, closed at every step, some of them by the agent. Other programs do not notice, and
// nothing is left of the connections.
func TestStorm(t *testing.T) {
	native := vipl.WithMode(xdpnic.ModeNative, true)
	a, b := pair(t, nstest.Options{Queues: 2}, agentConfig{})
	end := busy(t, a, b, native, vipl.WithSteering(vipl.SteerOff)) // the other queue is for the programs of the test
	n := 10_000
	if testing.Short() {
		n = 500
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range n / 8 {
				c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.socket, Net: "unix"})
				if err != nil {
					continue // its backlog is full
				}
				stormConn(c, rnd)
			}
		})
	}
	wg.Wait()
	end()
	await.Until(t, "nothing is left", func() bool {
		st := a.status(t)
		// The NIC of busy, and the connection of this request.
		return len(st.Users) == 1 && st.Users[0].Queues == 1 && st.Users[0].Sessions == 2 && len(st.NICs[0].Leases) == 1
	})
	t.Logf("%+v", a.status(t).Counts)
}

// stormConn is one connection that ends somewhere.
func stormConn(c *net.UnixConn, rnd *rand.Rand) {
	defer c.Close()
	steps := [][]byte{}
	for _, q := range []agentproto.Request{
		helloRequest,
		openOf(agentproto.Open{Queue: 1, ArenaBytes: 4 << 20, RxChunks: 64, TxChunks: 64}),
		{ID: 3, Op: agentproto.OpNewVI},
		{ID: 4, Op: agentproto.OpWait, Local: &kagent.Address{Disc: []byte("x")}},
		{ID: 4, Op: agentproto.OpWait, Local: &kagent.Address{Disc: []byte("y")}}, // its number is taken
	} {
		b, _ := agentproto.Encode(&q, agentproto.MaxRequest)
		steps = append(steps, b)
	}
	most := 2 // opening takes the kernel long
	if rnd.IntN(50) == 0 {
		most = len(steps)
	}
	for i := range rnd.IntN(most + 1) {
		b := steps[i]
		switch rnd.IntN(10) {
		case 0:
			b = b[:rnd.IntN(len(b))]
		case 1:
			b = append([]byte(nil), b...)
			b[4+rnd.IntN(len(b)-4)] = byte(rnd.Uint32())
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// A connection without a message is closed, and takes no room from others meanwhile.
func TestHeldOpen(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{Users: map[uint32]agentd.Quota{0: {Connections: 20}}, Most: 100})
	// The requests of startAgent are over; only this one's connection is left.
	await.Until(t, "no other connection is left", func() bool { return g.status(t).Users[0].Sessions == 1 })
	var held []*raw
	for range 19 {
		held = append(held, g.raw(t))
	}
	var n *vipl.NIC
	await.Until(t, "there is room for one more", func() (ok bool) {
		var err error
		n, err = g.open()
		return err == nil
	})
	// Another user sees what is counted. Those of before may be gone, if that took long.
	other := func() kagent.DaemonCounter {
		reply, err := g.rawAs(t, 60001).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
		nstest.Must(t, err)
		return reply.Status.Counts
	}
	await.Until(t, "more connections than the quota are refused", func() bool {
		for range 20 {
			held = append(held, g.raw(t))
		}
		return other().Refused > 0
	})
	nstest.Check(t, n.Close())
	for _, r := range held {
		nstest.FatalIf(t, !r.hungUp(), "held open")
	}
}

// A user that keeps the socket of a closed queue, and opens that queue again and again, delays only itself:
// other users open and close queues of the interface meanwhile.
func TestKeptQueueHoldsUpNobody(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{})
	const hostile, honest, waiting = 60001, 60002, 7
	r := g.rawAs(t, hostile).hello()
	kept := r.files(openNative(0))
	nstest.Must(t, nstest.Err(r.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range waiting {
		all.Go(func() {
			for stopped := false; !stopped; {
				again := g.rawAs(t, hostile).hello()
				_, err := again.use(openNative(0))
				again.c.Close()
				select {
				case <-stop:
					stopped = true // the socket is not kept any more
				default:
					nstest.ErrorIf(t, !errors.Is(err, unix.EBUSY) && !errors.Is(err, kagent.ErrQueueInUse),
						"the queue whose socket is kept: %v, want EBUSY", err)
				}
			}
		})
	}
	defer all.Wait()
	defer fds.CloseFiles(kept...) // those that wait need not do so in vain, one after the other
	defer close(stop)
	meter := schedlat.Start()
	defer meter.Close()
	for round := range 5 {
		await.Until(t, "all wait", func() bool {
			return userOf(g.status(t), hostile).Queues == 1+waiting
		})
		mark := meter.Mark()
		n := g.rawAs(t, honest).hello()
		// Collapsing memory into hugepages takes CPU time, which a busy machine gives late: that is no wait for the other queue.
		files := n.files(openOf(agentproto.Open{Queue: 1, Hugepages: hugepages.Avoid, Mode: xdpnic.ModeNative}))
		fds.CloseFiles(files[:2]...) // as at a program's death: the sign of life is closed last
		nstest.Must(t, nstest.Err(n.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})))
		files[2].Close()
		// A blocked open waits for two seconds.
		if took := time.Since(mark.At); mark.Over(time.Second) {
			t.Errorf("round %d: another queue was opened and closed in %v", round, took)
		}
	}
}
