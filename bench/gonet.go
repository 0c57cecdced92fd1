package bench

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
)

// tcpNet is a connection of package net, as a Go program has it: goroutines
// that sleep in the netpoller.
type tcpNet struct {
	*streamed
	params   Params
	listener *net.TCPListener
	conn     *net.TCPConn
	watch    watchdog
}

func openTCPNet(p Params, w watchdog) (*tcpNet, error) {
	t := &tcpNet{params: p, watch: w}
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

// Connect, see Endpoint. Package net sets TCP_NODELAY by itself.
func (t *tcpNet) Connect(peer Hello) (err error) {
	if t.params.Server {
		if err := t.listener.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if t.conn, err = t.listener.AcceptTCP(); err != nil {
			return err
		}
		return t.listener.Close()
	}
	d := net.Dialer{Timeout: patience}
	c, err := d.Dial("tcp", netip.AddrPortFrom(peer.Addr, uint16(peer.Port)).String())
	if err != nil {
		return err
	}
	t.conn = c.(*net.TCPConn)
	return nil
}

func (t *tcpNet) Ping(r Round, rtt []int64) (Span, error) { return t.ping(r, rtt) }
func (t *tcpNet) Echo(r Round) error                      { return t.echo(r) }
func (t *tcpNet) Send(r Round) (Span, error)              { return t.stream(r) }
func (t *tcpNet) Receive(r Round) (Span, error)           { return t.sink(r) }

func (t *tcpNet) Close() error {
	if t.listener != nil {
		t.listener.Close()
	}
	if t.conn != nil {
		t.conn.Close()
	}
	return nil
}

// round sets the deadline of all its reads and writes, so that they need none
// of their own. It is generous: it ends only a round whose peer is gone.
func (t *tcpNet) round() error {
	if t.watch.stop != nil && t.watch.stop.Load() {
		return ErrStopped
	}
	return t.conn.SetDeadline(time.Now().Add(netDeadline))
}

// netDeadline bounds a round over package net.
const netDeadline = 30 * time.Second

func (t *tcpNet) write(p []byte) error {
	_, err := t.conn.Write(p)
	return err
}

func (t *tcpNet) read(p []byte) (int, error) { return t.conn.Read(p) }

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

// round, see tcpNet.
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
