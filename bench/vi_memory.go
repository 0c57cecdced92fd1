package bench

import "viaxdp/vipl"

// Memory of an endpoint whose buffers are not all reused: much more than the
// processor's caches near the core and its translation buffers hold.
const (
	viReuseData  = 32 << 20  // of each direction
	viReuseArena = 128 << 20 // with room for chunks and descriptors
)

// makeMemory registers the data and the descriptors, and lays out the latter.
func (v *vi) makeMemory() error {
	segments := max(v.options.Segments, 1)
	if segments > 1 {
		v.pieces = make([]vipl.DataSegment, segments)
	}
	// RDMA has an address segment before the others.
	step := vipl.ControlSegmentSize + vipl.DataSegmentSize*(segments+1)
	step = (step + vipl.DescriptorAlignment - 1) &^ (vipl.DescriptorAlignment - 1)
	attributes := vipl.MemAttributes{Ptag: v.ptag}
	var err error
	if v.descs, err = v.nic.AllocMem(2*viRing*step, attributes); err != nil {
		return err
	}
	attributes.EnableRdmaRead = v.read
	if v.out, err = v.region(attributes); err != nil {
		return err
	}
	attributes.EnableRdmaRead, attributes.EnableRdmaWrite = false, v.write
	if v.in, err = v.region(attributes); err != nil {
		return err
	}
	for i, r := range []*ring{&v.sends, &v.recvs} {
		r.handle = v.descs.Handle()
		for j := range viRing {
			d, err := v.descs.Descriptor((i*viRing+j)*step, segments+1)
			if err != nil {
				return err
			}
			r.descs = append(r.descs, d)
		}
	}
	return nil
}

// region makes room for the data of one direction.
func (v *vi) region(a vipl.MemAttributes) (r *vipl.Region, err error) {
	size := viData
	if v.options.Reuse != nil {
		size = viReuseData
	}
	if v.options.Register {
		r, err = v.nic.RegisterMem(make([]byte, size), a)
	} else {
		r, err = v.nic.AllocMem(size, a)
	}
	if err == nil && v.options.Reuse != nil {
		// The first touch of a page belongs to no message.
		for i := 0; i < size; i += 4096 {
			r.Bytes()[i] = 1
		}
	}
	return r, err
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
func (v *vi) source(i int, r Round) (int, error) {
	if !r.Check {
		if v.options.Reuse != nil {
			return v.reused(i), nil
		}
		return 0, nil
	}
	// Its own place until it is complete; so many that none is in use.
	if v.sends.used() >= r.places() {
		if err := v.sent(); err != nil {
			return 0, err
		}
	}
	copy(v.out.Bytes()[r.place(i):], content(i, 0, r.Bytes))
	return r.place(i), nil
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
	for i := range v.pieces {
		from, to := bytes*i/n, bytes*(i+1)/n
		v.pieces[i] = r.Segment(at+from, to-from)
	}
	return v.pieces
}
