package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// A network is how a Go program connects: by package net, or by package vianet on a NIC of
// its own. The code that uses the connections is the same.
type network struct {
	nic    *vipl.NIC // nil: package net
	listen func(name, address string) (net.Listener, error)
	dial   func(ctx context.Context, name, address string) (net.Conn, error)
	alloc  func(n int) ([]byte, error) // memory for messages; vianet's is of the NIC's arena
	close  func() error                // may be called more than once
}

func openNetwork(p Params, overVianet bool) (*network, error) {
	if !overVianet {
		return &network{
			listen: net.Listen, dial: (&net.Dialer{}).DialContext,
			alloc: func(n int) ([]byte, error) { return make([]byte, n), nil },
			close: func() error { return nil },
		}, nil
	}
	nic, err := openNIC(p, vipl.WithChunks(ringChunks, ringChunks))
	if err != nil {
		return nil, err
	}
	stack, err := vianet.New(nic, vianet.Options{})
	if err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	return &network{
		nic: nic, listen: stack.Listen, dial: stack.DialContext, alloc: stack.Alloc,
		close: sync.OnceValue(func() error { return errors.Join(stack.Close(), nic.Close()) }),
	}, nil
}

// reach dials until the other side listens.
func (n *network) reach(ctx context.Context, at netip.AddrPort, limit time.Duration) net.Conn {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ; ; time.Sleep(connectPause) {
		conn, err := n.dial(ctx, "tcp", at.String())
		if err == nil || ctx.Err() != nil {
			fail.If(err)
			return conn
		}
	}
}

// listenWithin makes a listener whose Accept ends after some time, and with ctx.
func (n *network) listenWithin(ctx context.Context, at netip.AddrPort, limit time.Duration) net.Listener {
	l := fail.Must(n.listen("tcp", at.String()))
	fail.If(l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(limit)))
	context.AfterFunc(ctx, func() { l.Close() })
	return l
}

// netStream is a connection of a network, used as any Go program uses a net.Conn. It is the
// transports tcp-net, whose goroutines sleep in the netpoller, and vianet, whose messages lie
// in memory of the NIC's arena as those of a VI do.
type netStream struct {
	*streamed
	params   Params
	watch    watchdog
	network  *network
	listener net.Listener // the server's, before Connect
	conn     net.Conn
}

// netDeadline bounds a round over package net or vianet.
const netDeadline = 30 * time.Second

func openNetStream(o opening, overVianet bool) *netStream {
	s := &netStream{streamed: &streamed{}, params: o.Params, watch: o.watch(), network: fail.Must(openNetwork(o.Params, overVianet))}
	s.streamed.s = s
	orClose(s, func() {
		s.out = fail.Must(s.network.alloc(o.MaxBytes))
		s.in = fail.Must(s.network.alloc(max(o.MaxBytes, readBuffer)))
		if o.Server {
			s.listener = fail.Must(s.network.listen("tcp", netip.AddrPortFrom(o.Local, 0).String()))
		}
	})
	return s
}

// orClose calls f, and closes what it works on if it fails.
func orClose(c io.Closer, f func()) {
	if err := fail.Try(f); err != nil {
		fail.If(errors.Join(err, c.Close()))
	}
}

func (s *netStream) Hello() Hello {
	h := Hello{Addr: s.params.Local, Facts: factsOf(s.network.nic)}
	if s.listener != nil {
		if at, err := netip.ParseAddrPort(s.listener.Addr().String()); err == nil {
			h.Port = int(at.Port())
		}
	}
	return h
}

// Connect, see endpoint. Package net sets TCP_NODELAY by itself.
func (s *netStream) Connect(peer Hello) {
	if s.params.Server {
		l := s.listener
		fail.If(l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(waitLimit)))
		s.conn = fail.Must(l.Accept())
		s.listener = nil
		fail.If(l.Close())
		return
	}
	ctx, cancel := context.WithTimeout(s.watch.ctx, waitLimit)
	defer cancel()
	s.conn = fail.Must(s.network.dial(ctx, "tcp", netip.AddrPortFrom(peer.Addr, uint16(peer.Port)).String()))
}

func (s *netStream) Close() error {
	var errs []error
	if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.network != nil {
		errs = append(errs, s.network.close())
	}
	return errors.Join(errs...)
}

// round sets the deadline of all its reads and writes, so that they need none
// of their own. It is generous: it ends only a round whose peer is gone.
func (s *netStream) round() {
	fail.If(context.Cause(s.watch.ctx))
	fail.If(s.conn.SetDeadline(time.Now().Add(netDeadline)))
}

func (s *netStream) write(p []byte) { fail.Must(s.conn.Write(p)) }

func (s *netStream) read(p []byte) int { return fail.Must(s.conn.Read(p)) }

// takeSocket takes the socket out of a connection of package net, and removes it from the
// netpoller.
func takeSocket(c interface {
	syscall.Conn
	Close() error
}) (fd int, err error) {
	defer fail.Closing(&err, c.Close)
	defer fail.Catch(&err)
	onSocket(c, func(its int) (err error) {
		if fd, err = unix.FcntlInt(uintptr(its), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(fd, false)
		}
		return err
	})
	return fd, nil
}

// onSocket calls f with the socket of a connection.
func onSocket(c syscall.Conn, f func(fd int) error) {
	var err error
	fail.If(fail.Must(c.SyscallConn()).Control(func(fd uintptr) { err = f(int(fd)) }))
	fail.If(err)
}
