package torture

import (
	"errors"
	"testing"
	"time"
)

// An attacker on the way floods both sides with what it makes of the frames that it
// sees: connections with a pre-shared key lose none of their promises, and go on.
func TestHostileFlood(t *testing.T) {
	b := newBed(t, BedConfig{})
	must(t, b.Open(NICConfig{Sealed: true, Silence: unhurried}))
	flows := 0
	for _, level := range levels {
		cfg := mixed("hostile-"+level.String(), level, 2)
		must(t, b.Start(cfg))
		flows += cfg.Flows
	}
	before, err := b.Until(patience, func(r [2]*Report) bool { return r[0].Open == flows && r[1].Open == flows })
	if err != nil {
		t.Fatalf("%v: %+v", err, before)
	}
	taken := func(r [2]*Report) uint64 { return r[0].Taken + r[1].Taken }
	calmly := measured(t, b, 2*share(t))
	h, err := b.Hostile(1, false)
	must(t, err)
	flooded := measured(t, b, 2*share(t))
	noticed := func(r *Report) bool {
		e, p := r.Engine, r.Program
		return e.Forged > 0 && e.Replayed > 0 && e.Unsealed > 0 && p.NoVI > 0 && p.Key > 0
	}
	r, err := b.Until(patience, func(r [2]*Report) bool { return noticed(r[0]) && noticed(r[1]) })
	if !errors.Is(err, errTooLate) { // who did not notice is told below
		must(t, err)
	}
	for side := range r {
		for _, br := range r[side].Breaks {
			t.Errorf("side %d: %+v", side, br)
		}
	}
	h.Close()
	t.Logf("%d messages in calm, %d beside %d forged frames", taken(calmly), taken(flooded), h.Sent())
	if taken(flooded) == 0 || h.Sent() == 0 {
		t.Errorf("%d messages beside %d forged frames", taken(flooded), h.Sent())
	}
	r, err = b.Stop()
	must(t, err)
	for side := range r {
		for i, f := range r[side].Flows {
			// An unreliable flow, of which the first are, ends when its peer was told to
			// stop, perhaps before it was told itself.
			for _, br := range f.Breaks {
				if i >= 2 {
					t.Errorf("side %d: %+v", side, br)
				}
			}
		}
		if !noticed(r[side]) {
			t.Errorf("side %d: %+v, %+v", side, r[side].Engine, r[side].Program)
		}
	}
	r, err = b.CloseNICs()
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
	}
	accounted(t, r)
}

// measured is what was done in a time.
func measured(t *testing.T, b *Bed, d time.Duration) (r [2]*Report) {
	t.Helper()
	from, err := b.Reports()
	must(t, err)
	time.Sleep(d) // that is what is measured
	r, err = b.Until(patience, func(r [2]*Report) bool { return r[0].Taken+r[1].Taken > from[0].Taken+from[1].Taken })
	must(t, err)
	for side := range r {
		r[side].Taken -= from[side].Taken
	}
	return r
}
