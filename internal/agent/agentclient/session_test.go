package agentclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

const waitLimit = time.Minute

// daemon is an agent that assigns handles to discriminators as the test configures.
type daemon struct {
	socket  string
	ln      *net.UnixListener
	handles map[string]uint64       // taken by another program
	asked   chan agentproto.Request // but for hello and resume
	silent  atomic.Bool             // answers nothing
	vis     atomic.Uint32           // numbers that it has given
	wg      sync.WaitGroup
	mu      sync.Mutex
	conns   []*net.UnixConn
}

func startDaemon(t *testing.T, socket string, handles map[string]uint64) *daemon {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	nstest.Must(t, err)
	d := &daemon{socket: socket, ln: ln, handles: handles, asked: make(chan agentproto.Request, 64)}
	d.wg.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, c)
			d.mu.Unlock()
			d.wg.Go(func() { d.serve(c) })
		}
	})
	t.Cleanup(d.die)
	return d
}

func (d *daemon) serve(c *net.UnixConn) {
	defer c.Close()
	for {
		q, err := agentproto.ReadRequest(c, nil)
		if errors.Is(err, agentproto.ErrProtocol) {
			d.asked <- agentproto.Request{Op: "nonsense"}
		}
		if err != nil {
			return
		}
		r := &agentproto.Reply{ID: q.ID}
		switch q.Op {
		case agentproto.OpHello:
			r.Welcome = &agentproto.Welcome{Version: agentproto.Version}
		case agentproto.OpListen:
			if r.Handle = d.handles[string(q.Local.Disc)]; r.Handle == 0 {
				r.Error = agentproto.NewError(kagent.ErrListening)
			}
		case agentproto.OpWait, agentproto.OpRequest:
			r = nil // the test answers
		case agentproto.OpCancel:
			r = nil // it has none of its own
		case agentproto.OpNewVI:
			r.VI = uint32(d.vis.Add(1))
		}
		if q.Op != agentproto.OpHello && q.Op != agentproto.OpResume {
			d.asked <- q
		}
		if d.silent.Load() {
			r = nil
		}
		if r != nil && agentproto.WriteReply(c, r) != nil {
			return
		}
	}
}

func (d *daemon) die() {
	_ = d.ln.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// next returns the next request of a kind, and skips others.
func (d *daemon) next(t *testing.T, op agentproto.Op) agentproto.Request {
	t.Helper()
	late := time.After(waitLimit)
	for {
		select {
		case q := <-d.asked:
			if q.Op == op {
				return q
			}
			nstest.FatalIf(t, q.Op == "nonsense", "a request that is against the protocol")
		case <-late:
			t.Fatalf("no %s", op)
		}
	}
}

// tell answers on the latest connection.
func (d *daemon) tell(t *testing.T, r *agentproto.Reply) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	nstest.Check(t, agentproto.WriteReply(d.conns[len(d.conns)-1], r))
}

// successor is the next daemon, after this one has died.
func (d *daemon) successor(t *testing.T, handles map[string]uint64) *daemon {
	t.Helper()
	d.die()
	return startDaemon(t, d.socket, handles)
}

func startBoth(t *testing.T, handles map[string]uint64) (*daemon, *Agent) {
	t.Helper()
	d := startDaemon(t, filepath.Join(t.TempDir(), "agent"), handles)
	return d, startAgent(t, d.socket)
}

func startAgent(t *testing.T, socket string) *Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	c, r, _, err := dial(ctx, socket)
	nstest.Must(t, err)
	s := newSession(socket, make([]byte, agentproto.TokenLen), c, r, nil)
	t.Cleanup(func() {
		s.finish(kagent.ErrClosed)
		<-s.reader
	})
	return newAgent(&share{session: s})
}

// Waits at listeners are repeated to the next agent, each at its own listener, although the handles of the
// previous agent now belong to others. A listener that another program has taken ends only its own Waits. One
// that was closed while there was no agent stays closed.
func TestWaitsAtTheNextAgent(t *testing.T) {
	names := []string{"a", "b", "c", "d", "lost", "closed"}
	first, a := startBoth(t, map[string]uint64{"a": 100, "b": 101, "c": 102, "d": 103, "lost": 104, "closed": 105})
	results := make(map[string]chan error)
	var incoming sync.Map // by name
	listeners := make(map[string]kagent.Listener)
	for _, name := range names {
		ln, err := a.Listen(kagent.Address{Disc: []byte(name)})
		nstest.Must(t, err)
		listeners[name] = ln
		if name == "closed" {
			continue
		}
		ended := make(chan error, 1)
		results[name] = ended
		go func() {
			in, err := ln.Wait(t.Context())
			incoming.Store(name, in)
			ended <- err
		}()
		first.next(t, agentproto.OpWait)
	}
	first.die()
	nstest.WantErr(t, "closing a listener without an agent", listeners["closed"].Close(), nil)

	handles := map[string]uint64{"a": 101, "b": 102, "c": 103, "d": 100, "closed": 104}
	second := first.successor(t, handles)
	nstest.WantErr(t, "the Wait at the listener that is lost", <-results["lost"], kagent.ErrListening)
	of := make(map[uint64]string)
	for name, h := range handles {
		of[h] = name
	}
	for range 4 {
		q := second.next(t, agentproto.OpWait)
		name := of[q.Handle]
		nstest.FatalIf(t, name == "" || name == "closed", "a Wait at %d (%q)", q.Handle, name)
		delete(of, q.Handle)
		second.tell(t, &agentproto.Reply{ID: q.ID, Incoming: &agentproto.Exchange{
			Handle: 1000 + q.Handle, Local: kagent.Address{Disc: []byte(name)},
		}})
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		nstest.Must(t, <-results[name])
		in, _ := incoming.Load(name)
		nstest.Equal(t, "the discriminator of the request", string(in.(kagent.Incoming).Local().Disc), name)
	}
	nstest.WantErr(t, "another Wait at the lost one", nstest.Err(listeners["lost"].Wait(t.Context())), kagent.ErrListening)
	nstest.WantErr(t, "a Wait at the closed one", nstest.Err(listeners["closed"].Wait(t.Context())), kagent.ErrClosed)
	nstest.Check(t, listeners["d"].Close())
	nstest.Equal(t, "the handle that closing closes", second.next(t, agentproto.OpUnlisten).Handle, 100)
}

// A Wait that was cancelled before the agent died ends when it dies, and is not repeated to the next agent.
func TestCancelledWaits(t *testing.T) {
	first, a := startBoth(t, nil)
	const waits = 20
	ctx, cancel := context.WithCancel(t.Context())
	ended := startWaits(ctx, t, first, a, waits)
	cancel()
	for range waits {
		first.next(t, agentproto.OpCancel)
	}
	second := first.successor(t, nil)
	nstest.Must(t, nstest.Err(a.NewVI()))
	if q := <-second.asked; q.Op != agentproto.OpNewVI {
		t.Fatalf("the next agent is asked for %s %d, which was cancelled", q.Op, q.ID)
	}
	for range waits {
		nstest.WantErr(t, "a cancelled Wait", <-ended, context.Canceled)
	}
}

// A Wait that is cancelled while the session asks the next agent again is not cancelled there before it is asked for, which
// would have no effect.
func TestCancelledWhileAskedAgain(t *testing.T) {
	first, a := startBoth(t, nil)
	s := a.share.session
	const waits = 500
	ctx, cancel := context.WithCancel(t.Context())
	ended := startWaits(ctx, t, first, a, waits)
	first.die()
	s.wmu.Lock()
	second := first.successor(t, nil)
	await.Until(t, "the session is back", func() bool {
		second.mu.Lock()
		defer second.mu.Unlock()
		return len(second.conns) > 0
	})
	time.Sleep(50 * time.Millisecond) // for its messages to wait
	cancel()
	time.Sleep(50 * time.Millisecond) // for the cancellations to wait
	s.wmu.Unlock()
	over := make(chan error, 1)
	go func() { over <- nstest.Err(a.NewVI()) }()
	asked := make(map[uint64]bool)
	for left := 1; left > 0; {
		select {
		case q := <-second.asked:
			asked[q.ID] = asked[q.ID] || q.Op == agentproto.OpWait
			nstest.FatalIf(t, q.Op == agentproto.OpCancel && !asked[q.Target], "Wait %d is cancelled before it is asked for", q.Target)
		case err := <-over:
			nstest.Must(t, err)
			left--
		}
	}
	for range waits {
		nstest.WantErr(t, "a cancelled Wait", <-ended, context.Canceled)
	}
}

// startWaits starts n Waits, for which the daemon has been asked when it returns.
func startWaits(ctx context.Context, t *testing.T, d *daemon, a *Agent, n int) (ended chan error) {
	t.Helper()
	ended = make(chan error, n)
	for range n {
		go func() { ended <- nstest.Err(a.Wait(ctx, kagent.Address{Disc: []byte("x")})) }()
		d.next(t, agentproto.OpWait)
	}
	return ended
}

// A listener that is closed just when the next agent has opened it is also closed there.
func TestClosedMeanwhile(t *testing.T) {
	s := &session{calls: make(map[uint64]*call), next: 16}
	l := &listener{handle: 7, closed: true}
	waits := &call{listener: l, done: make(chan struct{})}
	s.calls[9] = waits
	again := s.askAgain([]*listener{l})
	nstest.ErrorIf(t, len(again) != 1 || again[0].Op != agentproto.OpUnlisten || again[0].Handle != 7 || again[0].ID == 0, "asked of the next agent: %+v", again)
	<-waits.done
	nstest.ErrorIf(t, !errors.Is(waits.err, kagent.ErrClosed) || len(s.calls) != 0,
		"the Wait: %v, %d calls", waits.err, len(s.calls))
}

// Closing a listener ends its Waits although the agent is away, or does not answer. Other Waits stay.
func TestCloseEndsWaits(t *testing.T) {
	for name, leave := range map[string]func(*daemon){
		"away":   (*daemon).die,
		"silent": func(d *daemon) { d.silent.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			d, a := startBoth(t, map[string]uint64{"a": 100})
			ln, err := a.Listen(kagent.Address{Disc: []byte("a")})
			nstest.Must(t, err)
			other := startWaits(t.Context(), t, d, a, 1)
			ended := make(chan error, 1)
			go func() { ended <- nstest.Err(ln.Wait(t.Context())) }()
			d.next(t, agentproto.OpWait)
			leave(d)
			go ln.Close() // which waits for the silent one
			select {
			case err := <-ended:
				nstest.WantErr(t, "the Wait", err, kagent.ErrClosed)
			case err := <-other:
				t.Errorf("another Wait: %v", err)
			case <-time.After(waitLimit):
				t.Error("the Wait goes on")
			}
		})
	}
}

// The handle of an exchange belongs to the agent that assigned it. An exchange of a dead agent is neither confirmed
// nor declined at the next one, at which the handle may be another exchange's.
func TestAnswersOfTheAgentBefore(t *testing.T) {
	first, a := startBoth(t, nil)
	host := kagent.Address{Host: netip.MustParseAddr("10.0.0.1"), Disc: []byte("x")}
	var answers []*kagent.Answer
	for handle := range uint64(2) {
		asked := make(chan error, 1)
		go func() {
			answer, err := a.Request(t.Context(), host, host, kagent.Offer{VI: 1})
			answers = append(answers, answer)
			asked <- err
		}()
		q := first.next(t, agentproto.OpRequest)
		first.tell(t, &agentproto.Reply{ID: q.ID, Answer: &agentproto.Exchange{Handle: 1 + handle}})
		nstest.Must(t, <-asked)
	}
	second := first.successor(t, nil)
	nstest.Must(t, nstest.Err(a.NewVI())) // the next agent is there
	second.next(t, agentproto.OpNewVI)
	nstest.WantErr(t, "confirmed", answers[0].ConfirmWith(nil), kagent.ErrVanished)
	answers[1].Decline(0)
	nstest.Must(t, nstest.Err(a.NewVI()))
	for q := range second.asked {
		if q.Op == agentproto.OpNewVI {
			break
		}
		t.Errorf("the next agent was asked to %s exchange %d", q.Op, q.Handle)
	}
}

// A request for a connection from a dead agent is not one of the next agent with the same handle.
func TestIncomingOfTheAgentBefore(t *testing.T) {
	s := &session{calls: make(map[uint64]*call), incoming: make(map[uint64]*incoming), next: 16, agents: 1}
	var arrived [2]*call
	for i := range arrived {
		c := &call{done: make(chan struct{})}
		s.calls[uint64(20+i)] = c
		s.take(&agentproto.Reply{ID: uint64(20 + i), Incoming: &agentproto.Exchange{Handle: 5}}, nil)
		if arrived[i] = c; i == 0 {
			s.lost()
		}
	}
	nstest.WantErr(t, "rejected", arrived[0].arrived.Reject(0), kagent.ErrVanished)
	arrived[0].arrived.forget()
	nstest.ErrorIf(t, s.incoming[5] != arrived[1].arrived, "the next agent's report on its exchange is lost")
}

// Whatever the reply to an abandoned call brings is given back.
func TestLateReplies(t *testing.T) {
	d, a := startBoth(t, nil)
	s := a.share.session
	for op, reply := range map[agentproto.Op]*agentproto.Reply{
		agentproto.OpUnlisten: {Handle: 5},
		agentproto.OpReject:   {Incoming: &agentproto.Exchange{Handle: 6}},
		agentproto.OpDecline:  {Answer: &agentproto.Exchange{Handle: 7}},
		agentproto.OpFreeVI:   {VI: 8},
	} {
		c := &call{request: agentproto.Request{Op: agentproto.OpWait, Handle: 1}}
		s.mu.Lock()
		_, _, err := s.enter(t.Context(), c)
		s.mu.Unlock()
		nstest.Must(t, err)
		nstest.FatalIf(t, !s.drop(c), "it was not under way")
		nstest.ErrorIf(t, s.drop(c), "it was still under way")
		reply.ID = c.request.ID
		d.tell(t, reply)
		want := reply.Handle + uint64(reply.VI)
		if reply.Incoming != nil {
			want = reply.Incoming.Handle
		} else if reply.Answer != nil {
			want = reply.Answer.Handle
		}
		if q := d.next(t, op); q.Handle+uint64(q.VI) != want {
			t.Errorf("%s %d, want %d", op, q.Handle+uint64(q.VI), want)
		}
	}
}

// A session closes within its time limit although the agent does not answer, or is being looked for.
func TestCloseBesideSilentAgent(t *testing.T) {
	d, a := startBoth(t, nil)
	d.silent.Store(true)
	begin := time.Now()
	a.share.session.close(20 * time.Millisecond)
	if took := time.Since(begin); took >= callTime {
		t.Errorf("closing has taken %v", took)
	}
	d.silent.Store(false)
	b := startAgent(t, d.socket)
	next := d.successor(t, nil)
	next.silent.Store(true)
	await.Until(t, "the next agent is asked", func() bool {
		next.mu.Lock()
		defer next.mu.Unlock()
		return len(next.conns) > 0
	})
	begin = time.Now()
	b.share.session.close(20 * time.Millisecond)
	if took := time.Since(begin); took >= helloTime {
		t.Errorf("closing has taken %v", took)
	}
}

// A handle that shares a queue closes within its time limit although the agent does not answer. The agent gets the
// request when it continues.
func TestHandleClosedBesideSilentAgent(t *testing.T) {
	t.Parallel()
	d, a := startBoth(t, map[string]uint64{"a": 100, "b": 101})
	a.share.refs = 2
	for _, name := range []string{"a", "b"} {
		nstest.Must(t, nstest.Err(a.Listen(kagent.Address{Disc: []byte(name)})))
		nstest.Must(t, nstest.Err(a.NewVI()))
	}
	d.silent.Store(true)
	begin := time.Now()
	nstest.Check(t, a.Close())
	if took := time.Since(begin); took >= 3*closeTime {
		t.Errorf("closing has taken %v", took)
	}
	if first, second := d.next(t, agentproto.OpUnlisten), d.next(t, agentproto.OpUnlisten); first.Handle+second.Handle != 201 {
		t.Errorf("unlistened: %d and %d", first.Handle, second.Handle)
	}
	if first, second := d.next(t, agentproto.OpFreeVI), d.next(t, agentproto.OpFreeVI); first.VI+second.VI != 3 {
		t.Errorf("freed: %d and %d", first.VI, second.VI)
	}
}

// Calls do not wait much longer than their time limit for an agent that does not answer. What is to be taken back stays asked
// for.
func TestCallsBesideSilentAgent(t *testing.T) {
	t.Parallel()
	d, a := startBoth(t, nil)
	num, err := a.NewVI()
	nstest.Must(t, err)
	d.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	nstest.WantErr(t, "a path", nstest.Err(a.Path(ctx, netip.Addr{}, netip.Addr{})), kagent.ErrTimeout)
	if took := time.Since(begin); took >= helloTime {
		t.Errorf("a call of 50 ms has taken %v", took)
	}
	begin = time.Now()
	nstest.WantErr(t, "removing", a.Remove(num), context.DeadlineExceeded)
	if took := time.Since(begin); took >= 2*closeTime {
		t.Errorf("removing has taken %v", took)
	}
	nstest.Equal(t, "the VI that the next agent removes", d.successor(t, nil).next(t, agentproto.OpRemove).VI, num)
}

// The next agent is asked in the order of the calls: a VI is removed before it is entered again.
func TestAskedAgainInOrder(t *testing.T) {
	s := &session{calls: make(map[uint64]*call)}
	for id := uint64(1); id <= 100; id++ {
		s.calls[id] = &call{request: agentproto.Request{ID: id, Op: agentproto.OpEnter}, done: make(chan struct{})}
	}
	for i, q := range s.askAgain(nil) {
		nstest.FatalIf(t, q.ID != uint64(i+1), "request %d is asked for at place %d", q.ID, i)
	}
}

// A reply of a daemon with inconsistent parts is detected.
func TestCheckOpened(t *testing.T) {
	const arena, pool = 8 << 20, 32 * 2048
	good := func() *agentproto.Opened {
		o := &agentproto.Opened{Token: make([]byte, agentproto.TokenLen)}
		o.Info.Info.Arena = hugepages.Info{Size: arena, Reserve: pool}
		o.Queue.Config = xdpnic.Config{ChunkSize: 2048, RxChunks: 16, TxChunks: 16}
		return o
	}
	for _, wanted := range []int{0, arena, arena - 1, arena - 2<<20 + 1} {
		nstest.WantErr(t, fmt.Sprintf("%d wanted", wanted), checkOpened(good(), wanted), nil)
	}
	for what, spoil := range map[string]func(o *agentproto.Opened){
		"no token":            func(o *agentproto.Opened) { o.Token = nil },
		"less memory":         func(o *agentproto.Opened) { o.Info.Info.Arena.Size-- },
		"more memory":         func(o *agentproto.Opened) { o.Info.Info.Arena.Size = 1 << 46 },
		"chunks among blocks": func(o *agentproto.Opened) { o.Info.Info.Arena.Reserve-- },
		"a pool at the end":   func(o *agentproto.Opened) { o.Queue.Config.PoolOffset = 4096 },
		"a pool before it":    func(o *agentproto.Opened) { o.Queue.Config.PoolOffset = -4096 },
		"negative chunks":     func(o *agentproto.Opened) { o.Queue.Config.RxChunks = -64 },
	} {
		o := good()
		spoil(o)
		nstest.WantErr(t, what, checkOpened(o, arena), agentproto.ErrProtocol)
	}
}

// A watcher's callback delays no call to the agent, this one or the next. It gets the latest state, and then
// the agent is asked for the next change.
func TestWhoIsToldKeepsNobodyWaiting(t *testing.T) {
	first, a := startBoth(t, nil)
	told, free := make(chan int, 16), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	a.Watch(func(l kagent.Link) {
		told <- l.MTU
		<-free
	})
	wants := func(mtu int) {
		t.Helper()
		select {
		case got := <-told:
			nstest.ErrorIf(t, got != mtu, "told of change %d, want %d", got, mtu)
		case <-time.After(waitLimit):
			t.Fatalf("no watcher was notified of change %d", mtu)
		}
	}
	first.next(t, agentproto.OpWatch)
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 1}})
	wants(1)
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 2}})
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 3}})
	nstest.WantErr(t, "during a callback", nstest.Err(a.NewVI()), nil)
	second := first.successor(t, nil)
	nstest.WantErr(t, "the next agent, during a callback", nstest.Err(a.NewVI()), nil)
	second.next(t, agentproto.OpWatch)
	release()
	wants(3)
	second.next(t, agentproto.OpWatch)
	second.next(t, agentproto.OpWatch)
}
