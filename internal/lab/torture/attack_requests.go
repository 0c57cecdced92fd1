package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/veth"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// The attack of requests: an attacker off the path between two hosts sends one of them connection requests with
// forged sources, and confirms some of them. The server's host sends its answers to the other host, as to a router.

const (
	requestsRate   = 10_000 // a second, unless SoakConfig.Rate says otherwise
	requestsP99    = 50 * time.Millisecond
	requestsFactor = 3
	// requestsSlice is how long dials are looked at together, and requestsBefore how long without the flood.
	requestsSlice  = 2 * time.Second
	requestsBefore = 500 * time.Millisecond
	// requestsDials are enough to know how long 99 % take, and requestsLeast are the fewest that give a result.
	requestsDials = 400
	requestsLeast = 100
	// requestsRest is how long answers may go on when the flood is over.
	requestsRest = time.Second
	// requestsBurst is for how long a flood that was kept waiting makes up for it.
	requestsBurst = 20 * time.Millisecond
	// One of confirmShare requests is confirmed, after confirmDelay.
	confirmShare = 10
	confirmDelay = 20 * time.Millisecond
)

// spoofed is the network that the sources are invented of, and spoofedHosts how many: RFC 2544's, for benchmarks.
var spoofed = netip.MustParsePrefix("198.18.0.0/16")

const spoofedHosts = 1 << 16

var requestsNeeds = []string{"requests", "confirms", "client vianet dial", "client plain dial", "answered bytes"}

// requestFlood sends the requests, and counts what is answered.
type requestFlood struct {
	rate   float64 // requests/s
	rng    *rand.Rand
	sender *testbed.Sender

	mu      sync.Mutex
	link    wire.Link // from the honest client to the server
	samples []wire.CM // requests of the honest client
	from    [spoofedHosts]uint32
	to      [spoofedHosts]uint32

	waiting           []confirm
	requests, confirm uint64
}

// confirm is one that is to be sent.
type confirm struct {
	at   time.Time
	id   uint64
	host uint16
}

// requests runs the attack.
func (a *attack) requests() (line string, err error) {
	defer fail.Catch(&err)
	ws := a.workers(0)
	site := ws.site
	defer fail.Closing(&err, func() error { return ws.close("client", "server") })
	server, client := site.Ends[0].IPv4.Addr(), site.Ends[1].IPv4.Addr()
	fail.If(site.Do(0, func() error { return routeTo(spoofed, client) }))
	f := &requestFlood{rate: float64(a.cfg.Rate), rng: rand.New(rand.NewPCG(a.cfg.Seed, 3))}
	site.Middle.Watch(f.watch)
	f.sender = fail.Must(site.Middle.Sender(1))
	defer f.sender.Close()
	ws.start("server", 0, 0, command{Do: "serve"})
	ws.start("client", 1, 0, command{Do: "result"})
	calm := ws.do("client", command{Do: "dial", Peer: server, For: requestsBefore})
	if len(calm.Wrong) > 0 || len(f.sampled()) == 0 {
		fail.With("no attack: dials before it: %q, %d requests seen", calm.Wrong, len(f.sampled()))
	}
	undisturbed := append(calm.Times["vianet dial"], calm.Times["plain dial"]...)

	stop, stopped := make(chan struct{}), make(chan time.Duration, 1)
	meter := schedlat.Start()
	defer meter.Close()
	go func() { stopped <- f.run(stop, meter) }()
	end := sync.OnceValue(func() time.Duration { close(stop); return <-stopped })
	defer end()
	// How long dials took, and how long without the scheduling latency of the server and of this process, which all
	// frames pass through.
	var all, fair []time.Duration
	for {
		a.note("requests")
		began := time.Now()
		r := ws.do("client", command{Do: "dial", Peer: server, For: min(requestsSlice, max(a.cfg.For-time.Since(a.start), requestsBefore))})
		s := ws.do("server", command{Do: "result"})
		for _, text := range append(r.Wrong, s.Wrong...) {
			a.violated("%s", text)
		}
		late := schedlat.Worst(s.Spells, began) + schedlat.Worst(meter.Spells(), began)
		for _, t := range append(r.Times["vianet dial"], r.Times["plain dial"]...) {
			all, fair = append(all, t), append(fair, max(t-late, 0))
		}
		if a.over() && (len(all) >= requestsDials || a.late()) {
			break
		}
	}
	took := end()
	time.Sleep(requestsRest)
	site.Middle.Watch(func(int, []byte) bool { return false })
	if p99 := percentile(fair, 99); p99 > requestsP99 {
		a.violated("99 %% of %d dials took up to %v, without the time in which the machine ran late %v; undisturbed %v", len(all),
			percentile(all, 99), p99, percentile(undisturbed, 99))
	}
	if len(all) < requestsLeast && len(a.report.Violations) == 0 && a.ctx.Err() == nil {
		a.violated("%d dials in %v, %d are too few to tell", len(all), time.Since(a.start), requestsLeast)
	}
	rate := float64(f.requests) / took.Seconds()
	a.Counts["requests"], a.Counts["confirms"] = f.requests, f.confirm
	if rate < f.rate/2 {
		a.violated("the attack did not take place: %.0f requests/s", rate)
	}
	sent, received, worstHost, factor := f.amplified()
	a.Counts["spoofed bytes"], a.Counts["answered bytes"] = received, sent
	if factor > requestsFactor {
		a.violated("%d bytes that came from %v were answered by %d, %d times as many; all %d by %d", f.from[worstHost], spoofedHost(worstHost),
			f.to[worstHost], int(factor), received, sent)
	}
	return fmt.Sprintf("%.0f requests/s, %d of %d confirmed; %d dials, half within %v, 99 %% within %v (undisturbed %v); %d bytes from "+
		"invented sources, %d to them, at most %.1f times as many to one", rate, f.confirm, f.requests, len(all),
		percentile(all, 50).Round(time.Microsecond), percentile(all, 99).Round(time.Microsecond),
		percentile(undisturbed, 99).Round(time.Microsecond), received, sent, factor), nil
}

// routeTo has the thread's namespace send a network's datagrams to a gateway.
func routeTo(network netip.Prefix, gateway netip.Addr) (err error) {
	defer fail.Catch(&err)
	l := fail.Must(netlink.LinkByName(Interface))
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: veth.IPNet(network), Gw: gateway.AsSlice()})
}

func spoofedHost(n uint16) netip.Addr {
	b := spoofed.Addr().As4()
	binary.BigEndian.PutUint16(b[2:], n)
	return netip.AddrFrom4(b)
}

// Offsets in a frame of IPv4.
const (
	ipAt     = 14
	targetAt = ipAt + 16
)

// watch inspects each frame: it remembers requests of the client, and counts frames to forged sources.
func (f *requestFlood) watch(side int, frame []byte) bool {
	if len(frame) < udpIPv4 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	const most = 8
	udp := frame[ipAt+9] == unix.IPPROTO_UDP
	target := netip.AddrFrom4([4]byte(frame[targetAt:]))
	switch {
	case side == 0 && spoofed.Contains(target):
		n := int(binary.BigEndian.Uint16(frame[ipAt+2:])) - 20
		if udp {
			n -= udpHead
		}
		f.to[binary.BigEndian.Uint16(frame[targetAt+2:])] += uint32(max(n, 0))
	case side == 1 && len(f.samples) < most && udp && len(frame) >= udpIPv4+udpHead:
		if m, err := wire.ParseCM(slices.Clone(frame[udpIPv4+udpHead:])); err == nil && m.Type == wire.CMRequest {
			f.samples = append(f.samples, m)
			f.link = wire.Link{DstMAC: [6]byte(frame), SrcMAC: [6]byte(frame[6:]), Dst: target}
		}
	}
	return false
}

func (f *requestFlood) sampled() []wire.CM {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.samples
}

// run floods until stop is closed. It returns how long, less the machine's scheduling latency: a server without a CPU
// for a tenth of a second must not get a thousand requests afterwards.
func (f *requestFlood) run(stop chan struct{}, meter *schedlat.Meter) time.Duration {
	start, late := time.Now(), meter.Late()
	first := late
	samples := f.sampled()
	due, last := 0., start
	burst := f.rate * requestsBurst.Seconds()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return time.Since(start) - (meter.Late() - first)
		case now := <-tick.C:
			sum := meter.Late()
			due = max(min(due+(now.Sub(last)-(sum-late)).Seconds()*f.rate, burst), -burst)
			for last, late = now, sum; due >= 1; due-- {
				f.request(samples[f.rng.IntN(len(samples))], now)
			}
			for len(f.waiting) > 0 && f.waiting[0].at.Before(now) {
				c := f.waiting[0]
				f.waiting = f.waiting[1:]
				f.send(c.host, &wire.CM{Type: wire.CMConfirm, ID: c.id})
				f.confirm++
			}
		}
	}
}

// request sends a request like one of the client's, from an invented source.
func (f *requestFlood) request(m wire.CM, now time.Time) {
	m.ID, m.Key, m.VI, m.Seq = f.rng.Uint64()|1, f.rng.Uint64(), f.rng.Uint32()|1, f.rng.Uint32()
	host := uint16(f.rng.Uint32())
	f.send(host, &m)
	if f.requests++; f.rng.IntN(confirmShare) == 0 {
		f.waiting = append(f.waiting, confirm{now.Add(confirmDelay), m.ID, host})
	}
}

// send sends a message from an invented source.
func (f *requestFlood) send(host uint16, m *wire.CM) {
	f.mu.Lock()
	link := f.link
	f.mu.Unlock()
	link.Src = spoofedHost(host)
	payload, err := m.Append(nil)
	if err != nil {
		return
	}
	t, err := wire.NewTemplate(link)
	if err != nil {
		return
	}
	frame := make([]byte, t.Len()+len(payload))
	copy(t.Put(frame, len(payload)), payload)
	f.mu.Lock()
	f.from[host] += uint32(len(payload))
	f.mu.Unlock()
	f.sender.Send(frame)
}

// amplified returns what went to forged sources, what came from them, and the source with the largest ratio.
func (f *requestFlood) amplified() (sent, received uint64, host uint16, factor float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.from {
		sent += uint64(f.to[i])
		received += uint64(f.from[i])
		if x := float64(f.to[i]) / float64(max(f.from[i], 1)); x > factor {
			host, factor = uint16(i), x
		}
	}
	return sent, received, host, factor
}

// A server that sends first, with a listener of vianet and one of vipl, and a client that dials both in turn.

const (
	servePort  = 80
	serveArena = 64 << 20
	serveHello = 32 << 10 // bytes that the server says as soon as there is a connection
	// serveAtOnce is how many requests a program with a plain listener accepts at the same time.
	serveAtOnce = 16
	dialTime    = 5 * time.Second
)

var serveDisc = []byte("plain")

// serve serves until the worker ends.
func (w *actor) serve(*command) {
	w.openStack()
	l := fail.Must(w.stack.Listen("via4", netip.AddrPortFrom(netip.IPv4Unspecified(), servePort).String()))
	w.closers = append(w.closers, l.Close)
	w.run.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.count("accepted by vianet")
			w.run.Go(func() { greet(c) })
		}
	})
	plain := fail.Must(w.nic.Listen(vipl.NetAddress{Discriminator: serveDisc}))
	w.closers = append(w.closers, plain.Close)
	for range serveAtOnce {
		e := newPlainEnd(w.nic)
		w.run.Go(func() { e.serve(w, plain) })
	}
}

// openStack opens the interface by this process, and a stack over it.
func (w *actor) openStack() {
	w.nic = fail.Must(w.open("", kagent.AnyQueue, serveArena))
	w.closers = append(w.closers, w.nic.Close)
	w.stack = fail.Must(vianet.New(w.nic, vianet.Options{Linger: time.Second}))
	w.closers = append(w.closers, w.stack.Close)
}

// greet says hello, and waits until the client closes.
func greet(c net.Conn) {
	defer c.Close()
	if _, err := c.Write(make([]byte, serveHello)); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// plainEnd is a VI with memory for a message each way.
type plainEnd struct {
	vi           *vipl.VI
	recvs, sends *ring
}

// plainBytes is the length of a message of the plain server.
const plainBytes = 1024

func newPlainEnd(nic *vipl.NIC) *plainEnd {
	tag := fail.Must(nic.CreatePtag())
	return &plainEnd{
		vi:    fail.Must(nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)),
		recvs: newRing(nic, tag, 1, plainBytes), sends: newRing(nic, tag, 1, plainBytes),
	}
}

// post posts the only descriptor of a ring.
func post(r *ring, to func(*vipl.Descriptor, vipl.MemHandle) error) error {
	d, _ := r.next()
	d.SetSegments(r.segment(plainBytes))
	return to(d, r.region.Handle())
}

// renew makes the VI idle, with nothing posted.
func (e *plainEnd) renew() error {
	err := e.vi.Disconnect()
	for _, done := range []func() (*vipl.Descriptor, error){e.vi.SendDone, e.vi.RecvDone} {
		for d, _ := done(); d != nil; d, _ = done() {
		}
	}
	return err
}

// serve accepts one request after the other.
func (e *plainEnd) serve(w *actor, l *vipl.Listener) {
	for {
		c, err := l.Wait(w.ctx)
		if err != nil {
			return
		}
		if post(e.recvs, e.vi.PostRecv) != nil {
			return
		}
		if err := c.Accept(e.vi); err != nil {
			w.count("accepts failed")
		} else {
			w.count("accepted plainly")
			_ = post(e.sends, e.vi.PostSend)
			_, _ = e.vi.RecvWait(-1) // the client says nothing, and goes
		}
		if err := e.renew(); err != nil {
			w.wrong("disconnect: %v", err)
			return
		}
	}
}

// dial dials both listeners in turns, for a time.
func (w *actor) dial(c *command) {
	if w.nic == nil {
		w.openStack()
	}
	e := newPlainEnd(w.nic)
	to := netip.AddrPortFrom(c.Peer, servePort).String()
	for end := time.Now().Add(c.For); time.Now().Before(end); {
		var conn net.Conn
		err := w.time("vianet dial", func() (err error) {
			ctx, cancel := context.WithTimeout(w.ctx, dialTime)
			defer cancel()
			conn, err = w.stack.DialContext(ctx, "via4", to)
			return err
		})
		if err == nil {
			if err := errors.Join(conn.SetReadDeadline(time.Now().Add(dialTime)), errOf(io.CopyN(io.Discard, conn, serveHello))); err != nil {
				w.wrong("a connection of vianet says nothing: %v", err)
			}
			_ = conn.Close()
		}
		fail.If(post(e.recvs, e.vi.PostRecv))
		err = w.time("plain dial", func() error {
			_, err := e.vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: c.Peer, Discriminator: serveDisc}, dialTime)
			return err
		})
		if err == nil {
			if _, err := e.vi.RecvWait(dialTime); err != nil {
				w.wrong("a plain connection says nothing: %v", err)
			}
		}
		fail.If(e.renew())
	}
	fail.If(errors.Join(e.vi.Destroy(), e.recvs.region.Deregister(), e.sends.region.Deregister()))
}

func errOf(_ int64, err error) error { return err }
