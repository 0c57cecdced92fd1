package agentd_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// Programs under the agent are notified of their interface's address, too, also of changes while there was no
// agent: their connections end long before the silence time.
func TestAddressGoes(t *testing.T) {
	for name, away := range map[string]bool{"with the agent": false, "while it is away": true} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, nstest.Options{}, agentConfig{})
			na, nb := a.nic(vipl.WithSilence(time.Minute)), b.nic(vipl.WithSilence(time.Minute))
			s := newStream(t, na, nb, "before")
			s.steps(t, 1)
			if away {
				a.kill()
			}
			h := a.ns.Netlink()
			nic := a.ns.Link(t)
			addrs, err := h.AddrList(nic, netlink.FAMILY_V4)
			nstest.Must(t, err)
			nstest.Must(t, h.AddrDel(nic, &addrs[0]))
			if away {
				a.start()
			}
			awaitBroken(t, s.from, s.to)
			if n := na.Counters(); n.SourcesLost != 1 || n.PeersLost > 0 {
				t.Errorf("%+v", n)
			}
			fresh, err := netlink.ParseAddr("10.99.0.77/24")
			nstest.Must(t, err)
			nstest.Must(t, h.AddrAdd(nic, fresh))
			newStream(t, na, nb, "after").steps(t, 1)
		})
	}
}

// A program gets the state of its interface when it asks, and the next change when it asks again. So a stopped
// program delays no other: all changes meanwhile are one message, with the final state.
func TestNextChangeIsAskedFor(t *testing.T) {
	a, _ := pair(t, nstest.Options{Queues: 2}, agentConfig{})
	r := a.raw(t).hello()
	nstest.Must(t, r.open(0))
	ask := func(id uint64, op agentproto.Op) agentproto.Reply {
		t.Helper()
		reply, err := r.ask(agentproto.Request{ID: id, Op: op})
		nstest.FatalIf(t, err != nil || reply.Link == nil, "%s: %+v, %v", op, reply, err)
		return reply
	}
	if now := ask(3, agentproto.OpWatch); now.ID != 0 || !now.Link.Has(a.ns.IPv4) {
		t.Fatalf("at first: %+v", now)
	}
	h := a.ns.Netlink()
	nic := a.ns.Link(t)
	var last netip.Addr
	for i := range uint64(30) {
		last = netip.AddrFrom4([4]byte{10, 98, 0, byte(i)})
		addr, err := netlink.ParseAddr(fmt.Sprintf("%v/32", last))
		nstest.Must(t, err)
		nstest.Must(t, h.AddrAdd(nic, addr))
		if reply := ask(10+i, agentproto.OpLink); reply.ID != 10+i || !reply.Link.Has(last) {
			t.Fatalf("change %d, unasked: %+v", i, reply)
		}
	}
	for !ask(4, agentproto.OpWatch).Link.Has(last) { // the agent may hear of the last ones later than it looks
	}
}

// A discriminator at which a user's program listens belongs to that user, also at the next agent before the program
// has come back; and no longer than the program listens.
func TestDiscriminatorOfAnotherUser(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{})
	const mine, theirs = 60001, 60002
	here := &kagent.Address{Host: g.ns.IPv4, Disc: []byte("service")}
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
		nstest.Must(t, nstest.Err(r.ask(resumeOf(token))))
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
			nstest.WantErr(t, when+", listen", nstest.Err(listen(other, at)), kagent.ErrListening)
			wait := agentproto.Request{Op: agentproto.OpWait, Local: at, Timeout: 1}
			nstest.WantErr(t, when+", wait", nstest.Err(ask(other, wait)), kagent.ErrListening)
		}
	}
	r, token := open(mine, 0)
	other, otherToken := open(theirs, 1)
	nstest.Must(t, nstest.Err(listen(r, anywhere)))
	refused("while it listens")
	restart := func() {
		t.Helper()
		g.restart()
		other = resume(theirs, otherToken)
	}
	restart()
	refused("at the next agent")
	r = resume(mine, token)
	handle, err := listen(r, anywhere)
	nstest.Must(t, err)
	refused("when it listens again")
	nstest.Must(t, nstest.Err(ask(r, agentproto.Request{Op: agentproto.OpUnlisten, Handle: handle})))
	free := func(when string) {
		t.Helper()
		handle, err := listen(other, here)
		if err == nil {
			_, err = ask(other, agentproto.Request{Op: agentproto.OpUnlisten, Handle: handle})
		}
		nstest.ErrorIf(t, err != nil, "%s: %v", when, err)
	}
	free("when it has closed its listener")
	restart()
	free("at the agent after that")

	// A program that comes back and does not listen any more.
	r = resume(mine, token)
	nstest.Must(t, nstest.Err(listen(r, here)))
	restart()
	r = resume(mine, token)
	refused("before it has said what it wants")
	nstest.Must(t, nstest.Err(ask(r, agentproto.Request{Op: agentproto.OpLink})))
	free("when it does not want it any more")

	// A program that ends while there is no agent, or does not come back.
	nstest.Must(t, nstest.Err(listen(r, here)))
	restart()
	refused("before it has come back")
	r = resume(mine, token)
	nstest.Must(t, nstest.Err(ask(r, agentproto.Request{Op: agentproto.OpClose})))
	free("when it has ended")
}
