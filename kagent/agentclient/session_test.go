package agentclient

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"viaxdp/kagent"
	"viaxdp/kagent/agentproto"
)

const patience = time.Minute

// daemon is an agent that gives discriminators the handles that the test says.
type daemon struct {
	ln      *net.UnixListener
	handles map[string]uint64       // 0: taken by somebody else
	asked   chan agentproto.Request // but for hello and resume
	wg      sync.WaitGroup
	mu      sync.Mutex
	conns   []*net.UnixConn
}

func startDaemon(t *testing.T, socket string, handles map[string]uint64) *daemon {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{ln: ln, handles: handles, asked: make(chan agentproto.Request, 64)}
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
		case agentproto.OpWait:
			r = nil // the test answers
		}
		if q.Op != agentproto.OpHello && q.Op != agentproto.OpResume {
			d.asked <- q
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

// next is the next request of a kind; the others are let go.
func (d *daemon) next(t *testing.T, op agentproto.Op) agentproto.Request {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case q := <-d.asked:
			if q.Op == op {
				return q
			}
			if q.Op == "nonsense" {
				t.Fatal("a request that is against the protocol")
			}
		case <-late:
			t.Fatalf("no %s", op)
		}
	}
}

// tell answers on the connection that was made last.
func (d *daemon) tell(t *testing.T, r *agentproto.Reply) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := agentproto.WriteReply(d.conns[len(d.conns)-1], r); err != nil {
		t.Error(err)
	}
}

func startAgent(t *testing.T, socket string) *Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, r, _, err := dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(socket, make([]byte, agentproto.TokenLen), c, r)
	t.Cleanup(func() {
		s.finish(kagent.ErrClosed)
		<-s.reader
	})
	return newAgent(&share{session: s})
}

type waited struct {
	in  *kagent.Incoming
	err error
}

// Waits at listeners are asked again of the next agent, each at its own listener,
// although the numbers of the one before are now those of others; a listener that
// somebody else has taken ends its own Waits only; one that was closed while there
// was no agent stays closed.
func TestWaitsAtTheNextAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	names := []string{"a", "b", "c", "d", "lost", "closed"}
	first := startDaemon(t, socket, map[string]uint64{"a": 100, "b": 101, "c": 102, "d": 103, "lost": 104, "closed": 105})
	a := startAgent(t, socket)
	results := make(map[string]chan waited)
	listeners := make(map[string]*kagent.Listener)
	for _, name := range names {
		ln, err := a.Listen(kagent.Address{Disc: []byte(name)})
		if err != nil {
			t.Fatal(err)
		}
		listeners[name] = ln
		if name == "closed" {
			continue
		}
		results[name] = make(chan waited, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			in, err := ln.Wait(ctx)
			results[name] <- waited{in, err}
		}()
		first.next(t, agentproto.OpWait)
	}
	first.die()
	if err := listeners["closed"].Close(); err != nil {
		t.Errorf("closing a listener without an agent: %v", err)
	}

	handles := map[string]uint64{"a": 101, "b": 102, "c": 103, "d": 100, "closed": 104}
	second := startDaemon(t, socket, handles)
	if w := <-results["lost"]; !errors.Is(w.err, kagent.ErrListening) {
		t.Errorf("the Wait at the listener that is lost: %v", w.err)
	}
	of := make(map[uint64]string)
	for name, h := range handles {
		of[h] = name
	}
	for range 4 {
		q := second.next(t, agentproto.OpWait)
		name := of[q.Handle]
		if name == "" || name == "closed" {
			t.Fatalf("a Wait at %d (%q)", q.Handle, name)
		}
		delete(of, q.Handle)
		second.tell(t, &agentproto.Reply{ID: q.ID, Incoming: &agentproto.Incoming{
			Handle: 1000 + q.Handle, Local: kagent.Address{Disc: []byte(name)},
		}})
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		w := <-results[name]
		if w.err != nil {
			t.Errorf("the Wait at %s: %v", name, w.err)
		} else if got := string(w.in.Local().Disc); got != name {
			t.Errorf("the Wait at %s has taken a request to %s", name, got)
		}
	}
	if _, err := listeners["lost"].Wait(t.Context()); !errors.Is(err, kagent.ErrListening) {
		t.Errorf("another Wait at the lost one: %v", err)
	}
	if _, err := listeners["closed"].Wait(t.Context()); !errors.Is(err, kagent.ErrClosed) {
		t.Errorf("a Wait at the closed one: %v", err)
	}
	if err := listeners["d"].Close(); err != nil {
		t.Error(err)
	}
	if q := second.next(t, agentproto.OpUnlisten); q.Handle != 100 {
		t.Errorf("closing has closed %d, want 100", q.Handle)
	}
}

// A listener that is closed just when the next agent has opened it is closed there.
func TestClosedMeanwhile(t *testing.T) {
	s := &session{calls: make(map[uint64]*call), next: 16}
	l := &listener{handle: 7, closed: true}
	waits := &call{listener: l, done: make(chan struct{})}
	s.calls[9] = waits
	again := s.askAgain([]*listener{l})
	if len(again) != 1 || again[0].Op != agentproto.OpUnlisten || again[0].Handle != 7 || again[0].ID == 0 {
		t.Errorf("asked of the next agent: %+v", again)
	}
	<-waits.done
	if !errors.Is(waits.err, kagent.ErrClosed) || len(s.calls) != 0 {
		t.Errorf("the Wait: %v, %d calls", waits.err, len(s.calls))
	}
}
