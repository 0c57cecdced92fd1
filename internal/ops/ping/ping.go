// Package ping asks a host whether a via-xdp agent is there.
//
//	ping --request for a discriminator not in use--> agent
//	     <---------------- no match ----------------
//
// Any agent answers at once, even if its program is busy. A host without an agent
// answers with an ICMP error. Ping needs no NIC, no privilege and no VI.
package ping

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
)

// ErrNobody says that the host is there and no agent on it.
var ErrNobody = errors.New("the host is there, but no via-xdp program there has this interface open")

// Reply is an answer.
type Reply struct {
	From      netip.Addr    `json:"from"`
	RoundTrip time.Duration `json:"round_trip_ns"`
	Version   uint8         `json:"version"` // of the frame format, the low half of its first byte
}

// Pinger asks one host, again and again. It is for one goroutine.
type Pinger struct {
	conn net.Conn // UDP
	host netip.Addr
}

// Open prepares to ask a host. device, if it is not empty, is the interface to
// ask by.
func Open(host netip.AddrPort, device string) (*Pinger, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		if device == "" {
			return nil
		}
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }), err)
	}}
	if host.Port() == 0 {
		host = netip.AddrPortFrom(host.Addr(), wire.Port)
	}
	c, err := d.Dial("udp", host.String())
	if errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("interface %s: %w: ip link shows those of this network namespace", device, unix.ENODEV)
	}
	if a := host.Addr(); errors.Is(err, unix.EINVAL) && a.Is6() && a.IsLinkLocalUnicast() {
		return nil, fmt.Errorf("%v: a link-local address takes an interface of this network namespace: %v%%eth0, or -I", a, a.WithZone(""))
	}
	if err != nil {
		return nil, err
	}
	return &Pinger{c, host.Addr()}, nil
}

// Close ends it.
func (p *Pinger) Close() error { return p.conn.Close() }

// Ask asks once and waits for the answer until ctx ends. It fails with ErrNobody,
// or os.ErrDeadlineExceeded when nothing came.
func (p *Pinger) Ask(ctx context.Context) (Reply, error) {
	var b [8 + 8 + 16]byte
	rand.Read(b[:]) // never fails
	id := binary.NativeEndian.Uint64(b[:]) | 1
	request := wire.CM{
		Type: wire.CMRequest, ID: id, VI: 1, Key: binary.NativeEndian.Uint64(b[8:]), Window: 1,
		MaxPayload: 1024, Level: 1, MaxTransfer: 1024, To: b[16:],
	}
	msg, err := request.Append(nil)
	if err != nil {
		return Reply{}, err
	}
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(time.Second)
	}
	p.conn.SetDeadline(end)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		p.conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-ended // or it would end the next Ask
		}
	}()
	began := time.Now()
	if _, err := p.conn.Write(msg); err != nil {
		return Reply{}, explain(err)
	}
	var in [wire.CMMaxLen]byte
	for {
		n, err := p.conn.Read(in[:])
		took := time.Since(began)
		if err != nil {
			if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
				return Reply{}, ctx.Err()
			}
			return Reply{}, explain(err)
		}
		if r, ok := answer(in[:n], id); ok {
			r.From, r.RoundTrip = p.host, took
			return r, nil
		}
	}
}

// answer reads a message that may be the answer. Of one of another version only the front is known.
func answer(b []byte, id uint64) (r Reply, ok bool) {
	version, _, of, ok := wire.PeekCM(b)
	if _, err := wire.ParseCM(b); err != nil && !errors.Is(err, wire.ErrVersion) {
		ok = false
	}
	return Reply{Version: version}, ok && of == id
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return ErrNobody
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("no way to the host: %w", err)
	}
	return err
}
