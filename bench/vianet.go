package bench

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

// viaNet is a connection of package vianet, used as any program uses a net.Conn.
// Its messages lie in memory of the NIC's arena, as those of a VI do.
type viaNet struct {
	*streamed
	params   Params
	watch    watchdog
	nic      *vipl.Nic
	stack    *vianet.Stack
	listener net.Listener
	conn     *vianet.Conn
}

func openViaNet(p Params, w watchdog) (*viaNet, error) {
	v := &viaNet{params: p, watch: w}
	v.streamed = &streamed{s: v}
	if err := v.open(); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

func (v *viaNet) open() (err error) {
	if v.nic, err = openNic(v.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
		return err
	}
	if v.stack, err = vianet.New(v.nic, vianet.Options{}); err != nil {
		return err
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

// Connect, see Endpoint.
func (v *viaNet) Connect(peer Hello) error {
	if v.params.Server {
		if err := v.listener.(*vianet.Listener).SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		c, err := v.listener.Accept()
		if err != nil {
			return err
		}
		v.conn = c.(*vianet.Conn)
		return v.listener.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := v.stack.DialContext(ctx, "via", netip.AddrPortFrom(peer.Addr, uint16(peer.Port)).String())
	if err != nil {
		return err
	}
	v.conn = c.(*vianet.Conn)
	return nil
}

func (v *viaNet) Ping(r Round, rtt []int64) (Span, error) { return v.ping(r, rtt) }
func (v *viaNet) Echo(r Round) error                      { return v.echo(r) }
func (v *viaNet) Send(r Round) (Span, error)              { return v.stream(r) }
func (v *viaNet) Receive(r Round) (Span, error)           { return v.sink(r) }

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

// round, see tcpNet.
func (v *viaNet) round() error {
	if v.watch.stop != nil && v.watch.stop.Load() {
		return ErrStopped
	}
	return v.conn.SetDeadline(time.Now().Add(netDeadline))
}

func (v *viaNet) write(p []byte) error {
	_, err := v.conn.Write(p)
	return err
}

func (v *viaNet) read(p []byte) (int, error) { return v.conn.Read(p) }
