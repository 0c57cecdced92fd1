package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"viaxdp/internal/lab/testbed"
)

// An Incast is a receiver and its senders: workers in network namespaces of their own,
// joined by a bridge. The receiver has a CPU for itself where there are two; the senders
// share the others.
//
//	receiver   sender 0   sender 1   sender 2 ...
//	   |           |          |          |
//	===+===========+==========+==========+===== bridge
//
// An Incast belongs to one goroutine, and is of no use after Stream has failed.
type Incast struct {
	star    *testbed.Star
	workers []*Worker // the receiver is the first
	opening func(func() error) error
	cond    Conditions
	alone   bool // the receiver has a CPU for itself
	failed  bool
}

// IncastConfig of a receiver and its senders. Of the bed's it takes MTU, Mode, Hugepages,
// WorkerArgs and Stderr.
type IncastConfig struct {
	Senders int // 1 to MaxIncast
	BedConfig

	Opening func(open func() error) error // around streams of VIs, which map memory: Bed.Opening; may be nil
}

// MaxIncast bounds the senders.
const MaxIncast = 64

// IncastLoad is streams of some of the senders at the same time.
type IncastLoad struct {
	TCP      bool          // over the kernel's TCP, by blocking calls; else VIs of Reliable Delivery that wait
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
// senders had begun and none had ended; frames are those of the whole streams. No message
// was lost, or there is no result.
type IncastResult struct {
	MBps     float64 // 10^6 bytes of content a second, of all senders
	Messages []int64 // of each sender

	Frames  uint64 // that the senders have sent; of TCP, segments
	Resent  uint64 // of them, those that were sent again
	Dropped uint64 // frames that somebody has counted as dropped, on the way or at the receiver; one may be counted twice
	Unnamed uint64 // frames that are missing and nobody has counted; of VIs

	Disturbed []string
}

// Fairness is Jain's index of the senders' shares: 1 where they are equal, 1/n where one
// of n has all.
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
	least, greatest := r.Messages[0], r.Messages[0]
	for _, n := range r.Messages {
		least, greatest = min(least, n), max(greatest, n)
	}
	return float64(least) / float64(greatest)
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
	n.cond.PinnedCPUs, n.cond.Polling, n.alone = places, "wait", len(cpus) > 1
	return n, nil
}

// Conditions under which the streams run, once some of VIs have run.
func (n *Incast) Conditions() Conditions { return n.cond }

// Close ends the workers and removes the namespaces.
func (n *Incast) Close() {
	if n.failed { // some may wait for others who are gone
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

// incastSent is what a sender tells of its stream.
type incastSent struct {
	Messages                int64
	Frames, Resent, Dropped uint64 // frames, those of them that were sent again, and that its kernel has named as lost
}

// incastTaken is what the receiver tells of all streams.
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
		if requests[i], err = taskRequestOf(name, incastInput{l, n.workers[0].params.Local, i - 1}); err != nil {
			return nil, err
		}
		requests[i].Params = &w.params
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
		Disturbed: disturbances(Span{}, taken.Span, n.alone), // the senders wait for each other, as they must
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

// Sizes of an incast.
const (
	incastDepth = 16 // messages of a sender under way, at most
	incastCheck = 8  // first messages of a sender whose every byte is checked
)

// incastPort is where the receiver takes streams of TCP.
const incastPort = 8082

// incastPatience is how long one side waits for another, which may be opening its interface
// beside several others. Who fails ends the rest, too.
const incastLimit = 6 * waitLimit

// An incastSender is one stream as its sender has it.
type incastSender interface {
	// send sends the message of a number, sooner or later; over: the receiver has said that
	// it is the last one.
	send(number int64) (over bool, err error)
	// finish ends the stream, all of which has come then.
	finish(messages int64) (incastSent, error)
	close() error
}

// An incastReceiver is all streams as their receiver has them.
type incastReceiver interface {
	// connect takes the streams of all senders.
	connect() error
	// next returns a message that has come, and its sender; -1: none has for a while. The
	// message is there until the next call.
	next() (from int, message []byte, err error)
	// end says to the senders that it is over.
	end() error
	// left is how many streams have not ended.
	left() int
	// count says how many frames came in all, how many of them were dropped by name, and how
	// many without one.
	count() (seen, dropped, unnamed uint64)
	facts() Facts
	close() error
}

// sendIncast is a task: a sender, until the receiver says that it is over.
func sendIncast(j *job, in incastInput) (out incastSent, err error) {
	if err := in.validate(); err != nil {
		return out, err
	}
	open := openIncastVI
	if in.TCP {
		open = openIncastTCP
	}
	s, err := open(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	n := int64(0)
	for over := false; !over; n++ {
		if j.stop.Load() {
			return out, ErrStopped
		}
		if over, err = s.send(n); err != nil {
			return out, err
		}
	}
	return s.finish(n)
}

// takeIncast is a task: the receiver.
func takeIncast(j *job, in incastInput) (out incastTaken, err error) {
	if err := in.validate(); err != nil {
		return out, err
	}
	take := takeIncastVI
	if in.TCP {
		take = takeIncastTCP
	}
	r, err := take(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.connect(); err != nil {
		return out, err
	}
	t := &incastTaker{job: j, r: r, came: make([]int64, in.Senders)}
	if out.Messages, out.Span, err = t.window(in.Duration); err != nil {
		return out, err
	}
	if err := r.end(); err != nil {
		return out, err
	}
	for r.left() > 0 {
		if err := t.next(); err != nil {
			return out, err
		}
	}
	out.Came, out.Facts = t.came, r.facts()
	out.Seen, out.Dropped, out.Unnamed = r.count()
	return out, nil
}

// incastTaker takes messages and counts them.
type incastTaker struct {
	job  *job
	r    incastReceiver
	came []int64 // of each sender
}

// next takes a message, if there is one.
func (t *incastTaker) next() error {
	if t.job.stop.Load() {
		return ErrStopped
	}
	from, message, err := t.r.next()
	if err != nil || from < 0 {
		return err
	}
	if n := t.came[from]; n < incastCheck {
		if err := verify(int(n), 0, message); err != nil {
			return fmt.Errorf("sender %d: %w", from, err)
		}
	}
	t.came[from]++
	return nil
}

// window counts the messages of a time that begins some time after every sender has begun.
// A sender that got no CPU has its time all the same.
func (t *incastTaker) window(d time.Duration) (messages []int64, span Span, err error) {
	for end := time.Now().Add(incastLimit); slices.Min(t.came) < incastCheck; {
		if err := t.next(); err != nil {
			return nil, span, err
		}
		if time.Now().After(end) {
			return nil, span, fmt.Errorf("a sender has hardly begun within %v: messages %d", incastLimit, t.came)
		}
	}
	for end := time.Now().Add(d / warmPart); time.Now().Before(end); {
		if err := t.next(); err != nil {
			return nil, span, err
		}
	}
	before, clock := slices.Clone(t.came), startStopwatch()
	messages = make([]int64, len(before))
	for {
		if err := t.next(); err != nil {
			return nil, span, err
		}
		for i, n := range t.came {
			messages[i] = n - before[i]
		}
		if lasted := time.Since(clock.wall); lasted >= d && slices.Min(messages) > 0 || lasted > d+waitLimit {
			return messages, clock.span(), nil
		}
	}
}
