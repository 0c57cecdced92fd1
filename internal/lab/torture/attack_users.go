package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/veth"
	"viaxdp/vipl"
)

// The attack of users: a hostile user's programs attack an agent while an honest user opens and closes queues,
// connects, and accepts connections. Neither user is root.
//
//	side 0: agent; honest user, hostile user     side 1: peer, gateway, a host that is silent
//	+------------------------------------+       +-----------------------------------------+
//	| via0: 10.77.0.1, queues 0 to 11    |=======| via0: 10.77.0.2, 10.77.0.254, .253      |
//	+------------------------------------+       +-----------------------------------------+

const (
	usersBeyond = 100 * time.Millisecond // how much longer the honest user's operations may take than undisturbed
	usersBefore = time.Second            // how long they are undisturbed
	usersPhase  = 3 * time.Second        // how long an attack goes on at once, at most
	usersLeast  = 400 * time.Millisecond // and at least
	usersQueues = 12                     // of the interface
	usersPause  = 2 * time.Millisecond   // between two rounds of the honest user

	honestUser  = 60_001
	hostileUser = 60_002
)

// usersKinds are what the hostile user does, one after the other.
var usersKinds = []string{"queues", "listeners", "neighbours", "floods"}

// usersNeeds are counted, and none may be 0.
var usersNeeds = []string{
	"honest open", "honest close", "honest dial", "peer reach", "hostile sockets kept", "hostile opens of a kept queue",
	"hostile shadows", "hostile requests to the gateway", "hostile requests to a silent host", "hostile opens", "hostile sessions",
	"hostile listeners",
}

// users runs the attack.
func (a *attack) users() (line string, err error) {
	defer fail.Catch(&err)
	ws := a.workers(usersQueues)
	site := ws.site
	defer fail.Closing(&err, func() error { return ws.close("hostile", "honest", "peer", "agent") })
	dir := fail.Must(os.MkdirTemp("", "via-xdp-attack"))
	defer os.RemoveAll(dir)
	fail.If(os.Chmod(dir, 0o755)) // for the users
	g := newGateway(site)
	defer g.end()
	socket := filepath.Join(dir, "agent")
	for _, w := range []struct {
		name       string
		side, user int
		first      command
	}{
		{"agent", 0, 0, command{Do: "agent", Socket: socket, Users: []uint32{honestUser, hostileUser}}},
		{"peer", 1, 0, command{Do: "listen", Kind: "peer"}},
		{"honest", 0, honestUser, command{Do: "listen", Kind: "honest", Socket: socket}},
		{"hostile", 0, hostileUser, command{Do: "result"}},
	} {
		ws.start(w.name, w.side, w.user, w.first)
	}
	u := &usersRun{attack: a, ws: ws, socket: socket, hosts: [2]netip.Addr{site.Ends[0].IPv4.Addr(), site.Ends[1].IPv4.Addr()}}
	before := u.phase("", usersBefore)
	a.Alone, a.Worst = make(map[string]time.Duration), make(map[string]time.Duration)
	for what, times := range before {
		a.Alone[what] = percentile(times, 50)
	}
	for round := 0; round == 0 || !a.over() || !a.late() && len(a.missing(usersNeeds)) > 0; round++ {
		for _, kind := range usersKinds {
			a.note(kind)
			left := a.cfg.For - time.Since(a.start)
			times := u.phase(kind, min(max(left/time.Duration(len(usersKinds)), usersLeast), usersPhase))
			for what, t := range times {
				name := kind + ": " + what
				a.Worst[name] = max(a.Worst[name], percentile(t, 100))
			}
		}
	}
	g.check(a)
	c, ms := a.Counts, func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	text := ""
	for _, what := range []string{"open", "close", "dial", "reach"} {
		worst := time.Duration(0)
		for _, kind := range usersKinds {
			worst = max(worst, a.Worst[kind+": "+what])
		}
		text += fmt.Sprintf("%s %v alone, %v at most; ", what, ms(a.Alone[what]), ms(worst))
	}
	return fmt.Sprintf("%s%d requests taken from the honest user; %d requests to the gateway had its neighbour entry deleted %d times, and %d that of a silent host; "+
		"beside %d opens of kept queues, %d listeners shadowed, %d opens, %d sessions", text, c["hostile taken"],
		c["hostile requests to the gateway"], c["gateway deleted"], c["silent host deleted"], c["hostile opens of a kept queue"], c["hostile shadows"],
		c["hostile opens"], c["hostile sessions"]), nil
}

// usersRun is the attack of users in progress.
type usersRun struct {
	*attack
	ws     *workers
	socket string
	hosts  [2]netip.Addr // agent's, and peer's
}

// phase is a time in which the honest user and the peer work, beside one kind of attack, or none.
func (u *usersRun) phase(kind string, d time.Duration) map[string][]time.Duration {
	began := time.Now()
	attack := func() *result { return &result{} }
	if kind != "" {
		attack = u.ws.begin("hostile", command{Do: "attack", Kind: kind, Socket: u.socket, Host: u.hosts[0], For: d})
	}
	honest := u.ws.begin("honest", command{Do: "use", Socket: u.socket, Kind: "peer", Peer: u.hosts[1], For: d})
	peer := u.ws.begin("peer", command{Do: "use", Kind: "honest", Peer: u.hosts[0], For: d})
	h, p, x := honest(), peer(), attack()
	s := u.ws.do("agent", command{Do: "result"})
	late := schedlat.Worst(s.Spells, began) // of the agent: the others' own lateness is no part of the times
	for _, text := range slices.Concat(x.Wrong, h.Wrong, p.Wrong, s.Wrong) {
		u.violated("%s: %s", kind, text)
	}
	times := h.Times
	times["reach"] = p.Times["reach"]
	for what, alone := range u.Alone {
		if most := percentile(times[what], 100); most > alone+usersBeyond+late {
			u.violated("%s: %s took up to %v, alone %v; the machine ran %v late", kind, what, most.Round(time.Millisecond),
				alone.Round(time.Millisecond), late.Round(time.Millisecond))
		}
	}
	return times
}

// serveAgent is the agent, until the worker ends.
func (w *actor) serveAgent(c *command) {
	d := agentd.Daemon{Socket: c.Socket}
	if len(c.Users) > 0 {
		d.Mode = 0o666
		d.Config = agentd.Config{Interfaces: map[string]agentd.Interface{Interface: {Users: c.Users}}, Quota: agentd.DefaultQuota}
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	d.Ready = func(*agentd.Server) { close(ready) }
	w.run.Go(func() {
		err := d.Run(w.ctx)
		if err != nil {
			w.wrong("the agent: %v", err)
		}
		ended <- err
	})
	select {
	case <-ready:
	case err := <-ended:
		fail.If(errors.Join(err, errors.New("the agent has ended")))
	}
}

// listen opens queue 0, and accepts requests for the discriminator that Kind names, until the worker ends.
func (w *actor) listen(c *command) {
	w.nic = fail.Must(w.open(c.Socket, 0, workerArena))
	w.closers = append(w.closers, w.nic.Close)
	l := fail.Must(w.nic.Listen(vipl.NetAddress{Discriminator: []byte(c.Kind)}))
	w.closers = append(w.closers, l.Close)
	w.run.Go(func() { w.accept(l) })
}

// accept accepts one connection after the other, and ends each.
func (w *actor) accept(l *vipl.Listener) {
	for {
		c, err := l.Wait(w.ctx)
		if err != nil {
			return
		}
		vi, err := w.nic.CreateVI(vipl.VIAttributes{Level: vipl.UnreliableDelivery}, nil, nil)
		if err != nil {
			w.wrong("%v", err)
			return
		}
		if c.Accept(vi) == nil {
			w.count("accepted")
		}
		if err := errors.Join(vi.Disconnect(), vi.Destroy()); err != nil {
			w.wrong("%v", err)
		}
	}
}

// use is the loop of an honest program: it opens and closes a queue, and dials. The peer only dials.
func (w *actor) use(c *command) {
	dial := "dial"
	if c.Socket == "" {
		dial = "reach"
	}
	for end := time.Now().Add(c.For); time.Now().Before(end); time.Sleep(usersPause) {
		if c.Socket != "" {
			var nic *vipl.NIC
			err := w.time("open", func() (err error) {
				nic, err = w.open(c.Socket, kagent.AnyQueue, workerArena)
				return err
			})
			if err == nil {
				err = w.time("close", nic.Close)
			}
			if err != nil {
				continue
			}
		}
		vi := fail.Must(w.nic.CreateVI(vipl.VIAttributes{Level: vipl.UnreliableDelivery}, nil, nil))
		_ = w.time(dial, func() error {
			_, err := vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: c.Peer, Discriminator: []byte(c.Kind)}, dialTime)
			return err
		})
		fail.If(errors.Join(vi.Disconnect(), vi.Destroy()))
	}
}

// hostileKinds are the attacks of a user, until ctx ends. All but the first have a NIC of their own.
var hostileKinds = map[string]func(*actor, context.Context, *command, *vipl.NIC){
	"listeners":  (*actor).shadowListeners,
	"neighbours": (*actor).disturbNeighbours,
	"floods":     (*actor).floodAgent,
}

// attack runs one of them for a time.
func (w *actor) attack(c *command) {
	yieldCPU()
	ctx, cancel := context.WithTimeout(w.ctx, c.For)
	defer cancel()
	if c.Kind == "queues" {
		w.keepQueues(ctx, c)
		return
	}
	nic := fail.Must(w.open(c.Socket, kagent.AnyQueue, workerArena))
	defer nic.Close()
	hostileKinds[c.Kind](w, ctx, c, nic)
}

// yieldCPU makes the process run only when the CPU is otherwise idle: the attack is on the agent, not on the
// scheduler.
func yieldCPU() {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, 19) // it may have ended
		}
	}
	fail.If(err)
}

// each runs f for 0 to n-1 at the same time, and returns when all have ended.
func each(n int, f func(i int)) {
	var run sync.WaitGroup
	for i := range n {
		run.Go(func() { f(i) })
	}
	run.Wait()
}

// keepAsk is how many connections ask for a queue that is kept.
const keepAsk = 7

// keepQueues keeps the socket of a queue whose session it has closed, and has others ask for that queue.
func (w *actor) keepQueues(ctx context.Context, c *command) {
	cfg := queueConfig(kagent.AnyQueue, workerArena)
	a := fail.Must(agentclient.Open(c.Socket, true, cfg))
	queue := a.Info().Queue
	kept, err := unix.FcntlInt(uintptr(a.Queue().FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		fail.If(errors.Join(err, a.Close()))
	}
	// At the end of the attack, so that opens that still wait succeed, instead of waiting in vain one after the other.
	context.AfterFunc(ctx, func() { _ = unix.Close(kept) })
	fail.If(a.Close())
	w.count("sockets kept")
	cfg.Queue = queue
	each(keepAsk, func(int) {
		for ctx.Err() == nil {
			w.count("opens of a kept queue")
			if a, err := agentclient.Open(c.Socket, true, cfg); err == nil {
				if ctx.Err() == nil {
					w.count("opens of a kept queue that succeed")
				}
				_ = a.Close()
			}
		}
	})
}

// shadowListeners accepts, where it can, requests for the honest user's discriminator.
func (w *actor) shadowListeners(ctx context.Context, c *command, nic *vipl.NIC) {
	stop := context.AfterFunc(ctx, func() { _ = nic.Close() }) // a listener waits
	defer stop()
	each(3, func(i int) {
		at := vipl.NetAddress{Host: c.Host, Discriminator: []byte("honest")}
		if i == 2 {
			at.Host = netip.Addr{}
		}
		for ctx.Err() == nil {
			w.count("shadows")
			if i == 0 {
				if l, err := nic.Listen(at); err == nil {
					w.steal(ctx, l.Wait)
					_ = l.Close()
				}
			} else {
				w.steal(ctx, func(context.Context) (*vipl.Conn, error) { return nic.ConnectWait(at, 50*time.Millisecond) })
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// steal rejects a request that was meant for another user.
func (w *actor) steal(ctx context.Context, wait func(context.Context) (*vipl.Conn, error)) {
	if r, err := wait(ctx); err == nil {
		w.count("taken")
		w.wrong("a request for the honest user's discriminator came to the hostile one")
		_ = r.Reject()
	}
}

// disturbNeighbours requests connections with hosts that never answer: the gateway itself, one behind it, one on the
// link.
func (w *actor) disturbNeighbours(ctx context.Context, c *command, nic *vipl.NIC) {
	each(12, func(i int) {
		what, host := "requests to the gateway", gatewayHost
		switch i % 3 {
		case 1:
			what, host = "requests beyond the gateway", beyondHost
		case 2:
			what, host = "requests to a silent host", silentHost
		}
		vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)
		if err != nil {
			return
		}
		for ctx.Err() == nil {
			w.count(what)
			// Longer than an agent waits before it believes that the host is elsewhere.
			_, err := vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: host, Discriminator: []byte("nobody")}, 300*time.Millisecond)
			if errors.Is(err, vipl.ErrNoMatch) {
				w.wrong("%v is not silent", host)
			}
		}
	})
}

// floodAgent sends as many requests of each kind to the agent as it can.
func (w *actor) floodAgent(ctx context.Context, c *command, nic *vipl.NIC) {
	each(12, func(i int) {
		for ctx.Err() == nil {
			switch i {
			case 0, 1, 2, 3: // queues
				if other, err := w.open(c.Socket, kagent.AnyQueue, workerArena); err == nil {
					w.count("opens")
					_ = other.Close()
				}
			case 4, 5: // sessions that make no sense
				if conn, err := net.Dial("unix", c.Socket); err == nil {
					w.count("sessions without sense")
					_ = json.NewEncoder(conn).Encode("nonsense")
					_ = conn.Close()
				}
			case 6, 7: // sessions that only say hello
				if _, err := agentclient.Probe(c.Socket); err == nil {
					w.count("sessions")
				}
			case 8, 9: // listeners
				if l, err := nic.Listen(vipl.NetAddress{Discriminator: strconv.AppendInt(nil, int64(i), 10)}); err == nil {
					w.count("listeners")
					_ = l.Close()
				}
			default: // requests that no listener accepts
				if vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil); err == nil {
					w.count("requests refused")
					_, _ = vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: c.Host, Discriminator: []byte("nobody")}, time.Second)
					_ = vi.Destroy()
				}
			}
		}
	})
}

// Hosts of side 1 that answer no request for a connection, and one behind the gateway.
var (
	gatewayHost = netip.MustParseAddr("10.77.0.254")
	silentHost  = netip.MustParseAddr("10.77.0.253")
	beyondHost  = netip.MustParseAddr("203.0.113.7")
)

// gateway watches the entries of the gateway and of a silent host in the kernel's table of neighbours.
type gateway struct {
	site *testbed.Site
	over chan map[netip.Addr]uint64 // how often each was deleted
	end  func()                     // of the watching
}

// newGateway has side 1 answer ARP for hosts that do not exist. One of them is side 0's gateway for hosts that are
// not on the link.
func newGateway(site *testbed.Site) *gateway {
	ctx, end := context.WithCancel(context.Background())
	g := &gateway{site: site, over: make(chan map[netip.Addr]uint64, 1), end: end}
	fail.If(site.Do(1, answerARP))
	updates := make(chan netlink.NeighUpdate, 1024)
	fail.If(site.Do(0, func() error {
		return errors.Join(routeTo(netip.MustParsePrefix("0.0.0.0/0"), gatewayHost), netlink.NeighSubscribe(updates, ctx.Done()))
	}))
	go g.watch(updates)
	return g
}

// answerARP has the thread's namespace answer ARP for gatewayHost and silentHost. It forwards their frames to an
// interface whose other end has no reader.
func answerARP() (err error) {
	defer fail.Catch(&err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "nowhere"
	fail.If(errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "end"}),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/neigh/"+Interface+"/proxy_delay", []byte("0"), 0)))
	index := make(map[string]int)
	for _, name := range []string{Interface, "nowhere", "end"} {
		l := fail.Must(netlink.LinkByName(name))
		fail.If(netlink.LinkSetUp(l))
		index[name] = l.Attrs().Index
	}
	for _, host := range []netip.Addr{gatewayHost, silentHost} {
		to := veth.IPNet(netip.PrefixFrom(host, 32))
		fail.If(errors.Join(netlink.RouteAdd(&netlink.Route{LinkIndex: index["nowhere"], Dst: to, Scope: netlink.SCOPE_LINK}),
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: index["nowhere"], IP: to.IP, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT}),
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: index[Interface], IP: to.IP, Flags: netlink.NTF_PROXY})))
	}
	return nil
}

// watch counts deletions until the end.
func (g *gateway) watch(updates chan netlink.NeighUpdate) {
	deleted := make(map[netip.Addr]uint64)
	for u := range updates {
		if host, ok := netip.AddrFromSlice(u.IP); ok && u.Type == unix.RTM_DELNEIGH {
			deleted[host.Unmap()]++
		}
	}
	g.over <- deleted
}

// check looks at what has become of the entries.
func (g *gateway) check(a *attack) {
	time.Sleep(10 * time.Millisecond) // for the last messages
	g.end()
	deleted := <-g.over
	a.Counts["gateway deleted"], a.Counts["silent host deleted"] = deleted[gatewayHost], deleted[silentHost]
	if n := deleted[gatewayHost]; n > 0 {
		a.violated("the gateway's neighbour entry was deleted %d times", n)
	}
	if a.Counts["hostile requests to the gateway"] == 0 {
		return // nothing has used the entry
	}
	fail.If(g.site.Do(0, func() (err error) {
		defer fail.Catch(&err)
		l := fail.Must(netlink.LinkByName(Interface))
		all := fail.Must(netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4))
		there := slices.ContainsFunc(all, func(n netlink.Neigh) bool {
			host, _ := netip.AddrFromSlice(n.IP)
			return host.Unmap() == gatewayHost && n.HardwareAddr.String() == g.site.Ends[1].MAC
		})
		if !there {
			a.violated("the gateway has no neighbour entry any more: %v", all)
		}
		return nil
	}))
}
