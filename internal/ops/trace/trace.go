// Package trace takes time stamps of the steps of a message's path (the table in
// ARCHITECTURE.md), for many messages, and reports when each step was reached.
//
//	sender                               receiver
//	PostSend called      0
//	frame on the TX ring |  port
//	doorbell             |  port
//	kernel returns       v  port         frames seen    |  port
//	PostSend returned                    RecvDone gives v  the message
//
// The stamps are taken around the engine, by a port between it and the AF_XDP queue:
// engine and queue are the usual ones. Each stamp costs some 50 ns, which the figures
// include. Both sides are in this process, on a thread each, and poll.
package trace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// End is where one side is.
type End struct {
	Enter     func(func() error) error // calls f on a thread of the side's network namespace
	Interface string
	Host      netip.Addr // of the interface
}

// Config of Run.
type Config struct {
	Sender, Receiver End
	Messages         int // that count
	Bytes            int // of a message, at most vipl.MaxTransferSize
	Level            vipl.ReliabilityLevel
	Mode             xdpnic.Mode
}

// Step is one of the way, over all messages. Times are nanoseconds.
type Step struct {
	Number int    `json:"step"` // of the table in ARCHITECTURE.md; 0: none of its own
	Name   string `json:"name"`
	Where  string `json:"where"`
	At     int64  `json:"at_ns"`   // median, since PostSend was called
	Took   int64  `json:"took_ns"` // median, since the step before; below 0: the two sides overlap
	P99    int64  `json:"p99_ns"`  // 99th percentile of At
}

// steps are the moments but the first.
var steps = [moments - 1]Step{
	{Number: 2, Name: "frame on the TX ring: descriptor checked, headers, copy, CRC32C", Where: "vipl/translate.go, tx.go"},
	{Number: 3, Name: "doorbell", Where: "vipl/transmit.go flush"},
	{Number: 4, Name: "kernel returns: driver, wire, and on veth the peer's ring", Where: "xdpnic/wakeup.go Flush"},
	{Name: "PostSend returns", Where: "vipl/tx.go"},
	{Number: 6, Name: "the receiver's poll has the frame", Where: "xdpnic/rx.go Receive"},
	{Number: 11, Name: "RecvDone returns the message: checks, copy, completion", Where: "vipl/rx.go, workqueue.go"},
}

// warmUp is how many messages go before those that count.
const warmUp = 200

// waitLimit is how long a message may take.
const waitLimit = 30 * time.Second

var errNone = errors.New("trace: no message has gone by all steps, as where a timer rang its doorbell: send more")

// side is an open NIC with a VI and memory for a message.
type side struct {
	nic  *vipl.NIC
	vi   *vipl.VI
	mem  *vipl.Region
	desc *vipl.Descriptor
}

func open(e End, c Config, at *stamps, sender bool) (s *side, err error) {
	var local *device.Local
	if err := e.Enter(func() (err error) {
		local, err = device.Open(kagent.Config{
			Interface: e.Interface, Queue: kagent.AnyQueue, RxChunks: vipl.DefaultRxChunks, Mode: c.Mode,
		})
		return err
	}); err != nil {
		return nil, err
	}
	s = &side{}
	s.nic, err = provider.OpenNIC[*vipl.NIC](provider.Provider{
		Port: &port{local.Queue(), at, sender}, Agent: local, Arena: local.Arena(), Info: local.Info(),
	}, vipl.WithSilence(waitLimit))
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.nic.Close())
		}
	}()
	tag, err := s.nic.CreatePtag()
	if err != nil {
		return s, err
	}
	if s.mem, err = s.nic.AllocMem(64+max(c.Bytes, 1), vipl.MemAttributes{Ptag: tag}); err != nil {
		return s, err
	}
	if s.desc, err = s.mem.Descriptor(0, 1); err != nil {
		return s, err
	}
	s.desc.SetSegments(s.mem.Segment(64, c.Bytes))
	s.vi, err = s.nic.CreateVI(vipl.VIAttributes{Level: c.Level, Ptag: tag}, nil, nil)
	return s, err
}

// Run sends messages and stamps their steps.
func Run(ctx context.Context, c Config) (_ []Step, err error) {
	if c.Bytes < 0 || c.Bytes > vipl.MaxTransferSize || c.Messages < 1 {
		return nil, fmt.Errorf("trace: %d messages of %d bytes: want 1 or more, of 0 to %d", c.Messages, c.Bytes, vipl.MaxTransferSize)
	}
	var at stamps
	to, err := open(c.Receiver, c, &at, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.nic.Close()) }()
	from, err := open(c.Sender, c, &at, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.nic.Close()) }()
	if err := connect(from, to, c.Receiver.Host); err != nil {
		return nil, err
	}
	var over atomic.Bool // no more messages come
	var got atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- to.receive(&over, &got, &at) }()
	var samples [moments][]int64
	err = from.send(ctx, c.Messages, &got, &at, &samples)
	over.Store(true)
	if err := errors.Join(err, <-ended); err != nil {
		return nil, err
	}
	if len(samples[posting]) == 0 {
		return nil, errNone
	}
	return result(&samples), nil
}

func connect(from, to *side, host netip.Addr) error {
	server := vipl.NetAddress{Host: host, Discriminator: []byte("via-xdp trace")}
	accepted := make(chan error, 1)
	go func() {
		request, err := to.nic.ConnectWait(server, waitLimit)
		if err == nil {
			err = request.Accept(to.vi)
		}
		accepted <- err
	}()
	for end := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) { // until the receiver waits
		_, err := from.vi.ConnectRequest(vipl.NetAddress{}, server, waitLimit)
		if err == nil {
			return <-accepted
		}
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return err
		}
	}
}

// receive takes messages until over is set. got is how many receives it has posted, negative if it has failed.
func (s *side) receive(over *atomic.Bool, got *atomic.Int64, at *stamps) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		if err := s.vi.PostRecv(s.desc, s.mem.Handle()); err != nil {
			got.Store(-1)
			return err
		}
		got.Add(1) // one more can come
		for polls := 1; ; polls++ {
			_, err := s.vi.RecvDone()
			if err == nil {
				break
			}
			yield(polls)
			if over.Load() {
				return nil
			}
			if !errors.Is(err, vipl.ErrNotDone) {
				got.Store(-1)
				return err
			}
		}
		at.mark(received)
	}
}

// send sends messages, each when the one before has arrived.
func (s *side) send(ctx context.Context, messages int, got *atomic.Int64, at *stamps, samples *[moments][]int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := 0; ; n++ {
		late := time.Now().Add(waitLimit)
		for polls := 1; got.Load() != int64(n+1); polls++ {
			yield(polls)
			if got.Load() < 0 {
				return errors.New("trace: the receiver has failed")
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if time.Now().After(late) {
				return fmt.Errorf("trace: message %d has not arrived within %v", n, waitLimit)
			}
			s.nic.Poll()
		}
		if n > warmUp {
			take(at, samples) // of the one before
		}
		if n == warmUp+messages {
			return nil
		}
		for i := range at {
			at[i].Store(0)
		}
		at.mark(posting)
		if err := s.vi.PostSend(s.desc, s.mem.Handle()); err != nil {
			return err
		}
		at.mark(posted)
		if _, err := s.vi.SendWait(waitLimit); err != nil {
			return err
		}
	}
}

// yield gives the processor to the other side after more polls than a message takes on
// two processors: there may be only one.
func yield(polls int) {
	if polls%4096 == 0 {
		runtime.Gosched()
	}
}

// take keeps the stamps of a message, if all are there and its own: a message may take
// another path, as when a timer rings the doorbell, perhaps for the previous message.
func take(at *stamps, samples *[moments][]int64) {
	var ns [moments]int64
	for i := range at {
		if ns[i] = at[i].Load(); ns[i] == 0 || ns[i] < ns[posting] {
			return
		}
	}
	for i := range ns {
		samples[i] = append(samples[i], ns[i]-ns[posting])
	}
}

func result(samples *[moments][]int64) []Step {
	list := slices.Clone(steps[:])
	for i := range list {
		now, before := samples[i+1], samples[i]
		took := make([]int64, len(now))
		for k := range now {
			took[k] = now[k] - before[k]
		}
		list[i].Took = quantile(took, 0.5)
		list[i].P99 = quantile(now, 0.99)
		list[i].At = quantile(now, 0.5)
	}
	return list
}

// quantile is the least time that a share q of the messages does not exceed (nearest rank).
func quantile(v []int64, q float64) int64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[max(1, int(math.Ceil(q*float64(len(v)))))-1]
}

// The moments, in the order of the way. Except for the first, the sender's moments
// follow the step that they are named after.
const (
	posting  = iota // PostSend is called
	queued          // the frame is on the TX ring
	ringing         // the doorbell is about to ring
	rung            // the kernel has returned
	posted          // PostSend has returned
	seen            // the receiver's poll has the frame
	received        // RecvDone has returned the message
	moments
)

var epoch = time.Now()

// stamps are those of the message under way, in ns since the epoch; 0: not yet.
type stamps [moments]atomic.Int64

// mark stamps a moment, the first time that it comes.
func (s *stamps) mark(moment int) {
	s[moment].CompareAndSwap(0, int64(time.Since(epoch)))
}

// port stamps what goes through it.
type port struct {
	provider.Port
	at     *stamps
	sender bool
}

func (p *port) Send(addr uint64, n int, retain bool) bool {
	ok := p.Port.Send(addr, n, retain)
	if p.sender && ok {
		p.at.mark(queued)
	}
	return ok
}

func (p *port) SendSegs(segs []xdpnic.Desc, retain bool) bool {
	ok := p.Port.SendSegs(segs, retain)
	if p.sender && ok {
		p.at.mark(queued)
	}
	return ok
}

func (p *port) Flush() error {
	// A doorbell for something else, an acknowledgement, is not the message's.
	if !p.sender || p.at[queued].Load() == 0 {
		return p.Port.Flush()
	}
	p.at.mark(ringing)
	err := p.Port.Flush()
	p.at.mark(rung)
	return err
}

func (p *port) Receive(frames []xdpnic.Frame) int {
	n := p.Port.Receive(frames)
	if n > 0 && !p.sender && p.at[posting].Load() != 0 {
		p.at.mark(seen)
	}
	return n
}
