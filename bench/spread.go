package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/testbed"
)

// A Spread is streams over all queues of one veth pair at once: each queue has a
// NIC handle and a reliable VI at either end, and one thread, pinned to a CPU, that
// drives both ends.
//
//	thread 0, CPU 0   VI ==.                      .== VI   queue 0
//	thread 1, CPU 1   VI ==+==== veth pair =======+== VI   queue 1
//
// So a queue keeps one CPU busy and no more, and shares nothing with the next one
// but the interface. A veth takes a frame in on the queue of the number on which its
// peer sent it, in native mode; in generic mode the kernel forgets it.
//
// A Spread belongs to one goroutine. It runs in this process, whose GOMAXPROCS it
// raises while it is open: threads that poll leave none to the rest.
type Spread struct {
	site    *testbed.Site
	streams []*queueStream
	cpus    []int
	procs   int // GOMAXPROCS before
}

// SpreadConfig of a pair with queues.
type SpreadConfig struct {
	Queues    int // 1 to MaxQueues
	MTU       int // 0: 1500
	Hugepages bool
}

// MaxQueues bounds the queues of a pair.
const MaxQueues = 64

// SpreadResult is what streams over all queues have given together.
type SpreadResult struct {
	PerSecond float64 // messages, the sum over the queues
	Least     float64 // messages a second, of the slowest queue
	Messages  int64
	Disturbed []string
}

// OpenSpread makes the pair, opens its queues and connects their VIs.
func OpenSpread(cfg SpreadConfig) (_ *Spread, err error) {
	if cfg.Queues < 1 || cfg.Queues > MaxQueues {
		return nil, fmt.Errorf("%d queues: 1 to %d", cfg.Queues, MaxQueues)
	}
	if err := testbed.Require(testbed.Namespaces, testbed.Sockets, testbed.Programs); err != nil {
		return nil, err
	}
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	q := &Spread{cpus: cpus, procs: runtime.GOMAXPROCS(0)}
	runtime.GOMAXPROCS(q.procs + cfg.Queues)
	defer func() {
		if err != nil {
			err = errors.Join(err, q.Close())
		}
	}()
	q.site, err = testbed.NewDirectSite(testbed.Pair{
		Names: [2]string{xdpInterface, xdpInterface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6,
		MTU: cfg.MTU, Queues: cfg.Queues,
	})
	if err != nil {
		return nil, err
	}
	for i := range cfg.Queues {
		s, err := q.openStream(i, cfg.Hugepages)
		if err != nil {
			return nil, fmt.Errorf("queue %d: %w", i, err)
		}
		q.streams = append(q.streams, s)
	}
	return q, nil
}

// Conditions under which the streams run.
func (q *Spread) Conditions() Conditions {
	c := HostConditions()
	c.Polling = "spin"
	c.learn(factsOf(q.streams[0].nics[0]))
	return c
}

// CPUs is on how many CPUs the threads of the queues are.
func (q *Spread) CPUs() int { return min(len(q.cpus), len(q.streams)) }

// Close closes the NICs and removes the pair.
func (q *Spread) Close() error {
	var errs []error
	for _, s := range q.streams {
		errs = append(errs, s.close())
	}
	q.streams = nil
	if q.site != nil {
		errs = append(errs, q.site.Close())
	}
	runtime.GOMAXPROCS(q.procs)
	return errors.Join(errs...)
}

// Stream sends messages of so many bytes over all queues at once for a time,
// after a warm-up in which every byte is checked.
func (q *Spread) Stream(ctx context.Context, bytes int, d time.Duration) (*SpreadResult, error) {
	if bytes < 1 || bytes > MaxMessage {
		return nil, fmt.Errorf("messages of %d bytes: 1 to %d", bytes, MaxMessage)
	}
	var phase atomic.Int32
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	errs := make([]error, len(q.streams))
	var checked, wg sync.WaitGroup
	checked.Add(len(q.streams))
	for i, s := range q.streams {
		wg.Go(func() {
			// Not unlocked: the thread is pinned, and ends with this goroutine.
			runtime.LockOSThread()
			errs[i] = s.run(q.cpus[i%len(q.cpus)], bytes, &phase, &stop, checked.Done)
			if errs[i] != nil {
				stop.Store(true) // the others, too
			}
		})
	}
	checked.Wait() // or failed
	time.Sleep(d / warmPart)
	phase.Store(queuesCount)
	clock := startStopwatch()
	time.Sleep(d)
	phase.Store(queuesEnd)
	span := clock.span()
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r := &SpreadResult{Disturbed: disturbances(span, Span{}, false)}
	for _, s := range q.streams {
		rate := float64(s.counted) / s.took.Seconds()
		r.PerSecond += rate
		if r.Least == 0 || rate < r.Least {
			r.Least = rate
		}
		r.Messages += int64(s.counted)
		// With several threads on a CPU each waits for it, as it must.
		if len(q.streams) <= len(q.cpus) && s.waited > waitSlip && float64(s.waited) > waitShare*float64(s.took) {
			r.Disturbed = joinReasons(r.Disturbed, []string{fmt.Sprintf("a thread waited for its CPU more than %.0f %% of the time", 100*waitShare)})
		}
	}
	return r, nil
}

// Phases of a stream, one after the other.
const (
	queuesWarm  = iota // every byte of some messages is checked, then at full speed
	queuesCount        // messages count
	queuesEnd
)
