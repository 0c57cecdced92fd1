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
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// The attack of users: programs of one user make trouble at an agent beside those of another, who opens and closes
// queues, connects, and is connected with. The users are different ones, and neither is root.
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
	site, err := testbed.NewDirectSite(testbed.Pair{
		Names: [2]string{Interface, Interface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, Queues: usersQueues,
	})
	if err != nil {
		return "", err
	}
	ws := &workers{a: a, site: site, all: make(map[string]*Worker)}
	defer func() { err = errors.Join(err, ws.close("hostile", "honest", "peer", "agent"), site.Close()) }()
	dir, err := os.MkdirTemp("", "via-xdp-attack")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // for the users
		return "", err
	}
	g, err := newGateway(site)
	if err != nil {
		return "", err
	}
	defer g.close()
	socket := filepath.Join(dir, "agent")
	for _, w := range []struct {
		name       string
		side, user int
		first      command
	}{
		{"agent", 0, 0, command{Do: "agent", Socket: socket, Users: []uint32{honestUser, hostileUser}}},
		{"peer", 1, 0, command{Do: "listen", Kind: "peer"}},
		{"honest", 0, honestUser, command{Do: "listen", Kind: "honest", Socket: socket}},
		{"hostile", 0, hostileUser, command{Do: "report"}},
	} {
		if err := ws.start(w.name, w.side, w.user); err != nil {
			return "", err
		}
		if _, err := ws.do(w.name, w.first); err != nil {
			return "", err
		}
	}
	u := &usersRun{attack: a, ws: ws, socket: socket, hosts: [2]netip.Addr{site.Ends[0].IPv4.Addr(), site.Ends[1].IPv4.Addr()}}
	before, err := u.phase("", usersBefore)
	if err != nil {
		return "", err
	}
	a.Alone, a.Worst = make(map[string]time.Duration), make(map[string]time.Duration)
	for what, times := range before {
		a.Alone[what] = percentile(times, 50)
	}
	for round := 0; round == 0 || !a.over() || !a.late() && len(a.missing(usersNeeds)) > 0; round++ {
		for _, kind := range usersKinds {
			a.progress(kind)
			left := a.cfg.For - time.Since(a.start)
			times, err := u.phase(kind, min(max(left/time.Duration(len(usersKinds)), usersLeast), usersPhase))
			if err != nil {
				return "", err
			}
			for what, t := range times {
				name := kind + ": " + what
				a.Worst[name] = max(a.Worst[name], percentile(t, 100))
			}
		}
	}
	if err := g.check(a); err != nil {
		return "", err
	}
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
func (u *usersRun) phase(kind string, d time.Duration) (map[string][]time.Duration, error) {
	began := time.Now()
	var attack func() (*result, error)
	if kind != "" {
		attack = u.ws.begin("hostile", command{Do: "attack", Kind: kind, Socket: u.socket, Host: u.hosts[0], For: d})
	}
	honest := u.ws.begin("honest", command{Do: "use", Socket: u.socket, Kind: "peer", Peer: u.hosts[1], For: d})
	peer := u.ws.begin("peer", command{Do: "use", Kind: "honest", Peer: u.hosts[0], For: d})
	h, herr := honest()
	p, perr := peer()
	if err := errors.Join(herr, perr); err != nil {
		return nil, err
	}
	if attack != nil {
		x, err := attack()
		if err != nil {
			return nil, err
		}
		for _, text := range x.Wrong {
			u.violated("%s: %s", kind, text)
		}
	}
	s, err := u.ws.do("agent", command{Do: "report"})
	if err != nil {
		return nil, err
	}
	late := schedlat.Worst(s.Spells, began) // of the agent: the others' own lateness is no part of the times
	for _, text := range slices.Concat(h.Wrong, p.Wrong, s.Wrong) {
		u.violated("%s: %s", kind, text)
	}
	times := h.Times
	if times == nil {
		times = make(map[string][]time.Duration)
	}
	times["reach"] = p.Times["reach"]
	for what, alone := range u.Alone {
		if most := percentile(times[what], 100); most > alone+usersBeyond+late {
			u.violated("%s: %s took up to %v, alone %v; the machine ran %v late", kind, what, most.Round(time.Millisecond),
				alone.Round(time.Millisecond), late.Round(time.Millisecond))
		}
	}
	return times, nil
}

// serveAgent is the agent, until the worker ends.
func (w *worker) serveAgent(c *command) error {
	d := agentd.Daemon{Socket: c.Socket, Mode: 0o666, Config: agentd.Config{
		Interfaces: map[string]agentd.Interface{Interface: {Users: c.Users}}, Quota: agentd.DefaultQuota,
	}}
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
		return nil
	case err := <-ended:
		return errors.Join(err, errors.New("the agent has ended"))
	}
}

// listen opens queue 0, and accepts who asks for the discriminator that Kind names, until the worker ends.
func (w *worker) listen(c *command) (err error) {
	if w.nic, err = w.open(c.Socket, 0, workerArena); err != nil {
		return err
	}
	w.close = append(w.close, w.nic.Close)
	l, err := w.nic.Listen(vipl.NetAddress{Discriminator: []byte(c.Kind)})
	if err != nil {
		return err
	}
	w.close = append(w.close, l.Close)
	w.run.Go(func() { w.accept(l) })
	return nil
}

// accept accepts one connection after the other, and ends each.
func (w *worker) accept(l *vipl.Listener) {
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

// use is what an honest program does all the time: it opens and closes a queue, and dials. The peer only dials.
func (w *worker) use(c *command) error {
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
		vi, err := w.nic.CreateVI(vipl.VIAttributes{Level: vipl.UnreliableDelivery}, nil, nil)
		if err != nil {
			return err
		}
		_ = w.time(dial, func() error {
			_, err := vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: c.Peer, Discriminator: []byte(c.Kind)}, dialTime)
			return err
		})
		if err := errors.Join(vi.Disconnect(), vi.Destroy()); err != nil {
			return err
		}
	}
	return nil
}

// hostileKinds are the attacks of a user.
var hostileKinds = map[string]func(*worker, context.Context, *command) error{
	"queues":     (*worker).keepQueues,
	"listeners":  (*worker).shadowListeners,
	"neighbours": (*worker).disturbNeighbours,
	"floods":     (*worker).floodAgent,
}

// attack runs one of them for a time.
func (w *worker) attack(c *command) error {
	f := hostileKinds[c.Kind]
	if f == nil {
		return errNoAttack
	}
	if err := yieldCPU(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, c.For)
	defer cancel()
	return f(w, ctx, c)
}

// yieldCPU has the process take only the CPU time that nobody else wants: what is attacked is the agent, not the
// scheduler.
func yieldCPU() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, 19) // it may have ended
		}
	}
	return err
}

// each runs f for 0 to n-1 at the same time, and returns when all have ended.
func (w *worker) each(n int, f func(i int)) {
	done := make(chan struct{})
	for i := range n {
		go func() { defer func() { done <- struct{}{} }(); f(i) }()
	}
	for range n {
		<-done
	}
}

// keepAsk is how many connections ask for a queue that is kept.
const keepAsk = 7

// keepQueues keeps the socket of a queue whose session it has closed, and has others ask for that queue.
func (w *worker) keepQueues(ctx context.Context, c *command) error {
	cfg := queueConfig(kagent.AnyQueue, workerArena)
	a, err := agentclient.Open(c.Socket, true, cfg)
	if err != nil {
		return err
	}
	queue := a.Info().Queue
	kept, err := unix.FcntlInt(uintptr(a.Queue().FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errors.Join(err, a.Close())
	}
	defer unix.Close(kept)
	if err := a.Close(); err != nil {
		return err
	}
	w.count("sockets kept")
	cfg.Queue = queue
	w.each(keepAsk, func(int) {
		for ctx.Err() == nil {
			w.count("opens of a kept queue")
			if a, err := agentclient.Open(c.Socket, true, cfg); err == nil {
				w.count("opens of a kept queue that succeed")
				_ = a.Close()
			}
		}
	})
	return nil
}

// shadowListeners takes, where it is let, what comes for the honest user's discriminator.
func (w *worker) shadowListeners(ctx context.Context, c *command) error {
	nic, err := w.open(c.Socket, kagent.AnyQueue, workerArena)
	if err != nil {
		return err
	}
	defer nic.Close()
	stop := context.AfterFunc(ctx, func() { _ = nic.Close() })
	defer stop()
	w.each(3, func(i int) {
		at := vipl.NetAddress{Host: c.Host, Discriminator: []byte("honest")}
		if i == 2 {
			at.Host = netip.Addr{}
		}
		for ctx.Err() == nil {
			w.count("shadows")
			if i == 0 {
				if l, err := nic.Listen(at); err == nil {
					w.take(ctx, l.Wait)
					_ = l.Close()
				}
			} else {
				w.take(ctx, func(context.Context) (*vipl.Conn, error) { return nic.ConnectWait(at, 50*time.Millisecond) })
			}
			time.Sleep(time.Millisecond)
		}
	})
	return nil
}

// take takes a request that was meant for another user.
func (w *worker) take(ctx context.Context, wait func(context.Context) (*vipl.Conn, error)) {
	if r, err := wait(ctx); err == nil {
		w.count("taken")
		w.wrong("a request for the honest user's discriminator came to the hostile one")
		_ = r.Reject()
	}
}

// disturbNeighbours asks hosts for connections that never answer: the gateway itself, one behind it, one on the link.
func (w *worker) disturbNeighbours(ctx context.Context, c *command) error {
	nic, err := w.open(c.Socket, kagent.AnyQueue, workerArena)
	if err != nil {
		return err
	}
	defer nic.Close()
	w.each(12, func(i int) {
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
	return nil
}

// floodAgent does as much as it can of what an agent does for programs.
func (w *worker) floodAgent(ctx context.Context, c *command) error {
	nic, err := w.open(c.Socket, kagent.AnyQueue, workerArena)
	if err != nil {
		return err
	}
	defer nic.Close()
	w.each(12, func(i int) {
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
			default: // requests that nobody takes
				if vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil); err == nil {
					w.count("requests refused")
					_, _ = vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: c.Host, Discriminator: []byte("nobody")}, time.Second)
					_ = vi.Destroy()
				}
			}
		}
	})
	return nil
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
	mac  string
	end  chan struct{}
	over chan map[netip.Addr]uint64 // how often each was deleted
}

// newGateway has side 1 answer ARP for hosts that are not there, and side 0 send by one of them what is for hosts
// that are not on the link.
func newGateway(site *testbed.Site) (*gateway, error) {
	g := &gateway{site: site, mac: site.Ends[1].MAC, end: make(chan struct{}), over: make(chan map[netip.Addr]uint64, 1)}
	err := site.Do(1, func() error {
		l, err := netlink.LinkByName(Interface)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "nowhere"
		// A pair of which nobody looks at the other end.
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "end"}); err != nil {
			return err
		}
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		nowhere, err := netlink.LinkByName("nowhere")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(nowhere), netlink.LinkSetUp(end), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv4/neigh/"+Interface+"/proxy_delay", []byte("0"), 0)); err != nil {
			return err
		}
		for _, host := range []netip.Addr{gatewayHost, silentHost} {
			index := nowhere.Attrs().Index
			err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: prefixNet(netip.PrefixFrom(host, 32)), Scope: netlink.SCOPE_LINK})
			if err == nil {
				err = netlink.NeighAdd(&netlink.Neigh{
					LinkIndex: index, IP: host.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT,
				})
			}
			if err == nil {
				err = netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: host.AsSlice(), Flags: netlink.NTF_PROXY})
			}
			if err != nil {
				return fmt.Errorf("%v: %w", host, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, site.Do(0, func() error {
		if err := routeTo(netip.MustParsePrefix("0.0.0.0/0"), gatewayHost); err != nil {
			return err
		}
		updates := make(chan netlink.NeighUpdate, 1024)
		if err := netlink.NeighSubscribe(updates, g.end); err != nil {
			return err
		}
		go g.watch(updates)
		return nil
	})
}

// watch counts deletions until end is closed.
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
func (g *gateway) check(a *attack) error {
	time.Sleep(10 * time.Millisecond) // for the last messages
	g.close()
	deleted := <-g.over
	a.Counts["gateway deleted"], a.Counts["silent host deleted"] = deleted[gatewayHost], deleted[silentHost]
	if n := deleted[gatewayHost]; n > 0 {
		a.violated("the gateway's neighbour entry was deleted %d times", n)
	}
	if a.Counts["hostile requests to the gateway"] == 0 {
		return nil // nobody has used the entry
	}
	return g.site.Do(0, func() error {
		l, err := netlink.LinkByName(Interface)
		if err != nil {
			return err
		}
		all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, n := range all {
			if host, _ := netip.AddrFromSlice(n.IP); host.Unmap() == gatewayHost && n.HardwareAddr.String() == g.mac {
				return nil
			}
		}
		a.violated("the gateway has no neighbour entry any more: %v", all)
		return nil
	})
}

// close ends the watch. The second time it does nothing.
func (g *gateway) close() {
	select {
	case <-g.end:
	default:
		close(g.end)
	}
}
