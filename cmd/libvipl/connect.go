//go:build cgo

package main

// #include "abi.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"viaxdp/vipl"
)

// conn is a request for a connection that waits for an answer.
type conn struct{ *vipl.Conn }

// hostAddress is where the host begins, and the discriminator behind it.
func hostAddress(a *C.VIP_NET_ADDRESS, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&a.HostAddress)), n)
}

// longHost is how many bytes a host has for programs that know no other length
// than Giganet's: an IPv4 address and zeros.
const longHost = 6

// hostBytes is a host as the program knows it.
func (n *nic) hostBytes(a netip.Addr) []byte {
	b := a.AsSlice()
	if n.length == longHost && len(b) == 4 {
		b = append(b, 0, 0)
	}
	return b
}

// getAddress reads an address of the program. A host of no bytes, or of zeros, is no host.
func (n *nic) getAddress(a *C.VIP_NET_ADDRESS) (out vipl.NetAddress, err error) {
	host, disc := int(a.HostAddressLen), int(a.DiscriminatorLen)
	switch {
	case disc > vipl.MaxDiscriminatorLen:
		return out, vipl.ErrInvalidParameter
	case host == 0 || host == 4 || host == 16 || host == n.length:
	default:
		if host == longHost && verbose() {
			fmt.Fprintf(stderr{}, "HostAddressLen is %d, the NIC's NicAddressLen %d; VIA_ADDRESS_LEN=%[1]d is for programs that know no other\n", host, n.length)
		}
		return out, vipl.ErrInvalidParameter
	}
	b := hostAddress(a, host+disc)
	ip := b[:host]
	if host == longHost {
		ip = b[:4]
	}
	if addr, ok := netip.AddrFromSlice(ip); ok && !addr.IsUnspecified() {
		out.Host = addr
	}
	if disc > 0 {
		out.Discriminator = append([]byte(nil), b[host:]...)
	}
	return out, nil
}

// getLocal is getAddress for this side's address. A program with hosts of longHost bytes may
// give only their length and no host.
func (n *nic) getLocal(a *C.VIP_NET_ADDRESS) (out vipl.NetAddress, err error) {
	out, err = n.getAddress(a)
	if n.length == longHost {
		out.Host = netip.Addr{}
	}
	return out, err
}

// putAddress gives the program an address, and writes nothing behind it.
func (n *nic) putAddress(out *C.VIP_NET_ADDRESS, a vipl.NetAddress) {
	host := n.hostBytes(a.Host)
	out.HostAddressLen, out.DiscriminatorLen = C.VIP_UINT16(len(host)), C.VIP_UINT16(len(a.Discriminator))
	b := hostAddress(out, len(host)+len(a.Discriminator))
	copy(b[copy(b, host):], a.Discriminator)
}

//export viago_connect_wait
func viago_connect_wait(h C.uintptr_t, local *C.VIP_NET_ADDRESS, ms C.VIP_ULONG, remote *C.VIP_NET_ADDRESS,
	attributes *C.VIP_VI_ATTRIBUTES, out *C.uintptr_t) C.int {
	return control("VipConnectWait", h, func(n *nic) error {
		at, err := n.getLocal(local)
		if err != nil {
			return err
		}
		request, err := n.connectWait(at, timeout(ms), remote != nil)
		if err != nil {
			return err
		}
		c, err := add(connKind, &conn{request}, n, nil)
		if err != nil {
			request.Reject()
			return err
		}
		if remote != nil {
			n.putAddress(remote, request.Remote())
		}
		if attributes != nil {
			putAttributes(attributes, request.RemoteAttributes())
		}
		*out = c
		return nil
	})
}

// connectWait is ConnectWait for a program that, if it is bounded, has room for a host as long as the NIC's or as the
// one that it listens at, and a discriminator of maxDisc bytes. The requester chooses both lengths; a request with other
// ones is rejected.
func (n *nic) connectWait(at vipl.NetAddress, timeout time.Duration, bounded bool) (*vipl.Conn, error) {
	end, l := time.Now().Add(timeout), n.listener(at)
	for {
		request, err := n.wait(l, at, timeout)
		if err != nil || !bounded {
			return request, err
		}
		remote := request.Remote()
		fits := n.hasRoom(remote.Host) || at.Host.BitLen() == remote.Host.BitLen()
		if fits && len(remote.Discriminator) <= n.maxDisc {
			return request, nil
		}
		_ = request.Reject() // the requester may have given up
		if timeout > 0 {
			timeout = max(0, time.Until(end))
		}
	}
}

// wait is ConnectWait, which unlisten ends where there is a listener.
func (n *nic) wait(l *vipl.Listener, at vipl.NetAddress, timeout time.Duration) (*vipl.Conn, error) {
	if l == nil {
		return n.ConnectWait(at, timeout)
	}
	ctx, end := context.Background(), time.Now().Add(timeout)
	if timeout >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	request, err := l.Wait(ctx)
	switch {
	case err == nil:
		return request, nil
	case errors.Is(err, vipl.ErrTimeout):
		return nil, vipl.ErrTimeout // bare, as from ConnectWait: VIA_VERBOSE does not report it
	case n.listener(at) != l:
		return nil, fmt.Errorf("%w: VipxUnlisten ended it", vipl.ErrInvalidState)
	}
	if timeout >= 0 {
		timeout = max(0, time.Until(end))
	}
	return n.ConnectWait(at, timeout) // the listener is lost: an agent that was restarted may have refused it
}

func (n *nic) listener(at vipl.NetAddress) *vipl.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[listenAddress(at)]
}

// listenAddress is a key for an address.
func listenAddress(a vipl.NetAddress) string {
	return a.Host.Unmap().String() + " " + string(a.Discriminator)
}

//export viago_listen
func viago_listen(h C.uintptr_t, local *C.VIP_NET_ADDRESS) C.int {
	return control("VipxListen", h, func(n *nic) error {
		at, err := n.getLocal(local)
		if err != nil {
			return err
		}
		return n.listen(at)
	})
}

// listen is VipxListen. Like unlisten, it holds no lock while the agent answers, which may take long.
func (n *nic) listen(at vipl.NetAddress) error {
	l, err := n.Listen(at)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[listenAddress(at)] = l
	return nil
}

//export viago_unlisten
func viago_unlisten(h C.uintptr_t, local *C.VIP_NET_ADDRESS) C.int {
	return control("VipxUnlisten", h, func(n *nic) error {
		at, err := n.getLocal(local)
		if err != nil {
			return err
		}
		return n.unlisten(at)
	})
}

func (n *nic) unlisten(at vipl.NetAddress) error {
	n.mu.Lock()
	l := n.listeners[listenAddress(at)]
	delete(n.listeners, listenAddress(at))
	n.mu.Unlock()
	if l == nil {
		return vipl.ErrInvalidState
	}
	return l.Close()
}

//export viago_connect_accept
func viago_connect_accept(h, with C.uintptr_t) C.int {
	return control("VipConnectAccept", h, func(c *conn) error {
		v := find[vi](with)
		if v == nil {
			return vipl.ErrInvalidParameter
		}
		err := c.Accept(v.VI)
		switch code(err) {
		case C.VIP_SUCCESS, C.VIP_TIMEOUT, C.VIP_REJECT:
			remove(h)
		default: // the requester has no answer yet: the program may try again, or reject
		}
		return err
	})
}

//export viago_connect_reject
func viago_connect_reject(h C.uintptr_t) C.int {
	return control("VipConnectReject", h, func(c *conn) error {
		remove(h)
		return c.Reject()
	})
}

// request is control for a VI that connects from one address to another.
func request(op string, h C.uintptr_t, local, remote *C.VIP_NET_ADDRESS, connect func(v *vi, from, to vipl.NetAddress) error) C.int {
	return control(op, h, func(v *vi) error {
		from, err := v.nic.getLocal(local)
		if err != nil {
			return err
		}
		to, err := v.nic.getAddress(remote)
		if err != nil {
			return err
		}
		return connect(v, from, to)
	})
}

//export viago_connect_request
func viago_connect_request(h C.uintptr_t, local, remote *C.VIP_NET_ADDRESS, ms C.VIP_ULONG,
	attributes *C.VIP_VI_ATTRIBUTES) C.int {
	return request("VipConnectRequest", h, local, remote, func(v *vi, from, to vipl.NetAddress) error {
		theirs, err := v.ConnectRequest(from, to, timeout(ms))
		if err == nil && attributes != nil {
			putAttributes(attributes, theirs)
		}
		return err
	})
}

//export viago_disconnect
func viago_disconnect(h C.uintptr_t) C.int {
	return control("VipDisconnect", h, func(v *vi) error { return v.Disconnect() })
}

//export viago_peer_request
func viago_peer_request(h C.uintptr_t, local, remote *C.VIP_NET_ADDRESS, ms C.VIP_ULONG) C.int {
	return request("VipConnectPeerRequest", h, local, remote, func(v *vi, from, to vipl.NetAddress) error {
		return v.ConnectPeerRequest(from, to, timeout(ms))
	})
}

//export viago_peer_outcome
func viago_peer_outcome(h C.uintptr_t, wait C.int, attributes *C.VIP_VI_ATTRIBUTES) C.int {
	return control("VipConnectPeer", h, func(v *vi) error {
		outcome := v.ConnectPeerDone
		if wait != 0 {
			outcome = v.ConnectPeerWait
		}
		theirs, err := outcome()
		if err == nil && attributes != nil {
			putAttributes(attributes, theirs)
		}
		return err
	})
}
