package vianet

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"viaxdp/vipl"
)

// Addr is the address of an end of a connection: a host and a port of this package.
type Addr struct{ netip.AddrPort }

var _ net.Addr = Addr{}

// Network is "via".
func (Addr) Network() string { return "via" }

// String is the address as host:port.
func (a Addr) String() string { return a.AddrPort.String() }

// mark begins a discriminator that carries a port; the port's two bytes follow it.
var mark = []byte("vianet")

// via is the address as VIA has it, where no host is any.
func (a Addr) via() vipl.NetAddress {
	host := a.Addr()
	if host.IsUnspecified() {
		host = netip.Addr{}
	}
	return vipl.NetAddress{Host: host, Discriminator: binary.BigEndian.AppendUint16(bytes.Clone(mark), a.Port())}
}

// addrOf parses the address that the other side of a connection announces. It fails if the discriminator has no
// port of this package: the peer speaks another protocol.
func addrOf(a vipl.NetAddress) (Addr, error) {
	port, ok := bytes.CutPrefix(a.Discriminator, mark)
	if !ok || len(port) != 2 {
		return Addr{}, fmt.Errorf("discriminator %q is not one of a socket", a.Discriminator)
	}
	return Addr{netip.AddrPortFrom(a.Host, binary.BigEndian.Uint16(port))}, nil
}

// family is the part of a network's name that says which addresses it has: "", "4" or "6".
func family(network string) (string, error) {
	for _, name := range []string{"via", "tcp"} {
		if rest, ok := strings.CutPrefix(network, name); ok && (rest == "" || rest == "4" || rest == "6") {
			return rest, nil
		}
	}
	return "", net.UnknownNetworkError(network)
}

// fits reports whether a host is of a family.
func fits(host netip.Addr, family string) bool {
	switch family {
	case "4":
		return host.Is4()
	case "6":
		return host.Is6()
	}
	return true
}

// resolve finds the addresses that an address in writing stands for. An empty host is an unspecified one.
func (s *Stack) resolve(ctx context.Context, network, address string) ([]Addr, error) {
	fam, err := family(network)
	if err != nil {
		return nil, err
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		any := netip.IPv6Unspecified()
		if fam == "4" {
			any = netip.IPv4Unspecified()
		}
		return []Addr{{netip.AddrPortFrom(any, uint16(port))}}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil && !s.isZone(a.Zone()) {
		return nil, &net.AddrError{Err: "the NIC is another interface than " + a.Zone(), Addr: address}
	}
	hosts, err := net.DefaultResolver.LookupNetIP(ctx, "ip"+fam, host)
	if err != nil {
		return nil, err
	}
	var addrs []Addr
	for _, h := range hosts {
		if h = h.Unmap(); fits(h, fam) {
			addrs = append(addrs, Addr{netip.AddrPortFrom(h, uint16(port))})
		}
	}
	if len(addrs) == 0 {
		return nil, &net.AddrError{Err: "no address of network " + network, Addr: host}
	}
	return addrs, nil
}

// isZone reports whether the zone of a link-local address is the NIC's interface, which needs no name here.
func (s *Stack) isZone(zone string) bool {
	return zone == "" || zone == s.nic.Query().Name || zone == strconv.Itoa(s.nic.Info().Index)
}

// The ports that port 0 stands for.
const (
	firstPort = 49152
	lastPort  = 65535
)

// ports are those in use. The zero value has none. All methods may be called concurrently.
type ports struct {
	mu   sync.Mutex
	used map[uint16]bool
}

// take reserves a port for all addresses; 0 reserves any free one. The error is EADDRINUSE if the port is in use,
// and EADDRNOTAVAIL if none is free.
func (p *ports) take(port uint16) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		p.used = make(map[uint16]bool)
	}
	if port == 0 {
		const count = lastPort - firstPort + 1
		first := rand.IntN(count)
		for i := 0; ; i++ {
			if i == count {
				return 0, syscall.EADDRNOTAVAIL
			}
			if port = uint16(firstPort + (first+i)%count); !p.used[port] {
				break
			}
		}
	}
	if p.used[port] {
		return 0, syscall.EADDRINUSE
	}
	p.used[port] = true
	return port, nil
}

func (p *ports) release(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, port)
}
