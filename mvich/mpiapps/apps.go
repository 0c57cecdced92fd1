package mpiapps

import (
	"math"

	"viaxdp/mvich"
)

// The stencil.

// lookEvery is after how many steps the ranks agree on the largest change.
const lookEvery = 10

// temperature is that of the border of a plate of n x n points, whose rows and columns are 1 to n, at a place.
func temperature(n, row, col int) float64 { return float64(row*row-2*col*(n-col)) / float64(n) }

// relax makes each point of a row the mean of its neighbours. Rows have both ends, which stay.
func relax(next, above, row, below []float64) {
	n := len(row) - 1
	next, above, below = next[:n+1], above[:n+1], below[:n+1]
	for i := 1; i < n; i++ {
		next[i] = (above[i] + below[i] + row[i-1] + row[i+1]) / 4
	}
}

// change is the largest one of a row.
func change(next, row []float64) (most float64) {
	for i, v := range row {
		most = max(most, v-next[i], next[i]-v)
	}
	return most
}

// heated is a block whose border, where it is the plate's, has its temperature.
func heated(p *plane) *block {
	b := p.block()
	for i := range b.rows + 2 {
		row := b.row(i)
		for j := range row {
			if r, c := b.top+i, b.left+j; r == 0 || c == 0 || r == p.n+1 || c == p.n+1 {
				row[j] = temperature(p.n, r, c)
			}
		}
	}
	return b
}

// relaxed returns the plate after the given steps, or earlier if nothing changes any more.
func relaxed(p *plane, steps int) (*block, int, error) {
	now, next := heated(p), heated(p)
	for step := 1; step <= steps; step++ {
		if err := now.swap(); err != nil {
			return nil, 0, err
		}
		for i := 1; i <= now.rows; i++ {
			relax(next.row(i), now.row(i-1), now.row(i), now.row(i+1))
		}
		if step%lookEvery == 0 {
			most := 0.
			for i := 1; i <= now.rows; i++ {
				most = max(most, change(next.inner(i), now.inner(i)))
			}
			most, err := p.all(most, mvich.Max)
			if err != nil {
				return nil, 0, err
			}
			if most == 0 {
				return now, step, nil
			}
		}
		now, next = next, now
	}
	return now, steps, nil
}

// Conjugate gradients.

// accuracy is how small the residual gets, by that of the beginning.
const accuracy = 1e-9

// load is the right side of the system at a place of the plane: a number between -1 and 1 without any pattern.
func load(row, col int) float64 {
	h := uint64(row)<<32 | uint64(col)
	h = (h ^ h>>31) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return float64(int64(h^h>>32)) / (1 << 63)
}

// apply multiplies a row with the matrix: 4 on the diagonal, -1 for each neighbour. Rows of p have both ends, out has
// none. It returns the scalar product of both rows.
func apply(out, above, row, below []float64) (dot float64) {
	n := len(out)
	above, row, below = above[:n+2], row[:n+2], below[:n+2]
	for i := range out {
		v := 4*row[i+1] - row[i] - row[i+2] - above[i+1] - below[i+1]
		out[i] = v
		dot += v * row[i+1]
	}
	return dot
}

// advance takes a step along p: x gets nearer to the solution, and r is the residual. q is the product of the matrix
// and p. It returns the square of r.
func advance(x, r, p, q []float64, alpha float64) (rr float64) {
	x, p, q = x[:len(r)], p[:len(r)], q[:len(r)]
	for i := range r {
		x[i] += alpha * p[i]
		r[i] -= alpha * q[i]
		rr += r[i] * r[i]
	}
	return rr
}

// turn makes p the next direction.
func turn(p, r []float64, beta float64) {
	p = p[:len(r)]
	for i := range r {
		p[i] = r[i] + beta*p[i]
	}
}

// solved returns the solution of the system after the given steps, or earlier if it is accurate.
func solved(pl *plane, steps int) (*block, int, error) {
	x, p := pl.block(), pl.block()
	r, q := make([]float64, x.rows*x.cols), make([]float64, x.rows*x.cols)
	part := func(v []float64, i int) []float64 { return v[(i-1)*x.cols : i*x.cols] } // row i
	rr := 0.
	for i := 1; i <= x.rows; i++ {
		row := part(r, i)
		for j := range row {
			row[j] = load(x.top+i, x.left+j+1)
			rr += row[j] * row[j]
		}
		copy(p.inner(i), row)
	}
	rr, err := pl.all(rr, mvich.Sum)
	first, step := rr, 0
	for ; err == nil && step < steps && math.Sqrt(rr) > accuracy*math.Sqrt(first); step++ {
		if err := p.swap(); err != nil {
			return nil, 0, err
		}
		pq := 0.
		for i := 1; i <= x.rows; i++ {
			pq += apply(part(q, i), p.row(i-1), p.row(i), p.row(i+1))
		}
		if pq, err = pl.all(pq, mvich.Sum); err != nil {
			return nil, 0, err
		}
		before := rr
		rr = 0
		for i := 1; i <= x.rows; i++ {
			rr += advance(x.inner(i), part(r, i), p.inner(i), part(q, i), before/pq)
		}
		if rr, err = pl.all(rr, mvich.Sum); err != nil {
			return nil, 0, err
		}
		for i := 1; i <= x.rows; i++ {
			turn(p.inner(i), part(r, i), rr/before)
		}
	}
	return x, step, err
}
