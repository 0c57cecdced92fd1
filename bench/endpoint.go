package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// An endpoint is one side of one connection of a transport. The two sides
// call matching methods at the same time with equal rounds: one Ping and the
// other Echo, one Send and the other Receive. No method may be called while
// another one runs.
//
// Counts are known to both sides beforehand, so that nothing but the messages
// themselves travels while the clock runs. What fails does so by package fail.
type endpoint interface {
	// Hello is what the other side must know to connect, and facts for the
	// report.
	Hello() Hello

	// Connect joins the two sides; both call it.
	Connect(peer Hello)

	// Ping sends r.Lead+r.Messages messages of r.Bytes, one at a time, and
	// awaits the echo of each; or reads as many, one at a time. The round
	// trips of all but the first r.Lead, in nanoseconds, go to rtt, which has
	// room for r.Messages.
	Ping(r Round, rtt []int64) Span

	// Echo answers Ping, or is there to be read. Messages and echoes may differ in size
	// only where transacts says so.
	Echo(r Round)

	// Send streams r.Messages messages, as many under way as the transport
	// allows. The clock starts when the receiver is ready and stops when the
	// receiver has said that it has them all.
	Send(r Round) Span

	// Receive takes the stream of Send.
	Receive(r Round) Span

	// Close gives everything back.
	Close() error
}

// Round is one run of messages of equal size.
type Round struct {
	ID       uint16 `json:"id"`              // distinguishes stray frames of an earlier round
	Bytes    int    `json:"bytes"`           // per message, 1 to MaxMessage
	Reply    int    `json:"reply,omitempty"` // bytes per echo; 0: as Bytes
	Messages int    `json:"messages"`        // counted messages
	Lead     int    `json:"lead,omitempty"`  // messages before them, not counted (Ping only)
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
	case r.Reply < 0 || r.Reply > MaxMessage:
		return errors.New("size of a reply out of range")
	case r.Messages < 1 || r.Lead < 0 || r.Lead > maxRound:
		return errors.New("message count out of range")
	}
	return nil
}

// reply is the round as it is of the echoes.
func (r Round) reply() Round {
	r.Bytes = cmp.Or(r.Reply, r.Bytes)
	return r
}

// timed makes the round trips of a Ping one after the other, and notes the time of each
// but of those that lead in.
func timed(r Round, rtt []int64, trip func(i int)) Span {
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		trip(i)
		now := time.Since(clock.wall)
		if i >= r.Lead {
			rtt[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span()
}

// Params say where an endpoint is to be opened.
type Params struct {
	Place
	Server   bool       // this side listens, echoes and receives
	Local    netip.Addr // address of this side; its family is used
	MaxBytes int        // largest message of any round; 0: MaxMessage

	VI     VIOptions `json:",omitzero"`  // of the vi transports
	Agent  string    `json:",omitempty"` // socket of the agent for VI.Agent
	Beside bool      `json:",omitzero"`  // of the kernel's transports: with an XDP program attached to Interface

	Congestion string `json:",omitempty"` // TCP's congestion control (tcp(7)), of tcp-spin and tcp-block; empty: the host's

	// LongestTimeout bounds TCP's retransmission time-out, where the kernel can do that
	// (TCP_RTO_MAX_MS, Linux 6.15); 0: the host's two minutes.
	LongestTimeout time.Duration `json:",omitzero"`
	WaitLimit      time.Duration `json:",omitzero"` // without progress; 0: 20 s
}

// Hello is what the two sides exchange before they connect, with facts about what each
// got.
type Hello struct {
	Addr    netip.Addr       `json:"addr"`
	MAC     net.HardwareAddr `json:"mac,omitempty"`
	Port    int              `json:"port,omitempty"`
	Payload int              `json:"payload,omitempty"` // message bytes that fit in a frame
	Window  int              `json:"window,omitempty"`  // frames that this side can take at once

	Memory *vipl.AddressSegment `json:"memory,omitempty"` // that the other side may reach by RDMA

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

// waitLimit is how long a side waits without progress, unless its parameters say.
const waitLimit = 20 * time.Second

// watchdog ends waits that would last for ever. A loop that polls calls idle for
// each poll in vain and progress for each success; both cost next to nothing.
type watchdog struct {
	ctx   context.Context // ends with the control connection; nil: never
	most  time.Duration   // without progress; 0: waitLimit
	polls uint32
	since time.Time
}

// watchEvery is the number of polls in vain between looks at the clock.
const watchEvery = 1 << 12

func (w *watchdog) progress() { w.polls = 0 }

func (w *watchdog) idle() error {
	w.polls++
	if w.polls%watchEvery != 0 {
		return nil
	}
	return w.look()
}

// after is progress where a poll has found something, and else idle.
func (w *watchdog) after(found int) error {
	if found == 0 {
		return w.idle()
	}
	w.progress()
	return nil
}

// blocked is idle for a wait that has slept.
func (w *watchdog) blocked() error {
	w.polls += watchEvery - w.polls%watchEvery
	return w.look()
}

func (w *watchdog) look() error {
	if w.ctx != nil && w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	now := time.Now()
	if w.polls == watchEvery {
		w.since = now
	} else if now.Sub(w.since) > cmp.Or(w.most, waitLimit) {
		return ErrStalled
	}
	if w.polls >= 1<<31 { // keep the count away from its end
		w.polls = 2 * watchEvery
	}
	return nil
}

// pattern is the content of checked messages: every message of a round starts
// at another place of one table of random bytes, so that a byte that is lost,
// moved, doubled or taken from another message is seen.
var pattern = func() []byte {
	table := make([]byte, MaxMessage+patternShift)
	r := rand.New(rand.NewPCG(0x7669612d, 0x786470)) // both sides have the same
	for i := 0; i+8 <= len(table); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			table[i+j] = byte(v >> (8 * j))
		}
	}
	return table
}()

// patternShift is the number of starting places; a prime, so that it has
// nothing in common with sizes and counts.
const patternShift = 8191

// content is the part of message number i from byte off, n bytes long. The
// echo of a message has the same content.
func content(i, off, n int) []byte {
	start := i*257%patternShift + off
	return pattern[start : start+n]
}

// verify compares a part of a message with what was sent.
func verify(i, off int, got []byte) error {
	want := content(i, off, len(got))
	if bytes.Equal(got, want) {
		return nil
	}
	for j := range got {
		if got[j] != want[j] {
			return fmt.Errorf("message %d: byte %d is %#02x, not %#02x", i, off+j, got[j], want[j])
		}
	}
	return nil
}
