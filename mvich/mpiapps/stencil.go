package mpiapps

import "viaxdp/mvich"

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

// relaxed is the plate after so many steps, or when nothing changes any more.
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
