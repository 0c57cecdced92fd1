package agentd_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// A user's resources are limited, and returned at the end.
func TestQuota(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{
		0: {Queues: 2, VIs: 3, PinnedBytes: 40 << 20},
	}})
	native := vipl.WithMode(xdpnic.ModeNative, true)
	refused := func(what string, err error) {
		t.Helper()
		nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrQuota) || !strings.Contains(err.Error(), what), "%s: %v, want ErrQuota", what, err)
	}
	for range 3 {
		_, err := g.open(native, vipl.WithArena(40<<20)) // its arena alone would fit
		refused("rings", err)
		a, err := g.open(native)
		nstest.Must(t, err)
		_, err = g.open(native, vipl.WithArena(32<<20))
		refused("registered memory", err)
		b, err := g.open(native)
		nstest.Must(t, err)
		other := g.raw(t).hello()
		refused("queues", nstest.Err(other.ask(smallOpen)))
		other.c.Close()
		for i := range 4 {
			n := []*vipl.NIC{a, b}[i%2]
			_, err = n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)
			nstest.FatalIf(t, i < 3 && err != nil, "%v", err)
		}
		refused("VIs", err)
		if u := g.status(t).Users[0]; u.Queues != 2 || u.VIs != 3 || u.MaxVIs != 3 || u.PinnedBytes != 32<<20+rings(a)+rings(b) {
			t.Errorf("user: %+v, want arenas of 32 MiB and rings of %d and %d bytes", u, rings(a), rings(b))
		}
		nstest.Must(t, errors.Join(a.Close(), b.Close()))
	}
	nstest.Equal(t, "refusals", g.status(t).Counts.Quota, 12)
}

// A VI that a program does not get because the interface's table is full does not count.
func TestQuotaOfNoVI(t *testing.T) {
	t.Parallel()
	const most = 4
	g := oneAgent(t, nstest.Options{}, agentConfig{Ifaces: map[string]agentd.Interface{"via0": {MaxVIs: most + 1}}}) // 0 is no VI
	r := g.raw(t).hello()
	nstest.Must(t, nstest.Err(r.ask(smallOpen)))
	for i := range uint64(2 * most) {
		_, err := r.ask(agentproto.Request{ID: 3 + i, Op: agentproto.OpNewVI})
		nstest.ErrorIf(t, (err != nil) != (i >= most), "VI %d: %v", i, err)
	}
	nstest.Equal(t, "VIs that count", g.status(t).Users[0].VIs, most)
}

// smallOpen is the request for any queue with little memory.
var smallOpen = openOf(agentproto.Open{Queue: kagent.AnyQueue, ArenaBytes: 4 << 20,
	RxChunks: 64, TxChunks: 64, Mode: xdpnic.ModeNative})

// rings returns the kernel's memory for the rings of a queue, in bytes.
func rings(n *vipl.NIC) int {
	i := n.Info()
	return i.NIC.Rings.Bytes()
}

// A program whose user's quota has no memory for the rings of all queues, or for other processes, gets less. The user is
// charged once, with what the program gets, and has nothing when it ends.
func TestQuotaFallback(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1})
	q := openOf(agentproto.Open{Queue: kagent.AnyQueue, RxChunks: 64, TxChunks: 64,
		Mode: xdpnic.ModeNative, RequireMode: true, Steer: kagent.SteerAll})
	// open returns what the program got, and ends it.
	open := func(what string) *kagent.Info {
		t.Helper()
		r := g.raw(t).hello()
		reply, files, err := r.exchange(q)
		nstest.Must(t, err)
		info := &reply.Opened.Info.Info
		if u := g.status(t).Users[0]; u.Queues != 1+len(info.NIC.ExtraQueues) || u.PinnedBytes < info.PinnedBytes() {
			t.Errorf("%s: user: %+v, want %d queues and %d bytes", what, u, 1+len(info.NIC.ExtraQueues), info.PinnedBytes())
		}
		nstest.Must(t, nstest.Err(r.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})))
		fds.CloseFiles(files...)
		nstest.Must(t, r.c.Close())
		await.Until(t, "the queues are refunded", func() bool { return g.status(t).Users[0].Processes == 0 })
		if u := g.status(t).Users[0]; u.Queues != 0 || u.PinnedBytes != 0 {
			t.Errorf("%s, at the end: user: %+v, want nothing", what, u)
		}
		return info
	}
	all := open("without a limit")
	nstest.FatalIf(t, len(all.NIC.ExtraQueues) != 3, "%+v, want all queues", all)
	one := kagent.Config{ArenaBytes: q.Open.ArenaBytes, RxChunks: 64, TxChunks: 64}.PinnedBytes()
	for _, c := range []struct {
		what                      string
		processes, pinned, queues int
	}{
		{"memory for one queue", 1, one, 1},
		{"memory for one queue, several processes", 4, one, 1},
		{"memory for all queues, several processes", 4, all.PinnedBytes(), 4},
	} {
		g.stop()
		g.cfg.Processes, g.cfg.Users = c.processes, map[uint32]agentd.Quota{0: {Queues: 8, PinnedBytes: c.pinned}}
		g.start()
		for range 2 { // the second time with what the first one has returned
			nstest.Equal(t, c.what, 1+len(open(c.what).NIC.ExtraQueues), c.queues)
		}
	}
}

// A second handle of a process is not refused because of the quota of queues: it shares the first one's. One
// that cannot share is refused, and the error explains that it needs a queue of its own.
func TestQuotaSecondHandle(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{0: {Queues: 1}}})
	native := vipl.WithMode(xdpnic.ModeNative, true)
	own := func(err error) {
		t.Helper()
		nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrQuota) || !strings.Contains(err.Error(), "needs a queue of its own"),
			"%v, want ErrQuota, and that it needs a queue of its own", err)
	}
	first := g.nic(native, vipl.WithQueue(0))
	_, err := g.open(native, vipl.WithQueue(1))
	own(err)
	second := g.nic(native)
	nstest.Equal(t, "the second handle's queue", second.Info().Queue, 0)
	for _, u := range g.status(t).Users {
		nstest.ErrorIf(t, u.Queues != 1 || u.PinnedBytes != first.Info().Arena.Size+rings(first), "user: %+v, want one queue and its memory", u)
	}
	ea, eb := newEnd(t, first), newEnd(t, second)
	connect(t, ea, eb, "shared")
	exchange(t, ea, eb, "one queue")
}

// The resources of a program that has just died do not cause a refusal of the next one, whether or not the agent
// has detected the death.
func TestQuotaOfTheDead(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{0: {Queues: 1}}})
	for range 20 {
		r := g.raw(t).hello()
		files := r.files(smallOpen)
		// The answer shows that the agent has closed its descriptors.
		nstest.Must(t, nstest.Err(r.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI})))
		syscall.ForkLock.RLock()  // no program that another test starts has copies of them, between its fork and its exec
		for _, f := range files { // as when a process ends, the connection last
			nstest.Check(t, f.Close())
		}
		nstest.Check(t, r.c.Close())
		syscall.ForkLock.RUnlock()
	}
	nstest.Equal(t, "refusals", g.status(t).Counts.Quota, 0)
}

// A program keeps its resources when a stricter agent takes over, and they count.
func TestQuotaAfterRestart(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1})
	native := vipl.WithMode(xdpnic.ModeNative, true)
	n := g.nic(native)
	for range 3 {
		nstest.Must(t, nstest.Err(n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)))
	}
	g.kill()
	g.cfg.Users = map[uint32]agentd.Quota{0: {Queues: 1, VIs: 1}}
	g.start()
	if u := g.status(t).Users[0]; u.Queues != 1 || u.VIs != 3 || u.PinnedBytes != n.Info().Arena.Size+rings(n) {
		t.Errorf("user: %+v", u)
	}
	nstest.WantErr(t, "a VI more", nstest.Err(n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)), agentproto.ErrQuota)
	nstest.WantErr(t, "a queue more", g.raw(t).hello().open(-1), agentproto.ErrQuota)
	nstest.Must(t, n.Close())
	await.Until(t, "all is refunded", func() bool {
		u := g.status(t).Users[0]
		return u.Queues == 0 && u.VIs == 0 && u.PinnedBytes == 0
	})
}

// A user that hangs up and keeps the descriptors is charged for what they pin, by the next agent, too. The
// memory alone is not charged.
func TestQuotaOfKeptQueue(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 4}, agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{
		0: {Queues: 2, PinnedBytes: 20 << 20},
	}})
	q := openNative(kagent.AnyQueue)
	pinned := 2 * kagent.Config{ArenaBytes: 8 << 20}.PinnedBytes()
	var kept [2][]*os.File
	for i := range kept {
		r := g.raw(t).hello()
		kept[i] = r.files(q)
		defer fds.CloseFiles(kept[i]...)
		nstest.Must(t, r.c.Close())
	}
	await.Until(t, "the sessions are over", func() bool { return len(g.status(t).NICs) == 0 })
	for _, restart := range []func(){g.restart, func() {}} {
		if u := g.status(t).Users[0]; u.Queues != 2 || u.PinnedBytes != pinned {
			t.Errorf("user: %+v, want what its descriptors pin", u)
		}
		nstest.WantErr(t, "one queue more", nstest.Err(g.raw(t).hello().ask(q)), agentproto.ErrQuota)
		restart()
	}
	for i, files := range kept {
		nstest.ErrorIf(t, blocks(t, files[1]) == 0, "the memory is gone while the socket is there")
		files[0].Close()
		files[2].Close()
		await.Until(t, "the memory is freed", func() bool { return blocks(t, files[1]) == 0 })
		await.Until(t, "what was pinned is refunded", func() bool { return g.status(t).Users[0].Queues == 1-i })
	}
	nstest.Check(t, nstest.Err(g.raw(t).hello().ask(q)))
}

// blocks returns the memory of a memfd, in units of 512 bytes.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	st, err := f.Stat()
	nstest.Must(t, err)
	return st.Sys().(*syscall.Stat_t).Blocks
}

// releases closes socket and sign of life of the last program that has a queue, whose user then has nothing, and whose memory
// is freed.
func (a *agent) releases(t *testing.T, files []*os.File) {
	t.Helper()
	files[0].Close()
	files[2].Close()
	await.Until(t, "all is refunded, and freed", func() bool {
		u := a.status(t).Users[0]
		return u.Processes == 0 && u.Queues == 0 && u.PinnedBytes == 0 && blocks(t, files[1]) == 0
	})
}

// A refused connection gets the reason.
func TestNoRoom(t *testing.T) {
	g := oneAgent(t, nstest.Options{},
		agentConfig{Processes: 1, Users: map[uint32]agentd.Quota{0: {Connections: 1}}, Most: 1})
	await.Until(t, "what startAgent has asked is over", func() bool {
		n, err := g.open()
		if err == nil {
			t.Cleanup(func() { n.Close() })
		}
		return err == nil
	})
	for range 100 { // the agent hangs up before the client has asked, or after it
		_, err := agentclient.Probe(g.socket)
		if !errors.Is(err, agentproto.ErrQuota) || !strings.Contains(err.Error(), "user 0 has 1 connections to the agent, of at most 1: end one") {
			t.Fatalf("a connection more: %v, want ErrQuota", err)
		}
	}
	_, err := g.rawAs(t, 60001).ask(helloRequest)
	nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrQuota) || !strings.Contains(err.Error(), "all users together"), "another user: %v, want ErrQuota", err)
}

// The last program that shares a queue ends properly. Another one still has it, which has hung up and kept its descriptors,
// or has its session, of an interface that was removed: its user is charged for the queue and its memory.
func TestQuotaOfKeptSharedQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ removed, firstEnds bool }{{false, false}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			g := oneAgent(t, nstest.Options{}, agentConfig{Processes: 2})
			q := openOf(agentproto.Open{Queue: kagent.AnyQueue})
			stays, ends := g.raw(t).hello(), g.raw(t).hello()
			var kept, others []*os.File
			if c.firstEnds {
				others = ends.files(q)
				kept = stays.files(q)
			} else {
				kept = stays.files(q)
				others = ends.files(q)
			}
			defer fds.CloseFiles(kept...)
			shared := g.status(t).Users[0].PinnedBytes
			restarts := []func(){func() {}, g.restart}
			if c.removed {
				g.ns.Remove(t)
				await.Until(t, "the agent says so", func() bool { return g.log.count("the interface is gone") == 2 })
				restarts = restarts[:1]
			} else {
				nstest.Must(t, stays.c.Close())
				await.Until(t, "one session is over", func() bool { return len(g.status(t).NICs[0].Leases) == 1 })
			}
			nstest.Must(t, nstest.Err(ends.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})))
			fds.CloseFiles(others...)
			await.Until(t, "the other one's part is refunded", func() bool { return g.status(t).Users[0].Processes == 1 })
			for _, restart := range restarts {
				restart()
				if u := g.status(t).Users[0]; u.Processes != 1 || u.Queues != 1 || u.PinnedBytes < 8<<20 || u.PinnedBytes >= shared {
					t.Errorf("user: %+v, want one queue with its memory, less than the %d bytes of both programs", u, shared)
				}
				nstest.ErrorIf(t, blocks(t, kept[1]) == 0, "the memory is gone while the socket is there")
			}
			stays.c.Close()
			g.releases(t, kept)
		})
	}
}

// Root is served although other users have all connections that there may be.
func TestNoRoomForOthers(t *testing.T) {
	g := oneAgent(t, nstest.Options{}, agentConfig{Processes: 1, Most: 1})
	await.Until(t, "another user has the connection", func() bool { // as soon as what startAgent has asked is over
		_, err := g.rawAs(t, 60001).ask(helloRequest)
		return err == nil
	})
	_, err := g.rawAs(t, 60002).ask(helloRequest)
	nstest.WantErr(t, "a third user", err, agentproto.ErrQuota)
	_, err = agentclient.Probe(g.socket)
	nstest.WantErr(t, "root", err, nil)
}

// A user sees its own account and queues, and root those of all.
func TestStatusOfOthers(t *testing.T) {
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{})
	const user = 60001
	n, err := g.open(vipl.WithQueue(1))
	nstest.Must(t, err)
	defer n.Close()
	r := g.rawAs(t, user).hello()
	nstest.Must(t, r.open(0))
	reply, err := r.ask(agentproto.Request{ID: 3, Op: agentproto.OpStatus})
	nstest.Must(t, err)
	seen := func(s kagent.Status) (users, leases []uint32) {
		for _, u := range s.Users {
			users = append(users, u.UID)
		}
		for _, nic := range s.NICs {
			for _, l := range nic.Leases {
				leases = append(leases, l.Holder.UID)
			}
		}
		slices.Sort(leases)
		return users, leases
	}
	for reader, c := range map[string]struct {
		status kagent.Status
		want   []uint32
	}{"the user": {*reply.Status, []uint32{user}}, "root": {g.status(t), []uint32{0, user}}} {
		users, leases := seen(c.status)
		nstest.ErrorIf(t, !slices.Equal(users, c.want) || !slices.Equal(leases, c.want),
			"%s sees the accounts of %d and the queues of %d, want %d", reader, users, leases, c.want)
	}
}
