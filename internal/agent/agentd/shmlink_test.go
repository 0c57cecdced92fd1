package agentd_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// charged waits until root is charged with this number of bytes, and with no others.
func (a *agent) charged(t *testing.T, what string, bytes int) {
	t.Helper()
	has := 0
	defer func() { nstest.Equal(t, what+": bytes that are charged", has, bytes) }()
	await.Until(t, fmt.Sprintf("%s: %d bytes are charged", what, bytes), func() bool {
		has = 0
		for _, u := range a.status(t).Users {
			has += u.PinnedBytes
		}
		return has == bytes
	})
}

// pins returns what the queues of NICs pin.
func pins(all ...*vipl.NIC) (sum int) {
	for _, n := range all {
		sum += n.Info().Arena.Size + rings(n)
	}
	return sum
}

// The memory of a link is charged at each end, once for all connections, also by the next agent, which hands out
// the same link. When one queue is given back, it stays charged at the other end until the program there has ended
// its connections over the link.
func TestQuotaOfLink(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1})
	native := vipl.WithMode(xdpnic.ModeNative, true)
	a, err := g.open(native, vipl.WithQueue(0), vipl.WithSilence(time.Minute))
	nstest.Must(t, err)
	b := g.nic(native, vipl.WithQueue(1), vipl.WithSilence(time.Minute))
	g.charged(t, "without a connection", pins(a, b))
	const shmLink = device.LinkBytes
	ea, eb := newEnd(t, a), newEnd(t, b)
	connect(t, ea, eb, "first")
	exchange(t, ea, eb, "by the link")
	g.charged(t, "with one", pins(a, b)+2*shmLink)
	second := newEnd(t, b)
	connect(t, newEnd(t, a), second, "second")
	g.charged(t, "with two", pins(a, b)+2*shmLink)

	g.restart()
	g.charged(t, "at the next agent", pins(a, b)+2*shmLink)
	third := newEnd(t, b)
	connect(t, newEnd(t, a), third, "third")
	exchange(t, ea, eb, "goes on")
	g.charged(t, "with one more there", pins(a, b)+2*shmLink)

	nstest.Must(t, a.Close())
	g.charged(t, "of the end that is left", pins(b)+shmLink)
	c := g.nic(native, vipl.WithQueue(0), vipl.WithSilence(time.Minute))
	ec, ed := newEnd(t, c), newEnd(t, b)
	connect(t, ec, ed, "with the queue's next holder")
	g.charged(t, "with another link", pins(b, c)+3*shmLink)
	g.restart()
	g.charged(t, "at the agent after that", pins(b, c)+3*shmLink)
	for _, e := range []*end{eb, second, third} {
		nstest.Must(t, e.vi.Disconnect())
	}
	g.charged(t, "after the end of the connections", pins(b, c)+2*shmLink)
	exchange(t, ec, ed, "by the other link")
}

// rawLink is a raw program with a queue and a VI.
type rawLink struct {
	*raw
	queue   []*os.File // socket, memory, sign of life
	vi      uint32
	shmLink []*os.File // memory, bells
}

func (a *agent) rawLink(t *testing.T, program *raw) *rawLink {
	t.Helper()
	r := &rawLink{raw: program.hello()}
	r.queue = r.files(openOf(agentproto.Open{Queue: kagent.AnyQueue, RxChunks: 64, TxChunks: 64, Mode: xdpnic.ModeNative}))
	reply, err := r.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})
	nstest.Must(t, err)
	r.vi = reply.VI
	t.Cleanup(r.close)
	return r
}

func (r *rawLink) close() {
	fds.CloseFiles(append(r.queue, r.shmLink...)...)
	r.c.Close()
}

// join gets the link to another program, and fills its memory.
func (r *rawLink) join(t *testing.T, other *rawLink) {
	t.Helper()
	r.shmLink = r.files(agentproto.Request{ID: 4, Op: agentproto.OpShmLink, VI: other.vi})
	nstest.Must(t, nstest.Err(r.shmLink[0].WriteAt(make([]byte, device.LinkBytes), 0)))
}

// The memory of a link is charged as long as a program pins it: at the end that has hung up until its socket is
// closed, at the other end until the bell is closed, by this agent and the next. Then the pages are freed, although
// the programs still have the memory.
func TestQuotaOfKeptLink(t *testing.T) {
	const shmLink = device.LinkBytes
	queue := kagent.Config{ArenaBytes: 8 << 20, RxChunks: 64, TxChunks: 64}.PinnedBytes()
	for _, first := range []string{"the one that has hung up", "the other one", "neither: both hang up"} {
		t.Run(first, func(t *testing.T) {
			g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1})
			a, b := g.rawLink(t, g.raw(t)), g.rawLink(t, g.raw(t))
			a.join(t, b)
			g.charged(t, "at one end", 2*queue+shmLink)
			b.join(t, a)
			g.charged(t, "at both ends", 2*queue+2*shmLink)
			a.c.Close()
			await.Until(t, "the session is over", func() bool { return len(g.status(t).NICs[0].Leases) == 1 })
			g.charged(t, "with a socket that is kept", 2*queue+2*shmLink)
			g.restart()
			g.charged(t, "at the next agent", 2*queue+2*shmLink)

			letGo := func() {
				a.queue[0].Close()
				a.queue[2].Close()
			}
			freed := func() { await.Until(t, "the pages are freed", func() bool { return blocks(t, b.shmLink[0]) == 0 }) }
			there := func() {
				t.Helper()
				nstest.ErrorIf(t, blocks(t, b.shmLink[0]) == 0, "the memory is gone that a program is charged with")
			}
			back := g.raw(t).hello()
			defer back.c.Close()
			switch first {
			case "the one that has hung up":
				letGo()
				g.charged(t, "when it has let go", queue+shmLink)
				there()
				b.shmLink[1].Close()
				b.shmLink[2].Close()
				g.charged(t, "when the other one has, too", queue)
				freed()
			case "the other one":
				b.shmLink[1].Close()
				g.charged(t, "with a bell of two", 2*queue+2*shmLink)
				there()
				b.shmLink[2].Close()
				g.charged(t, "without a bell", 2*queue+shmLink)
				freed()
				letGo()
				g.charged(t, "at the end", queue)
			default:
				b.queue[0].Close()
				b.queue[2].Close()
				g.charged(t, "when the other one is gone", queue+shmLink)
				freed()
				letGo()
				g.charged(t, "at the end", 0)
			}
		})
	}
}

// A link that exceeds the quota is refused with cause and remedy, and so is the connect, since there is no other
// path between two queues of one interface. Nothing is charged for it, and existing links continue.
func TestQuotaRefusesLink(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 4})
	const room = 32<<20 + device.LinkBytes/2
	g := startAgent(t, ns, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{0: {PinnedBytes: room}}})
	native := vipl.WithMode(xdpnic.ModeNative, true)
	a, b := g.nic(native, vipl.WithQueue(0)), g.nic(native, vipl.WithQueue(1))
	ea, eb := newEnd(t, a), newEnd(t, b)
	accepted := accept(eb, "d")
	err := request(ea, eb, "d", func() {})
	nstest.ErrorIf(t, err == nil, "the connect is not refused")
	err = <-accepted
	if !errors.Is(err, agentproto.ErrQuota) || !errors.Is(err, vipl.ErrResource) ||
		!strings.Contains(err.Error(), "shared-memory link") || !strings.Contains(err.Error(), "raise it in the agent's settings") {
		t.Errorf("accept: %v, want ErrResource for the quota, with cause and remedy", err)
	}
	g.charged(t, "after the refusal", pins(a, b))
	// On one queue they need none.
	other := newEnd(t, a)
	connect(t, ea, other, "one queue")
	exchange(t, ea, other, "without a link")
}

// A user that has requested links to missing VIs too often gets the same answer for every VI, also on another
// connection after all of its own have ended. Other users are not affected.
func TestLinkMisses(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1})
	const user = 60001
	victim, third := g.rawLink(t, g.raw(t)), g.rawLink(t, g.raw(t))
	shmLink := func(r *rawLink, vi uint32) error {
		t.Helper()
		reply, err := r.ask(agentproto.Request{ID: 5, Op: agentproto.OpShmLink, VI: vi})
		nstest.FatalIf(t, err == nil && reply.ShmLink == nil, "neither a link nor an error")
		return err
	}
	guess := func(r *rawLink, times int) (err error) {
		t.Helper()
		for range times {
			if err = shmLink(r, victim.vi^1<<16); !errors.Is(err, kagent.ErrUnreachable) {
				t.Fatalf("a VI that is not there: %v, want ErrUnreachable", err)
			}
		}
		return err
	}
	r := g.rawLink(t, g.rawAs(t, user))
	guess(r, 10)
	nstest.WantErr(t, "after ten misses", shmLink(r, victim.vi), nil)
	// From time to time a miss is allowed again, perhaps just before the program asks for the victim's.
	var missed, refused error
	await.Until(t, "the victim's VI is denied", func() bool {
		missed = guess(r, 100)
		r.close()
		await.Until(t, "the user is forgotten", func() bool { return userOf(g.status(t), user).UID == 0 })
		r = g.rawLink(t, g.rawAs(t, user))
		refused = shmLink(r, victim.vi)
		return refused != nil
	})
	number := func(err error, vi uint32) string {
		return strings.ReplaceAll(err.Error(), fmt.Sprintf("%#x", vi), "VI")
	}
	nstest.Equal(t, "the answer for a VI that is there", number(refused, victim.vi), number(missed, victim.vi^1<<16))
	nstest.WantErr(t, "another user", shmLink(third, victim.vi), nil)
}

// A user that has used up the quota still gets the links that its programs have.
func TestQuotaUsedUpByLink(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 4})
	queue := kagent.Config{ArenaBytes: 8 << 20, RxChunks: 64, TxChunks: 64}.PinnedBytes()
	g := startAgent(t, ns, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{0: {PinnedBytes: 3*queue + 2*device.LinkBytes}}})
	a, b, c := g.rawLink(t, g.raw(t)), g.rawLink(t, g.raw(t)), g.rawLink(t, g.raw(t))
	a.join(t, b)
	b.join(t, a)
	for range 3 {
		fds.CloseFiles(a.shmLink...)
		a.join(t, b)
	}
	nstest.WantErr(t, "one link more", nstest.Err(a.ask(agentproto.Request{ID: 6, Op: agentproto.OpShmLink, VI: c.vi})), agentproto.ErrQuota)
	g.charged(t, "at the end", 3*queue+2*device.LinkBytes)
}
