package mvich_test

import (
	"math"
	"slices"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// Ranks exchange the columns at the borders of their parts of a matrix.
func TestBorders(t *testing.T) {
	const ranks, rows, cols = 3, 50, 6 // the first and the last column are the neighbours'
	j := newJob(t, ranks, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		column := mvich.Vector(rows, 1, cols, mvich.Elem)
		m := make([]int32, rows*cols)
		value := func(rank, row, col int) int32 { return int32(rank*1000_000 + row*1000 + col) }
		for row := range rows {
			for col := 1; col < cols-1; col++ {
				m[row*cols+col] = value(c.Rank(), row, col)
			}
		}
		left, right := (c.Rank()+ranks-1)%ranks, (c.Rank()+1)%ranks
		for _, x := range []struct{ send, to, recv, from int }{{cols - 2, right, 0, left}, {1, left, cols - 1, right}} {
			s, err := mvich.SendrecvType(c, m[x.send:], column, x.to, x.send, m[x.recv:], column, x.from, x.send)
			failIf(err != nil || s.Source != x.from || mvich.Count[int32](s) != rows, "%+v, %v", s, err)
		}
		for row := range rows {
			got := [2]int32{m[row*cols], m[row*cols+cols-1]}
			failIf(got != [2]int32{value(left, row, cols-2), value(right, row, 1)}, "row %d: %d", row, got)
		}
		// A failed SendrecvType leaves no receive behind, which would take the next message.
		mustBe("to nobody", nstest.Err(mvich.SendrecvType(c, m, column, ranks, 9, m, column, left, 9)), mvich.ErrRank)
		s, err := mvich.SendrecvType(c, m[1:], column, right, 9, m, column, left, 9)
		failIf(err != nil || s.Source != left || m[0] != value(left, 0, 1), "%+v, %v: %d", s, err, m[0])
		return nil
	})
}

// The elements of nested types, against the places written out.
func TestTypes(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	c := j.worlds[0].Comm()
	for name, x := range map[string]struct {
		of     mvich.Type
		places []int
	}{
		"element":        {mvich.Elem, []int{0}},
		"row":            {mvich.Contiguous(4, mvich.Elem), []int{0, 1, 2, 3}},
		"vector":         {mvich.Vector(3, 2, 4, mvich.Elem), []int{0, 1, 4, 5, 8, 9}},
		"touching":       {mvich.Vector(3, 2, 2, mvich.Elem), []int{0, 1, 2, 3, 4, 5}},
		"rows of vector": {mvich.Contiguous(2, mvich.Vector(2, 1, 2, mvich.Elem)), []int{0, 2, 3, 5}},
		"vector of vector": {
			mvich.Vector(2, 1, 3, mvich.Vector(2, 1, 2, mvich.Elem)), []int{0, 2, 9, 11},
		},
		"vector of rows": {mvich.Vector(2, 1, 2, mvich.Contiguous(3, mvich.Elem)), []int{0, 1, 2, 6, 7, 8}},
		"nothing":        {mvich.Vector(0, 3, 5, mvich.Elem), nil},
		"empty blocks":   {mvich.Vector(3, 0, 5, mvich.Elem), nil},
	} {
		extent := 0
		if len(x.places) > 0 {
			extent = x.places[len(x.places)-1] + 1
		}
		if x.of.Len() != len(x.places) || x.of.Extent() != extent {
			t.Errorf("%s: %d elements over %d, want %d over %d", name, x.of.Len(), x.of.Extent(), len(x.places), extent)
			continue
		}
		buf := make([]int, extent)
		for i := range buf {
			buf[i] = i
		}
		nstest.WantErr(t, name, mvich.SendType(c, buf, x.of, 0, 0), nil)
		got := make([]int, len(x.places))
		_, err := mvich.Recv(c, got, 0, 0)
		nstest.ErrorIf(t, err != nil || !slices.Equal(got, x.places), "%s: %v, want %v (%v)", name, got, x.places, err)
		// And back, to the same places and no others.
		for i := range buf {
			buf[i] = -1
		}
		nstest.WantErr(t, name, mvich.Send(c, got, 0, 0), nil)
		nstest.WantErr(t, name, nstest.Err(mvich.RecvType(c, buf, x.of, 0, 0)), nil)
		for i, v := range buf {
			want := slices.Contains(x.places, i)
			nstest.ErrorIf(t, want && v != i || !want && v != -1, "%s: place %d holds %d", name, i, v)
		}
	}
}

// Invalid types.
func TestWrongTypes(t *testing.T) {
	const most = math.MaxInt
	half := mvich.Contiguous(most/2, mvich.Elem)
	for name, test := range map[string]struct {
		make  func() mvich.Type
		wrong bool
	}{
		"negative count":      {func() mvich.Type { return mvich.Vector(-1, 1, 1, mvich.Elem) }, true},
		"negative row":        {func() mvich.Type { return mvich.Contiguous(-1, mvich.Elem) }, true},
		"negative block":      {func() mvich.Type { return mvich.Vector(1, -1, 1, mvich.Elem) }, true},
		"negative stride":     {func() mvich.Type { return mvich.Vector(2, 1, -1, mvich.Elem) }, true},
		"overlap":             {func() mvich.Type { return mvich.Vector(2, 3, 2, mvich.Elem) }, true},
		"all on one":          {func() mvich.Type { return mvich.Vector(2, 1, 0, mvich.Elem) }, true},
		"all that there is":   {func() mvich.Type { return mvich.Contiguous(most, mvich.Elem) }, false},
		"far apart":           {func() mvich.Type { return mvich.Vector(2, 1, most-1, mvich.Elem) }, false},
		"too far apart":       {func() mvich.Type { return mvich.Vector(2, 1, most, mvich.Elem) }, true},
		"two, far apart":      {func() mvich.Type { return mvich.Vector(2, 1, most/2, half) }, true},
		"one, whatever apart": {func() mvich.Type { return mvich.Vector(1, 1, most, half) }, false},
		"two halves":          {func() mvich.Type { return mvich.Contiguous(2, half) }, false},
		"three halves":        {func() mvich.Type { return mvich.Contiguous(3, half) }, true},
		"a product that is 0": {func() mvich.Type { return mvich.Contiguous(most/2+1, mvich.Contiguous(4, mvich.Elem)) }, true},
		"nothing, many times": {func() mvich.Type { return mvich.Contiguous(most, mvich.Contiguous(0, mvich.Elem)) }, false},
	} {
		func() {
			defer func() { nstest.Equal(t, name+": panics", recover() != nil, test.wrong) }()
			x := test.make()
			nstest.ErrorIf(t, x.Len() < 0 || x.Extent() < x.Len(), "%s: %d elements over %d", name, x.Len(), x.Extent())
		}()
	}
}
