package bench

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// An Endpoint is one side of one connection of a transport. The two sides
// call matching methods at the same time with equal rounds: one Ping and the
// other Echo, one Send and the other Receive. No method may be called while
// another one runs.
//
// Counts are known to both sides beforehand, so that nothing but the messages
// themselves travels while the clock runs.
type Endpoint interface {
	// Hello is what the other side must know to connect, and facts for the
	// report.
	Hello() Hello

	// Connect joins the two sides; both call it.
	Connect(peer Hello) error

	// Ping sends r.Lead+r.Messages messages of r.Bytes, one at a time, and
	// awaits the echo of each; or reads as many, one at a time. The round
	// trips of all but the first r.Lead, in nanoseconds, go to rtt, which has
	// room for r.Messages.
	Ping(r Round, rtt []int64) (Span, error)

	// Echo answers Ping, or is there to be read.
	Echo(r Round) error

	// Send streams r.Messages messages, as many under way as the transport
	// allows. The clock starts when the receiver is ready and stops when the
	// receiver has said that it has them all.
	Send(r Round) (Span, error)

	// Receive takes the stream of Send.
	Receive(r Round) (Span, error)

	// Close gives everything back.
	Close() error
}

// Round is one run of messages of equal size.
type Round struct {
	ID       uint16 `json:"id"`             // tells stray frames of an earlier round
	Bytes    int    `json:"bytes"`          // per message, 1 to MaxMessage
	Messages int    `json:"messages"`       // counted messages
	Lead     int    `json:"lead,omitempty"` // messages before them, not counted (Ping only)
	Check    bool   `json:"check,omitempty"`
}

// MaxMessage is the largest message, 1 MiB: MaxTransferSize of a VI.
const MaxMessage = 1 << 20

// maxRound bounds the samples that one round records.
const maxRound = 1 << 16

func (r Round) check() error {
	switch {
	case r.Bytes < 1 || r.Bytes > MaxMessage:
		return errors.New("message size out of range (1 byte to 1 MiB)")
	case r.Messages < 1 || r.Lead < 0 || r.Lead > maxRound:
		return errors.New("message count out of range")
	}
	return nil
}

// Params say where an endpoint is to be opened.
type Params struct {
	Server    bool       // this side listens, echoes and receives
	Interface string     // of the AF_XDP transports
	Local     netip.Addr // address of this side; its family is used
	Mode      string     // how XDP is attached: "auto", "native", "generic"
	Queue     int        // of the interface
	Steer     string     `json:",omitempty"` // how the NIC is steered to the queue of a VI; empty: by rules
	Port      int        // UDP port of frames; 0: the transport's own
	MaxBytes  int        // largest message of any round; 0: MaxMessage
	Hugepages bool       // memory on hugepages where there are any

	// Silence is the time after which a VI's peer is taken for dead; 0: 20 s, or Patience
	// where that is longer.
	Silence time.Duration `json:",omitzero"`

	VI     VIOptions `json:",omitzero"`  // of the vi transports
	Agent  string    `json:",omitempty"` // socket of the agent for VI.Agent
	Beside bool      `json:",omitzero"`  // of the kernel's transports: with an XDP program attached to Interface

	Congestion string `json:",omitempty"` // TCP's congestion control (tcp(7)), of tcp-spin and tcp-block; empty: the host's

	// LongestTimeout bounds TCP's retransmission time-out, where the kernel can do that
	// (TCP_RTO_MAX_MS, Linux 6.15); 0: the host's two minutes.
	LongestTimeout time.Duration `json:",omitzero"`
	Patience       time.Duration `json:",omitzero"` // without progress; 0: 20 s
}

// Hello is what one side tells the other before they connect, with facts about
// what it got.
type Hello struct {
	Addr    netip.Addr       `json:"addr"`
	MAC     net.HardwareAddr `json:"mac,omitempty"`
	Port    int              `json:"port,omitempty"`
	Payload int              `json:"payload,omitempty"` // message bytes that fit in a frame
	Window  int              `json:"window,omitempty"`  // frames that this side can take at once

	Memory *vipl.AddressSegment `json:"memory,omitempty"` // that the other side may reach by RDMA
	Record string               `json:"record,omitempty"` // mvich: what a rank publishes

	Facts Facts `json:"facts"`
}

// Facts describe what an endpoint runs on.
type Facts struct {
	Interface  string   `json:"interface,omitempty"`
	Mode       string   `json:"mode,omitempty"`     // XDP mode reached
	Features   []string `json:"features,omitempty"` // XDP features of the interface
	MTU        int      `json:"mtu,omitempty"`
	FrameBytes int      `json:"frame_bytes,omitempty"` // longest frame sent, headers included
	Memory     string   `json:"memory,omitempty"`      // pages under the UMEM
	CPUs       []int    `json:"cpus,omitempty"`        // that the process may use
}

// ErrStalled means that the other side has sent nothing for too long: a
// message is lost or the peer is gone.
var ErrStalled = errors.New("no progress for long: a frame was lost or the peer is gone")

// ErrStopped means that the control connection ended during a round.
var ErrStopped = errors.New("stopped")
