package bench

import (
	"encoding/binary"
	"errors"
	"net"

	"viaxdp/hugepages"
	"viaxdp/xdpnic"
)

// rawXDP is an AF_XDP queue with nothing above it: frames of UDP with headers
// made beforehand, whose content stays in the chunk. It is what the VI
// transports are compared with.
type rawXDP struct {
	nic    *rawNic
	arena  *hugepages.Arena
	q      *xdpnic.Queue
	watch  watchdog
	header *headers
	skip   int // bytes of headers before the content

	// The chunk that next gave.
	addr  uint64
	chunk []byte

	lease   [ringLease]xdpnic.Frame
	got, at int // segments in lease; the next one to give

	long *longRaw // where a frame may be longer than a chunk; else nil
}

func openRawXDP(p Params, w watchdog) (*rawXDP, error) {
	r := &rawXDP{watch: w, skip: headersLen(p.Local)}
	var err error
	r.nic, err = openRawNic(p, func(ifi *net.Interface, m xdpnic.Mode) (int, error) {
		if err := r.openQueue(ifi, p, m); err != nil {
			return -1, err
		}
		return r.q.FD(), nil
	}, func() { r.closeQueue() })
	if err != nil {
		return nil, err
	}
	if err := r.nic.awaitLink(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rawXDP) openQueue(ifi *net.Interface, p Params, m xdpnic.Mode) error {
	cfg, err := xdpnic.Config{
		Ifindex: ifi.Index, QueueID: p.Queue,
		RxChunks: ringChunks, TxChunks: ringChunks, Mode: m, Require: true,
	}.WithDefaults()
	if err != nil {
		return err
	}
	cfg.MultiBuffer = !p.VI.NoMultiBuffer && needsLong(ifi.MTU, cfg)
	policy := hugepages.Avoid
	if p.Hugepages {
		policy = hugepages.Auto
	}
	pool := cfg.PoolBytes()
	size := pool
	if cfg.MultiBuffer {
		size += longSlots * longSlot
	}
	r.arena, err = hugepages.New(hugepages.Config{Size: size, Reserve: size, Policy: policy})
	if err != nil {
		return err
	}
	cfg.Memory = r.arena.Bytes()
	if r.q, err = xdpnic.Open(cfg); err != nil {
		return err
	}
	// Where the kernel sends without a copy, it may still read a frame when its
	// place is wanted again.
	if cfg.MultiBuffer && !r.q.Info().ZeroCopy {
		r.long = &longRaw{r: r, base: pool}
	}
	return nil
}

func (r *rawXDP) closeQueue() error {
	var errs []error
	if r.q != nil {
		errs = append(errs, r.q.Close())
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	r.q, r.arena = nil, nil
	return errors.Join(errs...)
}

func (r *rawXDP) hello() Hello {
	most := min(r.q.FrameCap())
	if r.long != nil {
		most = longSlot
	}
	return r.nic.hello(most, r.arena.Info().Kind.String())
}

func (r *rawXDP) connect(peer Hello) (err error) {
	r.header, err = newHeaders(r.hello(), peer, r.nic.port)
	return err
}

func (r *rawXDP) round() error {
	r.watch.progress()
	return nil
}

func (r *rawXDP) next() []byte {
	if r.long != nil {
		return r.long.next()[r.skip:]
	}
	var ok bool
	if r.addr, r.chunk, ok = r.q.Alloc(); !ok {
		return nil
	}
	return r.chunk[r.skip:]
}

func (r *rawXDP) commit(n int) error {
	if r.long != nil {
		return r.long.commit(n)
	}
	r.header.put(r.chunk, n)
	for !r.q.Send(r.addr, r.skip+n, false) {
		if err := r.flush(); err != nil {
			return err
		}
	}
	return nil
}

// flush repeats until the kernel has taken all: it takes no more than its
// queue to the peer holds.
func (r *rawXDP) flush() error {
	for {
		if err := r.q.Flush(); err != nil {
			return err
		}
		if r.q.Pending() == 0 {
			r.watch.progress()
			if r.long != nil {
				r.long.flushed()
			}
			return nil
		}
		if err := r.watch.idle(); err != nil {
			return err
		}
	}
}

func (r *rawXDP) poll() ([]byte, error) {
	if r.at == r.got {
		if r.got > 0 {
			for i := range r.lease[:r.got] {
				r.q.Recycle(r.lease[i].Addr)
			}
			r.q.Refill()
		}
		r.at, r.got = 0, r.q.Receive(r.lease[:])
		if r.got == 0 {
			return nil, nil
		}
	}
	frame := r.lease[r.at]
	r.at++
	if frame.More {
		r.long.gather()
		return frame.Data[min(r.skip, len(frame.Data)):], nil
	}
	if r.long != nil {
		r.long.pieces = r.long.pieces[:0]
	}
	return udpContent(frame.Data, r.skip), nil
}

func (r *rawXDP) wait() error { return r.q.Wait(maxSleep) }

func (r *rawXDP) close() error {
	return errors.Join(r.nic.close(), r.closeQueue())
}

// udpContent is the content of a frame whose headers are skip bytes long. A
// NIC may have padded the frame; UDP knows the length.
func udpContent(frame []byte, skip int) []byte {
	if len(frame) < skip {
		return frame[:0]
	}
	n := int(binary.BigEndian.Uint16(frame[skip-4:])) - udpHeader
	return frame[skip : skip+max(0, min(n, len(frame)-skip))]
}
