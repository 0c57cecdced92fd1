package torture

import (
	"fmt"
	"time"

	"viaxdp/internal/testbed"
	"viaxdp/vipl"
)

// bytesFaults are on the way all the time while bytes are moved.
var bytesFaults = testbed.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, ReorderBy: 100 * time.Microsecond}

// bytesMessage is the length of a message, and bytesBatch the number of bytes after
// which everything is closed and counted.
const (
	bytesMessage = 60_000
	bytesBatch   = 20 << 30
)

// bytes moves long messages in both directions through loss, duplication and
// reordering until so many bytes have come and been checked.
func (s *soak) bytes() error {
	before := s.bed.Site.Middle.Counters(0).Plus(s.bed.Site.Middle.Counters(1))
	for act := 0; s.report.Bytes < s.cfg.Bytes && !s.over() && len(s.report.Violations) == 0; act++ {
		if err := s.moveBytes(act, s.report.Bytes); err != nil {
			return err
		}
	}
	n := s.bed.Site.Middle.Counters(0).Plus(s.bed.Site.Middle.Counters(1)).Since(before)
	if n.Lost == 0 || n.Duplicated == 0 || n.Reordered == 0 {
		return fmt.Errorf("the faults did not take place: %+v", n)
	}
	s.report.Events["bytes"]++
	return nil
}

// moveBytes is one life of the NICs, after so many bytes.
func (s *soak) moveBytes(act int, so uint64) error {
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.bed.Open(NICConfig{Silence: s.cfg.Silence}); err != nil {
		return err
	}
	flows := 0
	for i, level := range []vipl.ReliabilityLevel{vipl.ReliableDelivery, vipl.ReliableReception} {
		err := s.bed.Start(FlowConfig{
			Flows: max(1, s.cfg.Flows/2), Name: fmt.Sprintf("bytes-%d-%d", act, i), Level: level,
			MaxBytes: bytesMessage, Depth: 8, Full: true, Seed: s.rng.Uint64() >> 32,
		})
		if err != nil {
			return err
		}
		flows += max(1, s.cfg.Flows/2)
	}
	r, err := s.bed.Until(settleWait, func(r [2]*Report) bool { return r[0].Open == flows && r[1].Open == flows })
	if err != nil {
		return fmt.Errorf("%w: %d and %d of %d flows are connected", err, r[0].Open, r[1].Open, flows)
	}
	f := bytesFaults
	f.Seed = s.rng.Uint64()
	s.bed.Site.Middle.SetBoth(f)
	for last := time.Now(); !s.over() && s.report.Bytes < min(s.cfg.Bytes, so+bytesBatch); {
		if err := s.pass(bytesLook); err != nil {
			return err
		}
		if r, err = s.bed.Reports(); err != nil {
			return err
		}
		s.take(r)
		now := so + r[0].Bytes + r[1].Bytes
		if now > s.report.Bytes {
			last = time.Now()
		}
		s.report.Bytes = now
		s.note("bytes")
		for side := range r {
			for _, b := range r[side].Breaks {
				s.violated("side %d: flow %s broke: %s", side, b.Flow, b.Cause)
			}
		}
		if time.Since(last) > settleWait {
			s.violated("nothing has come for %v", settleWait)
		}
		if len(s.report.Violations) > 0 {
			break
		}
	}
	s.bed.Site.Middle.SetBoth(testbed.Faults{})
	if err := s.close(); err != nil {
		return err
	}
	s.report.Bytes = so + s.known[0].Bytes + s.known[1].Bytes
	return nil
}

// bytesLook is how often the parties are asked.
const bytesLook = 200 * time.Millisecond
