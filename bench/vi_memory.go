package bench

import (
	"errors"
	"fmt"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// Memory of an endpoint whose buffers are not all reused: much more than the
// processor's caches near the core and its translation buffers hold.
const (
	viReuseData  = 32 << 20  // of each direction
	viReuseArena = 128 << 20 // with room for chunks and descriptors
)

// makeMemory registers the data and the descriptors, and lays out the latter.
func (v *vi) makeMemory() {
	segments := max(v.options.Segments, 1)
	v.pieces = make([]vipl.DataSegment, segments)
	attributes := vipl.MemAttributes{Ptag: v.ptag}
	attributes.EnableRDMARead = v.read
	v.out = v.region(attributes)
	attributes.EnableRDMARead, attributes.EnableRDMAWrite = false, v.write
	v.in = v.region(attributes)
	// RDMA has an address segment before the others.
	v.sends = newRing(v.nic, v.ptag, viRing, segments+1)
	v.recvs = newRing(v.nic, v.ptag, viRing, segments+1)
}

// region makes room for the data of one direction.
func (v *vi) region(a vipl.MemAttributes) (r *vipl.Region) {
	size := viData
	if v.options.Reuse != nil {
		size = viReuseData
	}
	if v.options.Register {
		r = fail.Must(v.nic.RegisterMem(make([]byte, size), a))
	} else {
		r = fail.Must(v.nic.AllocMem(size, a))
	}
	if v.options.Reuse != nil {
		// The first touch of a page belongs to no message.
		for i := 0; i < size; i += 4096 {
			r.Bytes()[i] = 1
		}
	}
	return r
}

// slot is the place of a message in a region.
func slot(bytes int) int { return (max(bytes, 1) + 63) &^ 63 }

// place is where message i lies in a region: all in one place, as perftest and
// all other transports here have it, or where they do not meet when they are
// checked.
func (r Round) place(i int) int {
	if !r.Check {
		return 0
	}
	return i % r.places() * slot(r.Bytes)
}

func (r Round) places() int { return viData / slot(r.Bytes) }

// reused is where message i lies when a percentage of the messages, evenly
// spread, shares the first place and each of the others takes the next one.
// Those that are checked have a place of their own all the same.
func (v *vi) reused(i int) int {
	percent, size := *v.options.Reuse, slot(v.round.Bytes)
	if i*percent%100 < percent {
		return 0
	}
	return (1 + i%(viReuseData/size-1)) * size
}

// source makes message i and says where it lies in v.out.
func (v *vi) source(i int, r Round) int {
	if !r.Check {
		if v.options.Reuse != nil {
			return v.reused(i)
		}
		return 0
	}
	// Its own place until it is complete; enough that none is in use.
	if v.sends.used() >= r.places() {
		v.sent()
	}
	copy(v.out.Bytes()[r.place(i):], content(i, 0, r.Bytes))
	return r.place(i)
}

// sink is where message i is to lie in v.in.
func (v *vi) sink(i int) int {
	if v.options.Reuse != nil && !v.round.Check {
		return v.reused(i)
	}
	return v.round.place(i)
}

// cut describes bytes of a region in as many segments as messages have. It is
// valid until the next call.
func (v *vi) cut(r *vipl.Region, at, bytes int) []vipl.DataSegment {
	n := len(v.pieces)
	if n == 1 {
		v.pieces[0] = r.Segment(at, bytes)
		return v.pieces
	}
	for i := range v.pieces {
		from, to := bytes*i/n, bytes*(i+1)/n
		v.pieces[i] = r.Segment(at+from, to-from)
	}
	return v.pieces
}

// VIOptions say how a VI is used otherwise than usually. The zero value is the
// usual way: one VI, one data segment, work queues polled or waited for.
type VIOptions struct {
	CQ     bool `json:"cq,omitempty"`     // both work queues are bound to one completion queue, and completions dequeued there
	Notify bool `json:"notify,omitempty"` // completions are handed over by SendNotify and RecvNotify handlers
	VIs    int  `json:"vis,omitempty"`    // VIs that are open and connected; one of them carries the messages; 0: 1

	Segments    int  `json:"segments,omitempty"`     // data segments of each descriptor with data; 0: 1
	Reuse       *int `json:"reuse,omitempty"`        // percent of messages sent from and received into one buffer, the others at fresh places of a large region; nil: all
	Register    bool `json:"register,omitempty"`     // data in memory of the program that is registered, not in the NIC's arena
	MaxTransfer int  `json:"max_transfer,omitempty"` // MaxTransferSize of the VI; 0: the largest message

	Engine   bool `json:"engine,omitempty"`     // a goroutine of its own polls, the one that is measured looks at descriptors
	OneByOne bool `json:"one_by_one,omitempty"` // a stream posts a send when the one before is complete

	List int `json:"list,omitempty"` // descriptors of a stream that are posted and taken off together (perftest's --post_list); 0: 16, 1: one by one

	NoPacking      bool `json:"no_packing,omitempty"`      // a frame and a doorbell for each message
	NoChecksum     bool `json:"no_checksum,omitempty"`     // checksums of headers alone
	Sealed         bool `json:"sealed,omitempty"`          // authenticated and encrypted by a pre-shared key
	NoPollPause    bool `json:"no_rest,omitempty"`         // polls look at the RX ring in streams, too
	NoSegmentation bool `json:"no_segmentation,omitempty"` // no GSO packets: each frame is sent alone
	NoHeadroom     bool `json:"no_headroom,omitempty"`     // GSO packets leave as a UDP socket makes them, which the receiver's kernel copies once more
	NoMultiBuffer  bool `json:"no_multi_buffer,omitempty"` // frames of one chunk, into which everything is copied; of raw-afxdp, too

	Agent bool `json:"agent,omitempty"` // the NIC is opened by an agent (Params.Agent), not by the process itself
}

// MaxVIs is the largest number of VIs that an endpoint opens.
const MaxVIs = 4096

// validate refuses what cannot be or what the transport cannot do.
func (o VIOptions) validate(t *transport) error {
	others := o
	others.NoMultiBuffer = false
	switch {
	case !t.vi && others != (VIOptions{}), !t.chains && o.NoMultiBuffer:
		return fmt.Errorf("%s has no such options", t.name)
	case o.VIs < 0 || o.VIs > MaxVIs:
		return fmt.Errorf("%d VIs: 1 to %d can be open", o.VIs, MaxVIs)
	case o.Segments < 0 || o.Segments > vipl.MaxSegments:
		return fmt.Errorf("%d segments: a descriptor has 1 to %d", o.Segments, vipl.MaxSegments)
	case o.Reuse != nil && (*o.Reuse < 0 || *o.Reuse > 100):
		return fmt.Errorf("reuse of %d %%: 0 to 100", *o.Reuse)
	case o.List < 0 || o.List > viList:
		return fmt.Errorf("lists of %d descriptors: 1 to %d", o.List, viList)
	case o.MaxTransfer < 0 || o.MaxTransfer > vipl.MaxTransferSize:
		return fmt.Errorf("MaxTransferSize %d: 1 to %d", o.MaxTransfer, vipl.MaxTransferSize)
	case o.CQ && o.Notify || o.CQ && o.Engine || o.Notify && o.Engine:
		return errors.New("completions are found in one way: a completion queue, handlers, or an engine goroutine")
	case t.sleeps && (o.Notify || o.Engine):
		return errors.New("a transport that waits has neither handlers nor an engine goroutine")
	case t.rdma && (o.Notify || o.Engine || o.Reuse != nil):
		return errors.New("handlers, an engine goroutine and the reuse of buffers are for send and receive, not for RDMA")
	}
	return nil
}

// nicOptions are those with which the NIC is opened.
func (o VIOptions) nicOptions() []vipl.Option {
	options := []vipl.Option{
		vipl.WithPacking(!o.NoPacking), vipl.WithChecksum(!o.NoChecksum), vipl.WithMultiBuffer(!o.NoMultiBuffer),
		vipl.WithPollPause(!o.NoPollPause), vipl.WithSegmentation(!o.NoSegmentation), vipl.WithHeadroom(!o.NoHeadroom),
	}
	if o.Sealed {
		// The key of both ends is no secret: what it costs is measured.
		options = append(options, vipl.WithPSK(fail.Must(vipl.NewPSK([]byte("the pre-shared key of the benchmark")))))
	}
	if o.Reuse != nil {
		options = append(options, vipl.WithArena(viReuseArena))
	}
	return options
}
