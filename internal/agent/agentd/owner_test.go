package agentd_test

import (
	"errors"
	"testing"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// A discriminator at which a user's program listens belongs to that user, also at the next agent before the program
// has come back; and no longer than the program listens.
func TestDiscriminatorOfAnotherUser(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	g := startAgent(t, ns, agentConfig{})
	const mine, theirs = 60001, 60002
	here := &kagent.Address{Host: ns.IPv4, Disc: []byte("service")}
	anywhere := &kagent.Address{Disc: []byte("service")}
	open := func(uid, queue int) (r *raw, token []byte) {
		t.Helper()
		r = g.rawAs(t, uid).hello()
		reply, err := r.ask(openNative(queue))
		nstest.Must(t, err)
		return r, reply.Opened.Token
	}
	resume := func(uid int, token []byte) *raw {
		t.Helper()
		r := g.rawAs(t, uid).hello()
		if _, err := r.ask(agentproto.Request{ID: 2, Op: agentproto.OpResume, Token: token}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	id := uint64(9)
	ask := func(r *raw, q agentproto.Request) (agentproto.Reply, error) {
		id++
		q.ID = id
		return r.ask(q)
	}
	listen := func(r *raw, at *kagent.Address) (uint64, error) {
		reply, err := ask(r, agentproto.Request{Op: agentproto.OpListen, Local: at})
		return reply.Handle, err
	}
	var other *raw
	refused := func(when string) {
		t.Helper()
		for _, at := range []*kagent.Address{here, anywhere} {
			if _, err := listen(other, at); !errors.Is(err, kagent.ErrListening) {
				t.Errorf("%s, listen at %v: %v, want ErrListening", when, at.Host, err)
			}
			if _, err := ask(other, agentproto.Request{Op: agentproto.OpWait, Local: at, Timeout: 1}); !errors.Is(err, kagent.ErrListening) {
				t.Errorf("%s, wait at %v: %v, want ErrListening", when, at.Host, err)
			}
		}
	}
	r, token := open(mine, 0)
	other, otherToken := open(theirs, 1)
	if _, err := listen(r, anywhere); err != nil {
		t.Fatal(err)
	}
	refused("while it listens")
	restart := func() {
		t.Helper()
		g.kill()
		g.start()
		other = resume(theirs, otherToken)
	}
	restart()
	refused("at the next agent")
	r = resume(mine, token)
	handle, err := listen(r, anywhere)
	nstest.Must(t, err)
	refused("when it listens again")
	if _, err := ask(r, agentproto.Request{Op: agentproto.OpUnlisten, Handle: handle}); err != nil {
		t.Fatal(err)
	}
	free := func(when string) {
		t.Helper()
		handle, err := listen(other, here)
		if err == nil {
			_, err = ask(other, agentproto.Request{Op: agentproto.OpUnlisten, Handle: handle})
		}
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	free("when it has closed its listener")
	restart()
	free("at the agent after that")

	// A program that comes back and does not listen any more.
	r = resume(mine, token)
	if _, err := listen(r, here); err != nil {
		t.Fatal(err)
	}
	restart()
	r = resume(mine, token)
	refused("before it has said what it wants")
	if _, err := ask(r, agentproto.Request{Op: agentproto.OpLink}); err != nil {
		t.Fatal(err)
	}
	free("when it does not want it any more")

	// A program that ends while there is no agent, or does not come back.
	if _, err := listen(r, here); err != nil {
		t.Fatal(err)
	}
	restart()
	refused("before it has come back")
	r = resume(mine, token)
	if _, err := ask(r, agentproto.Request{Op: agentproto.OpClose}); err != nil {
		t.Fatal(err)
	}
	free("when it has ended")
}

// openNative is a request for a queue.
func openNative(queue int) agentproto.Request {
	return agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{
		Interface: "via0", Queue: queue, ArenaBytes: 8 << 20, Mode: xdpnic.ModeNative,
	}}
}
