package torture

import (
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lag"
)

const (
	// toldAtMost is how soon after a death every survivor is told, where the silence is no longer than
	// vipl.DefaultSilence.
	toldAtMost = 2 * time.Second
	// killsAtOnce is how many there are between two looks at what is left.
	killsAtOnce = 10
	// cleanWithin is how long the kernel may take to clean up after a process: there is no
	// bound for that, and its threads wait for a CPU as everybody does.
	cleanWithin = settleWait
)

// toldWithin is how soon after a death every survivor is told, on a machine that gives its programs
// time: what it runs late is added.
func (s *soak) toldWithin() time.Duration { return max(toldAtMost, s.cfg.Silence*5/4) }

// kills kills one party or the other at random points of its work, again and again,
// and starts another in its place when every connection of the survivor has ended.
func (s *soak) kills() error {
	if err := s.open(); err != nil {
		return err
	}
	var told []time.Duration
	for s.report.Kills < s.cfg.Kills && !s.over() && len(s.report.Violations) == 0 {
		d, err := s.killAndWait(s.rng.IntN(2))
		if err != nil {
			return err
		}
		if err := s.settle("kill"); err != nil {
			return err
		}
		s.report.Kills++
		if s.report.Kills%killsAtOnce == 0 {
			if err := s.undergo(quiet); err != nil {
				return err
			}
		}
		s.report.Events["kill"]++
		told = append(told, d)
		slices.Sort(told)
		s.report.MedianTold, s.report.SlowestTold = median(told), told[len(told)-1]
	}
	return s.close()
}

// median of times in ascending order.
func median(d []time.Duration) time.Duration { return (d[(len(d)-1)/2] + d[len(d)/2]) / 2 }

// killAndWait is one death and return. It returns how long the last flow of the survivor
// took to know.
func (s *soak) killAndWait(side int) (told time.Duration, err error) {
	s.note("kill")
	r, err := s.bed.Parties[side].Report()
	if err != nil {
		return 0, err
	}
	s.add(side, r)
	time.Sleep(time.Duration(s.rng.Int64N(int64(20 * time.Millisecond)))) // to any step of what flows do
	before, err := s.bed.Parties[1-side].Report()
	if err != nil {
		return 0, err
	}
	death := s.bed.Mark()
	if err := s.bed.Kill(side); err != nil {
		return 0, err
	}
	late := time.Duration(0) // of the survivor
	for want := len(before.Breaks) + before.Open; ; time.Sleep(5 * time.Millisecond) {
		now, err := s.bed.Parties[1-side].Report()
		if err != nil {
			return 0, err
		}
		late = now.Late - before.Late
		if len(now.Breaks) >= want {
			for _, b := range now.Breaks { // in the order of the flows
				told = max(told, b.At.Sub(death.At))
			}
			break
		}
		if death.Over(2*s.toldWithin() + late) {
			told = time.Since(death.At)
			break
		}
	}
	switch {
	case told <= s.toldWithin():
	case told <= death.Allow(s.toldWithin())+late:
		s.report.ToldLate++
	default:
		s.violated("kill %d: side %d was told after %v, at a silence of %v", s.report.Kills+1, 1-side, told, s.cfg.Silence)
	}
	if err := s.clean(side, death, late); err != nil {
		s.violated("kill %d: side %d: %v", s.report.Kills+1, side, err)
	}
	if err := s.bed.StartParty(side); err != nil {
		return told, err
	}
	s.base[side] = nil
	return told, s.reopen(side)
}

// clean says what a dead party has left on its interface. The survivor was late by so much.
func (s *soak) clean(side int, death lag.Mark, late time.Duration) error {
	for ; ; time.Sleep(time.Millisecond) {
		err := s.bed.Link(side, func(l netlink.Link) error {
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				return fmt.Errorf("the XDP program %d is still attached", x.ProgId)
			}
			return nil
		})
		if err == nil || death.Over(cleanWithin+late) {
			return err
		}
	}
}
