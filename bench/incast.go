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

// An Incast is a receiver and its senders: workers in network namespaces of their own,
// joined by a bridge. The receiver has a CPU for itself where there are two; the senders
// share the others.
//
//	receiver   sender 0   sender 1   sender 2 ...
//	   |           |          |          |
//	===+===========+==========+==========+===== bridge
//
// An Incast belongs to one goroutine, and is unusable after Stream has failed.
type Incast struct {
	star    *testbed.Star
	workers []*Worker // the receiver is the first
	cond    Conditions
	failed  bool
}

// IncastConfig of a receiver and its senders, without a forwarder and agents.
type IncastConfig struct {
	Senders int // 1 to MaxIncast
	BedConfig
}

// MaxIncast bounds the senders.
const MaxIncast = 64

// IncastLoad is streams of some of the senders at the same time.
type IncastLoad struct {
	TCP      bool          // over the kernel's TCP by package net; else over package vianet
	Senders  int           // that take part
	Bytes    int           // of a message, 1 to MaxIncastBytes
	Duration time.Duration // of the window, at most MaxTime
}

// MaxTime bounds an IncastLoad, an HTTPLoad, and a SharingLoad from its first start to its end.
const MaxTime = time.Minute

// MaxIncastBytes is the largest message.
const MaxIncastBytes = 256 << 10

func (l IncastLoad) validate() error {
	switch {
	case l.Senders < 1 || l.Senders > MaxIncast:
		return fmt.Errorf("%d senders: 1 to %d", l.Senders, MaxIncast)
	case l.Bytes < 1 || l.Bytes > MaxIncastBytes:
		return fmt.Errorf("messages of %d bytes: 1 to %d", l.Bytes, MaxIncastBytes)
	case l.Duration <= 0 || l.Duration > MaxTime:
		return fmt.Errorf("%v: more than nothing, at most a minute", l.Duration)
	}
	return nil
}

// IncastResult is what came of them. Messages are those of the window, in which all
// senders had begun and none had ended; frames are those of the whole streams. If a
// message is lost, there is no result.
type IncastResult struct {
	MBps     float64 // 10^6 bytes of content a second, of all senders
	Messages []int64 // of each sender

	Frames  uint64 // that the senders have sent; of TCP, segments
	Resent  uint64 // of them, those that were sent again
	Dropped uint64 // frames that were counted as dropped, on the way or at the receiver; one may be counted twice
	Unnamed uint64 // frames that are missing and were not counted as dropped; of VIs

	Disturbed []string
}

// Fairness is Jain's index of the senders' shares: 1 if they are equal, 1/n if one of n
// has all.
func (r *IncastResult) Fairness() float64 { return jain(r.Messages) }

func jain[T int64 | float64](shares []T) float64 {
	sum, squares := 0., 0.
	for _, x := range shares {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// LeastShare is the least share of a sender by the greatest.
func (r *IncastResult) LeastShare() float64 {
	return float64(slices.Min(r.Messages)) / float64(slices.Max(r.Messages))
}

// OpenIncast makes the namespaces and starts the workers.
func OpenIncast(cfg IncastConfig) (_ *Incast, err error) {
	defer fail.Catch(&err)
	if cfg.Senders < 1 || cfg.Senders > MaxIncast {
		fail.With("%d senders: 1 to %d", cfg.Senders, MaxIncast)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	return openIncast(cfg, fail.Must(testbed.NewStar(1+cfg.Senders, cfg.MTU)))
}

// openIncast starts the workers on a star, which is theirs.
func openIncast(cfg IncastConfig, star *testbed.Star) (_ *Incast, err error) {
	n := &Incast{star: star, cond: HostConditions()}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	defer fail.Catch(&err)
	cpus := fail.Must(testbed.AllowedCPUs())
	places := []int{cpus[0]}
	for i := range cfg.Senders {
		places = append(places, cpus[min(len(cpus)-1, 1+i%max(1, len(cpus)-1))])
	}
	for i, side := range fail.Must(n.star.Children(cfg.WorkerArgs, places, cfg.Stderr)) {
		name := "receiver"
		if i > 0 {
			name = fmt.Sprint("sender ", i-1)
		}
		w := NewWorker(name, side.Control, Params{
			Place: Place{Interface: testbed.StarInterface, Mode: cfg.Mode, Hugepages: cfg.Hugepages}, Local: side.Ends[0].IPv4.Addr(),
		})
		w.ended, w.guard = side.Err, cfg.guard()
		n.workers = append(n.workers, w)
	}
	n.cond.PinnedCPUs, n.cond.Polling = places, "wait"
	return n, nil
}

// Conditions under which the streams run, known once streams of VIs have run.
func (n *Incast) Conditions() Conditions { return n.cond }

// Close ends the workers and removes the namespaces.
func (n *Incast) Close() {
	if n.failed { // some may wait for others that have ended
		n.star.CloseWithin(endGrace)
		return
	}
	n.star.Close()
}

// incastInput is what the tasks of an IncastLoad get.
type incastInput struct {
	IncastLoad
	Receiver netip.Addr
	Number   int // of the sender
}

// incastSent is a sender's report of its stream.
type incastSent struct {
	Messages                int64
	Frames, Resent, Dropped uint64 // frames, those of them that were sent again, and that its kernel has named as lost
}

// incastTaken is the receiver's report of all streams.
type incastTaken struct {
	Messages, Came   []int64 // of each sender, in the window and in all
	Span             Span    // the window
	Dropped, Unnamed uint64  // at the receiver
	Seen             uint64  // frames that came to it
	Facts            Facts
}

// Stream has the first of the senders send at the same time.
func (n *Incast) Stream(ctx context.Context, l IncastLoad) (_ *IncastResult, err error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	if l.Senders >= len(n.workers) {
		return nil, fmt.Errorf("%d senders: there are %d", l.Senders, len(n.workers)-1)
	}
	defer func() { n.failed = n.failed || err != nil }()
	defer fail.Catch(&err)
	before := fail.Must(n.star.Drops())
	replies := apart(ctx, !l.TCP, n.workers[:1+l.Senders], func(i int) (string, any) {
		in := incastInput{l, n.workers[0].params.Local, i - 1}
		if i == 0 {
			return "incast-take", in
		}
		return "incast-send", in
	})
	taken := outputOf[incastTaken](replies[0])
	if len(taken.Messages) != l.Senders || len(taken.Came) != l.Senders || taken.Span.Wall <= 0 {
		fail.With("the receiver has not said what came, and how long it took")
	}
	onTheWay := fail.Must(n.star.Drops()) - before // dropped by name
	n.cond.learn(taken.Facts)
	r := &IncastResult{
		Messages: taken.Messages, Unnamed: taken.Unnamed,
		Disturbed: disturbances(Span{}, taken.Span, false), // all sleep
	}
	for _, m := range taken.Messages {
		r.MBps += float64(m) * float64(l.Bytes) / taken.Span.Wall.Seconds() / 1e6
	}
	for i, x := range replies[1:] {
		sent := outputOf[incastSent](x)
		if sent.Messages != taken.Came[i] {
			fail.With("sender %d has sent %d messages, and %d came", i, sent.Messages, taken.Came[i])
		}
		r.Frames += sent.Frames
		r.Resent += sent.Resent
		onTheWay += sent.Dropped
	}
	r.Dropped = taken.Dropped + onTheWay
	if known := taken.Seen + onTheWay; !l.TCP && known < r.Frames {
		r.Unnamed += r.Frames - known
	}
	return r, nil
}

// incastCheck is how many first messages of a sender have every byte checked.
const incastCheck = 8

// incastPort is where the receiver listens.
const incastPort = 8082

// incastLimit is how long one side waits for another, which may be opening its interface
// beside several others. A side that fails ends the rest, too.
const incastLimit = 6 * waitLimit

// sendIncast is a task: a sender, until the receiver says that it is over.
//
//	sender                       receiver
//	its number, messages ...  -> counts them
//	                          <- a byte: it is over
//	end of the stream         ->
//	                          <- a byte: everything has come
func sendIncast(j *job, in incastInput) (out incastSent, err error) {
	fail.If(in.validate())
	n := fail.Must(openNetwork(j.params, !in.TCP))
	defer fail.Closing(&err, n.close)
	defer context.AfterFunc(j.ctx, func() { n.close() })()
	message := fail.Must(n.alloc(in.Bytes))
	conn := n.reach(j.ctx, netip.AddrPortFrom(in.Receiver, incastPort), incastLimit)
	defer fail.Closing(&err, conn.Close)
	fail.If(conn.SetDeadline(time.Now().Add(in.Duration + incastLimit)))
	var over atomic.Bool
	all := make(chan error, 1)
	go func() {
		word := make([]byte, 1)
		_, err := conn.Read(word)
		over.Store(true)
		if err == nil {
			_, err = conn.Read(word)
		}
		all <- err
	}()
	fail.Must(conn.Write([]byte{byte(in.Number)}))
	for ; !over.Load(); out.Messages++ {
		if out.Messages < incastCheck {
			copy(message, content(int(out.Messages), 0, in.Bytes))
		}
		fail.Must(conn.Write(message))
	}
	fail.If(conn.(interface{ CloseWrite() error }).CloseWrite())
	fail.Wrap(<-all, "the receiver has not said that it has everything")
	if n.nic == nil {
		onSocket(conn.(*net.TCPConn), func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				out.Frames, out.Resent = uint64(info.Segs_out), uint64(info.Total_retrans)
			}
			return err
		})
		return out, nil
	}
	st := n.nic.Status()
	out.Frames, out.Resent = st.Socket["tx_frames"]+st.Counters.GSOSentFrames, st.Counters.Resent
	out.Dropped = st.Socket["tx_lost_busy"] + st.Socket["tx_invalid_descs"]
	return out, nil
}

// takeIncast is a task: the receiver.
func takeIncast(j *job, in incastInput) (out incastTaken, err error) {
	fail.If(in.validate())
	n := fail.Must(openNetwork(j.params, !in.TCP))
	defer fail.Closing(&err, n.close)
	defer context.AfterFunc(j.ctx, func() { n.close() })()
	out.Facts = factsOf(n.nic)
	var demux map[string]uint64
	if n.nic != nil {
		demux = n.nic.Status().Demux
	}
	streams := make([]net.Conn, in.Senders)
	l := n.listenWithin(j.ctx, netip.AddrPortFrom(j.params.Local, incastPort), incastLimit)
	defer l.Close()
	for range streams {
		conn := fail.Must(l.Accept())
		defer conn.Close()
		fail.If(conn.SetDeadline(time.Now().Add(in.Duration + incastLimit)))
		number := make([]byte, 1)
		_, err := io.ReadFull(conn, number)
		i := int(number[0])
		if err != nil || i >= len(streams) || streams[i] != nil {
			fail.If(errors.Join(err, errors.New("a stream has not said whose it is")))
		}
		streams[i] = conn
	}
	tell := func() {
		for _, conn := range streams {
			fail.Must(conn.Write([]byte{0}))
		}
	}
	flows := newArrivals(j.ctx, in.Senders)
	var ending atomic.Bool // the senders have been notified of the end
	var reading sync.WaitGroup
	for i := range streams {
		reading.Go(func() {
			if err := takeMessages(streams[i], in.Bytes, &ending, &flows.came[i]); err != nil {
				flows.failed <- fmt.Errorf("sender %d: %w", i, err)
			}
		})
	}
	// The window begins some time after every sender has begun. A sender that got no CPU has its time all the same.
	if !flows.until(incastLimit, func() bool { return slices.Min(flows.counts()) >= incastCheck }) {
		fail.With("a sender has hardly begun within %v: messages %d", incastLimit, flows.counts())
	}
	time.Sleep(in.Duration / warmPart)
	out.Messages, out.Span = flows.window(in.Duration, func(messages []int64) bool { return slices.Min(messages) > 0 })
	ending.Store(true)
	tell()
	reading.Wait()
	flows.check()
	tell()
	out.Came = flows.counts()
	if n.nic != nil {
		out.Seen, out.Dropped, out.Unnamed = countFrames(n.nic, demux)
	}
	return out, nil
}

// takeMessages counts the messages of a stream until its end.
func takeMessages(conn net.Conn, bytes int, ending *atomic.Bool, came *atomic.Int64) error {
	message := make([]byte, bytes)
	for n := 0; ; n++ {
		_, err := io.ReadFull(conn, message)
		switch {
		case err == io.EOF && ending.Load():
			return nil
		case err != nil:
			return fmt.Errorf("message %d: %w", n, err)
		}
		if n < incastCheck {
			if err := verify(n, 0, message); err != nil {
				return err
			}
		}
		came.Add(1)
	}
}

// arrivals are messages or bytes that several flows have brought, counted by other goroutines.
type arrivals struct {
	came   []atomic.Int64  // of each flow
	failed chan error      // of flows
	ctx    context.Context // of the task
}

func newArrivals(ctx context.Context, flows int) *arrivals {
	return &arrivals{came: make([]atomic.Int64, flows), failed: make(chan error, flows+1), ctx: ctx}
}

func (a *arrivals) counts() []int64 {
	counts := make([]int64, len(a.came))
	for i := range a.came {
		counts[i] = a.came[i].Load()
	}
	return counts
}

// check fails if a flow has failed, or the worker is to stop.
func (a *arrivals) check() {
	select {
	case err := <-a.failed:
		fail.If(err)
	default:
		fail.If(context.Cause(a.ctx))
	}
}

// until waits for a condition, and reports whether it was true within a time.
func (a *arrivals) until(limit time.Duration, done func() bool) bool {
	for late := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		if a.check(); time.Now().After(late) {
			return false
		}
	}
	return true
}

// window counts what comes of each flow from now on in a time, and until it is enough. It fails if that takes waitLimit longer.
func (a *arrivals) window(d time.Duration, enough func([]int64) bool) (counts []int64, span Span) {
	before, clock := a.counts(), startStopwatch()
	if !a.until(d+waitLimit, func() bool {
		counts, span = a.counts(), clock.span()
		for i := range counts {
			counts[i] -= before[i]
		}
		return span.Wall >= d && enough(counts)
	}) {
		fail.With("a flow stood still for %v: what came is %d", d+waitLimit, counts)
	}
	return counts, span
}

// Frames that were sent may be on their way for incastQuiet at most, and are over when none
// has come for incastStill.
const (
	incastQuiet = 5 * time.Second
	incastStill = 50 * time.Millisecond
)

// countFrames returns how many frames have come to a NIC since before, how many of them a
// named counter has as dropped, and how many are missing from all counters.
func countFrames(nic *vipl.NIC, before map[string]uint64) (seen, dropped, unnamed uint64) {
	last, since := uint64(0), time.Now()
	for end := time.Now().Add(incastQuiet); ; time.Sleep(time.Millisecond) {
		s := nic.Status()
		seen, dropped = s.Counters.GSOReceivedFrames-s.Counters.GSOReceived, 0 // the demux program counts a GSO packet once
		for name, n := range s.Demux {
			if name == "control" {
				continue
			}
			n -= before[name]
			seen += n
			if name != "redirected" {
				dropped += n
			}
		}
		socket := s.Socket["rx_dropped"] + s.Socket["rx_ring_full"] + s.Socket["rx_too_many_segs"] + s.Socket["rx_bad_entries"]
		redirected, named := s.Demux["redirected"]-before["redirected"], s.Socket["rx_frames"]+socket
		unnamed = max(redirected, named) - named
		if seen != last {
			last, since = seen, time.Now()
		}
		if time.Since(since) > incastStill && unnamed == 0 || time.Now().After(end) {
			return seen, dropped + socket, unnamed
		}
	}
}
