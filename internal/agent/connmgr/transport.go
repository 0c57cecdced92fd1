package connmgr

import "net/netip"

// Transport carries connection management datagrams. It may lose, repeat,
// delay and reorder them.
type Transport interface {
	// Send sends b to an agent. from is the source address; with the zero Addr the transport
	// chooses it. Send does not keep b, does not wait for the network, and does not call the
	// Handler. An error that wraps ErrUnreachable means that there is no route to that address;
	// any other, that this datagram is lost. Any goroutine may call it.
	Send(b []byte, from netip.Addr, to netip.AddrPort) error
	// Broadcast sends b to the agents of all hosts on the link, and may send it to this one too.
	// from is the source address and selects the family. The destination is the address
	// [Everyone] of that family. Otherwise it is like Send.
	Broadcast(b []byte, from netip.Addr) error
	// Serve passes received datagrams to h until Close, and then returns nil. It calls h from one goroutine
	// at a time.
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

// Handler processes what a Transport receives. The Manager is one.
type Handler interface {
	// Receive processes a datagram that was sent to the address local. The transport reuses b after Receive
	// returns.
	Receive(b []byte, local netip.Addr, from netip.AddrPort)
	// Undelivered processes the report that a datagram sent to that address did not arrive: quote is its
	// beginning. err wraps ErrNoMatch if the host exists and has no agent, ErrUnreachable if the host does
	// not exist.
	Undelivered(quote []byte, to netip.AddrPort, err error)
}
