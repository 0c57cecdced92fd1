package torture

import (
	"errors"
	"time"

	"viaxdp/bpf"
)

// Flood is what a hostile soak has counted. On one machine the forgers take CPU time that others need, which
// is no cost of a flood from another one: so messages are counted beside forgers of the same priority, too, whose
// frames nobody gets.
type Flood struct {
	Forged uint64        // frames, in all
	Time   time.Duration // in which they were sent
	Rate   float64       // frames/s

	Calm       Passed  // without anybody who forges
	Spared     Passed  // beside forgers whose frames go nowhere
	Flooded    Passed  // and beside forgers of the same priority
	Beside     uint64  // forged frames in Flooded.Time
	BesideRate float64 // frames/s
	Kept       float64 // part of Spared's rate that Flooded has, but for time in which the machine did something else
}

// Passed are the messages that came in a time.
type Passed struct {
	Messages uint64
	Time     time.Duration
	Rate     float64       // messages/s
	Late     time.Duration // by how much the process between the parties ran late meanwhile: see lag
}

func (p *Passed) add(o Passed) {
	p.Messages += o.Messages
	p.Time += o.Time
	p.Late += o.Late
	p.Rate = perSecond(p.Messages, p.Time)
}

// perSecond is a rate; 0 for no time.
func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// leastKept is the part of its rate that a good peer keeps beside a flood, at least.
const leastKept = 0.5

// judge sets Kept: the part of the messages beside forgers who spare us that comes beside those who do not.
// By as much as this process, whom forged frames do not concern, was later then than before, the machine was kept
// from all its work: that time does not count. Nothing was counted: nothing is said. It says whether that is enough.
func (f *Flood) judge() bool {
	more := f.Flooded.Late
	if f.Spared.Time > 0 {
		more -= time.Duration(float64(f.Spared.Late) * float64(f.Flooded.Time) / float64(f.Spared.Time))
	}
	given := f.Flooded.Time - max(more, 0)
	if f.Spared.Messages == 0 || given <= 0 {
		return true
	}
	f.Kept = perSecond(f.Flooded.Messages, given) / f.Spared.Rate
	return f.Kept >= leastKept
}

// floodTime is for how long messages are counted at once, and floodTurns how often in an act, beside forgers who
// spare us and beside others in turns.
const (
	floodTime  = time.Second
	floodTurns = 2
)

// flood begins to forge, which goes on until ebb, and counts what it costs.
func (s *soak) flood() (err error) {
	s.note("flood")
	if s.report.Flood == nil {
		s.report.Flood = &Flood{}
	}
	f := s.report.Flood
	if err := s.passed(floodTurns*floodTime, &f.Calm); err != nil {
		return err
	}
	told, err := s.unreachables()
	if err != nil {
		return err
	}
	if s.hostile, err = s.bed.Hostile(s.rng.Uint64(), s.cfg.Plain); err != nil {
		return err
	}
	s.floods = time.Now()
	s.hostile.Compete(true)
	defer s.hostile.Compete(false)
	for range floodTurns {
		before := f.Spared.Time
		s.hostile.Spare(true)
		if err := s.passed(floodTime, &f.Spared); err != nil {
			return err
		}
		s.hostile.Spare(false)
		s.floods = s.floods.Add(f.Spared.Time - before)
		sent := s.hostile.Sent()
		if err := s.passed(floodTime, &f.Flooded); err != nil {
			return err
		}
		f.Beside += s.hostile.Sent() - sent
		f.BesideRate = perSecond(f.Beside, f.Flooded.Time)
	}
	return s.unanswered(told)
}

// unreachables is how often the two kernels have told a sender that nobody wants its frame.
func (s *soak) unreachables() (sum uint64, err error) {
	for side := range 2 {
		u, err := s.bed.Unwanted(side)
		if err != nil {
			return 0, err
		}
		sum += u.Answers
	}
	return sum, nil
}

// unanswered looks at what the flood of plain connections, before which so many unreachables were told, has met: the
// program has dropped each kind of frame by its name, and nobody has answered any.
func (s *soak) unanswered(before uint64) error {
	if !s.cfg.Plain {
		return nil
	}
	r, err := s.bed.Until(settleWait, func(r [2]*Report) bool { return notDropped(&r[0].Program) == "" && notDropped(&r[1].Program) == "" })
	if err != nil && !errors.Is(err, errTooLate) {
		return err
	}
	for side := range r {
		if what := notDropped(&r[side].Program); what != "" {
			s.violated("side %d: the program has dropped no frame for its %s: %+v", side, what, r[side].Program)
		}
	}
	after, err := s.unreachables()
	if err == nil && after != before {
		s.violated("%d forged frames were answered by ICMP", after-before)
	}
	return err
}

// notDropped is the first kind of plain forged frames that the program has not dropped by name.
func notDropped(n *bpf.Counters) string {
	for _, c := range []struct {
		what string
		n    uint64
	}{{"VI", n.NoVI}, {"key", n.Key}, {"source", n.Source}, {"version", n.Version}, {"length", n.Short}} {
		if c.n == 0 {
			return c.what
		}
	}
	return ""
}

// passed counts the messages that flows take in a time.
func (s *soak) passed(d time.Duration, sum *Passed) error {
	before, err := s.bed.Reports()
	if err != nil {
		return err
	}
	mark := s.bed.Mark()
	time.Sleep(d)
	after, err := s.bed.Reports()
	if err != nil {
		return err
	}
	sum.add(Passed{
		Messages: after[0].Taken + after[1].Taken - before[0].Taken - before[1].Taken,
		Time:     time.Since(mark.At), Late: mark.Allow(0),
	})
	s.take(after)
	return nil
}

// ebb ends what flood began, if it has.
func (s *soak) ebb() {
	if s.hostile == nil {
		return
	}
	s.hostile.Close()
	f := s.report.Flood
	f.Forged += s.hostile.Sent()
	f.Time += time.Since(s.floods)
	f.Rate = perSecond(f.Forged, f.Time)
	s.hostile = nil
}

// judgeFlood looks at what the whole soak has counted.
func (s *soak) judgeFlood() {
	f := s.report.Flood
	if f != nil && !f.judge() {
		s.violated("beside %.0f forged frames/s %.0f messages/s came, %.0f beside forgers who spare us: %.0f %% is less than %.0f %%",
			f.BesideRate, f.Flooded.Rate, f.Spared.Rate, 100*f.Kept, 100*leastKept)
	}
}
