package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// vi is a Virtual Interface of package vipl, used as any program would use it:
// descriptors in registered memory, posted and polled or waited for.
//
// A message meets a posted receive, or it is lost (unreliable) or breaks the
// connection (reliable). So a round begins with a word in both directions that
// says that the receives are posted, and a stream's receiver says every quarter
// window how many more it has posted. Between rounds one receive without data
// is always posted, for the next word.
type vi struct {
	params  Params
	options VIOptions
	sleeps  bool
	watch   watchdog
	level   vipl.ReliabilityLevel
	write   bool // the peer may write to in
	read    bool // the peer may read out

	nic  *vipl.NIC
	ptag *vipl.Ptag
	vi   *vipl.VI
	idle []*vipl.VI // open and connected beside it, without messages
	via  completer  // how completions are found; nil: by Done and Wait of the VI

	out, in      *vipl.Region        // data
	remote       vipl.AddressSegment // RDMA: the peer's in, or out
	sends, recvs ring
	pieces       []vipl.DataSegment // of one message
	payload      int                // bytes of a message in one frame
	chunks       int                // for frames that arrive

	lists   int                      // descriptors that are posted and taken off together, in this part of a round
	taken   []*vipl.Descriptor       // receives that were, and have not been looked at
	arrived [viList]*vipl.Descriptor // where they are
	scratch [viList]*vipl.Descriptor // sends that are

	round    Round
	credited int // messages of the round that the peer has room for
	data     int // messages that will come in the round
	left     int // receives of the round that are not posted yet, for data or words
}

// ring is a number of descriptors that are used in turn; a work queue
// completes them in order.
type ring struct {
	handle vipl.MemHandle
	descs  []*vipl.Descriptor
	posted int // since the start
	staged int // made behind those, and not posted yet
	done   int
}

// newRing makes descriptors with room for some segments, in memory of their own.
func newRing(nic *vipl.NIC, tag *vipl.Ptag, n, segments int) (r ring) {
	step := vipl.ControlSegmentSize + vipl.DataSegmentSize*segments
	step = (step + vipl.DescriptorAlignment - 1) &^ (vipl.DescriptorAlignment - 1)
	region := fail.Must(nic.AllocMem(n*step, vipl.MemAttributes{Ptag: tag}))
	r.handle = region.Handle()
	for i := range n {
		r.descs = append(r.descs, fail.Must(region.Descriptor(i*step, segments)))
	}
	return r
}

// stage makes the next descriptor a send or a receive.
func (r *ring) stage(segs ...vipl.DataSegment) {
	d := r.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(segs...)
	r.staged++
}

// add stages one and posts it.
func (r *ring) add(one postOne, list postList, segs ...vipl.DataSegment) error {
	r.stage(segs...)
	return r.push(one, list)
}

func (r *ring) next() *vipl.Descriptor   { return r.descs[(r.posted+r.staged)%len(r.descs)] }
func (r *ring) oldest() *vipl.Descriptor { return r.descs[r.done%len(r.descs)] }
func (r *ring) out() int                 { return r.posted - r.done }
func (r *ring) used() int                { return r.out() + r.staged }

// list is what is staged, up to the end of the ring.
func (r *ring) list() []*vipl.Descriptor {
	from := r.posted % len(r.descs)
	return r.descs[from:min(from+r.staged, len(r.descs))]
}

// Sizes of the rings in descriptors, and of the data that they may describe.
const (
	viRing      = 1024
	viData      = 4 << 20
	viStream    = 1 << 20 // bytes of a stream under way
	viPingDepth = 4       // receives posted in a ping-pong
	viWords     = 8       // receives posted for words of a stream's receiver
	viList      = 16      // descriptors of a list, in a stream
)

// viEnd names the benchmark's end of a connection.
const viEnd = "via-xdp bench"

func openVI(level vipl.ReliabilityLevel) func(opening) endpoint {
	return func(o opening) endpoint {
		v := &vi{}
		v.open(o, level)
		if o.VI.Engine {
			return newEngined(v)
		}
		return v
	}
}

// open opens the NIC and makes what is needed of it.
func (v *vi) open(o opening, level vipl.ReliabilityLevel) {
	v.params, v.options, v.sleeps, v.watch, v.level, v.chunks = o.Params, o.VI, o.sleeps, o.watch(), level, ringChunks
	if v.level == vipl.UnreliableDelivery {
		// Only the receiver's room limits the sender: two messages of the largest size, in
		// frames of not much less than 1 KB.
		for v.chunks < 2*v.params.MaxBytes>>10 {
			v.chunks *= 2
		}
	}
	v.nic = fail.Must(openNIC(v.params, append(v.options.nicOptions(), vipl.WithChunks(v.chunks, ringChunks))...))
	orClose(v, func() {
		v.ptag = fail.Must(v.nic.CreatePtag())
		v.makeMemory()
		v.makeVIs()
	})
}

// makeVIs creates the VI that carries the messages, and those beside it.
func (v *vi) makeVIs() {
	attributes := vipl.VIAttributes{
		Level: v.level, MaxTransferSize: cmp.Or(v.options.MaxTransfer, v.params.MaxBytes), Ptag: v.ptag,
		EnableRDMAWrite: v.write, EnableRDMARead: v.read,
	}
	if attributes.MaxTransferSize < v.params.MaxBytes {
		fail.With("MaxTransferSize %d is less than a message of %d bytes", attributes.MaxTransferSize, v.params.MaxBytes)
	}
	var cq *vipl.CQ
	if v.options.CQ {
		cq = fail.Must(v.nic.CreateCQ(2 * viRing))
	}
	v.vi = fail.Must(v.nic.CreateVI(attributes, cq, cq))
	for range v.options.VIs - 1 {
		other, err := v.nic.CreateVI(attributes, nil, nil)
		fail.Wrap(err, "VI %d", len(v.idle)+2)
		v.idle = append(v.idle, other)
	}
	switch {
	case v.options.CQ:
		v.via = &byCQ{cq: cq, vi: v.vi, sleeps: v.sleeps}
	case v.options.Notify:
		v.via = fail.Must(newByHandler(v.vi))
	case v.options.Engine:
		v.via = &byMemory{v}
	}
}

func (v *vi) Hello() Hello {
	h := Hello{Addr: v.params.Local, Facts: factsOf(v.nic)}
	if v.write {
		h.Memory = new(v.in.Remote(0))
	}
	if v.read {
		h.Memory = new(v.out.Remote(0))
	}
	return h
}

// Connect, see endpoint. A receive for the peer's first word is posted before.
func (v *vi) Connect(peer Hello) {
	if v.write || v.read {
		if peer.Memory == nil {
			fail.With("the peer has not said where its memory is")
		}
		v.remote = *peer.Memory
	}
	v.postRecv()
	v.join(v.vi, peer)
	for i, other := range v.idle {
		fail.During(fmt.Sprint("VI ", i+2), func() { v.join(other, peer) })
	}
	v.payload = fail.Must(v.vi.Query()).MaxPayload
}

// join connects a VI with the next one of the peer.
func (v *vi) join(with *vipl.VI, peer Hello) {
	if v.params.Server {
		acceptConnection(v.watch.ctx, v.nic, with, v.params.Local, viEnd)
		return
	}
	requestConnection(v.watch.ctx, with, v.params.Local, peer.Addr, viEnd)
}

// endOf is the address of an end on a host.
func endOf(host netip.Addr, end string) vipl.NetAddress {
	return vipl.NetAddress{Host: host, Discriminator: []byte(end)}
}

// acceptConnection accepts the next request to an end, for a VI.
func acceptConnection(ctx context.Context, nic *vipl.NIC, with *vipl.VI, local netip.Addr, end string) {
	for deadline := time.Now().Add(waitLimit); ; {
		c, err := nic.ConnectWait(endOf(local, end), maxSleep)
		switch {
		case err == nil:
			fail.If(c.Accept(with))
			return
		case !errors.Is(err, vipl.ErrTimeout) || time.Now().After(deadline):
			fail.If(err)
		}
		fail.If(context.Cause(ctx))
	}
}

// requestConnection connects a VI with one whose program may not wait for it yet. It returns the time of the request that
// was accepted.
func requestConnection(ctx context.Context, with *vipl.VI, local, remote netip.Addr, end string) (at time.Time) {
	from, to := endOf(local, end), endOf(remote, end)
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(connectPause) {
		at = time.Now()
		_, err := with.ConnectRequest(from, to, waitLimit)
		switch {
		case err == nil:
			return at
		case !errors.Is(err, vipl.ErrNoMatch) || at.After(deadline):
			fail.If(err)
		}
		fail.If(context.Cause(ctx))
	}
}

// connectPause is how long a client gives a server that does not wait yet.
const connectPause = 100 * time.Microsecond

// Close, see endpoint. The NIC takes the idle VIs with it.
func (v *vi) Close() error {
	if v.nic == nil {
		return nil
	}
	var errs []error
	if v.vi != nil {
		errs = append(errs, v.vi.Disconnect())
	}
	errs = append(errs, v.nic.Close())
	v.nic, v.vi, v.idle = nil, nil, nil
	return errors.Join(errs...)
}

// fail fails with an error, and why the VI has ended.
func (v *vi) fail(doing string, d *vipl.Descriptor, err error) {
	if d != nil {
		err = fmt.Errorf("%w: status %v", err, d.Status())
	}
	fail.If(failed(v.vi, doing, err))
}

// failed adds to an error why a VI has ended; without an error there is none.
func failed(vi *vipl.VI, doing string, err error) error {
	if err == nil {
		return nil
	}
	if st, qerr := vi.Query(); qerr == nil && st.Cause != nil {
		err = fmt.Errorf("%w; the VI is in state %v: %w", err, st.State, st.Cause)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
