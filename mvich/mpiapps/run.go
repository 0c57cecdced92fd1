// Package mpiapps is two applications of package mvich, as they are found in many programs that compute:
//
//	stencil  a plate whose border has fixed temperatures, relaxed step by step
//	         (Jacobi): four neighbours' edges in each step, and now and then the
//	         largest change of all ranks
//	cg       a linear system with a matrix of five diagonals (Poisson's equation
//	         in the plane), solved by conjugate gradients: four neighbours' edges
//	         and two sums over all ranks in each step
//
// Both cut a square into blocks of about the same size, one for each rank:
//
//	+-----+-----+     rank 0 | rank 1       a block has a border of one point,
//	|  0  |  1  |     -------+-------       in which the edges of the neighbours
//	+-----+-----+     rank 2 | rank 3       arrive
//	|  2  |  3  |
//	+-----+-----+
//
// Every rank calls [Run]. Rank 0 does the same without any other rank afterwards, and compares the results, point by
// point.
package mpiapps

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"viaxdp/mvich"
)

// What Run fails with.
var (
	// ErrApp: no such application, or the size or the number of ranks does not suit it.
	ErrApp = errors.New("mpiapps: cannot be run")
	// ErrWrong: the ranks have come to another result than one alone.
	ErrWrong = errors.New("mpiapps: the result differs from that of a serial run")
)

// Options of a run, the same on all ranks. The zero value of a field means what the application takes.
type Options struct {
	Size  int // points of a side of the square
	Steps int // of the stencil; at most, of conjugate gradients
}

// Result is what rank 0 has of a run.
type Result struct {
	Name          string  `json:"name"`
	Ranks         int     `json:"ranks"`
	Size          int     `json:"size"`
	Steps         int     `json:"steps"`         // that were made
	Seconds       float64 `json:"seconds"`       // of the rank that took longest
	Communication float64 `json:"communication"` // share of the time that went into calls of mvich, mean of the ranks
	SerialSeconds float64 `json:"serial_seconds"`
	Difference    float64 `json:"difference"` // of the point that differs most from the serial run, by the largest value
}

// app is an application.
type app struct {
	size, steps int
	// solve computes this rank's block.
	solve func(p *plane, steps int) (*block, int, error)
	// tolerance is by how much, relative to the largest value, the results may differ: sums in another order do.
	tolerance float64
}

var apps = map[string]app{
	"stencil": {size: 1024, steps: 400, solve: relaxed},
	"cg":      {size: 512, steps: 5000, solve: solved, tolerance: 1e-6},
}

// Names lists the applications.
func Names() []string { return slices.Sorted(maps.Keys(apps)) }

// Run does an application. All ranks of c call it with the same arguments; rank 0 gets the result, the others nil.
func Run(c *mvich.Comm, name string, o Options) (*Result, error) {
	a, ok := apps[name]
	if !ok {
		return nil, fmt.Errorf("%w: no application %q: there are %s", ErrApp, name, strings.Join(Names(), ", "))
	}
	o.Size, o.Steps = cmp.Or(o.Size, a.size), cmp.Or(o.Steps, a.steps)
	p, err := newPlane(c, o.Size)
	if err != nil {
		return nil, err
	}
	if o.Steps < 1 {
		return nil, fmt.Errorf("%w: %d steps", ErrApp, o.Steps)
	}
	if err := c.Barrier(); err != nil {
		return nil, err
	}
	began := time.Now()
	b, steps, err := a.solve(p, o.Steps)
	if err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	longest, share := []float64{took}, []float64{p.calling.Seconds() / took}
	if err := mvich.Reduce(c, longest, longest, mvich.Max, 0); err != nil {
		return nil, err
	}
	if err := mvich.Reduce(c, share, share, mvich.Sum, 0); err != nil {
		return nil, err
	}
	all, err := b.gather()
	if err != nil || c.Rank() > 0 {
		return nil, err
	}
	r := &Result{
		Name: name, Ranks: c.Size(), Size: o.Size, Steps: steps,
		Seconds: longest[0], Communication: share[0] / float64(c.Size()),
	}
	began = time.Now()
	want, err := a.serial(o.Size, o.Steps)
	if err != nil {
		return nil, err
	}
	r.SerialSeconds = time.Since(began).Seconds()
	if r.Difference = difference(all, want); !(r.Difference <= a.tolerance) {
		return nil, fmt.Errorf("%w: by %.2g of the largest value, at most %.2g", ErrWrong, r.Difference, a.tolerance)
	}
	return r, nil
}

// serial is the whole square, row by row, computed without other ranks. Each point of the stencil is the mean of the
// same four numbers; sums of conjugate gradients are in another order.
func (a app) serial(n, steps int) ([]float64, error) {
	b, _, err := a.solve(alone(n), steps)
	if err != nil {
		return nil, err
	}
	return b.own(), nil
}

// difference is the largest one, relative to the largest value.
func difference(got, want []float64) float64 {
	most, largest := 0., 0.
	for i, v := range want {
		d := math.Abs(got[i] - v)
		if math.IsNaN(d) {
			return d
		}
		most, largest = max(most, d), max(largest, math.Abs(v))
	}
	if most == 0 {
		return 0
	}
	return most / largest
}

// Print prints a result in a line.
func (r *Result) Print(w io.Writer) error {
	as := "equal to that"
	if r.Difference > 0 {
		as = fmt.Sprintf("within %.1g of that", r.Difference)
	}
	_, err := fmt.Fprintf(w, "%s of %d x %d, %d steps, ranks: %d: %.4f s, %.1f %% of it communication; the result is %s of a serial run, %.4f s\n",
		r.Name, r.Size, r.Size, r.Steps, r.Ranks, r.Seconds, 100*r.Communication, as, r.SerialSeconds)
	return err
}
