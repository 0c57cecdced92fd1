package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// Bottleneck is what the frames of a [Bed]'s client find on their way to the server. The bed was made with Through.
type Bottleneck struct {
	Rate    int64         // bits per second of whole frames
	Queue   int           // bytes
	Trip    time.Duration // that the path adds to a round trip
	PerFlow bool          // each flow has a queue of its own
	Mark    int           // bytes in the queue above which frames are marked (ECN); 0: never
}

// Forwarder reports whether the forwarder is the bottleneck, and not the kernel's token bucket filter behind it. Where it delays
// frames, too, the filter's timer would take a quarter of a processor at 1 Gbit/s, and frames that the forwarder passes
// late would meet the filter's queue together.
func (b Bottleneck) Forwarder() bool { return b.PerFlow || b.Mark > 0 || b.Trip > 0 }

// set makes the path a bottleneck, until the returned function is called.
func (b Bottleneck) set(m *testbed.Middle) (undo func() error) {
	if !b.Forwarder() {
		m.SetBoth(testbed.Faults{})
		fail.If(m.SetTBF(0, b.Rate, b.Queue))
		return func() error { return m.SetTBF(0, 0, 0) }
	}
	m.SetFaults(0, testbed.Faults{Delay: b.Trip / 2, Rate: b.Rate, QueueBytes: b.Queue, PerFlow: b.PerFlow, Mark: b.Mark})
	m.SetFaults(1, testbed.Faults{Delay: b.Trip - b.Trip/2})
	return func() error {
		m.SetBoth(testbed.Faults{})
		return nil
	}
}

// SharingLoad is flows from the client to the server that begin one after the other and then share a bottleneck: VIs
// of one NIC handle, then TCP connections through the same interface. Without VIs it shows what TCP flows do to each other.
type SharingLoad struct {
	VIs   int
	TCPs  []string      // congestion control of each
	Apart time.Duration // between the starts of two flows
	Warm  time.Duration // after the last start, not counted
	Time  time.Duration // counted
}

func (l SharingLoad) flows() int { return l.VIs + len(l.TCPs) }

// until is when counting begins, from the start of the first flow.
func (l SharingLoad) until() time.Duration { return time.Duration(l.flows()-1)*l.Apart + l.Warm }

func (l SharingLoad) validate() error {
	switch {
	case l.VIs < 0 || l.flows() < 1 || l.flows() > maxSharing:
		return fmt.Errorf("%d VIs of %d flows: 1 to %d", l.VIs, l.flows(), maxSharing)
	case l.Apart < 0 || l.Warm < 0 || l.Time <= 0 || l.until()+l.Time > MaxTime:
		return fmt.Errorf("%v: more than nothing, at most a minute", l.Time)
	}
	return nil
}

const (
	maxSharing      = 64
	sharingMessage  = 16 << 10 // bytes
	sharingChunks   = 4096     // 8 MB: more than any of the bottlenecks holds
	sharingSends    = 256      // messages that a VI has outstanding
	sharingReceives = 1024     // receives that a VI has posted: the receiver may be late by all that is outstanding
	sharingPort     = 8083
	tcpHeaders      = 52 // of IPv4 and TCP, with timestamps
)

// sharingEnd names the end that the VIs are connected with.
const sharingEnd = "via-xdp sharing"

// SharingResult is what came of a SharingLoad. All is of the time that counts, but for what is said to be of all.
type SharingResult struct {
	Rates     []float64 // content in bits per second of each flow, VIs first
	VIs       int       // of them
	Used      float64   // share of the link's rate, with headers
	Sent      uint64    // frames of all VIs in all the time, and of these
	Resent    uint64    // those that were sent again
	Marked    uint64    // those that came marked
	Queue     float64   // mean bytes that waited at the bottleneck, where it is the forwarder
	Disturbed []string

	Conditions Conditions
}

// Share returns the share of all content that the VIs have, or the first flow if there are none.
func (r *SharingResult) Share() float64 {
	sum, first := 0., 0.
	for i, x := range r.Rates {
		sum += x
		if i < max(r.VIs, 1) {
			first += x
		}
	}
	return first / sum
}

// Jain returns Jain's index of fairness of all flows.
func (r *SharingResult) Jain() float64 { return jain(r.Rates) }

// Share runs flows through a bottleneck.
func (b *Bed) Share(ctx context.Context, at Bottleneck, l SharingLoad) (_ *SharingResult, err error) {
	defer fail.Catch(&err)
	fail.If(l.validate())
	m := b.middle(true)
	defer fail.Closing(&err, at.set(m))
	before := m.Counters(0)
	queue := watchQueue(func() uint64 { return m.Counters(0).Queued })
	defer queue.close()
	replies := b.apart(ctx, true, "share-send", "share-take", sharingInput{l, b.server.at(true).Local})
	queue.close()
	n := m.Counters(0).Since(before)
	sent, taken := outputOf[sharingSent](replies[0]), outputOf[sharingTaken](replies[1])
	if len(taken.Bytes) != l.flows() || taken.Span.Wall <= 0 {
		fail.With("the receiver has not said what came, and how long it took")
	}
	r := &SharingResult{
		VIs: l.VIs, Sent: sent.Sent, Resent: sent.Resent, Marked: taken.Marked,
		Queue: queue.mean(taken.Begin, taken.Begin+taken.Span.Wall), Disturbed: disturbances(Span{}, taken.Span, false), Conditions: conditionsOf("wait", sent.Facts, taken.Facts),
	}
	if n.Overrun > 0 {
		r.Disturbed = append(r.Disturbed, "the forwarder was too slow for its frames")
	}
	frame := float64(b.cfg.MTU + ethernetHeader)
	for i, bytes := range taken.Bytes {
		rate := 8 * float64(bytes) / taken.Span.Wall.Seconds()
		r.Rates = append(r.Rates, rate)
		if i < l.VIs {
			r.Used += rate * frame / float64(taken.Payload) / float64(at.Rate)
		} else {
			r.Used += rate * frame / float64(b.cfg.MTU-tcpHeaders) / float64(at.Rate)
		}
	}
	return r, nil
}

// queueWatch samples a sum of bytes times nanoseconds that waited in a queue, until it is closed.
type queueWatch struct {
	samples []queueSample
	close   func()
}

type queueSample struct {
	at  time.Duration // by monotonic
	sum uint64
}

// queueEvery is the time between two samples.
const queueEvery = 10 * time.Millisecond

func watchQueue(sum func() uint64) *queueWatch {
	w := &queueWatch{}
	var run sync.WaitGroup
	over := make(chan struct{})
	sample := func() { w.samples = append(w.samples, queueSample{monotonic(), sum()}) }
	sample()
	run.Go(func() {
		tick := time.NewTicker(queueEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				sample()
			case <-over:
				return
			}
		}
	})
	w.close = sync.OnceFunc(func() {
		close(over)
		run.Wait()
		sample()
	})
	return w
}

// mean is how many bytes waited on average between two moments, after close.
func (w *queueWatch) mean(begin, end time.Duration) float64 {
	from, to := w.samples[0], w.samples[len(w.samples)-1]
	for _, s := range w.samples {
		if s.at <= begin {
			from = s
		}
	}
	for _, s := range slices.Backward(w.samples) {
		if s.at >= end {
			to = s
		}
	}
	return float64(to.sum-from.sum) / float64(max(to.at-from.at, 1))
}

// monotonic is a clock that all processes of the machine share.
func monotonic() time.Duration {
	var t unix.Timespec
	fail.If(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return time.Duration(t.Nano())
}

// sharingInput is what both tasks of a SharingLoad get.
type sharingInput struct {
	SharingLoad
	Server netip.Addr
}

// sharingSent is the client's report, of all frames of its VIs.
type sharingSent struct {
	Sent, Resent uint64
	Facts        Facts
}

// sharingTaken is the server's report.
type sharingTaken struct {
	Bytes   []int64 // of each flow in the time that counts
	Span    Span
	Begin   time.Duration // of that time, by monotonic
	Marked  uint64
	Payload int // bytes of content in a full frame of a VI
	Facts   Facts
}

// sharingVIs is the VIs of one side, and what one goroutine needs that sends, or receives, by all of them.
type sharingVIs struct {
	nic   *vipl.NIC
	cq    *vipl.CQ
	vis   []*vipl.VI
	rings []ring
	data  vipl.DataSegment
}

// openSharing opens a NIC with VIs whose sends, or receives, complete on one queue.
func openSharing(p Params, vis, depth int, sends bool) *sharingVIs {
	s := &sharingVIs{nic: fail.Must(openNIC(p, vipl.WithChunks(sharingChunks, sharingChunks)))}
	orClose(s, func() {
		tag := s.nic.CommonPtag()
		region := fail.Must(s.nic.RegisterMem(make([]byte, sharingMessage), vipl.MemAttributes{Ptag: tag}))
		s.data = region.Segment(0, sharingMessage)
		s.cq = fail.Must(s.nic.CreateCQ(max(vis, 1) * depth))
		sendCQ, recvCQ := s.cq, (*vipl.CQ)(nil)
		if !sends {
			sendCQ, recvCQ = nil, s.cq
		}
		for i := range vis {
			v := fail.Must(s.nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, sendCQ, recvCQ))
			v.SetValue(i)
			s.vis, s.rings = append(s.vis, v), append(s.rings, newRing(s.nic, tag, depth, 1))
		}
	})
	return s
}

// postAll posts all descriptors of VI i that are not posted.
func (s *sharingVIs) postAll(i int, post postOne) (err error) {
	for r := &s.rings[i]; err == nil && r.out() < len(r.descs); {
		err = r.add(post, nil, s.data)
	}
	return failed(s.vis[i], "post", err)
}

// next waits for a completion, at most for a time, and returns the VI that it is of; -1: none.
func (s *sharingVIs) next(most time.Duration) (int, error) {
	v, recv, err := s.cq.Wait(most)
	switch {
	case errors.Is(err, vipl.ErrTimeout) || errors.Is(err, vipl.ErrNotDone):
		return -1, nil
	case err != nil:
		return -1, err
	}
	done := v.SendDone
	if recv {
		done = v.RecvDone
	}
	i := v.Value().(int)
	s.rings[i].done++
	_, err = done()
	return i, failed(v, "complete", err)
}

// Close disconnects the VIs, and closes the NIC.
func (s *sharingVIs) Close() error {
	var errs []error
	for _, v := range s.vis {
		errs = append(errs, v.Disconnect())
	}
	return errors.Join(append(errs, s.nic.Close())...)
}

// shareSend is a task: the client of a SharingLoad.
//
//	client                       server
//	connects: control, VIs, TCP
//	flows ...                 -> counts them
//	                          <- a byte on control: it is over
//	closes control            ->
func shareSend(j *job, in sharingInput) (out sharingSent, err error) {
	s := openSharing(j.params, in.VIs, sharingSends, true)
	defer fail.Closing(&err, s.Close)
	n := fail.Must(openNetwork(j.params, false))
	at := netip.AddrPortFrom(in.Server, sharingPort)
	control := n.reach(j.ctx, at, waitLimit)
	defer control.Close()
	for _, v := range s.vis {
		requestConnection(j.ctx, v, j.params.Local, in.Server, sharingEnd)
	}
	var conns []net.Conn
	for _, name := range in.TCPs {
		c := n.reach(j.ctx, at, waitLimit)
		defer c.Close()
		onSocket(c.(*net.TCPConn), func(fd int) error { return setCongestion(fd, name) })
		conns = append(conns, c)
	}
	var over atomic.Bool
	ended := make(chan error, 1+in.flows())
	go func() {
		control.SetReadDeadline(time.Now().Add(in.until() + in.Time + waitLimit))
		_, err := io.ReadFull(control, make([]byte, 1))
		over.Store(true)
		ended <- err
	}()
	start := time.Now()
	begin := func(flow int) time.Duration { return time.Until(start.Add(time.Duration(flow) * in.Apart)) }
	for i, c := range conns {
		go func() {
			time.Sleep(begin(in.VIs + i))
			message := make([]byte, sharingMessage)
			for {
				if _, err := c.Write(message); err != nil {
					if !over.Load() {
						ended <- err
					}
					return
				}
			}
		}()
	}
	for begun := 0; !over.Load(); {
		most := maxSleep
		if begun < in.VIs {
			if most = min(most, begin(begun)); most <= 0 {
				fail.If(s.postAll(begun, s.vis[begun].PostSend))
				begun++
				continue
			}
		}
		i, err := s.next(most)
		if err == nil && i >= 0 {
			err = s.postAll(i, s.vis[i].PostSend)
		}
		if !over.Load() {
			fail.If(err)
		}
		fail.If(context.Cause(j.ctx))
	}
	fail.If(<-ended)
	for _, v := range s.nic.Status().VIs {
		out.Sent, out.Resent = out.Sent+v.Sent, out.Resent+v.Resent
	}
	out.Facts = factsOf(s.nic)
	return out, nil
}

// shareTake is a task: the server of a SharingLoad.
func shareTake(j *job, in sharingInput) (out sharingTaken, err error) {
	s := openSharing(j.params, in.VIs, sharingReceives, false)
	defer fail.Closing(&err, s.Close)
	n := fail.Must(openNetwork(j.params, false))
	l := n.listenWithin(j.ctx, netip.AddrPortFrom(j.params.Local, sharingPort), waitLimit)
	defer l.Close()
	control := fail.Must(l.Accept())
	defer control.Close()
	for i, v := range s.vis {
		fail.During(fmt.Sprint("VI ", i), func() {
			fail.If(s.postAll(i, v.PostRecv))
			acceptConnection(j.ctx, s.nic, v, j.params.Local, sharingEnd)
			out.Payload = fail.Must(v.Query()).MaxPayload
		})
	}
	flows := newArrivals(j.ctx, in.flows())
	for i := range in.TCPs {
		c := fail.Must(l.Accept())
		defer c.Close()
		go func() {
			for b := make([]byte, readBuffer); ; {
				n, err := c.Read(b)
				flows.came[in.VIs+i].Add(int64(n))
				if err != nil {
					flows.failed <- fmt.Errorf("TCP flow %d: %w", i, err)
					return
				}
			}
		}()
	}
	var over atomic.Bool
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for !over.Load() {
			i, err := s.next(maxSleep)
			if err == nil && i >= 0 {
				flows.came[i].Add(sharingMessage)
				err = s.postAll(i, s.vis[i].PostRecv)
			}
			if err != nil {
				flows.failed <- err
				return
			}
		}
	}()
	end := sync.OnceFunc(func() { over.Store(true); <-taken })
	defer end()
	// What counts depends on when the first flow begins.
	if !flows.until(waitLimit, func() bool { return flows.came[0].Load() > 0 }) {
		fail.With("nothing of the first flow came within %v", waitLimit)
	}
	begin := time.Now().Add(in.until())
	flows.until(waitLimit+in.until(), func() bool { return time.Now().After(begin) })
	out.Begin = monotonic()
	out.Bytes, out.Span = flows.window(in.Time, func(bytes []int64) bool { return slices.Max(bytes) > 0 })
	end()
	out.Marked, out.Facts = s.nic.Counters().Marked, factsOf(s.nic)
	fail.Must(control.Write([]byte{0}))
	// The client looks at its VIs before it closes control, and then they may be disconnected.
	fail.If(control.SetReadDeadline(time.Now().Add(waitLimit)))
	fail.Must(io.Copy(io.Discard, control))
	return out, nil
}
