package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// RequestBytes is the length of the request of a transaction.
const RequestBytes = 16

// Transactions are requests of RequestBytes bytes, each with a reply, one at a
// time, as a client calls a server.
type Transactions struct {
	Reply    int           // bytes of a reply, 1 to MaxMessage
	Duration time.Duration // of the measurement, after its warm-up
	Check    bool          // verify every byte, not only those of the warm-up
}

// TransactionResult is what they took.
type TransactionResult struct {
	PerSecond float64
	// Times in nanoseconds are those of whole transactions, from the request
	// until all of its reply is there.
	Times *hdrhistogram.Histogram

	CPUTx, CPURx float64  // CPU time in microseconds that the client's process, and the server's, spent a transaction
	Disturbed    []string // why the figures are doubtful; empty: they are not
}

// requested is what the client has found.
type requested struct {
	Span  Span
	Times []byte
}

// Transactions measures transactions of one size. The session was opened for
// messages of at least that size.
func (s *Session) Transactions(ctx context.Context, t Transactions) (*TransactionResult, error) {
	switch {
	case t.Reply < 1 || t.Reply > MaxMessage:
		return nil, fmt.Errorf("a reply of %d bytes: 1 to %d", t.Reply, MaxMessage)
	case t.Duration <= 0:
		return nil, errors.New("the duration must be positive")
	}
	result := &TransactionResult{Times: newHistogram()}
	var client, server Span
	total := int64(0) // those before the counted ones of a round included: the spans do, too
	p := pace{duration: t.Duration, check: t.Check, round: s.round}
	err := p.measure(t.Reply, maxRound, leads, func(r Round, count bool) (Span, error) {
		a, b, err := bothTasks[requested, Span](ctx, s.client, taskRequest, s.server, taskAnswer, r)
		if err != nil || !count {
			return a.Span, err
		}
		part, err := decodeHistogram(a.Times)
		if err != nil {
			return a.Span, err
		}
		result.Times.Merge(part)
		total += int64(r.Lead + r.Messages)
		client.add(a.Span)
		server.add(b)
		return a.Span, nil
	})
	if err != nil {
		return nil, err
	}
	s.round = p.round
	result.PerSecond = float64(total) / client.Wall.Seconds()
	result.CPUTx, result.CPURx = client.cpuEach(total), server.cpuEach(total)
	result.Disturbed = disturbances(client, server, s.polls)
	return result, nil
}

// A transactor is an endpoint that makes transactions. Both sides call matching
// methods with equal rounds, of which Bytes is the size of a reply.
type transactor interface {
	// request makes r.Lead+r.Messages transactions. The times of all but the
	// first r.Lead, in nanoseconds, go to times.
	request(r Round, times []int64) (Span, error)
	// answer replies to as many requests.
	answer(r Round) (Span, error)
}

// transactorOf gives an endpoint as a transactor.
func transactorOf(e Endpoint) (transactor, error) {
	switch e := e.(type) {
	case *vi:
		return viTransactions{e}, nil
	case *rdmaWrite:
		return rdmaTransactions{e}, nil
	case *tcp:
		return streamedTransactions{e.streamed}, nil
	}
	return nil, errors.New("this transport makes no transactions: take a VI that sends or writes, or TCP")
}

// makeRequests is a task: the client's side of a round.
func makeRequests(j *job, r Round) (requested, error) {
	if err := r.check(); err != nil {
		return requested{}, err
	}
	if r.Messages > maxRound {
		return requested{}, fmt.Errorf("%d transactions: a round has at most %d", r.Messages, maxRound)
	}
	t, err := transactorOf(j.endpoint)
	if err != nil {
		return requested{}, err
	}
	times := make([]int64, r.Messages)
	span, err := t.request(r, times)
	if err != nil {
		return requested{}, err
	}
	h, err := encodeSamples(times)
	return requested{span, h}, err
}

// answerRequests is a task: the server's side of a round.
func answerRequests(j *job, r Round) (Span, error) {
	if err := r.check(); err != nil {
		return Span{}, err
	}
	t, err := transactorOf(j.endpoint)
	if err != nil {
		return Span{}, err
	}
	return t.answer(r)
}

// requestOf is the round of the requests, where r is that of the replies.
func requestOf(r Round) Round {
	r.Bytes = RequestBytes
	return r
}

// transact is the client's loop: it makes the transactions of a round and times
// each of them.
func transact(r Round, times []int64, one func(i int) error) (Span, error) {
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		if err := one(i); err != nil {
			return Span{}, err
		}
		now := time.Since(clock.wall)
		if i >= r.Lead {
			times[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span(), nil
}
