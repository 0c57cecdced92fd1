package bench

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Ping-pong of messages of one frame each, whose contents nobody checks: what is measured
// where latency is. It does what send and receive do, in a few functions: their code has
// to come into the first cache again after each system call, line by line.

// short says whether the round is such a one.
func (f *framed) short() bool {
	return f.per == 1 && !f.round.Check && !f.sleeps && (f.chain == nil || f.chain.units(frameHeader+f.round.Bytes) == 1)
}

func (f *framed) pingShort(r Round, rtt []int64) (Span, error) {
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		if err := f.sendShort(); err != nil {
			return Span{}, err
		}
		if err := f.receiveShort(); err != nil {
			return Span{}, err
		}
		now := time.Since(clock.wall)
		if i >= r.Lead {
			rtt[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span(), nil
}

func (f *framed) echoShort(r Round) error {
	for range r.Lead + r.Messages {
		if err := f.receiveShort(); err != nil {
			return err
		}
		if err := f.sendShort(); err != nil {
			return err
		}
	}
	return nil
}

func (f *framed) sendShort() error {
	buf := f.io.next()
	if buf == nil {
		var err error
		if buf, err = f.room(); err != nil {
			return err
		}
	}
	binary.LittleEndian.PutUint64(buf, f.word(f.sent))
	if err := f.io.commit(frameHeader + f.round.Bytes); err != nil {
		return err
	}
	f.sent++
	return f.io.flush()
}

func (f *framed) receiveShort() error {
	want, n := f.word(f.received), frameHeader+f.round.Bytes
	for {
		p, err := f.io.poll()
		switch {
		case err != nil:
			return err
		case p == nil:
			if err := f.watch.idle(); err != nil {
				return err
			}
		case len(p) == n && binary.LittleEndian.Uint64(p) == want:
			if f.into != nil {
				copy(f.into, p[frameHeader:])
			}
			f.received++
			f.watch.progress()
			return nil
		case len(p) >= frameHeader && p[0] == kindData && binary.LittleEndian.Uint16(p[2:]) == f.round.ID:
			return fmt.Errorf("data frame %d of %d bytes came, not %d of %d: frames were lost or changed order",
				binary.LittleEndian.Uint32(p[4:]), len(p), f.received, n)
		} // others are stray
	}
}

// word is the frame header of a data frame.
func (f *framed) word(seq uint32) uint64 {
	return kindData | uint64(f.round.ID)<<16 | uint64(seq)<<32
}
