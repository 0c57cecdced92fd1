package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// Load is an open-loop measurement: messages are due at times fixed beforehand, independent
// of earlier messages, like requests of many users. The other side echoes each of them. The
// time of a message counts from when it was due, not from when it was sent, so the figures
// include delays by stalls.
//
// One thread on each side sends what is due and takes what has arrived, in turns. A sender
// that is late catches up.
type Load struct {
	Bytes    int           // of a message, MinLoadBytes to MaxLoadBytes
	Rate     float64       // messages a second that are due; 0: a closed loop
	Poisson  bool          // at random times, independent of each other; else at equal intervals
	Seed     uint64        // of the random times
	Duration time.Duration // MinLoadTime to MaxLoadTime
}

// Bounds of a Load. Every message fits in a frame of MTU 1500.
const (
	MinLoadBytes = loadHeader
	MaxLoadBytes = 1024
	MinLoadTime  = time.Millisecond
	MaxLoadTime  = time.Minute

	minLoadRate     = 10 // a side that gets nothing for some seconds gives up
	maxLoadRate     = 1e8
	maxLoadMessages = 1 << 31
)

// LoadWindow is how many messages a closed loop keeps under way. Without a rate
// each echo is followed by the next message, which shows the highest rate that
// the two sides reach.
const LoadWindow = 128

func (l Load) validate() error {
	switch {
	case l.Bytes < MinLoadBytes || l.Bytes > MaxLoadBytes:
		return fmt.Errorf("messages of %d bytes: a load has %d to %d", l.Bytes, MinLoadBytes, MaxLoadBytes)
	case l.Duration < MinLoadTime || l.Duration > MaxLoadTime:
		return fmt.Errorf("duration %v: a load lasts %v to %v", l.Duration, MinLoadTime, MaxLoadTime)
	case l.Rate != 0 && !(l.Rate >= minLoadRate && l.Rate <= maxLoadRate):
		return fmt.Errorf("rate %v: a load has %d to %.0f messages a second", l.Rate, minLoadRate, maxLoadRate)
	case l.Rate > 0 && l.Rate*l.Duration.Seconds() < 1:
		return fmt.Errorf("no message is due in %v at %v a second", l.Duration, l.Rate)
	case l.Rate*l.Duration.Seconds() > maxLoadMessages:
		return fmt.Errorf("%.0f messages are due in %v: a load has at most %d", l.Rate*l.Duration.Seconds(), l.Duration, maxLoadMessages)
	}
	return nil
}

// LoadResult is what became of a Load.
type LoadResult struct {
	Offered  float64 // messages a second that were due; in a closed loop those sent
	Achieved float64 // echoes a second, within the duration

	Sent        int64 // messages
	Outstanding int64 // due and without an echo when the duration was over, those not sent included
	Unsent      int64 // of these: due and never sent, as the sender was too far behind

	// RoundTrips are the times in nanoseconds from when a message was due until
	// its echo was there. A message that was never sent counts with the time
	// that it had waited in the end.
	RoundTrips *hdrhistogram.Histogram

	CPUTx, CPURx float64  // CPU time in microseconds that the sender's process, and the echoing one, spent a message
	Disturbed    []string // why the figures are doubtful; empty: they are not
}

// loadRound is the input of both sides of a Load.
type loadRound struct {
	Load
	ID uint16
}

// loadOutcome is what the sender has found.
type loadOutcome struct {
	Due, Sent, InTime   int64 // InTime: echoed within the duration
	Outstanding, Unsent int64
	Span                Span
	RoundTrips          Histogram
}

// Load measures one load, over a transport that is reliable and polls. Every message that
// was sent gets its echo. A rate that is too high is no error: Achieved is then below
// Offered.
func (s *Session) Load(ctx context.Context, l Load) (_ *LoadResult, err error) {
	defer fail.Catch(&err)
	fail.If(l.validate())
	sent, echoed := both[loadOutcome, Span](ctx, s.client, "load", s.server, "load-echo", loadRound{l, s.nextRound()})
	seconds := l.Duration.Seconds()
	// Both sides poll on after the load until all echoes have come; that cost belongs to no
	// message.
	each := func(s Span) float64 {
		s.CPU = time.Duration(float64(s.CPU) * seconds / s.Wall.Seconds())
		return s.cpuEach(sent.Sent)
	}
	return &LoadResult{
		Offered: float64(sent.Due) / seconds, Achieved: float64(sent.InTime) / seconds,
		Sent: sent.Sent, Outstanding: sent.Outstanding, Unsent: sent.Unsent,
		RoundTrips: sent.RoundTrips.Histogram, CPUTx: each(sent.Span), CPURx: each(echoed), Disturbed: disturbances(sent.Span, echoed, s.polls),
	}, nil
}

// A loadPort is an endpoint as a load drives it: nothing in it waits for the
// peer. One goroutine drives it. What fails does so by package fail.
type loadPort interface {
	// begin makes it ready for a round, the peer's end too where that is
	// needed.
	begin(r loadRound)
	// next is the room for the next message; nil: none for now.
	next() []byte
	// commit sends the message that next gave with its first n bytes, at the
	// latest when flush is called.
	commit(n int)
	// flush hands messages on; all says that none is left here.
	flush() (all bool)
	// poll is the next message that has arrived, valid until the next call;
	// nil: there is none.
	poll() []byte
	// window is how many messages may be under way.
	window() int
}

// loadPortOf gives an endpoint that polls as a loadPort.
func loadPortOf(e endpoint) (loadPort, error) {
	switch e := e.(type) {
	case *vi:
		if !e.sleeps && e.via == nil && e.level != vipl.UnreliableDelivery {
			return &viLoad{vi: e}, nil
		}
	case *tcp:
		if !e.block {
			return &tcpLoad{t: e}, nil
		}
	}
	return nil, errors.New("this transport carries no load: take TCP or a reliable VI that sends and receives, and polls")
}

// loadHeader is how each message of a load begins, 16 bytes, little-endian:
//
//	0 kind   1 zero   2 round (16 bits)   4 number (32 bits)   8 when it was due (ns, 64 bits)
//
// The rest is of any content.
const loadHeader = 16

// Kinds of messages. All of them are echoed.
const (
	loadMessage = 1
	loadBegin   = 2 // is the peer there?
	loadEnd     = 3 // nothing follows
)

// put writes message number n into buf, and returns its length.
func (r *loadRound) put(buf []byte, kind byte, n uint32, due time.Duration) int {
	buf[0], buf[1] = kind, 0
	binary.LittleEndian.PutUint16(buf[2:], r.ID)
	binary.LittleEndian.PutUint32(buf[4:], n)
	binary.LittleEndian.PutUint64(buf[8:], uint64(due))
	return r.Bytes
}

// is reports whether a message is of this round.
func (r *loadRound) is(p []byte) bool {
	return len(p) == r.Bytes && binary.LittleEndian.Uint16(p[2:]) == r.ID
}

func loadKind(p []byte) byte         { return p[0] }
func loadNumber(p []byte) uint32     { return binary.LittleEndian.Uint32(p[4:]) }
func loadDue(p []byte) time.Duration { return time.Duration(binary.LittleEndian.Uint64(p[8:])) }

// A schedule gives the times at which messages are due, counted from the start,
// in ascending order.
type schedule struct {
	gap    float64    // ns between messages, on average
	random *rand.Rand // nil: equal gaps
	n      float64    // messages so far
	at     float64    // ns; when the last one was due, of random times
}

func newSchedule(l Load) *schedule {
	s := &schedule{gap: float64(time.Second) / l.Rate}
	if l.Poisson {
		s.random = rand.New(rand.NewPCG(l.Seed, 0))
	}
	return s
}

// next is when the next message is due.
func (s *schedule) next() time.Duration {
	if s.random != nil {
		s.at += s.random.ExpFloat64() * s.gap
		return time.Duration(s.at)
	}
	// By multiplication, so that no error adds up.
	at := s.n * s.gap
	s.n++
	return time.Duration(at)
}
