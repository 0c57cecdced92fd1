package mvich

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"
)

// Protocol is a way for the data of a message.
type Protocol uint32

// The protocols. [Auto] chooses among the others for each message.
const (
	Auto  Protocol = iota
	Eager          // at once, with the envelope
	R3             // three-way: request, ready, data through vbufs
	RGET           // the receiver reads the sender's memory
	RPUT           // the sender writes the receiver's memory
)

// String names the protocol.
func (p Protocol) String() string {
	if names := [...]string{"auto", "eager", "r3", "rget", "rput"}; int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("protocol(%d)", uint32(p))
}

// Defaults of the options.
const (
	DefaultThreshold  = 16 << 10 // bytes
	DefaultCredits    = 64       // packets
	DefaultRegistered = 64 << 20 // bytes
	DefaultUnexpected = 16 << 20 // bytes
	DefaultSpin       = 10000    // polls, of some ten nanoseconds each

	// SpinVariable is the environment variable that sets WithSpin, in polls, where that option is not given.
	SpinVariable = "VIADEV_SPIN_COUNT"
	// ThresholdVariable is the environment variable that sets WithThreshold, in bytes, where that option is not
	// given.
	ThresholdVariable = "VIADEV_RENDEZVOUS_THRESHOLD"
	// DeviceVariable is the environment variable that via-xdp mpirun sets to a rank's interface. Programs read it; this
	// package does not.
	DeviceVariable = "VIADEV_DEVICE"
)

// Bounds of the options.
const (
	maxThreshold = 1 << 18
	minCredits   = 4
	maxCredits   = 256 // two such windows and the RDMA operations fit into a work queue
	minVbuf      = 8 << 10

	// mostEnvelopes are some 200 MiB.
	mostEnvelopes = 1 << 20
	maxSpin       = 1 << 40 // hours; small multiples are numbers yet
)

// spinUnset: neither an option nor the environment sets the polls.
const spinUnset = math.MinInt

type settings struct {
	protocol       Protocol
	threshold      int
	credits        int
	registered     int
	unexpected     int
	envelopes      int // without data and without a receive, of each other rank
	spin           int
	read           bool
	write          bool
	connectTimeout time.Duration
}

// Option changes how a rank works. Those that say so must be the same on all ranks.
type Option func(*settings)

// WithProtocol forces a protocol on every message that this rank sends. Messages that cannot use it (without data,
// longer than a vbuf, in memory that cannot be registered, eager ones to a rank whose memory for them is full) go by
// Eager or R3.
func WithProtocol(p Protocol) Option { return func(s *settings) { s.protocol = p } }

// WithThreshold sets the size in bytes up to which messages are eager: DefaultThreshold without it and without
// VIADEV_RENDEZVOUS_THRESHOLD in the environment. The same on all ranks.
func WithThreshold(bytes int) Option { return func(s *settings) { s.threshold = bytes } }

// WithCredits sets the number of receives that a rank keeps posted for each other one it is connected with, 4 to 256;
// DefaultCredits without it. The same on all ranks.
func WithCredits(packets int) Option { return func(s *settings) { s.credits = packets } }

// WithRegistered bounds the bytes of the program's memory that stay registered for RDMA; DefaultRegistered without
// it. Messages larger than that go by R3; with 0, all that are not eager do. Memory of Alloc is registered in any case.
func WithRegistered(bytes int) Option { return func(s *settings) { s.registered = bytes } }

// WithUnexpected sets how many bytes of unexpected messages are kept for each peer before the peer must send
// envelopes only; DefaultUnexpected without it. A rank that sends eager messages all the same, or that has more than
// 1<<20 envelopes waiting, is taken for dead.
func WithUnexpected(bytes int) Option { return func(s *settings) { s.unexpected = bytes } }

// WithSpin sets how often, at most, a call that waits polls before it waits in the completion queue, which spins for
// a while, too, and then sleeps. While data of a long message is in transit, it is 16 times as often. It polls less often if
// polling has not paid lately. Without it: DefaultSpin, or 0
// where the job has more ranks on this machine than the machine has processors.
func WithSpin(polls int) Option { return func(s *settings) { s.spin = polls } }

// WithRDMA sets whether peers may read, and whether they may write, memory of this rank. Without it they may do both.
func WithRDMA(read, write bool) Option { return func(s *settings) { s.read, s.write = read, write } }

// WithConnectTimeout sets how long connecting with a rank may take before it is taken for dead; 10 seconds without
// it. A rank that itself lacks the memory or the VI for a connection that long ends, as after Stop.
func WithConnectTimeout(d time.Duration) Option { return func(s *settings) { s.connectTimeout = d } }

func makeSettings(opts []Option) (settings, error) {
	s := settings{
		threshold: DefaultThreshold, credits: DefaultCredits, registered: DefaultRegistered, unexpected: DefaultUnexpected,
		envelopes: mostEnvelopes, spin: spinUnset, read: true, write: true, connectTimeout: 10 * time.Second,
	}
	for _, variable := range []struct {
		name  string
		value *int
		most  int
	}{{ThresholdVariable, &s.threshold, maxThreshold}, {SpinVariable, &s.spin, maxSpin}} {
		v := os.Getenv(variable.name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > variable.most {
			return s, fmt.Errorf("%w: %s=%q: want a number, 0 to %d, or no such variable", ErrSettings, variable.name, v, variable.most)
		}
		*variable.value = n
	}
	for _, f := range opts {
		f(&s)
	}
	switch {
	case s.threshold < 0 || s.threshold > maxThreshold:
		return s, fmt.Errorf("%w: threshold of %d bytes: 0 to %d", ErrSettings, s.threshold, maxThreshold)
	case s.credits < minCredits || s.credits > maxCredits:
		return s, fmt.Errorf("%w: %d credits: %d to %d", ErrSettings, s.credits, minCredits, maxCredits)
	case s.protocol > RPUT:
		return s, fmt.Errorf("%w: %v", ErrSettings, s.protocol)
	case s.registered < 0 || s.unexpected < 0 || s.spin < 0 && s.spin != spinUnset || s.connectTimeout <= 0:
		return s, fmt.Errorf("%w: a negative number, or no time to connect", ErrSettings)
	}
	s.spin = min(s.spin, maxSpin)
	return s, nil
}

// fillDefaults chooses the settings without an option, once it is known whether ranks share processors.
func (s *settings) fillDefaults(oversubscribed bool) {
	if s.spin != spinUnset {
		return
	}
	if s.spin = DefaultSpin; oversubscribed {
		s.spin = 0
	}
}

// vbufSize is the size of a packet in bytes, all headers included.
func (s *settings) vbufSize() int { return roundUp(max(minVbuf, headerSize+s.threshold), 64) }

// reserve is how many credits are kept for packets that other packets wait for.
func (s *settings) reserve() int { return max(1, s.credits/8) }

// noopAt is how many credits are due to a peer before they are sent in a noop. At least two, so that no noop answers
// a noop; and at most the credits due to a peer that has only its reserve left.
func (s *settings) noopAt() int { return s.credits / 2 }
