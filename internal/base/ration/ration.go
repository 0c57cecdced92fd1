// Package ration bounds how often something is done.
package ration

import "time"

// Ration counts what is done in a time that begins with the first of it. The zero value is
// ready.
type Ration struct {
	Since time.Time // the time's beginning
	used  int
}

// Take reports whether one more may be done: at most most of them in a time of in.
func (r *Ration) Take(now time.Time, most int, in time.Duration) bool {
	if now.Sub(r.Since) >= in {
		*r = Ration{Since: now}
	}
	if r.used >= most {
		return false
	}
	r.used++
	return true
}
