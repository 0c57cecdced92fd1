package connmgr

import "net/netip"

// Transport carries connection management datagrams. It may lose, repeat,
// delay and reorder them.
type Transport interface {
	// Send sends b to an agent. from is the source address, the zero Addr
	// leaves it to the transport. It does not keep b, does not wait for
	// anything that comes from the network, and does not call the Handler.
	// An error that wraps ErrUnreachable says that there is no way to that
	// address; any other means that this datagram is lost.
	// Any goroutine may call it.
	Send(b []byte, from netip.Addr, to netip.AddrPort) error
	// Broadcast sends b to the agents of all hosts on the link, and may send
	// it to this one too: from is the source address and tells the family.
	// What arrives was sent to the address [Everyone] of that family. For
	// the rest it is like Send.
	Broadcast(b []byte, from netip.Addr) error
	// Serve hands what comes in to h until Close, and then returns nil. It
	// may call h from one goroutine at a time only.
	Serve(h Handler) error
	// Close ends Serve and makes Send fail. A second Close does nothing.
	Close() error
}

// Everyone is the address of all hosts of a link: the limited broadcast address
// (RFC 919), or the group of all IPv6 nodes (RFC 4291, 2.7.1). No router passes
// them on.
func Everyone(v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return netip.IPv6LinkLocalAllNodes()
}

// Handler takes what a Transport receives. The Manager is one.
type Handler interface {
	// Receive takes a datagram that was sent to the address local. b is
	// the transport's again when Receive returns.
	Receive(b []byte, local netip.Addr, from netip.AddrPort)
	// Undelivered takes the news that a datagram sent to that address did
	// not arrive: quote is its beginning. err wraps ErrNoMatch when the
	// host is there and has no agent, ErrUnreachable when the host is not.
	Undelivered(quote []byte, to netip.AddrPort, err error)
}
