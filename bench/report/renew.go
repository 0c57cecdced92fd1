package report

import (
	"fmt"
	"slices"
)

// Renewable says whether groups of that many turns may take the place of r's.
func (r *Report) Renewable(turns int) error {
	if turns != r.Turns {
		return fmt.Errorf("the report is of %d turns, and groups that are measured anew have to be of as many, not %d", r.Turns, turns)
	}
	return nil
}

// Renew puts the groups of a later run in the place of r's, or behind them.
func (r *Report) Renew(by *Report) {
	for _, g := range by.Groups {
		g.Renewed = by.Started
		if i := slices.IndexFunc(r.Groups, func(old Group) bool { return old.Name == g.Name }); i >= 0 {
			r.Groups[i] = g
		} else {
			r.Groups = append(r.Groups, g)
		}
	}
	if by.Latency != nil || by.Bandwidth != nil {
		r.Latency, r.Bandwidth = by.Latency, by.Bandwidth
	}
	if by.Loss != nil {
		r.Loss = by.Loss
	}
}
