// Package ctrlport is the control port: connection management's Transport over a UDP socket of an
// interface. The kernel does address resolution and routing, and the demux program lets those frames
// through.
package ctrlport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
)

// udpLoop is the number of queued datagrams to the interface's own addresses.
const udpLoop = 64

// pollPause is the time between two reads while the poller fails.
const pollPause = time.Millisecond

// sendBuffer is the requested size of the socket's send buffer in bytes, which the kernel doubles. While it resolves the
// hardware address of a host, for up to 3 s, datagrams to the host stay in the buffer: 208 KiB at most for each host
// (unres_qlen_bytes), which is as much as a buffer of the default size has.
const sendBuffer = 4 << 20

// UDP is the Transport over a UDP socket of the kernel, which does address
// resolution, routing and fragmentation. The socket is bound to the device, so
// that agents of several interfaces share the port.
type UDP struct {
	file *os.File
	conn syscall.RawConn
	port uint16
	v6   bool                  // an IPv6 socket, which takes both families
	own  func(netip.Addr) bool // reports whether an address is the interface's
	loop chan loopback
	ctx  context.Context // ended by end, in Close
	end  context.CancelFunc

	overrun atomic.Uint32

	mu      sync.Mutex // held for each call of handler
	handler connmgr.Handler
	polled  udpReader // Poll's
}

// loopback is a datagram to this host. A socket that is bound to a device does not get what the kernel routes
// through the loopback device.
type loopback struct {
	b     []byte
	local netip.Addr
	from  netip.AddrPort
}

// Listen opens the socket in the network namespace of the calling thread. own reports whether an
// address is the interface's. An error that matches EADDRINUSE means that another program has the
// port of that interface.
func Listen(device string, port uint16, own func(netip.Addr) bool) (*UDP, error) {
	domain := unix.AF_INET6
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		domain = unix.AF_INET
		fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := setup(fd, domain == unix.AF_INET6, device, port); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newUDP(fd, domain, device, port, own)
}

// Adopt returns a UDP for a copy of a socket that Listen has opened in another process.
func Adopt(f *os.File, device string, port uint16, own func(netip.Addr) bool) (*UDP, error) {
	fd, err := fds.Dup(f)
	if err != nil {
		return nil, err
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("SO_DOMAIN", err)
	}
	return newUDP(fd, domain, device, port, own)
}

func newUDP(fd, domain int, device string, port uint16, own func(netip.Addr) bool) (u *UDP, err error) {
	u = &UDP{
		file: os.NewFile(uintptr(fd), "udp:"+device),
		port: port, v6: domain == unix.AF_INET6, own: own, loop: make(chan loopback, udpLoop),
	}
	u.ctx, u.end = context.WithCancel(context.Background())
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) // else it has the default size
	if u.conn, err = u.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// Control calls f with the socket's descriptor.
func (u *UDP) Control(f func(fd uintptr)) error { return u.conn.Control(f) }

func setup(fd int, v6 bool, device string, port uint16) error {
	if err := unix.BindToDevice(fd, device); err != nil {
		return os.NewSyscallError("bind to device "+device, err)
	}
	// Control messages: the destination of a datagram (ip(7), ipv6(7)); errors of datagrams that did not
	// arrive; and the number that found the socket full.
	options := [][3]int{{unix.SOL_IP, unix.IP_RECVERR, 1}, {unix.SOL_SOCKET, unix.SO_BROADCAST, 1}, {unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1}}
	if v6 {
		options = append(options,
			[3]int{unix.SOL_IPV6, unix.IPV6_V6ONLY, 0},
			[3]int{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1},
			[3]int{unix.SOL_IPV6, unix.IPV6_RECVERR, 1})
	} else {
		options = append(options, [3]int{unix.SOL_IP, unix.IP_PKTINFO, 1})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return os.NewSyscallError(fmt.Sprintf("setsockopt %d/%d", o[0], o[1]), err)
		}
	}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if v6 {
		sa = &unix.SockaddrInet6{Port: int(port)}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

// Send sends b; see [Transport].
func (u *UDP) Send(b []byte, from netip.Addr, to netip.AddrPort) error {
	if u.own(to.Addr()) {
		return u.sendSelf(b, from, to)
	}
	return u.sendmsg(b, from, to)
}

// Nudge is Send to have the kernel resolve the hardware address of a host. It fails while half of the send buffer is in use, so
// that hosts that do not answer leave room for messages to others.
func (u *UDP) Nudge(b []byte, from netip.Addr, to netip.AddrPort) error {
	queued := 0
	err := u.conn.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	if err == nil && queued > sendBuffer {
		err = unix.EAGAIN
	}
	if err != nil {
		return err
	}
	return u.Send(b, from, to)
}

// Broadcast sends b to all hosts of the link; see [Transport]. It is sent through the device that the socket
// is bound to. IPv6 delivers datagrams to all nodes without a membership (inet6_mc_check, net/ipv6/mcast.c).
func (u *UDP) Broadcast(b []byte, from netip.Addr) error {
	return u.sendmsg(b, from, netip.AddrPortFrom(connmgr.Everyone(from.Is4()), u.port))
}

func (u *UDP) sendmsg(b []byte, from netip.Addr, to netip.AddrPort) error {
	sa := u.sockaddr(to)
	if sa == nil {
		return fmt.Errorf("%w: this kernel has no IPv6", kagent.ErrUnreachable)
	}
	oob := u.sourceMessage(from)
	var err error
	cerr := u.conn.Control(func(fd uintptr) {
		// The error may belong to an earlier datagram; the kernel reports each such error once
		// (ip(7), IP_RECVERR). So try again.
		for range 3 {
			_, err = unix.SendmsgN(int(fd), b, oob, sa, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if err == nil || errors.Is(err, unix.EAGAIN) {
				return
			}
		}
	})
	switch {
	case cerr != nil:
		return kagent.ErrClosed
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("%w: %w", kagent.ErrUnreachable, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("a packet filter forbids UDP to %v: %v", to, err)
	}
	return os.NewSyscallError("sendmsg", err)
}

func (u *UDP) sendSelf(b []byte, from netip.Addr, to netip.AddrPort) error {
	if !from.IsValid() {
		from = to.Addr()
	}
	select {
	case u.loop <- loopback{bytes.Clone(b), to.Addr(), netip.AddrPortFrom(from, to.Port())}:
	default: // lost, as on any network
	}
	return nil
}

// Serve passes received datagrams to h; see [Transport].
func (u *UDP) Serve(h connmgr.Handler) error {
	u.mu.Lock()
	u.handler = h
	u.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case p := <-u.loop:
				u.mu.Lock()
				h.Receive(p.b, p.local, p.from)
				u.mu.Unlock()
			case <-u.ctx.Done():
				return
			}
		}
	})
	defer wg.Wait()
	defer u.Close()
	r := new(udpReader)
	for {
		var err error
		cerr := u.conn.Read(func(fd uintptr) bool {
			err = r.read(int(fd))
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case cerr != nil && u.ctx.Err() != nil:
			return nil
		case cerr != nil:
			// Go's poller fails after an event that is EPOLLERR alone, until the next event (runtime.netpollcheckerr): reports
			// have come, and more than half of the send buffer is in use.
			if !u.Poll() {
				time.Sleep(pollPause)
			}
			continue // r has been passed on
		case err != nil:
			// The error of an earlier datagram, whose details are on the error queue. The
			// interface may also be down, or removed.
			continue
		}
		u.mu.Lock()
		u.pass(r)
		u.mu.Unlock()
	}
}

// Poll passes on a datagram that has arrived, or the report of one that has not; see Serve. It reports whether there was one.
func (u *UDP) Poll() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.handler == nil {
		return false
	}
	r := &u.polled
	var err error
	if cerr := u.conn.Control(func(fd uintptr) { err = r.read(int(fd)) }); cerr != nil || err != nil {
		return false // an error other than EAGAIN: see Serve
	}
	u.pass(r)
	return true
}

// pass passes on what r has read. Caller holds u.mu.
func (u *UDP) pass(r *udpReader) {
	if r.failed != nil {
		u.handler.Undelivered(r.data, r.peer, r.failed)
		return
	}
	u.overrun.Store(r.missed)
	u.handler.Receive(r.data, r.local, r.peer)
}

// Overrun returns how many datagrams the kernel has dropped since the socket was opened because earlier ones
// had not been read. The number is as of the datagram that was read last.
func (u *UDP) Overrun() uint64 { return uint64(u.overrun.Load()) }

// Close closes the socket; see [Transport].
func (u *UDP) Close() error {
	u.end()
	if err := u.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
