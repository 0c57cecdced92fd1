package mpiapps

import (
	"fmt"
	"time"

	"viaxdp/mvich"
)

// plane is a square of n x n points, cut into down x across blocks, as one rank sees it.
type plane struct {
	c            *mvich.Comm // nil: there is one block, and no other rank
	rank         int
	n            int
	down, across int
	calling      time.Duration // in calls of mvich
}

// MaxSize is the largest side of a square.
const MaxSize = 1 << 15

// newPlane cuts the square so that blocks are about as high as wide.
func newPlane(c *mvich.Comm, n int) (*plane, error) {
	p := &plane{c: c, rank: c.Rank(), n: n, down: c.Size(), across: 1}
	for a := 1; a*a <= c.Size(); a++ {
		if c.Size()%a == 0 {
			p.down, p.across = c.Size()/a, a
		}
	}
	if n < p.down || n > MaxSize {
		return nil, fmt.Errorf("%w: a square of %d x %d points cut into %d x %d blocks", ErrApp, n, n, p.down, p.across)
	}
	if _, _, rows, cols := p.area(0); c.Size() > 1 && rows*cols > mvich.MaxMessage/8 { // gather could not send it at the end
		return nil, fmt.Errorf("%w: a block of %d x %d points is too long for a message: take more ranks", ErrApp, rows, cols)
	}
	return p, nil
}

// alone is a square that is one block.
func alone(n int) *plane { return &plane{n: n, down: 1, across: 1} }

// cut returns where part i begins when n points are cut into parts.
func cut(n, parts, i int) int { return i*(n/parts) + min(i, n%parts) }

// area is the block of a rank: its first row and column, and how many.
func (p *plane) area(rank int) (top, left, rows, cols int) {
	i, j := rank/p.across, rank%p.across
	top, left = cut(p.n, p.down, i), cut(p.n, p.across, j)
	return top, left, cut(p.n, p.down, i+1) - top, cut(p.n, p.across, j+1) - left
}

// neighbour is the rank that many blocks away, or ProcNull.
func (p *plane) neighbour(down, right int) int {
	i, j := p.rank/p.across+down, p.rank%p.across+right
	if i < 0 || i >= p.down || j < 0 || j >= p.across {
		return mvich.ProcNull
	}
	return i*p.across + j
}

// call counts the time of calls of mvich.
func (p *plane) call(f func() error) error {
	began := time.Now()
	err := f()
	p.calling += time.Since(began)
	return err
}

// block is one rank's part of a field on the plane: rows x cols points and a border of one around them.
type block struct {
	*plane
	top, left, rows, cols int
	points                []float64
}

func (p *plane) block() *block {
	b := &block{plane: p}
	b.top, b.left, b.rows, b.cols = p.area(p.rank)
	b.points = make([]float64, (b.rows+2)*(b.cols+2))
	return b
}

// row is a row of the block, 0 and rows+1 being its border, and both ends.
func (b *block) row(i int) []float64 { return b.points[i*(b.cols+2) : (i+1)*(b.cols+2)] }

// inner is a row without its ends.
func (b *block) inner(i int) []float64 { return b.row(i)[1 : b.cols+1] }

// swap gives the neighbours the rows and columns at the edges, and has theirs in the border then.
func (b *block) swap() error {
	if b.c == nil {
		return nil
	}
	return b.call(func() error {
		at := func(row, col int) []float64 { return b.points[row*(b.cols+2)+col:] }
		row := mvich.Contiguous(b.cols, mvich.Elem)
		column := mvich.Vector(b.rows, 1, b.cols+2, mvich.Elem)
		var requests [8]*mvich.Request
		for tag, way := range [4]struct {
			of       mvich.Type
			out, in  []float64
			to, from int
		}{
			{row, at(1, 1), at(b.rows+1, 1), b.neighbour(-1, 0), b.neighbour(1, 0)},
			{row, at(b.rows, 1), at(0, 1), b.neighbour(1, 0), b.neighbour(-1, 0)},
			{column, at(1, 1), at(1, b.cols+1), b.neighbour(0, -1), b.neighbour(0, 1)},
			{column, at(1, b.cols), at(1, 0), b.neighbour(0, 1), b.neighbour(0, -1)},
		} {
			var err error
			if requests[2*tag], err = mvich.IrecvType(b.c, way.in, way.of, way.from, tag); err != nil {
				return err
			}
			if requests[2*tag+1], err = mvich.IsendType(b.c, way.out, way.of, way.to, tag); err != nil {
				return err
			}
		}
		return mvich.WaitAll(requests[:]...)
	})
}

// all combines a number of each rank.
func (p *plane) all(v float64, op mvich.Op[float64]) (float64, error) {
	if p.c == nil {
		return v, nil
	}
	sum := [1]float64{v}
	err := p.call(func() error { return mvich.AllReduce(p.c, sum[:], sum[:], op) })
	return sum[0], err
}

// own is the block without its border, row by row.
func (b *block) own() []float64 {
	mine := make([]float64, 0, b.rows*b.cols)
	for i := 1; i <= b.rows; i++ {
		mine = append(mine, b.inner(i)...)
	}
	return mine
}

// gather gives rank 0 the whole square, row by row.
func (b *block) gather() ([]float64, error) {
	var all []float64
	var counts []int
	if b.rank == 0 {
		all = make([]float64, b.n*b.n)
		for rank := range b.c.Size() {
			_, _, rows, cols := b.area(rank)
			counts = append(counts, rows*cols)
		}
	}
	if err := mvich.Gatherv(b.c, all, counts, nil, b.own(), 0); err != nil || b.rank > 0 {
		return nil, err
	}
	square := make([]float64, b.n*b.n)
	next := all
	for rank := range b.c.Size() {
		top, left, rows, cols := b.area(rank)
		for i := range rows {
			copy(square[(top+i)*b.n+left:], next[:cols])
			next = next[cols:]
		}
	}
	return square, nil
}
