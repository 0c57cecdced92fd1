package agentd_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// An interface that is renamed while it is in use keeps its programs when the next agent takes over: their connections go on,
// they connect again, and others open it by its new name. The agent reports it by that name, too.
func TestRenamedInterface(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nstest.Options{}, agentConfig{})
	na, nb := a.nic(), b.nic()
	s := newStream(t, na, nb, "before")
	s.steps(t, 10)
	nl := a.ns.Netlink()
	link := a.ns.Link(t)
	for _, name := range []string{"via7", "via0"} { // and back
		nstest.Must(t, nl.LinkSetName(link, name))
		nstest.Equal(t, "the name that the agent reports", a.status(t).NICs[0].Interface, name)
		a.restart()
		s.steps(t, 10)
		newStream(t, na, nb, "as "+name).steps(t, 10)
		r := a.raw(t).hello()
		open := smallOpen
		more := *open.Open
		more.Interface = name
		open.Open = &more
		_, files, err := r.exchange(open)
		nstest.Must(t, err)
		fds.CloseFiles(files...)
		nstest.Equal(t, "interfaces in the status", len(a.status(t).NICs), 1)
		nstest.Check(t, r.c.Close())
		await.Until(t, "the other program is gone", func() bool { return len(a.status(t).NICs[0].Leases) == 1 })
	}
}

// Another interface with the number of one that was removed while no agent ran is not taken for a renamed one.
func TestNotRenamedInterface(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	r := g.raw(t).hello()
	files := r.files(openOf(agentproto.Open{}))
	defer fds.CloseFiles(files...)
	g.kill()
	g.ns.Remove(t)
	other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "via7", Index: g.ns.Index}, PeerName: "via8"}
	nstest.Must(t, g.ns.Netlink().LinkAdd(other))
	g.start()
	if st := g.status(t); len(st.NICs) != 0 || len(st.Users) != 1 || st.Users[0].Queues != 1 {
		t.Errorf("status: %+v, want what the program has, and no interface", st)
	}
	nstest.Must(t, g.ns.Netlink().LinkDel(other))
}

// An interface that was moved away and back while no agent ran is a new one, though its name, number and program are those of
// the old one: what programs had of it is no queue of it, and others get one.
func TestMovedAwayAndBack(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	files := g.raw(t).hello().files(openOf(agentproto.Open{}))
	defer fds.CloseFiles(files...)
	g.kill()
	g.ns.MoveAway(t)(false)
	g.start()
	if st := g.status(t); len(st.NICs) != 0 || len(st.Users) != 1 || st.Users[0].Queues != 1 {
		t.Errorf("status: %+v, want what the program has, and no interface", st)
	}
	more := g.raw(t).hello().files(openOf(agentproto.Open{}))
	defer fds.CloseFiles(more...)
	if st := g.status(t); len(st.NICs) != 1 || st.Users[0].Queues != 2 {
		t.Errorf("status: %+v, want a queue of the new interface", st)
	}
}

// A handle does not share the queue of an interface that has been renamed, if another one has its name now and no queue free.
func TestOldNameOfAnother(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	old := g.nic()
	nl := g.ns.Netlink()
	link := g.ns.Link(t)
	nstest.Must(t, nl.LinkSetName(link, "via7"))
	nstest.Must(t, nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "via0"}, PeerName: "via8"}))
	defer fds.CloseFiles(g.raw(t).hello().files(openOf(agentproto.Open{}))...)
	more, err := g.open()
	if err == nil {
		nstest.Check(t, more.Close())
	}
	nstest.WantErr(t, "a further handle", err, vipl.ErrResource)
	nstest.Equal(t, "the interface of the first one", old.Info().Index, g.ns.Index)
}
