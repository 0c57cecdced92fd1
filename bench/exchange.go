package bench

import (
	"context"
	"errors"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"viaxdp/vipl"
)

// ExchangeResult is what a ping-pong or a stream of a Session has given.
type ExchangeResult struct {
	N          int64                   // messages that were measured; of a ping-pong, round trips
	MBps       float64                 // 10^6 bytes of content a second; of a stream
	RoundTrips *hdrhistogram.Histogram // of a ping-pong, in nanoseconds
	Disturbed  []string                // why the figures are doubtful; empty: they are not
}

// PingPong measures round trips of messages of one size, one at a time, for about
// that long, and at least so many. Every byte of the warm-up is checked.
func (s *Session) PingPong(ctx context.Context, bytes int, d time.Duration, least int) (*ExchangeResult, error) {
	result := &ExchangeResult{RoundTrips: newHistogram()}
	var client, server Span
	err := s.rounds(ctx, bytes, d, least, opPing, opEcho, func(r Round, a, b reply) error {
		part, err := decodeHistogram(a.RTT)
		if err != nil {
			return err
		}
		result.RoundTrips.Merge(part)
		client.add(*a.Span)
		server.add(*b.Span)
		return nil
	})
	result.N = result.RoundTrips.TotalCount()
	result.Disturbed = disturbances(client, server, s.polls)
	return result, err
}

// Stream measures messages of one size from the client to the server for about that
// long, until the server has them all. Every byte of the warm-up is checked.
func (s *Session) Stream(ctx context.Context, bytes int, d time.Duration) (*ExchangeResult, error) {
	result := &ExchangeResult{}
	var tx, rx Span
	err := s.rounds(ctx, bytes, d, 1, opSend, opReceive, func(r Round, a, b reply) error {
		result.N += int64(r.Messages)
		tx.add(*a.Span)
		rx.add(*b.Span)
		return nil
	})
	if err == nil {
		result.MBps = float64(result.N) * float64(bytes) / tx.Wall.Seconds() / 1e6
	}
	result.Disturbed = disturbances(tx, rx, s.polls)
	return result, err
}

// rounds runs rounds of two matching operations, as a plan does, and gives those
// that count to take.
func (s *Session) rounds(ctx context.Context, bytes int, d time.Duration, least int, client, server string, take func(r Round, a, b reply) error) error {
	if bytes < 1 || bytes > MaxMessage || d <= 0 {
		return errors.New("messages of 1 byte to 1 MiB, for some time")
	}
	p := pace{duration: d, least: least, round: s.round}
	var lead func(time.Duration) int
	if client == opPing {
		lead = leads
	}
	err := p.measure(bytes, maxRound, lead, func(r Round, count bool) (Span, error) {
		a, b, err := both(ctx, s.client, request{Op: client, Round: &r}, s.server, request{Op: server, Round: &r})
		switch {
		case err != nil:
			return Span{}, err
		case a.Span == nil || b.Span == nil || a.Span.Wall <= 0 || b.Span.Wall <= 0:
			return Span{}, errors.New("a side has not said how long it took")
		case count:
			err = take(r, a, b)
		}
		return *a.Span, err
	})
	s.round = p.round
	return err
}

// Repeats are what a reliable transport has sent more than once, since its
// connection was made, both sides together.
type Repeats struct {
	Resent   uint64 // frames, or TCP's segments, that were sent again
	Spurious uint64 // frames that arrived though they had arrived before; of TCP, those that the receiver reported by DSACK
}

// Since is what came after an earlier look.
func (r Repeats) Since(before Repeats) Repeats {
	return Repeats{r.Resent - before.Resent, r.Spurious - before.Spurious}
}

// Repeats asks both sides. Frames that the network repeats count as spurious, too.
func (s *Session) Repeats(ctx context.Context) (Repeats, error) {
	a, b, err := bothTasks[Repeats, Repeats](ctx, s.client, taskRepeats, s.server, taskRepeats, struct{}{})
	return Repeats{a.Resent + b.Resent, a.Spurious + b.Spurious}, err
}

// tellRepeats is a task: one side's Repeats.
func tellRepeats(j *job, _ struct{}) (Repeats, error) {
	switch e := j.endpoint.(type) {
	case *vi:
		return repeatsOf(e.nic), nil
	case *ranks:
		return repeatsOf(e.nic), nil
	case *viaNet:
		return repeatsOf(e.nic), nil
	case *tcp:
		info, err := unix.GetsockoptTCPInfo(e.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return Repeats{}, err
		}
		return Repeats{Resent: uint64(info.Total_retrans), Spurious: uint64(info.Dsack_dups)}, nil
	}
	return Repeats{}, errors.New("this transport does not count what it sends again: take a VI that sends and receives, mvich, vianet, or TCP")
}

func repeatsOf(n *vipl.Nic) Repeats {
	c := n.Counters()
	return Repeats{Resent: c.Resent, Spurious: c.Duplicate}
}
