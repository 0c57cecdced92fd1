package mvich_test

import (
	"fmt"
	"math"

	"viaxdp/mvich"
)

// row of a matrix that is distributed by rows: the Laplacian of a line, which is
// 2 on the diagonal and -1 beside it.
func laplacian(c *mvich.Comm, out, in []float64) error {
	below, above := []float64{0}, []float64{0}
	down, up := c.Rank()-1, c.Rank()+1
	if down < 0 {
		down = mvich.ProcNull
	}
	if up == c.Size() {
		up = mvich.ProcNull
	}
	last := len(in) - 1
	if _, err := mvich.Sendrecv(c, in[:1], down, 0, above, up, 0); err != nil {
		return err
	}
	if _, err := mvich.Sendrecv(c, in[last:], up, 1, below, down, 1); err != nil {
		return err
	}
	for i := range in {
		left, right := below[0], above[0]
		if i > 0 {
			left = in[i-1]
		}
		if i < last {
			right = in[i+1]
		}
		out[i] = 2*in[i] - left - right
	}
	return nil
}

// dot is the scalar product of two distributed vectors.
func dot(c *mvich.Comm, a, b []float64) (float64, error) {
	sum := []float64{0}
	for i := range a {
		sum[0] += a[i] * b[i]
	}
	err := mvich.AllReduce(c, sum, sum, mvich.Sum)
	return sum[0], err
}

// conjugateGradient solves A x = b for the Laplacian. Each rank has its rows.
func conjugateGradient(c *mvich.Comm, x, b []float64, most int) (turns int, err error) {
	r := append([]float64(nil), b...) // of x = 0
	p := append([]float64(nil), r...)
	q := make([]float64, len(b))
	rr, err := dot(c, r, r)
	for ; err == nil && turns < most && math.Sqrt(rr) > 1e-10; turns++ {
		if err = laplacian(c, q, p); err != nil {
			break
		}
		pq, e := dot(c, p, q)
		if e != nil {
			return turns, e
		}
		alpha := rr / pq
		for i := range x {
			x[i] += alpha * p[i]
			r[i] -= alpha * q[i]
		}
		before := rr
		if rr, err = dot(c, r, r); err != nil {
			break
		}
		for i := range p {
			p[i] = r[i] + rr/before*p[i]
		}
	}
	return turns, err
}

// A conjugate gradient on four ranks: the equation of a loaded string, of which
// the solution is known.
func Example_conjugateGradient() {
	const ranks, rows = 4, 64 // of each
	err := exampleJob(ranks, func(c *mvich.Comm) error {
		const n = ranks * rows
		h := 1.0 / (n + 1)
		b := make([]float64, rows)
		for i := range b {
			b[i] = h * h
		}
		x := make([]float64, rows)
		if _, err := conjugateGradient(c, x, b, 2*n); err != nil {
			return err
		}
		worst := []float64{0}
		for i := range x { // the string hangs like s(1-s)/2
			s := h * float64(c.Rank()*rows+i+1)
			worst[0] = max(worst[0], math.Abs(x[i]-s*(1-s)/2))
		}
		middle := make([]float64, ranks)
		if err := mvich.Reduce(c, worst, worst, mvich.Max, 0); err != nil {
			return err
		}
		if err := mvich.Gather(c, middle, x[rows-1:], 0); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%.4f in the middle, as it should be: %v\n", middle[1], worst[0] < 1e-9)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: 0.1250 in the middle, as it should be: true
}
