package mvich_test

import (
	"fmt"

	"viaxdp/mvich"
)

// grid is one rank's part of a plate: rows x cols points and a border of one,
// which holds what the neighbours have there.
type grid struct {
	c          *mvich.Comm
	rows, cols int
	up, down   int // neighbours, or ProcNull
	left       int
	right      int
	now, next  []float64
}

// newGrid cuts a plate of n x n points into across x across parts.
func newGrid(c *mvich.Comm, n, across int) *grid {
	neighbour := func(row, col int) int {
		if row < 0 || row >= across || col < 0 || col >= across {
			return mvich.ProcNull
		}
		return row*across + col
	}
	row, col := c.Rank()/across, c.Rank()%across
	g := &grid{
		c: c, rows: n / across, cols: n / across,
		up: neighbour(row-1, col), down: neighbour(row+1, col),
		left: neighbour(row, col-1), right: neighbour(row, col+1),
	}
	g.now = make([]float64, (g.rows+2)*(g.cols+2))
	g.next = make([]float64, len(g.now))
	return g
}

func (g *grid) at(row, col int) int { return row*(g.cols+2) + col }

// swap gives the neighbours the rows and columns at the edge, and gets theirs.
func (g *grid) swap() error {
	row := mvich.Contiguous(g.cols, mvich.Elem)
	column := mvich.Vector(g.rows, 1, g.cols+2, mvich.Elem)
	var requests []*mvich.Request
	for tag, way := range []struct {
		of       mvich.Type
		out, in  int // where the type begins
		to, from int
	}{
		{row, g.at(1, 1), g.at(g.rows+1, 1), g.up, g.down},
		{row, g.at(g.rows, 1), g.at(0, 1), g.down, g.up},
		{column, g.at(1, 1), g.at(1, g.cols+1), g.left, g.right},
		{column, g.at(1, g.cols), g.at(1, 0), g.right, g.left},
	} {
		in, err := mvich.IrecvType(g.c, g.now[way.in:], way.of, way.from, tag)
		if err != nil {
			return err
		}
		out, err := mvich.IsendType(g.c, g.now[way.out:], way.of, way.to, tag)
		if err != nil {
			return err
		}
		requests = append(requests, in, out)
	}
	return mvich.WaitAll(requests...)
}

// relax makes each point the mean of its neighbours and returns by how much the
// plate has changed, over all ranks.
func (g *grid) relax() (float64, error) {
	if err := g.swap(); err != nil {
		return 0, err
	}
	change := []float64{0}
	for row := 1; row <= g.rows; row++ {
		for col := 1; col <= g.cols; col++ {
			i := g.at(row, col)
			g.next[i] = (g.now[i-1] + g.now[i+1] + g.now[i-g.cols-2] + g.now[i+g.cols+2]) / 4
			change[0] = max(change[0], g.next[i]-g.now[i], g.now[i]-g.next[i])
		}
	}
	g.now, g.next = g.next, g.now
	err := mvich.AllReduce(g.c, change, change, mvich.Max)
	return change[0], err
}

// heat holds the border of the plate at the value of a function of the place.
func (g *grid) heat(n int, f func(row, col int) float64) {
	across := n / g.rows
	top, first := g.c.Rank()/across*g.rows, g.c.Rank()%across*g.cols
	for row := range g.rows + 2 {
		for col := range g.cols + 2 {
			r, c := top+row, first+col
			if r == 0 || c == 0 || r == n+1 || c == n+1 {
				g.now[g.at(row, col)] = f(r, c)
				g.next[g.at(row, col)] = f(r, c)
			}
		}
	}
}

// A stencil in two dimensions on four ranks: a plate whose border is held at
// temperatures that rise evenly comes to rise evenly all over.
func Example_stencil() {
	const n, across = 16, 2
	err := exampleJob(across*across, func(c *mvich.Comm) error {
		g := newGrid(c, n, across)
		even := func(row, col int) float64 { return float64(row + 2*col) }
		g.heat(n, even)
		turns := 0
		for change := 1.0; change > 1e-9; turns++ {
			var err error
			if change, err = g.relax(); err != nil {
				return err
			}
		}
		worst := []float64{0}
		top, first := c.Rank()/across*g.rows, c.Rank()%across*g.cols
		for row := 1; row <= g.rows; row++ {
			for col := 1; col <= g.cols; col++ {
				d := g.now[g.at(row, col)] - even(top+row, first+col)
				worst[0] = max(worst[0], d, -d)
			}
		}
		if err := mvich.Reduce(c, worst, worst, mvich.Max, 0); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("even all over: %v\n", worst[0] < 1e-6 && turns > 10)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: even all over: true
}
