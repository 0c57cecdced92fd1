package kagent

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"viaxdp/internal/base/wire"
)

// Agent is what a NIC needs from its Kernel Agent. device.Local is the one in the
// program's own process; package kagenttest has one in memory.
//
// Every method may be called by any goroutine at any time. After Close all of
// them fail with an error that wraps [ErrClosed], calls that are under way
// included.
type Agent interface {
	// Link describes the interface as it is now.
	Link() Link

	// NewVI hands out a VI number: the index in the VI table in the low 16
	// bits, never 0, and a generation above them, so that a number does not
	// come back for long. It fails with ErrNoVI when the table is full.
	NewVI() (num uint32, err error)
	// FreeVI gives a number back and removes its entry. It ignores a number that is not handed out.
	FreeVI(num uint32)

	// Enter makes the demux program pass frames for VI num that carry key and come from peer to this agent's
	// queue. A second Enter replaces the first.
	Enter(num uint32, key uint64, peer netip.Addr) error
	// Remove undoes Enter; the VI keeps its number. Removing a VI that was not entered is no error.
	Remove(num uint32) error

	// Listen accepts requests to local's discriminator, compared byte for byte, until the Listener is closed.
	// Unless local.Host is the zero Addr, it accepts those to that address only. A second Listen with the
	// same address and discriminator fails with ErrListening. So do Listen and Wait at a discriminator, at
	// any host, at which a program of another user of the agent listens or waits.
	Listen(local Address) (Listener, error)
	// Wait is VipConnectWait: it returns one request to local's discriminator. Requests that
	// arrive without a Wait, now or in the last 100 ms, are answered with "no match". Several
	// waits may be under way, also for the same discriminator. Each gets a request of its own;
	// the longest waiting is served first.
	Wait(ctx context.Context, local Address) (Incoming, error)
	// Request is VipConnectRequest: it asks for a connection with remote and returns the Answer
	// when the other side has accepted. local.Disc is sent to the other side. local.Host is the
	// source address (the zero Addr: the route's). The connection is established when the caller
	// has confirmed the Answer.
	//
	// It fails with ErrNoMatch, an error that wraps ErrRejected
	// (*RejectedError), ErrUnreachable, ErrTimeout when the deadline of
	// ctx passes, or ctx's error when it is cancelled.
	Request(ctx context.Context, local, remote Address, o Offer) (*Answer, error)

	// RequestPeer is VipConnectPeerRequest with its Wait: it connects with a peer that calls
	// RequestPeer for this side. Two calls meet if each one's local equals the other one's
	// remote, byte for byte; a zero local.Host stands for the route's source address. Calls with
	// the same addresses meet in the order in which they were made on each side. A call with the
	// same local and remote addresses as another user's fails with ErrListening. A call never
	// meets a Listen, a Wait or a Request.
	//
	// It blocks until they meet. On success exactly one result is not nil, depending on the part
	// of this side. With an Answer it confirms or declines as after Request; with an Incoming it
	// accepts or rejects as after Wait. If Accept then fails with ErrCancelled or ErrVanished,
	// and not with ErrRejected, the other side gave up just as the calls met, and this one may
	// call again with the rest of its time.
	//
	// The peer, and its agent, may start later. Errors: ErrTimeout if the deadline of ctx passes
	// first, ctx's error if it is cancelled, an error that wraps ErrRejected (*RejectedError) if
	// the acceptor rejects, ErrUnreachable.
	RequestPeer(ctx context.Context, local, remote Address, o Offer) (*Answer, Incoming, error)
	// Discover is VipQuerySystemManagementInfo with VIP_SMI_AUTODISCOVERY: it asks twice which
	// hosts are on the link, and listens for 100 ms or until ctx ends, which is no error. The
	// list has the interface's own addresses, then those that answered, each part in order. A
	// host whose answers were lost is missing; a host with several addresses appears with each
	// one that answered. Routers do not forward the question: Hops is 0 or 1.
	Discover(ctx context.Context) ([]Neighbor, error)

	// Path finds the path to peer: it asks the kernel for route and neighbour, has the neighbour resolved and
	// waits for that. local is the source address; the zero Addr stands for the route's. ErrUnreachable: no
	// route, or the neighbour does not answer.
	Path(ctx context.Context, local, peer netip.Addr) (Path, error)

	// Watch has f called with the interface's current state, before Watch returns or soon after,
	// and again after each change, one call at a time. Changes in quick succession may be
	// reported as one. The addresses that f gets include those that programs cannot bind to yet.
	// f must not block, nor call an agent. Another f replaces this one; nil or Close ends the
	// watch.
	Watch(f func(Link))

	// Close ends all calls of the agent, removes its VIs from the VI table and frees its resources. The
	// program must have stopped using queue and arena.
	Close() error
}

// ShmLinker is an Agent that can connect VIs of one interface on different queues.
type ShmLinker interface {
	// ShmLink returns this handle's end of the link to the queue of VI peer. All VIs of the two queues share
	// the link, as long as both are leased. It fails with ErrUnreachable if no other queue of the interface
	// has that VI.
	ShmLink(peer uint32) (*ShmLinkEnd, error)
}

// ShmLinkEnd is one queue's end of a link, see package shmlink. The files are the
// caller's.
type ShmLinkEnd struct {
	ID     uint64   // random and unique: the same at both ends
	Side   int      // of shmlink.New
	Memory *os.File // shmlink.Size bytes
	Wake   *os.File // readable when the other end has rung; to be drained
	Bell   *os.File // the same socket: a byte sent on it rings at the other end
}

// Close closes the files.
func (e *ShmLinkEnd) Close() {
	for _, f := range []*os.File{e.Memory, e.Wake, e.Bell} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Address names one end of a connection: a host and a discriminator of at most wire.CMMaxDisc bytes, which
// may be empty.
type Address struct {
	Host netip.Addr
	Disc []byte
}

// Offer describes the VI of one side of a connection to the other side.
type Offer struct {
	VI          uint32 // VI number for frames to this side
	Key         uint64 // key that those frames must carry; NewKey
	Seq         uint32 // first sequence number that this side will use; NewSeq
	Window      uint16 // units that this side can take at first, see wire.Header
	MaxPayload  uint16 // bytes of UDP payload of the largest frame this side takes
	Level       uint8  // reliability level as VIPL numbers them: 1, 2 or 4
	RDMAWrite   bool   // this side's VI takes RDMA writes
	RDMARead    bool   // this side's VI serves RDMA reads
	BareData    bool   // this side can do without checksums of data
	MaxTransfer uint32 // bytes of the longest message
	QoS         uint32
	PortOffset  uint8 `json:",omitempty"` // Info.PortOffset of this side

	// Handshake is this side's part of the handshake of package secure (wire.CMShareLen bytes), or empty.
	// Confirm, in an acceptor's Offer, is the proof that the requester's confirmation must have
	// (wire.CMProofLen bytes): any other confirmation is ignored. Confirm is not sent to the peer.
	Handshake, Confirm Opaque
}

// Opaque is bytes that this package does not interpret. As text, such as in JSON, they are in base64.
type Opaque string

// MarshalText implements encoding.TextMarshaler.
func (o Opaque) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(o)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Opaque) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err == nil {
		*o = Opaque(b)
	}
	return err
}

// Bound returns what both sides of a handshake must agree on in a Request, or else an Accept, with this
// Offer: the message without the exchange's id and the handshake itself, whether the connect is peer-to-peer,
// and both addresses, without which the message could be reflected to its sender.
func (o *Offer) Bound(request, peers bool, from, to Address) ([]byte, error) {
	plainOffer := *o
	plainOffer.Handshake = ""
	t := wire.CMAccept
	if request {
		t = wire.CMRequest
	}
	msg := plainOffer.Message(t)
	msg.ID, msg.From, msg.To = 1, from.Disc, to.Disc
	if request && peers {
		msg.Flags |= wire.CMPeer
	}
	b, err := msg.Append(nil)
	if err != nil {
		return nil, fmt.Errorf("kagent: %w", err)
	}
	src, dst := Plain(from.Host).As16(), Plain(to.Host).As16()
	return append(append(b, src[:]...), dst[:]...), nil
}

// Message returns the Request or Accept with the Offer.
func (o *Offer) Message(t wire.CMType) wire.CM {
	m := wire.CM{
		Type: t, VI: o.VI, Key: o.Key, Seq: o.Seq, Window: o.Window, MaxPayload: o.MaxPayload,
		Level: o.Level, MaxTransfer: o.MaxTransfer, QoS: o.QoS, PortOffset: o.PortOffset, Handshake: []byte(o.Handshake),
	}
	if o.RDMAWrite {
		m.Flags |= wire.CMRDMAWrite
	}
	if o.RDMARead {
		m.Flags |= wire.CMRDMARead
	}
	if o.BareData {
		m.Flags |= wire.CMBareData
	}
	return m
}

// OfferOf is Message's inverse.
func OfferOf(m *wire.CM) Offer {
	return Offer{
		VI: m.VI, Key: m.Key, Seq: m.Seq, Window: m.Window, MaxPayload: m.MaxPayload, Level: m.Level,
		RDMAWrite: m.Flags&wire.CMRDMAWrite != 0, RDMARead: m.Flags&wire.CMRDMARead != 0,
		BareData: m.Flags&wire.CMBareData != 0, MaxTransfer: m.MaxTransfer, QoS: m.QoS, PortOffset: m.PortOffset,
		Handshake: Opaque(m.Handshake),
	}
}

// Link describes an agent's interface.
type Link struct {
	Name  string
	Index int
	MAC   [6]byte
	MTU   int  // bytes of the largest IP packet
	Up    bool // administratively up, with carrier
	IPv4  []netip.Addr
	IPv6  []netip.Addr // global addresses first, link-local ones last, no zones
	Queue int          // the RX/TX queue that this agent leases
	Gone  bool         // the interface was removed: all but Name, Index and Queue is zero
}

// Addr returns the address that stands for the interface in programs that name none: the first
// IPv4 address, else the first IPv6 address, else the zero Addr.
func (l *Link) Addr() netip.Addr {
	for _, a := range [][]netip.Addr{l.IPv4, l.IPv6} {
		if len(a) > 0 {
			return a[0]
		}
	}
	return netip.Addr{}
}

// Has reports whether a is one of the interface's addresses.
func (l *Link) Has(a netip.Addr) bool {
	a = Plain(a)
	return slices.Contains(l.IPv4, a) || slices.Contains(l.IPv6, a)
}

// Equal reports whether the Links are equal except for the Queue.
func (l *Link) Equal(o *Link) bool {
	return l.Name == o.Name && l.Index == o.Index && l.MAC == o.MAC && l.MTU == o.MTU && l.Up == o.Up &&
		l.Gone == o.Gone && slices.Equal(l.IPv4, o.IPv4) && slices.Equal(l.IPv6, o.IPv6)
}

// Neighbor is a host with an agent, found by [Agent].Discover.
type Neighbor struct {
	Addr netip.Addr // no zone: the interface is known
	Hops int        // 0: this interface; 1: a host on its link
}

// Path is the path of frames to a peer. Its Link is the argument of wire.NewTemplate.
type Path struct {
	wire.Link      // hardware addresses, IP addresses, UDP port
	MTU       int  // bytes of the largest IP packet on this path
	Loopback  bool // the peer is this interface itself
	Elsewhere bool // Src is an address of another interface of this host
}

// Plain returns the form in which addresses are compared: no IPv4 mapped into IPv6, no zone (the interface is
// known).
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
