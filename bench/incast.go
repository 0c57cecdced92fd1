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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
	opening func(func() error) error
	cond    Conditions
	failed  bool
}

// IncastConfig of a receiver and its senders. Of the bed's it takes MTU, Mode, Hugepages,
// WorkerArgs and Stderr.
type IncastConfig struct {
	Senders int // 1 to MaxIncast
	BedConfig

	Opening func(open func() error) error // around streams over vianet, which map memory: Bed.Opening; may be nil
}

// MaxIncast bounds the senders.
const MaxIncast = 64

// IncastLoad is streams of some of the senders at the same time.
type IncastLoad struct {
	TCP      bool          // over the kernel's TCP by package net; else over package vianet
	Senders  int           // that take part
	Bytes    int           // of a message, 1 to MaxIncastBytes
	Duration time.Duration // of the window, at most a minute
}

// MaxIncastBytes is the largest message.
const MaxIncastBytes = 256 << 10

func (l IncastLoad) validate() error {
	switch {
	case l.Senders < 1 || l.Senders > MaxIncast:
		return fmt.Errorf("%d senders: 1 to %d", l.Senders, MaxIncast)
	case l.Bytes < 1 || l.Bytes > MaxIncastBytes:
		return fmt.Errorf("messages of %d bytes: 1 to %d", l.Bytes, MaxIncastBytes)
	case l.Duration <= 0 || l.Duration > time.Minute:
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
func (r *IncastResult) Fairness() float64 {
	sum, squares := 0., 0.
	for _, n := range r.Messages {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(r.Messages)) * squares)
}

// LeastShare is the least share of a sender by the greatest.
func (r *IncastResult) LeastShare() float64 {
	return float64(slices.Min(r.Messages)) / float64(slices.Max(r.Messages))
}

// OpenIncast makes the namespaces and starts the workers.
func OpenIncast(cfg IncastConfig) (*Incast, error) {
	if cfg.Senders < 1 || cfg.Senders > MaxIncast {
		return nil, fmt.Errorf("%d senders: 1 to %d", cfg.Senders, MaxIncast)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	star, err := testbed.NewStar(1+cfg.Senders, cfg.MTU)
	if err != nil {
		return nil, err
	}
	return openIncast(cfg, star)
}

// openIncast starts the workers on a star, which is theirs.
func openIncast(cfg IncastConfig, star *testbed.Star) (_ *Incast, err error) {
	n := &Incast{star: star, opening: cfg.Opening, cond: HostConditions()}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	places := []int{cpus[0]}
	for i := range cfg.Senders {
		places = append(places, cpus[min(len(cpus)-1, 1+i%max(1, len(cpus)-1))])
	}
	sides, err := n.star.Children(cfg.WorkerArgs, places, cfg.Stderr)
	if err != nil {
		return nil, err
	}
	for i, side := range sides {
		name := "receiver"
		if i > 0 {
			name = fmt.Sprint("sender ", i-1)
		}
		w := NewWorker(name, side.Control, Params{
			Interface: testbed.StarInterface, Local: side.Ends[0].IPv4.Addr(), Mode: cfg.Mode, Hugepages: cfg.Hugepages,
		})
		w.ended = side.Err
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
	workers := n.workers[:1+l.Senders]
	requests := make([]request, len(workers))
	for i, w := range workers {
		name := taskIncastSend
		if i == 0 {
			name = taskIncastTake
		}
		if requests[i], err = w.alone(name, !l.TCP, incastInput{l, n.workers[0].params.Local, i - 1}); err != nil {
			return nil, err
		}
	}
	before, err := n.star.Drops()
	if err != nil {
		return nil, err
	}
	defer func() { n.failed = n.failed || err != nil }()
	var replies []reply
	call := func() (err error) { replies, err = each(ctx, workers, requests); return err }
	if err := within(n.opening, !l.TCP, call); err != nil {
		return nil, err
	}
	taken, err := outputOf[incastTaken](replies[0])
	if err != nil {
		return nil, err
	}
	if len(taken.Messages) != l.Senders || len(taken.Came) != l.Senders || taken.Span.Wall <= 0 {
		return nil, errors.New("the receiver has not said what came, and how long it took")
	}
	after, err := n.star.Drops()
	if err != nil {
		return nil, err
	}
	n.cond.learn(taken.Facts)
	onTheWay := after - before // dropped by name
	r := &IncastResult{
		Messages: taken.Messages, Unnamed: taken.Unnamed,
		Disturbed: disturbances(Span{}, taken.Span, false), // all sleep
	}
	for _, m := range taken.Messages {
		r.MBps += float64(m) * float64(l.Bytes) / taken.Span.Wall.Seconds() / 1e6
	}
	for i, x := range replies[1:] {
		sent, err := outputOf[incastSent](x)
		if err != nil {
			return nil, err
		}
		if sent.Messages != taken.Came[i] {
			return nil, fmt.Errorf("sender %d has sent %d messages, and %d came", i, sent.Messages, taken.Came[i])
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
	if err := in.validate(); err != nil {
		return out, err
	}
	n, err := openNetwork(j.params, !in.TCP)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	defer n.closeOn(j.stop)()
	message, err := n.alloc(in.Bytes)
	if err != nil {
		return out, err
	}
	conn, err := n.reach(netip.AddrPortFrom(in.Receiver, incastPort), incastLimit, j.stop)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(in.Duration + incastLimit)); err != nil {
		return out, err
	}
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
	if _, err := conn.Write([]byte{byte(in.Number)}); err != nil {
		return out, err
	}
	for ; !over.Load(); out.Messages++ {
		if out.Messages < incastCheck {
			copy(message, content(int(out.Messages), 0, in.Bytes))
		}
		if _, err := conn.Write(message); err != nil {
			return out, err
		}
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return out, err
	}
	if err := <-all; err != nil {
		return out, fmt.Errorf("the receiver has not said that it has everything: %w", err)
	}
	if n.nic == nil {
		info, err := tcpInfo(conn.(*net.TCPConn))
		if err != nil {
			return out, err
		}
		out.Frames, out.Resent = uint64(info.Segs_out), uint64(info.Total_retrans)
		return out, nil
	}
	st := n.nic.Status()
	out.Frames, out.Resent = st.Socket["tx_frames"]+st.Counters.GSOSentFrames, st.Counters.Resent
	out.Dropped = st.Socket["tx_lost_busy"] + st.Socket["tx_invalid_descs"]
	return out, nil
}

// tcpInfo is tcp(7)'s TCP_INFO.
func tcpInfo(c syscall.Conn) (info *unix.TCPInfo, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return info, errors.Join(err, controlErr)
}

// takeIncast is a task: the receiver.
func takeIncast(j *job, in incastInput) (out incastTaken, err error) {
	if err := in.validate(); err != nil {
		return out, err
	}
	n, err := openNetwork(j.params, !in.TCP)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	defer n.closeOn(j.stop)()
	demux := map[string]uint64{}
	if n.nic != nil {
		out.Facts, demux = factsOf(n.nic), n.nic.Status().Demux
	}
	r := &incastReceiver{in: in, streams: make([]net.Conn, in.Senders), came: make([]atomic.Int64, in.Senders), failed: make(chan error, in.Senders)}
	defer r.close()
	if err := r.connect(n, j.params.Local); err != nil {
		return out, err
	}
	var streams sync.WaitGroup
	for i := range r.streams {
		streams.Go(func() {
			if err := r.take(i); err != nil {
				r.failed <- fmt.Errorf("sender %d: %w", i, err)
			}
		})
	}
	if out.Messages, out.Span, err = r.window(); err != nil {
		return out, err
	}
	r.ending.Store(true)
	if err := r.tell(); err != nil {
		return out, err
	}
	streams.Wait()
	select {
	case err := <-r.failed:
		return out, err
	default:
	}
	if err := r.tell(); err != nil {
		return out, err
	}
	out.Came = r.counts()
	if n.nic != nil {
		out.Seen, out.Dropped, out.Unnamed = countFrames(n.nic, demux)
	}
	return out, nil
}

// incastReceiver has a stream of each sender.
type incastReceiver struct {
	in      incastInput
	streams []net.Conn
	came    []atomic.Int64 // messages
	ending  atomic.Bool    // the senders have been notified of the end
	failed  chan error     // of streams
}

// connect takes the streams of all senders.
func (r *incastReceiver) connect(n *network, local netip.Addr) error {
	l, err := n.listenWithin(netip.AddrPortFrom(local, incastPort), incastLimit)
	if err != nil {
		return err
	}
	defer l.Close()
	for range r.streams {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		number := make([]byte, 1)
		if err = conn.SetDeadline(time.Now().Add(r.in.Duration + incastLimit)); err == nil {
			_, err = io.ReadFull(conn, number)
		}
		if i := int(number[0]); err == nil && i < len(r.streams) && r.streams[i] == nil {
			r.streams[i] = conn
			continue
		}
		return errors.Join(err, conn.Close(), errors.New("a stream has not said whose it is"))
	}
	return nil
}

// take counts the messages of a stream until its end.
func (r *incastReceiver) take(i int) error {
	message := make([]byte, r.in.Bytes)
	for n := 0; ; n++ {
		_, err := io.ReadFull(r.streams[i], message)
		switch {
		case err == io.EOF && r.ending.Load():
			return nil
		case err != nil:
			return fmt.Errorf("message %d: %w", n, err)
		}
		if n < incastCheck {
			if err := verify(n, 0, message); err != nil {
				return err
			}
		}
		r.came[i].Add(1)
	}
}

func (r *incastReceiver) counts() []int64 {
	counts := make([]int64, len(r.came))
	for i := range r.came {
		counts[i] = r.came[i].Load()
	}
	return counts
}

// window counts the messages of a time that begins some time after every sender has begun.
// A sender that got no CPU has its time all the same.
func (r *incastReceiver) window() (messages []int64, span Span, err error) {
	// until waits until done says so, or a stream has failed.
	until := func(done func() bool) error {
		for !done() {
			select {
			case err := <-r.failed:
				return err
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	late := time.Now().Add(incastLimit)
	if err := until(func() bool { return slices.Min(r.counts()) >= incastCheck || time.Now().After(late) }); err != nil {
		return nil, span, err
	}
	if time.Now().After(late) {
		return nil, span, fmt.Errorf("a sender has hardly begun within %v: messages %d", incastLimit, r.counts())
	}
	time.Sleep(r.in.Duration / warmPart)
	before, clock := r.counts(), startStopwatch()
	err = until(func() bool {
		messages = r.counts()
		for i := range messages {
			messages[i] -= before[i]
		}
		span = clock.span()
		return span.Wall >= r.in.Duration && slices.Min(messages) > 0 || span.Wall > r.in.Duration+waitLimit
	})
	return messages, span, err
}

// tell sends a byte to each sender.
func (r *incastReceiver) tell() error {
	for _, conn := range r.streams {
		if _, err := conn.Write([]byte{0}); err != nil {
			return err
		}
	}
	return nil
}

func (r *incastReceiver) close() {
	for _, conn := range r.streams {
		if conn != nil {
			conn.Close()
		}
	}
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
