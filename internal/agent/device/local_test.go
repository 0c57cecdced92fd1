package device

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// noLeaks records the running goroutines. The returned function waits until all later ones have ended, since an
// ending goroutine may have to wait for a processor.
func noLeaks(t *testing.T) func() {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		await.Succeeds(t, "all goroutines end", func() error { return goleak.Find(before) })
	}
}

func openOn(t *testing.T, n *nstest.NS, cfg Config) (l *Local, err error) {
	t.Helper()
	err = n.Do(func() (err error) {
		l, err = OpenContext(context.Background(), cfg)
		return err
	})
	return l, err
}

func mustOpen(t *testing.T, n *nstest.NS, cfg Config) *Local {
	t.Helper()
	l, err := openOn(t, n, cfg)
	nstest.Must(t, err)
	t.Cleanup(func() {
		nstest.Check(t, l.Close())
	})
	return l
}

// descriptors lists the open files of this process that are sockets, eBPF
// objects or event descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	nstest.Must(t, err)
	n := 0
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && (strings.HasPrefix(target, "socket:") || strings.Contains(target, "bpf") || strings.Contains(target, "eventfd")) {
			n++
		}
	}
	return n
}

// mappings counts the memory mappings of AF_XDP rings, eBPF maps and hugepages.
func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	nstest.Must(t, err)
	n := 0
	for _, s := range []string{"socket:", "bpf", "hugepage", "memfd"} {
		n += strings.Count(string(b), s)
	}
	return n
}

// Opening and closing, in every mode, again and again, leaves nothing behind.
func TestOpenClose(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	defer noLeaks(t)()
	fds, maps := -1, -1
	for _, mode := range []xdpnic.Mode{xdpnic.ModeAuto, xdpnic.ModeGeneric, xdpnic.ModeNative, xdpnic.ModeZeroCopy, xdpnic.ModeAuto} {
		cfg := small(an)
		cfg.Mode = mode
		l, err := openOn(t, an, cfg)
		nstest.FatalIf(t, err != nil, "%v: %v", mode, err)
		nstest.ErrorIf(t, an.Program(t) == 0, "%v: no program on the interface", mode)
		want := mode
		switch mode {
		case xdpnic.ModeAuto:
			want = xdpnic.ModeGeneric
		case xdpnic.ModeZeroCopy:
			want = xdpnic.ModeNative
		}
		info := l.Info()
		last := info.Attempts[len(info.Attempts)-1]
		nstest.ErrorIf(t, info.Mode != want || last.Mode != want || last.Err != nil, "%v: reached %v by %v, want %v", mode, info.Mode, info.Attempts, want)
		for _, a := range info.Attempts[:len(info.Attempts)-1] {
			nstest.ErrorIf(t, a.Err == nil, "%v: no reason why not %v", mode, a.Mode)
		}
		nstest.ErrorIf(t, info.Driver != "veth" || info.Queues != 1 || info.MTU != an.MTU || info.Index != an.Index, "info: %+v", info)
		if link := l.Link(); link.MAC != [6]byte(an.MAC) || link.Addr() != an.IPv4 || !link.Has(an.IPv6) || !link.Up || link.Queue != 0 {
			t.Errorf("link: %+v", link)
		}
		nstest.Equal(t, "RX chunks", l.Queue().RxChunks(), 256)
		num, err := l.NewVI()
		nstest.Must(t, err)
		nstest.Must(t, l.Enter(num, 1, an.IPv4))
		block, err := l.Arena().Alloc(4096, 4096)
		nstest.Must(t, err)
		nstest.Must(t, l.Arena().Free(block))
		if err := l.Close(); err != nil {
			t.Fatalf("%v: close: %v", mode, err)
		}
		nstest.WantErr(t, fmt.Sprintf("%v: second close", mode), l.Close(), nil)
		nstest.ErrorIf(t, an.Program(t) != 0, "%v: the program stayed on the interface", mode)
		if fds < 0 {
			fds, maps = descriptors(t), mappings(t) // what the libraries keep
		}
		if n := descriptors(t); n > fds {
			t.Errorf("%v: %d descriptors left, %d after the first time", mode, n, fds)
		}
		if n := mappings(t); n > maps {
			t.Errorf("%v: %d mappings left, %d after the first time", mode, n, maps)
		}
		nstest.ErrorIf(t, len(registry.devices) != 0, "%v: the registry still has %v", mode, registry.devices)
		nstest.WantErr(t, "NewVI after Close", nstest.Err(l.NewVI()), kagent.ErrClosed)
		nstest.WantErr(t, "Path after Close", nstest.Err(l.Path(t.Context(), netip.Addr{}, an.IPv4)), kagent.ErrClosed)
	}
}

// A frame reaches the queue while its VI is in the table, and not otherwise.
func TestFramesFollowTheTable(t *testing.T) {
	for _, mode := range []xdpnic.Mode{xdpnic.ModeGeneric, xdpnic.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			an, bn := nstest.Pair(t, nstest.Options{})
			ca, cb := native(an, 0), native(bn, 0)
			ca.Mode, cb.Mode = mode, mode
			a, b := mustOpen(t, an, ca), mustOpen(t, bn, cb)
			for _, peer := range []netip.Addr{bn.IPv4, bn.IPv6} {
				p, err := a.Path(t.Context(), netip.Addr{}, peer)
				nstest.Must(t, err)
				num, err := b.NewVI()
				nstest.Must(t, err)
				key := kagent.NewKey()
				nstest.Must(t, b.Enter(num, key, p.Src))
				nstest.ErrorIf(t, !sendFrame(t, a, b, p, num, key), "%v: the frame of a VI in the table did not come", peer)
				nstest.ErrorIf(t, sendFrame(t, a, b, p, num, key+1), "%v: a frame with the wrong key came", peer)
				nstest.Must(t, b.Remove(num))
				nstest.ErrorIf(t, sendFrame(t, a, b, p, num, key), "%v: the frame of a removed VI came", peer)
				b.FreeVI(num)
				nstest.ErrorIf(t, b.Enter(num, key, p.Src) == nil, "a VI was entered that is not handed out")
			}
		})
	}
}

// sendFrame sends a frame from a and reports whether it comes to b. All that
// comes is received.
func sendFrame(t *testing.T, a, b *Local, p kagent.Path, vi uint32, key uint64) bool {
	t.Helper()
	tmpl, err := wire.NewTemplate(p.Link)
	nstest.Must(t, err)
	before := dropped(t, b)
	q := a.Queue()
	addr, buf, ok := q.Alloc()
	nstest.FatalIf(t, !ok, "no chunk")
	body := tmpl.Put(buf, wire.HeaderLen)
	h := wire.Header{Kind: wire.KindData, VI: vi, Key: key}
	h.Put(body)
	wire.PutChecksum(body)
	q.Send(addr, tmpl.Len()+wire.HeaderLen, false)
	nstest.Must(t, q.Flush())
	var frames [8]xdpnic.Frame
	for end := time.Now().Add(waitLimit); time.Now().Before(end); {
		n := b.Queue().Receive(frames[:])
		came := false
		for _, f := range frames[:n] {
			var got wire.Packet
			came = came || got.Decode(f.Data) == nil && got.VI == vi
			b.Queue().Recycle(f.Addr)
		}
		b.Queue().Refill()
		if came {
			return true
		}
		if dropped(t, b) > before {
			return false
		}
	}
	t.Fatal("the frame neither came nor was it dropped")
	return false
}

// dropped counts the frames that the demux program refused.
func dropped(t *testing.T, l *Local) uint64 {
	t.Helper()
	c, err := l.Counters()
	nstest.Must(t, err)
	return c.NoVI + c.Key + c.Source + c.Queue + c.NoSocket
}

// A server that keeps opening and closing listeners does not grow.
func TestListenersAreForgotten(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	l := mustOpen(t, a, small(a))
	stays, err := l.Listen(kagent.Address{Disc: []byte("stays")})
	nstest.Must(t, err)
	for range 1000 {
		ln, err := l.Listen(kagent.Address{Disc: []byte("goes")})
		nstest.Must(t, err)
		nstest.Must(t, ln.Close())
	}
	if n := cap(l.listeners); n > 8 {
		t.Errorf("room for %d listeners, and 1 is open", n)
	}
	nstest.Check(t, l.Close())
	nstest.ErrorIf(t, !stays.(*localListener).closed.Load(), "a listener is open still")
}

// The peer of a dead program gets the reset on the port of its queue, to which its NIC steers no other.
func TestResetOnQueuePort(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a := mustOpen(t, an, small(an))
	peer := nstest.In(t, bn, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bn.IPv4, wire.Port+9)))
	})
	defer peer.Close()
	num, err := a.NewVI()
	nstest.Must(t, err)
	a.Connected(num, PeerReset{From: an.IPv4, To: bn.IPv4, VI: 7, Key: 8, Seq: 9, Offset: 9})
	a.ResetPeers()
	nstest.Must(t, peer.SetReadDeadline(time.Now().Add(waitLimit)))
	b := make([]byte, 1500)
	n, _, err := peer.ReadFromUDPAddrPort(b)
	nstest.Must(t, err)
	h := wire.Header{Kind: wire.KindError, VI: 7, Key: 8, Ack: 9, Immediate: uint32(wire.ReasonClosed)}
	want := make([]byte, wire.HeaderLen)
	h.Put(want)
	if wire.PutChecksum(want); !bytes.Equal(b[:n], want) {
		t.Errorf("% x, want % x", b[:n], want)
	}
}

// Status lists the queue, its holder, and each VI with its peer, and drops them when they end.
func TestLocalStatus(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	agent, err := openOn(t, a, small(a))
	nstest.Must(t, err)
	idle, err := agent.NewVI()
	nstest.Must(t, err)
	connected, err := agent.NewVI()
	nstest.Must(t, err)
	nstest.Must(t, agent.Enter(connected, kagent.NewKey(), b.IPv4))
	lease := func() kagent.LeaseStatus {
		t.Helper()
		s := LocalStatus()
		nstest.FatalIf(t, s.Daemon || s.PID != os.Getpid() || len(s.NICs) != 1 || len(s.NICs[0].Leases) != 1, "status: %+v", s)
		n := s.NICs[0]
		nstest.ErrorIf(t, n.Interface != a.Name || n.Driver != "veth" || n.MTU != a.MTU || n.VIs != len(n.Leases[0].VIs), "NIC: %+v", n)
		return n.Leases[0]
	}
	agent.manager.Receive([]byte("?"), a.IPv4, netip.AddrPortFrom(b.IPv4, 4793))
	nstest.Equal(t, "connection management", LocalStatus().NICs[0].Connects, kagent.Counters{Malformed: 1})
	l := lease()
	nstest.ErrorIf(t, l.Queue != 0 || l.Holder.PID != os.Getpid() || l.Holder.Comm == "" || l.PinnedBytes < 4<<20 || l.Handles != 1, "lease: %+v", l)
	vis := map[uint32]kagent.VIStatus{}
	for _, v := range l.VIs {
		vis[v.Num] = v
	}
	want := map[uint32]kagent.VIStatus{
		idle:      {Num: idle, State: kagent.VICreated},
		connected: {Num: connected, State: kagent.VIConnected, Peer: b.IPv4},
	}
	nstest.ErrorIf(t, !maps.Equal(vis, want), "VIs: %+v, want %+v", vis, want)
	agent.FreeVI(idle)
	nstest.Must(t, agent.Remove(connected))
	if l := lease(); len(l.VIs) != 1 || l.VIs[0] != (kagent.VIStatus{Num: connected, State: kagent.VICreated}) {
		t.Errorf("after removing: %+v", l.VIs)
	}
	nstest.Must(t, agent.Close())
	nstest.Equal(t, "interfaces after Close", len(LocalStatus().NICs), 0)
}
