package bench

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

// netStream is a connection of package net or package vianet, used as any Go program uses a
// net.Conn.
type netStream struct {
	*streamed
	params   Params
	watch    watchdog
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	listener net.Listener // the server's
	conn     net.Conn
}

// netDeadline bounds a round over package net or vianet.
const netDeadline = 30 * time.Second

// Connect, see Endpoint. Package net sets TCP_NODELAY by itself.
func (s *netStream) Connect(peer Hello) (err error) {
	if s.params.Server {
		l := s.listener.(interface{ SetDeadline(time.Time) error })
		if err := l.SetDeadline(time.Now().Add(waitLimit)); err != nil {
			return err
		}
		if s.conn, err = s.listener.Accept(); err != nil {
			return err
		}
		return s.listener.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s.conn, err = s.dial(ctx, "tcp", netip.AddrPortFrom(peer.Addr, uint16(peer.Port)).String())
	return err
}

// round sets the deadline of all its reads and writes, so that they need none
// of their own. It is generous: it ends only a round whose peer is gone.
func (s *netStream) round() error {
	if s.watch.stop != nil && s.watch.stop.Load() {
		return ErrStopped
	}
	return s.conn.SetDeadline(time.Now().Add(netDeadline))
}

func (s *netStream) write(p []byte) error {
	_, err := s.conn.Write(p)
	return err
}

func (s *netStream) read(p []byte) (int, error) { return s.conn.Read(p) }

// tcpNet is a connection of package net: goroutines that sleep in the netpoller.
type tcpNet struct{ netStream }

func openTCPNet(p Params, w watchdog) (*tcpNet, error) {
	t := &tcpNet{netStream{params: p, watch: w, dial: (&net.Dialer{}).DialContext}}
	t.streamed = newStreamed(t, p.MaxBytes)
	if p.Server {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Local, uint16(p.Port))))
		if err != nil {
			return nil, err
		}
		t.listener = l
	}
	return t, nil
}

func (t *tcpNet) Hello() Hello {
	h := Hello{Addr: t.params.Local}
	if t.listener != nil {
		h.Port = t.listener.Addr().(*net.TCPAddr).Port
	}
	return h
}

// Close, see Endpoint.
func (t *tcpNet) Close() error {
	if t.listener != nil {
		t.listener.Close()
	}
	if t.conn != nil {
		t.conn.Close()
	}
	return nil
}

// viaNet is a connection of package vianet. Its messages lie in memory of the NIC's arena,
// as those of a VI do.
type viaNet struct {
	netStream
	nic   *vipl.NIC
	stack *vianet.Stack
}

func openViaNet(p Params, w watchdog) (*viaNet, error) {
	v := &viaNet{netStream: netStream{params: p, watch: w}}
	v.streamed = &streamed{s: v}
	if err := v.open(); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

func (v *viaNet) open() (err error) {
	if v.nic, err = openNIC(v.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
		return err
	}
	if v.stack, err = vianet.New(v.nic, vianet.Options{}); err != nil {
		return err
	}
	v.dial = func(ctx context.Context, _, address string) (net.Conn, error) {
		return v.stack.DialContext(ctx, "via", address)
	}
	if v.out, err = v.stack.Alloc(v.params.MaxBytes); err != nil {
		return err
	}
	if v.in, err = v.stack.Alloc(max(v.params.MaxBytes, readBuffer)); err != nil {
		return err
	}
	if v.params.Server {
		v.listener, err = v.stack.Listen("via", netip.AddrPortFrom(v.params.Local, uint16(v.params.Port)).String())
	}
	return err
}

func (v *viaNet) Hello() Hello {
	h := Hello{Addr: v.params.Local, Facts: factsOf(v.nic)}
	if v.listener != nil {
		h.Port = int(v.listener.Addr().(vianet.Addr).Port())
	}
	return h
}

// Close, see Endpoint.
func (v *viaNet) Close() error {
	var errs []error
	if v.conn != nil {
		errs = append(errs, v.conn.Close())
	}
	if v.stack != nil {
		errs = append(errs, v.stack.Close())
	}
	if v.nic != nil {
		errs = append(errs, v.nic.Close())
	}
	return errors.Join(errs...)
}

// udpNet is a UDP socket of package net.
type udpNet struct {
	params  Params
	conn    *net.UDPConn
	peer    netip.AddrPort
	payload int
	window  int
	out, in []byte
	got     []byte // read by wait, for poll
}

func openUDPNet(p Params) (*udpNet, error) {
	mtu, err := mtuOf(p.Local)
	if err != nil {
		return nil, err
	}
	u := &udpNet{params: p, payload: datagram(p, mtu)}
	u.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Local, uint16(p.Port))))
	if err != nil {
		return nil, err
	}
	raw, err := u.conn.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			u.window, err = udpWindow(int(fd), u.payload)
		}), err)
	}
	if err != nil {
		u.conn.Close()
		return nil, err
	}
	u.out, u.in = make([]byte, u.payload), make([]byte, u.payload)
	return u, nil
}

func (u *udpNet) hello() Hello {
	return Hello{
		Addr: u.params.Local, Port: u.conn.LocalAddr().(*net.UDPAddr).Port,
		Payload: u.payload, Window: u.window,
	}
}

func (u *udpNet) connect(peer Hello) error {
	u.peer = netip.AddrPortFrom(peer.Addr, uint16(peer.Port))
	return nil
}

// round, see netStream.
func (u *udpNet) round() error { return u.conn.SetDeadline(time.Now().Add(netDeadline)) }

func (u *udpNet) next() []byte { return u.out }

func (u *udpNet) commit(n int) error {
	_, err := u.conn.WriteToUDPAddrPort(u.out[:n], u.peer)
	return err
}

func (u *udpNet) flush() error { return nil }

// poll gives what wait has read: package net has no read that does not block.
func (u *udpNet) poll() ([]byte, error) {
	got := u.got
	u.got = nil
	return got, nil
}

func (u *udpNet) wait() error {
	n, _, err := u.conn.ReadFromUDPAddrPort(u.in)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrStalled
	}
	u.got = u.in[:n]
	return err
}

func (u *udpNet) close() error { return u.conn.Close() }
