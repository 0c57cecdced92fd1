package gso_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/gso"
	"viaxdp/internal/lab/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m, nil) }

const port = 4793

func path(src, dst netip.Addr, size int) *gso.Path {
	return &gso.Path{Src: src, Dst: netip.AddrPortFrom(dst, port), Size: size}
}

// capture returns the payloads of the UDP datagrams that arrive on an interface from now on, as they are on the wire.
func capture(t *testing.T, ns *nstest.NS) (next func() []byte) {
	t.Helper()
	from := captureFrom(t, ns)
	return func() []byte {
		payload, _ := from()
		return payload
	}
}

// captureFrom returns their source ports, too.
func captureFrom(t *testing.T, ns *nstest.NS) (next func() (payload []byte, from uint16)) {
	t.Helper()
	packet := arrivals(t, ns)
	return func() ([]byte, uint16) {
		udp := udpOf(packet())
		return udp[8:], binary.BigEndian.Uint16(udp)
	}
}

// arrivals returns the IP packets to the port that arrive on an interface from now on.
func arrivals(t *testing.T, ns *nstest.NS) (next func() []byte) {
	t.Helper()
	fd := -1
	nstest.Must(t, ns.Do(func() (err error) {
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ns.Index})
	}))
	t.Cleanup(func() { unix.Close(fd) })
	timeout := unix.NsecToTimeval(int64(5 * time.Second))
	nstest.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	b := make([]byte, 1<<17)
	return func() []byte {
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			nstest.FatalIf(t, err != nil, "nothing arrives: %v", err)
			udp := udpOf(b[:n])
			if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && len(udp) >= 8 && binary.BigEndian.Uint16(udp[2:]) == port {
				return bytes.Clone(b[:n])
			}
		}
	}
}

// udpOf returns what is behind the IP header of a packet; nothing, if it is shorter.
func udpOf(packet []byte) []byte {
	head := 20
	if packet[0]>>4 == 6 {
		head = 40
	}
	return packet[min(head, len(packet)):]
}

func open(t *testing.T, ns *nstest.NS) *gso.Socket {
	t.Helper()
	s := nstest.In(t, ns, func() (*gso.Socket, error) { return gso.Open(ns.Index) })
	t.Cleanup(func() { nstest.Must(t, s.Close()) })
	return s
}

// frames returns n frames of size bytes, the last one short, each in two pieces.
func frames(n, size int) (pieces [][]byte, all []byte) {
	for i := range n {
		if i == n-1 {
			size /= 2
		}
		b := bytes.Repeat([]byte{byte(i + 1)}, size)
		pieces = append(pieces, b[:48], b[48:])
		all = append(all, b...)
	}
	return pieces, all
}

// A packet crosses a veth pair whole. Where the sender's interface has no segmentation offload its frames arrive one by one.
func TestSend(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := open(t, a), capture(t, b)
	for _, whole := range []bool{true, false} {
		if !whole {
			link := a.Link(t)
			nstest.Must(t, a.Netlink().LinkSetGSOMaxSegs(link, 1))
		}
		for _, to := range [][2]netip.Addr{{a.IPv4, b.IPv4}, {a.IPv6, b.IPv6}} {
			const size = 1200
			pieces, all := frames(5, size)
			nstest.Must(t, s.Send(path(to[0], to[1], size), nil, pieces))
			var got []byte
			count := 0
			for ; len(got) < len(all); count++ {
				got = append(got, next()...)
			}
			nstest.ErrorIf(t, !bytes.Equal(got, all) || whole != (count == 1),
				"%v, whole %v: %d bytes in %d datagrams", to, whole, len(got), count)
		}
	}
}

// Errors say what is wrong, and none of them is a wait.
func TestErrors(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s := open(t, a)
	many := make([][]byte, 8*gso.MaxFrames+1)
	for i := range many {
		many[i] = make([]byte, 1)
	}
	long, _ := frames(3, 1600)
	fine, _ := frames(3, 1000)
	for _, c := range []struct {
		what     string
		src, dst netip.Addr
		size     int
		pieces   [][]byte
		want     []error
	}{
		{"frames beyond the MTU", a.IPv4, b.IPv4, 1600, long, []error{unix.EMSGSIZE, unix.EINVAL}},
		{"too many pieces", a.IPv4, b.IPv4, 1, many, []error{unix.EMSGSIZE}},
		{"no such source address", netip.MustParseAddr("192.0.2.77"), b.IPv4, 1000, fine, []error{unix.EINVAL, unix.ENETUNREACH}},
	} {
		err := s.Send(path(c.src, c.dst, c.size), nil, c.pieces)
		ok := false
		for _, want := range c.want {
			ok = ok || errors.Is(err, want)
		}
		nstest.ErrorIf(t, !ok, "%s: %v", c.what, err)
	}
	nstest.WantErr(t, "after errors", s.Send(path(a.IPv4, b.IPv4, 1000), nil, fine), nil)
	nstest.Must(t, s.Close())
	if err := s.Send(path(a.IPv4, b.IPv4, 1000), nil, fine); err == nil {
		t.Error("a closed socket sends")
	}
}

// Frames of a VLAN leave by the interface that routing finds for their source, which is another one than that of Open. The
// second pair stands for it.
func TestTagged(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	x, y := nstest.Another(t, a, b, 2, nstest.Options{})
	s, next := open(t, a), capture(t, y)
	pieces, all := frames(4, 1000)
	tagged := path(x.IPv4, y.IPv4, 1000)
	tagged.Tagged = true
	nstest.Must(t, s.Send(tagged, nil, pieces))
	got := next()
	nstest.ErrorIf(t, !bytes.Equal(got, all), "%d bytes arrive", len(got))
}

func TestSendAllocatesNothing(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s := open(t, a)
	pieces, _ := frames(5, 1200)
	shared, connected := path(a.IPv4, b.IPv4, 1200), path(a.IPv4, b.IPv4, 1200)
	nstest.Must(t, a.Do(func() error { return s.Send(connected, nil, pieces) }))
	for name, to := range map[string]*gso.Path{"shared": shared, "connected": connected} {
		nstest.Equal(t, name, testing.AllocsPerRun(100, func() { _ = s.Send(to, nil, pieces) }), 0)
	}
}

// sockets returns how many UDP sockets of the namespace are connected to the port.
func sockets(t *testing.T, ns *nstest.NS) (connected int) {
	t.Helper()
	nstest.Must(t, ns.Do(func() error {
		found, err := netlink.SocketDiagUDP(unix.AF_INET)
		for _, f := range found {
			if f.ID.DestinationPort == port {
				connected++
			}
		}
		return err
	}))
	return connected
}

// Of the paths that are used in the network namespace of Open, the first 64 have a socket each, until they are released.
// Packets of the others arrive all the same, also where the calling thread is in another namespace.
func TestConnected(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := open(t, a), captureFrom(t, b)
	pieces, all := frames(5, 1200)
	ports := map[uint16]bool{}
	send := func(to *gso.Path) {
		t.Helper()
		nstest.Must(t, s.Send(to, nil, pieces))
		got, from := next()
		nstest.ErrorIf(t, !bytes.Equal(got, all), "%d bytes arrive", len(got))
		ports[from] = true
	}
	want := func(n int) {
		t.Helper()
		if got := sockets(t, a); got != n {
			t.Errorf("%d paths are connected, not %d", got, n)
		}
	}
	send(path(a.IPv4, b.IPv4, 1200))
	want(0) // this thread is in another namespace
	var paths []*gso.Path
	nstest.Must(t, a.Do(func() error {
		for range 70 {
			paths = append(paths, path(a.IPv4, b.IPv4, 1200))
			send(paths[len(paths)-1])
		}
		return nil
	}))
	want(64)
	nstest.ErrorIf(t, len(ports) != 64+1,
		"packets came from %d ports, not one for each socket and the shared one", len(ports))
	for _, p := range paths {
		s.Release(p)
	}
	want(0)
	nstest.Must(t, a.Do(func() error { send(paths[69]); return nil }))
	want(1)
	send(paths[69]) // from any thread
	nstest.Must(t, s.Close())
	want(0)
}

// The kernel of a host on which nobody receives answers each packet by ICMP. That fails no later packet.
func TestRefused(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := open(t, a), capture(t, b)
	pieces, all := frames(5, 1200)
	for _, to := range [][2]netip.Addr{{a.IPv4, b.IPv4}, {a.IPv6, b.IPv6}} {
		p := path(to[0], to[1], 1200)
		nstest.Must(t, a.Do(func() error {
			for range 20 {
				nstest.Must(t, s.Send(p, nil, pieces))
				got := next()
				nstest.ErrorIf(t, !bytes.Equal(got, all), "%v: %d bytes arrive", to, len(got))
			}
			return nil
		}))
	}
}
