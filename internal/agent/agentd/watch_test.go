package agentd_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// Programs under the agent are notified of their interface's address, too, also of changes while there was no
// agent: their connections end long before the silence time.
func TestAddressGoes(t *testing.T) {
	for _, away := range []bool{false, true} {
		name := "with the agent"
		if away {
			name = "while it is away"
		}
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, nstest.Options{}, agentConfig{})
			na, nb := a.nic(vipl.WithSilence(time.Minute)), b.nic(vipl.WithSilence(time.Minute))
			s := &stream{from: newEnd(t, na), to: newEnd(t, nb)}
			connect(t, s.from, s.to, "before")
			nstest.Must(t, s.step())
			if away {
				a.kill()
			}
			h := a.ns.Netlink()
			nic, err := h.LinkByIndex(a.ns.Index)
			nstest.Must(t, err)
			addrs, err := h.AddrList(nic, netlink.FAMILY_V4)
			nstest.Must(t, err)
			nstest.Must(t, h.AddrDel(nic, &addrs[0]))
			if away {
				a.start()
			}
			start := time.Now()
			for _, e := range []*end{s.from, s.to} {
				await.Until(t, "the connection ends", func() bool {
					st, err := e.vi.Query()
					return err == nil && st.State == vipl.Error
				})
			}
			t.Logf("both sides knew after %v", time.Since(start))
			if n := na.Counters(); n.SourcesLost != 1 || n.PeersLost > 0 {
				t.Errorf("%+v", n)
			}
			fresh, err := netlink.ParseAddr("10.99.0.77/24")
			nstest.Must(t, err)
			nstest.Must(t, h.AddrAdd(nic, fresh))
			again := &stream{from: newEnd(t, na), to: newEnd(t, nb)}
			connect(t, again.from, again.to, "after")
			nstest.Must(t, again.step())
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
		if err != nil || reply.Link == nil {
			t.Fatalf("%s: %+v, %v", op, reply, err)
		}
		return reply
	}
	if now := ask(3, agentproto.OpWatch); now.ID != 0 || !now.Link.Has(a.ns.IPv4) {
		t.Fatalf("at first: %+v", now)
	}
	h := a.ns.Netlink()
	nic, err := h.LinkByIndex(a.ns.Index)
	nstest.Must(t, err)
	const changes = 30
	last := netip.Addr{}
	for i := range uint64(changes) {
		last = netip.AddrFrom4([4]byte{10, 98, 0, byte(i)})
		addr, err := netlink.ParseAddr(fmt.Sprintf("%v/32", last))
		nstest.Must(t, err)
		nstest.Must(t, h.AddrAdd(nic, addr))
		if reply := ask(10+i, agentproto.OpLink); reply.ID != 10+i || !reply.Link.Has(last) {
			t.Fatalf("change %d, unasked: %+v", i, reply)
		}
	}
	// The agent may hear of the last ones later than it looks.
	asked := 1
	for !ask(4, agentproto.OpWatch).Link.Has(last) {
		asked++
	}
	t.Logf("asked %d times for the last of %d changes", asked, changes)
}
