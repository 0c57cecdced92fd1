package torture

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// FlowConfig is what the flows of a worker do. Both workers get the same but for
// Asks, Peer and Seed.
type FlowConfig struct {
	Flows int    // VIs
	Name  string // distinguishes sets of flows on one bed
	Level vipl.ReliabilityLevel
	Asks  bool       // this worker requests the connections; the other waits
	Peer  netip.Addr // the other worker's host

	MaxBytes int           // of a message, 256 at least
	Full     bool          // each message is of MaxBytes, and none is empty
	Depth    int           // numbered messages under way in each direction
	RDMA     bool          // with writes and reads; reliable levels only
	Pause    time.Duration // after each message taken: a slow receiver
	Gap      time.Duration // after each round of sends: a slow sender
	Flood    bool          // unreliable: also when the peer's messages do not keep up
	Again    bool          // connect again after the connection ended
	Seed     uint64        // of the choice of messages
}

// spare is how many receives a flow posts beyond Depth, for the messages that
// need no credit: hello, final, bye, and credits, one for each half of Depth.
const spare = 8

// sourceWords is the length, in words, of the memory that the peer reads.
const sourceWords = 1024

// A flow is one VI with its traffic. run is its goroutine; other goroutines access only
// stop and what mu guards.
type flow struct {
	cfg  FlowConfig
	disc []byte
	nic  *vipl.NIC
	vi   *vipl.VI
	cq   *vipl.CQ
	stop *atomic.Bool // finish what is under way and disconnect
	rng  *rand.Rand

	recvs, sends *ring
	slots        *vipl.Region // the peer writes message n to slot n mod Depth
	source       *vipl.Region // the peer reads it
	regions      []*vipl.Region
	tag          *vipl.Ptag

	incarnation // of the current connection

	mu   sync.Mutex
	n    Tally
	last uint64 // session of the peer's former incarnation
}

// incarnation is the state of one connection.
type incarnation struct {
	session, peer     uint64 // incarnations: ours, and the peer's once it is known
	slotsAt, sourceAt vipl.AddressSegment

	next, told       uint64 // number of the next message; of those that the peer has taken
	expect, sinceAck uint64 // number that comes next; messages taken since the last report to the peer
	reads            int    // under way

	finalSent, finalCame, byeSent, byeCame, over bool
}

// newFlow makes the VI of flow number i and its memory.
func newFlow(nic *vipl.NIC, cfg FlowConfig, i int, stop *atomic.Bool) (_ *flow, err error) {
	f := &flow{
		cfg: cfg, nic: nic, stop: stop, disc: fmt.Appendf(nil, "%s/%d", cfg.Name, i),
		rng: rand.New(rand.NewPCG(cfg.Seed, uint64(i))),
	}
	defer func() {
		if err != nil {
			f.free()
		}
	}()
	defer fail.Catch(&err)
	f.tag = fail.Must(nic.CreatePtag())
	posted := cfg.Depth + spare
	f.cq = fail.Must(nic.CreateCQ(2 * posted))
	f.vi = fail.Must(nic.CreateVI(vipl.VIAttributes{
		Level: cfg.Level, Ptag: f.tag, EnableRDMAWrite: true, EnableRDMARead: f.reliable(),
	}, f.cq, f.cq))
	for _, r := range []**ring{&f.recvs, &f.sends} {
		*r = newRing(nic, f.tag, posted, cfg.MaxBytes)
		f.regions = append(f.regions, (*r).region)
	}
	f.slots = f.alloc(cfg.Depth*cfg.MaxBytes, vipl.MemAttributes{EnableRDMAWrite: true})
	f.source = f.alloc(8*sourceWords, vipl.MemAttributes{EnableRDMARead: true})
	return f, nil
}

func (f *flow) alloc(size int, a vipl.MemAttributes) *vipl.Region {
	a.Ptag = f.tag
	r := fail.Must(f.nic.AllocMem(size, a))
	f.regions = append(f.regions, r)
	return r
}

// free gives everything back; the error names what is not free.
func (f *flow) free() error {
	var errs []error
	if f.vi != nil {
		errs = append(errs, f.vi.Destroy())
	}
	if f.cq != nil {
		errs = append(errs, f.cq.Destroy())
	}
	for _, r := range f.regions {
		errs = append(errs, r.Deregister())
	}
	if f.tag != nil {
		errs = append(errs, f.tag.Destroy())
	}
	return errors.Join(errs...)
}

// retryEvery is how long a flow waits after a connection that failed.
const retryEvery = 20 * time.Millisecond

// run connects and converses until it is stopped, or once.
func (f *flow) run() {
	for !f.stop.Load() {
		if err := f.postReceives(); err != nil {
			f.violation("post receive: %v", err)
			return
		}
		if err := f.connect(); err != nil {
			f.tally(func(t *Tally) { t.Refused++; t.LastRefusal = err.Error() })
			// A connect that failed late leaves the VI in Error, where no other can succeed; what
			// was posted is flushed then. On an Idle VI the posted receives stay for the next try.
			if s, err := f.vi.Query(); err == nil && s.State == vipl.Error {
				if err := f.vi.Disconnect(); err != nil {
					f.violation("disconnect: %v", err)
				}
				f.over = true // nothing is posted in the place of what was flushed
				f.drain()
			}
			time.Sleep(retryEvery)
			continue
		}
		f.tally(func(t *Tally) { t.Connections++; t.Open++ })
		f.converse()
		f.end()
		if !f.cfg.Again {
			break
		}
	}
	// Only a connection's end flushes receives: a VI that never was connected keeps them until the NIC is closed.
	f.tally(func(t *Tally) { t.Kept += f.recvs.outstanding() })
}

// connect makes a connection and a new incarnation.
func (f *flow) connect() error {
	f.incarnation = incarnation{session: rand.Uint64() | 1}
	fillPattern(f.source.Bytes(), f.session)
	if f.cfg.Asks {
		_, err := f.vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: f.cfg.Peer, Discriminator: f.disc}, time.Second)
		return err
	}
	c, err := f.nic.ConnectWait(vipl.NetAddress{Discriminator: f.disc}, 200*time.Millisecond)
	if err != nil {
		return err
	}
	return c.Accept(f.vi)
}

// finishWithin is how long an orderly end may take.
const finishWithin = 20 * time.Second

// converse sends and takes until the connection ends.
func (f *flow) converse() {
	if f.reliable() && !f.sendHello() {
		return
	}
	var deadline time.Time
	for !f.over {
		if f.stop.Load() && deadline.IsZero() {
			deadline = time.Now().Add(finishWithin)
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			f.violation("no orderly end within %v: final %v/%v, bye %v/%v, sent %d, told %d", finishWithin,
				f.finalSent, f.finalCame, f.byeSent, f.byeCame, f.next, f.told)
			return
		}
		f.send(!deadline.IsZero())
		if f.finished(!deadline.IsZero()) {
			return
		}
		f.await()
	}
}

// await takes what has completed, or waits a moment for something.
func (f *flow) await() {
	_, recv, err := f.cq.Wait(5 * time.Millisecond)
	f.dequeue(recv, err)
	if f.over {
		return
	}
	if s, err := f.vi.Query(); err != nil || s.State != vipl.Connected {
		// The peer's last message may have come just before.
		_, recv, err := f.cq.Done()
		f.dequeue(recv, err)
		f.over = true
	}
}

// dequeue dequeues what the completion queue has named, and all behind it.
func (f *flow) dequeue(recv bool, err error) {
	for err == nil && !f.over {
		taken := f.expect
		if recv {
			f.dequeueReceive()
		} else {
			f.dequeueSend()
		}
		_, recv, err = f.cq.Done()
		if err == nil && recv && f.cfg.Pause > 0 && f.expect > taken {
			f.tally(func(t *Tally) { t.Behind++ })
		}
	}
}

func (f *flow) reliable() bool { return f.cfg.Level != vipl.UnreliableDelivery }

// finished reports whether the orderly end has been reached.
func (f *flow) finished(stopping bool) bool {
	if !f.reliable() {
		return stopping
	}
	return f.finalSent && f.finalCame && f.byeSent && f.byeCame && f.sends.outstanding() == 0
}

// end takes down the connection, checks what was flushed, and records how the connection
// ended.
func (f *flow) end() {
	orderly := f.finished(f.stop.Load())
	s, err := f.vi.Query()
	if err != nil {
		f.violation("query: %v", err)
	}
	at := time.Now()
	if err := f.vi.Disconnect(); err != nil {
		f.violation("disconnect: %v", err)
	}
	f.over = true
	f.drain()
	f.tally(func(t *Tally) {
		t.Open--
		if orderly {
			t.Orderly++
			return
		}
		b := Break{At: at, Flow: string(f.disc), Sent: f.next, Taken: f.expect}
		if s.Cause != nil {
			b.Cause = s.Cause.Error()
		}
		t.Breaks = append(t.Breaks, b)
	})
	if f.peer != 0 {
		f.last = f.peer
	}
}

// drain dequeues what is left; every descriptor that was posted must come back.
func (f *flow) drain() {
	for f.recvs.outstanding() > 0 && f.dequeueReceive() {
	}
	for f.sends.outstanding() > 0 && f.dequeueSend() {
	}
	if r, s := f.recvs.outstanding(), f.sends.outstanding(); r+s > 0 {
		f.violation("%d posted receives and %d sends did not complete with the connection's end", r, s)
		return
	}
	for {
		if _, _, err := f.cq.Done(); err != nil {
			return
		}
	}
}
