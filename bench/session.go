package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// A Session is a transport that is open and connected between two workers. It belongs to
// one goroutine, and is of no use after a method has failed: only Close is left, which then
// may fail, too.
//
// While it is open the workers serve nothing else. As with [Run], the end of a context does not reach a worker that
// measures; a [Bed] ends it.
type Session struct {
	row            Row
	polls          bool // it never sleeps
	client, server *Worker
	hello          [2]Hello // the client's and the server's
	round          uint16   // the ID of the last round
}

// openSession opens a transport for messages of at most maxBytes on both
// workers and connects the two ends. change, if any, alters the parameters of both sides.
func openSession(ctx context.Context, client, server *Worker, row Row, maxBytes int, change ...func(*Params)) (_ *Session, err error) {
	defer fail.Catch(&err)
	t := fail.Must(find(row.Name))
	s := &Session{
		row: row, client: client, server: server,
		polls: !t.sleeps && !row.VI.Notify && !row.VI.Engine,
		round: uint16(rand.Uint32()), // stray messages of an earlier session are most likely of other rounds
	}
	at := func(w *Worker, server bool) request {
		p := w.at(row.usesXDP())
		p.Server, p.MaxBytes, p.VI, p.Beside = server, maxBytes, row.VI, row.Beside
		p.Hugepages = p.Hugepages && !row.SmallPages
		for _, f := range change {
			f(&p)
		}
		return request{Op: opOpen, Transport: t.name, Params: &p}
	}
	workers := []*Worker{client, server}
	for i, hello := range opened(ctx, row.usesXDP(), workers, []request{at(client, false), at(server, true)}) {
		s.hello[i] = outputOf[Hello](hello)
	}
	each(ctx, workers, []request{requestOf(opConnect, s.hello[1]), requestOf(opConnect, s.hello[0])})
	return s, nil
}

// opened makes a request of each worker that may map memory on hugepages.
func opened(ctx context.Context, maps bool, workers []*Worker, requests []request) (outputs []json.RawMessage) {
	open := func() { outputs = each(ctx, workers, requests) }
	if maps {
		workers[0].allowing(open)
	} else {
		open()
	}
	return outputs
}

// Close closes the transport on both workers.
func (s *Session) Close(ctx context.Context) error {
	return fail.Try(func() { each(ctx, []*Worker{s.client, s.server}, []request{{Op: opClose}, {Op: opClose}}) })
}

// Conditions are those of the host and of the two ends.
func (s *Session) Conditions() Conditions {
	return conditionsOf(PollingOf([]Row{s.row}), s.hello[0].Facts, s.hello[1].Facts)
}

// nextRound numbers a round, so that stray messages of earlier ones are recognized.
func (s *Session) nextRound() uint16 {
	s.round++
	return s.round
}

// ExchangeResult is what a ping-pong or a stream of a Session has given.
type ExchangeResult struct {
	N          int64                   // messages that were measured; of a ping-pong, round trips
	MBps, Peak float64                 // 10^6 bytes of content a second, in all and in the best round; of a stream
	PerSecond  float64                 // messages or round trips
	RoundTrips *hdrhistogram.Histogram // of a ping-pong, in nanoseconds

	CPUTx, CPURx float64  // CPU time in microseconds that the client's process, and the server's, spent a message or round trip
	Disturbed    []string // why the figures are doubtful; empty: they are not

	tx, rx Span  // of the client and the server
	all    int64 // messages of the spans, or round trips: those that lead in a round, too
}

// PingPong measures round trips of messages of one size, one at a time, for about d, and at
// least least of them. Every byte of the warm-up is checked.
func (s *Session) PingPong(ctx context.Context, bytes int, d time.Duration, least int) (*ExchangeResult, error) {
	return s.exchange(ctx, pace{duration: d, least: least}, Round{Bytes: bytes}, opPing, opEcho)
}

// Stream measures messages of one size from the client to the server for about d, and at least least of them, until
// the server has them all. Every byte of the warm-up is checked.
func (s *Session) Stream(ctx context.Context, bytes int, d time.Duration, least int) (*ExchangeResult, error) {
	return s.exchange(ctx, pace{duration: d, least: least}, Round{Bytes: bytes}, opSend, opReceive)
}

// exchange runs rounds of two matching operations at a pace.
func (s *Session) exchange(ctx context.Context, p pace, of Round, client, server string) (_ *ExchangeResult, err error) {
	defer fail.Catch(&err)
	if of.Bytes < 1 || of.Bytes > MaxMessage || p.messages == 0 && p.duration <= 0 {
		fail.With("messages of 1 byte to 1 MiB, for some time")
	}
	result := &ExchangeResult{RoundTrips: newHistogram()}
	// Frame numbers of a round have 32 bits; no frame carries less than 256
	// bytes of a longer message.
	limit, lead := 1<<30/(1+of.Bytes/256), (func(time.Duration) int)(nil)
	if client == opPing {
		limit, lead = maxRound, leads
	}
	p.round = s.round
	p.measure(limit, lead, func(r Round, count bool) Span {
		r.Bytes, r.Reply = of.Bytes, of.Reply
		a, b := both[exchanged, exchanged](ctx, s.client, client, s.server, server, r)
		switch {
		case a.Span.Wall <= 0 || b.Span.Wall <= 0:
			fail.With("a side has not said how long it took")
		case !count:
			return a.Span
		case client == opPing && a.RTT == nil:
			fail.With("the client has not said what round trips took")
		case client == opPing:
			result.RoundTrips.Merge(a.RTT.Histogram)
		}
		result.N += int64(r.Messages)
		result.all += int64(r.Lead + r.Messages)
		result.Peak = max(result.Peak, float64(r.Messages)*float64(of.Bytes)/a.Span.Wall.Seconds()/1e6)
		result.tx.add(a.Span)
		result.rx.add(b.Span)
		return a.Span
	})
	s.round = p.round
	result.MBps = float64(result.N) * float64(of.Bytes) / result.tx.Wall.Seconds() / 1e6
	result.PerSecond = float64(result.all) / result.tx.Wall.Seconds()
	result.CPUTx, result.CPURx = result.tx.cpuEach(result.all), result.rx.cpuEach(result.all)
	result.Disturbed = disturbances(result.tx, result.rx, s.polls)
	return result, nil
}

// RequestBytes is the length of the request of a transaction.
const RequestBytes = 16

// Transactions measures requests of RequestBytes bytes, each with a reply, one at a time, as a
// client calls a server. Round trips are whole transactions, from the request until all of its
// reply is there. The session was opened for messages of at least that size.
func (s *Session) Transactions(ctx context.Context, reply int, d time.Duration) (*ExchangeResult, error) {
	if reply < 1 || reply > MaxMessage {
		return nil, fmt.Errorf("a reply of %d bytes: 1 to %d", reply, MaxMessage)
	}
	return s.exchange(ctx, pace{duration: d}, Round{Bytes: RequestBytes, Reply: reply}, opPing, opEcho)
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
func (s *Session) Repeats(ctx context.Context) (_ Repeats, err error) {
	defer fail.Catch(&err)
	a, b := both[Repeats, Repeats](ctx, s.client, "repeats", s.server, "repeats", struct{}{})
	return Repeats{a.Resent + b.Resent, a.Spurious + b.Spurious}, nil
}

// tellRepeats is a task: one side's Repeats.
func tellRepeats(j *job, _ struct{}) (_ Repeats, err error) {
	defer fail.Catch(&err)
	var nic *vipl.NIC
	switch e := j.endpoint.(type) {
	case *vi:
		nic = e.nic
	case *netStream:
		nic = e.network.nic
	case *tcp:
		info := fail.Must(unix.GetsockoptTCPInfo(e.fd, unix.IPPROTO_TCP, unix.TCP_INFO))
		return Repeats{Resent: uint64(info.Total_retrans), Spurious: uint64(info.Dsack_dups)}, nil
	}
	if nic == nil {
		fail.With("this transport does not count what it sends again: take a VI that sends and receives, vianet, or TCP by system calls")
	}
	c := nic.Counters()
	return Repeats{Resent: c.Resent, Spurious: c.Duplicate}, nil
}

// Run carries out a plan: turn by turn, and in each turn row by row, so that drift of the
// machine affects all rows alike.
func Run(ctx context.Context, p Plan, client, server *Worker) (_ *Result, err error) {
	defer fail.Catch(&err)
	fail.If(p.Validate())
	c, conditions := newCollector(), HostConditions()
	turns := max(p.Turns, 1)
	for turn := 1; turn <= turns; turn++ {
		for _, row := range p.Rows {
			fail.During(row.label(), func() {
				s := fail.Must(openSession(ctx, client, server, row, slices.Max(p.Sizes)))
				conditions.learn(s.hello[0].Facts)
				conditions.pinned(s.hello[0].Facts, s.hello[1].Facts)
				for _, bytes := range p.Sizes {
					if p.Progress != nil {
						p.Progress(Step{Turn: turn, Turns: turns, Name: row.label(), Bytes: bytes})
					}
					s.measure(ctx, p, bytes, c)
				}
				fail.If(s.Close(ctx))
			})
		}
	}
	result := c.result(p.Rows, p.Sizes)
	result.Conditions = conditions
	result.Conditions.Polling = PollingOf(p.Rows)
	return result, nil
}

// measure measures what a plan asks for at one size.
func (s *Session) measure(ctx context.Context, p Plan, bytes int, c *collector) {
	at, k := pace{duration: p.Duration, messages: p.Messages, least: p.Least, check: p.Check}, Case{s.row.label(), bytes}
	if p.Latency {
		fail.During(fmt.Sprintf("latency, %d bytes", bytes), func() {
			c.addLatency(k, RoundTrip(s.row.Name), fail.Must(s.exchange(ctx, at, Round{Bytes: bytes}, opPing, opEcho)))
		})
	}
	if p.Bandwidth {
		fail.During(fmt.Sprintf("bandwidth, %d bytes", bytes), func() {
			c.addBandwidth(k, fail.Must(s.exchange(ctx, at, Round{Bytes: bytes}, opSend, opReceive)))
		})
	}
}
