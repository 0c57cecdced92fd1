package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
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

// Sizes of a queue's stream.
const (
	queueDepth = 256 // messages under way, at most
	queueArena = 16 << 20
	queueCheck = 8 // messages whose every byte is checked

	// While one connection waits for its thread, or for the others to be made, its
	// peer, who has the same thread, is not to give it up.
	queueSilence = 20 * time.Second
)

// queueStream is one queue: a connection, both of whose ends are this process's.
type queueStream struct {
	nics   [2]*vipl.NIC
	vis    [2]*vipl.VI
	descs  [2]ring
	memory [2]*vipl.Region
	done   [viList]*vipl.Descriptor

	counted      int
	took, waited time.Duration
}

func (q *Spread) openStream(queue int, huge bool) (_ *queueStream, err error) {
	s := &queueStream{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	policy := hugepages.Avoid
	if huge {
		policy = hugepages.Auto
	}
	for i := range s.nics {
		if err := q.site.Do(i, func() (err error) {
			s.nics[i], err = vipl.OpenNIC(xdpInterface, vipl.WithQueue(queue), vipl.WithMode(xdpnic.ModeNative, true),
				vipl.WithSteering(vipl.SteerOff), vipl.WithHugepages(policy), vipl.WithArena(queueArena),
				vipl.WithSilence(queueSilence))
			return err
		}); err != nil {
			return nil, err
		}
		if err := s.layOut(i); err != nil {
			return nil, err
		}
	}
	return s, s.connect(q.site, queue)
}

// layOut makes a side's VI, its descriptors and its memory.
func (s *queueStream) layOut(i int) error {
	nic := s.nics[i]
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	if s.memory[i], err = nic.AllocMem(MaxMessage, vipl.MemAttributes{Ptag: tag}); err != nil {
		return err
	}
	if s.descs[i], err = newRing(nic, tag, queueDepth); err != nil {
		return err
	}
	s.vis[i], err = nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag}, nil, nil)
	return err
}

// connect joins the two VIs; the second one's side waits for the first.
func (s *queueStream) connect(site *testbed.Site, queue int) error {
	address := func(side int) vipl.NetAddress {
		return vipl.NetAddress{Host: site.Ends[side].IPv4.Addr(), Discriminator: fmt.Appendf(nil, "queue %d", queue)}
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := s.nics[1].ConnectWait(address(1), waitLimit)
		if err == nil {
			err = c.Accept(s.vis[1])
		}
		accepted <- err
	}()
	err := requestConnection(s.vis[0], address(0), address(1), waitLimit, nil)
	return errors.Join(err, <-accepted)
}

func (s *queueStream) close() error {
	var errs []error
	for _, nic := range s.nics {
		if nic != nil {
			errs = append(errs, nic.Close())
		}
	}
	return errors.Join(errs...)
}

// run goes through the phases on the calling thread, which is locked.
func (s *queueStream) run(cpu, bytes int, phase *atomic.Int32, stop *atomic.Bool, checked func()) error {
	w := watchdog{stop: stop, most: queueSilence}
	err := testbed.PinThread(cpu)
	if err == nil {
		err = s.check(bytes, &w)
	}
	checked()
	if err != nil {
		return err
	}
	s.counted = 0
	for phase.Load() < queuesCount {
		if _, err := s.turn(bytes, &w); err != nil {
			return err
		}
	}
	waited, began := waitTime(), time.Now()
	// A thread that got no CPU meanwhile has its time all the same.
	for phase.Load() < queuesEnd || s.counted == 0 {
		n, err := s.turn(bytes, &w)
		if err != nil {
			return err
		}
		s.counted += n
	}
	s.took, s.waited = time.Since(began), max(0, waitTime()-waited)
	return s.settle(bytes, &w)
}

func (s *queueStream) sends() *ring { return &s.descs[0] }
func (s *queueStream) recvs() *ring { return &s.descs[1] }

// turn posts a list of messages, if so many may be under way, and takes off what
// has arrived.
func (s *queueStream) turn(bytes int, w *watchdog) (arrived int, err error) {
	if depth := min(queueDepth, max(viList, viStream/slot(bytes))); max(s.recvs().out(), s.sends().out())+viList <= depth {
		if err := s.post(bytes, viList); err != nil {
			return 0, err
		}
	}
	return s.take(bytes, w)
}

// post posts receives for messages, and sends them.
func (s *queueStream) post(bytes, messages int) error {
	for _, side := range []int{1, 0} {
		r := &s.descs[side]
		for range messages {
			r.stage(s.memory[side].Segment(0, bytes))
		}
	}
	if err := s.recvs().push(s.vis[1].PostRecv, s.vis[1].PostRecvs); err != nil {
		return s.fail(1, "receive", err)
	}
	if err := s.sends().push(s.vis[0].PostSend, s.vis[0].PostSends); err != nil {
		return s.fail(0, "send", err)
	}
	return nil
}

// take takes off what has arrived, and sends that are complete. Both sides have
// the thread by turns: an acknowledgement needs both.
func (s *queueStream) take(bytes int, w *watchdog) (arrived int, err error) {
	if arrived, err = s.dones(1, "receive", s.vis[1].RecvDones); err != nil {
		return 0, err
	}
	for _, d := range s.done[:arrived] {
		if int(d.Length) != bytes {
			return 0, fmt.Errorf("a message of %d bytes came, not of %d", d.Length, bytes)
		}
	}
	sent, err := s.dones(0, "send", s.vis[0].SendDones)
	if err != nil {
		return 0, err
	}
	if arrived+sent == 0 {
		return 0, w.idle()
	}
	w.progress()
	return arrived, nil
}

// dones takes completed descriptors of one side off; they are in s.done.
func (s *queueStream) dones(side int, doing string, take func([]*vipl.Descriptor) (int, error)) (int, error) {
	r := &s.descs[side]
	if r.out() == 0 {
		return 0, nil // an empty queue is an error of the VIPL
	}
	n, err := take(s.done[:])
	r.done += n
	if err != nil && !errors.Is(err, vipl.ErrNotDone) {
		return n, s.fail(side, doing, err, s.done[:n]...)
	}
	return n, nil
}

// check sends a few messages one by one and compares every byte.
func (s *queueStream) check(bytes int, w *watchdog) error {
	for i := range queueCheck {
		copy(s.memory[0].Bytes(), content(i, 0, bytes))
		clear(s.memory[1].Bytes()[:bytes])
		if err := s.post(bytes, 1); err != nil {
			return err
		}
		if err := s.settle(bytes, w); err != nil {
			return err
		}
		if err := verify(i, 0, s.memory[1].Bytes()[:bytes]); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until nothing is under way.
func (s *queueStream) settle(bytes int, w *watchdog) error {
	for s.recvs().out()+s.sends().out() > 0 {
		if _, err := s.take(bytes, w); err != nil {
			return err
		}
	}
	return nil
}

// fail adds to an error the last descriptor's status, and what the side's VI
// knows of its end.
func (s *queueStream) fail(side int, doing string, err error, done ...*vipl.Descriptor) error {
	if d := last(done); d != nil {
		err = fmt.Errorf("%w: status %v", err, d.Status())
	}
	return failed(s.vis[side], doing, err)
}
