package mvich_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/mvich"
	"viaxdp/xdpnic/xdpnictest"
)

// Every collective operation on 1 to 9 ranks, with lengths on both sides of the bounds between algorithms, against
// what it should give; also while frames are lost.
func TestCollectives(t *testing.T) {
	for _, test := range []struct {
		name   string
		ranks  int
		faults xdpnictest.Faults
	}{{"1", 1, none}, {"2", 2, none}, {"3", 3, none}, {"4", 4, none}, {"5", 5, none}, {"8", 8, none}, {"9", 9, none}, {"lossy", 5, loss}} {
		t.Run(test.name, func(t *testing.T) {
			n := test.ranks
			j := newJob(t, n, jobConfig{faults: test.faults, options: with(mvich.WithSpin(50), mvich.WithCredits(8))})
			j.run(t, func(c *mvich.Comm) error {
				for _, length := range []int{0, 1, 3, 17, 600, 5000} {
					for _, root := range slices.Compact([]int{0, n / 2, n - 1}) {
						if err := everyRooted(c, length, root); err != nil {
							return fmt.Errorf("%d elements, root %d: %w", length, root, err)
						}
					}
					if err := everyUnrooted(c, length); err != nil {
						return fmt.Errorf("%d elements: %w", length, err)
					}
				}
				return nil
			})
			j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
		})
	}
}

// value is element i of what a rank contributes.
func value(rank, i int) int64 { return int64(1000*rank + i*i%997) }

func contribution(rank, length int) []int64 {
	s := make([]int64, length)
	for i := range s {
		s[i] = value(rank, i)
	}
	return s
}

// combined is the sum of what ranks 0 to last contribute.
func combined(last, length int) []int64 {
	s := make([]int64, length)
	for rank := range last + 1 {
		for i := range s {
			s[i] += value(rank, i)
		}
	}
	return s
}

func same(what string, got, want []int64) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: wrong result", what)
	}
	return nil
}

func everyRooted(c *mvich.Comm, length, root int) error {
	n, me := c.Size(), c.Rank()
	var together []int64
	for rank := range n {
		together = append(together, contribution(rank, length)...)
	}

	b := make([]int64, length)
	if me == root {
		b = contribution(root, length)
	}
	if err := mvich.Bcast(c, b, root); err != nil {
		return fmt.Errorf("bcast: %w", err)
	}
	must(same("bcast", b, contribution(root, length)))

	src, dst := contribution(me, length), make([]int64, length)
	if err := mvich.Reduce(c, dst, src, mvich.Sum, root); err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	want := make([]int64, length)
	if me == root {
		want = combined(n-1, length)
	}
	must(errors.Join(same("reduce", dst, want), same("reduce's source", src, contribution(me, length))))

	all := make([]int64, n*length)
	if err := mvich.Gather(c, all, src, root); err != nil {
		return fmt.Errorf("gather: %w", err)
	}
	if me == root {
		must(same("gather", all, together))
	}
	if err := mvich.Scatter(c, dst, together, root); err != nil {
		return fmt.Errorf("scatter: %w", err)
	}
	must(same("scatter", dst, src))
	return everyVector(c, length, root)
}

// everyVector does Gatherv and Scatterv of parts that are longer the higher the rank, in reverse order and with a gap
// of one element.
func everyVector(c *mvich.Comm, length, root int) error {
	n, me := c.Size(), c.Rank()
	counts, displs := make([]int, n), make([]int, n)
	total := 0
	for rank := n - 1; rank >= 0; rank-- {
		counts[rank], displs[rank] = length+rank, total
		total += counts[rank] + 1
	}
	want := make([]int64, total)
	for rank := range n {
		copy(want[displs[rank]:], contribution(rank, counts[rank]))
	}
	got := make([]int64, total)
	if err := mvich.Gatherv(c, got, counts, displs, contribution(me, counts[me]), root); err != nil {
		return fmt.Errorf("gatherv: %w", err)
	}
	if me == root {
		must(same("gatherv", got, want))
	}
	part := make([]int64, counts[me])
	if err := mvich.Scatterv(c, part, want, counts, displs, root); err != nil {
		return fmt.Errorf("scatterv: %w", err)
	}
	return same("scatterv", part, contribution(me, counts[me]))
}

func everyUnrooted(c *mvich.Comm, length int) error {
	n, me := c.Size(), c.Rank()
	src, dst := contribution(me, length), make([]int64, length)
	if err := mvich.AllReduce(c, dst, src, mvich.Sum); err != nil {
		return fmt.Errorf("allreduce: %w", err)
	}
	must(same("allreduce", dst, combined(n-1, length)))
	if err := mvich.AllReduce(c, dst, src, mvich.Max); err != nil {
		return fmt.Errorf("allreduce: %w", err)
	}
	must(same("allreduce by max", dst, contribution(n-1, length)))
	if err := mvich.Scan(c, dst, src, mvich.Sum); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	must(same("scan", dst, combined(me, length)))

	var together []int64
	for rank := range n {
		together = append(together, contribution(rank, length)...)
	}
	all := make([]int64, n*length)
	if err := mvich.AllGather(c, all, src); err != nil {
		return fmt.Errorf("allgather: %w", err)
	}
	must(same("allgather", all, together))

	// What rank a has for rank b begins with a*n+b.
	out, want := make([]int64, n*length), make([]int64, n*length)
	for other := range n {
		copy(out[other*length:], contribution(me*n+other, length))
		copy(want[other*length:], contribution(other*n+me, length))
	}
	if err := mvich.AllToAll(c, all, out); err != nil {
		return fmt.Errorf("alltoall: %w", err)
	}
	must(same("alltoall", all, want))
	return inPlace(c, length, want)
}

// inPlace does what may give the result in the place of what went in. exchanged is what AllToAll gives of what
// everyUnrooted has for it.
func inPlace(c *mvich.Comm, length int, exchanged []int64) error {
	n, me := c.Size(), c.Rank()
	b := contribution(me, length)
	if err := errors.Join(mvich.AllReduce(c, b, b, mvich.Sum), same("allreduce", b, combined(n-1, length))); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	b = contribution(me, length)
	if err := errors.Join(mvich.Scan(c, b, b, mvich.Sum), same("scan", b, combined(me, length))); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	all, together := make([]int64, n*length), make([]int64, 0, n*length)
	for other := range n {
		copy(all[other*length:], contribution(me*n+other, length))
		together = append(together, contribution(other, length)...)
	}
	if err := errors.Join(mvich.AllToAll(c, all, all), same("alltoall", all, exchanged)); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	mine := all[me*length:][:length]
	copy(mine, contribution(me, length))
	if err := errors.Join(mvich.AllGather(c, all, mine), same("allgather", all, together)); err != nil {
		return fmt.Errorf("in place: %w", err)
	}
	for root := range n {
		in, out := contribution(me, length), make([]int64, length)
		if me == root {
			clear(all)
			copy(mine, in)
			in, out = mine, mine
		}
		err := mvich.Gather(c, all, in, root)
		if me == root {
			err = errors.Join(err, same("gather", all, together))
		}
		err = errors.Join(err, mvich.Scatter(c, out, all, root), same("scatter", out, contribution(me, length)))
		if me == root {
			err = errors.Join(err, same("what was scattered", all, together))
		}
		if err != nil {
			return fmt.Errorf("in place, root %d: %w", root, err)
		}
	}
	return nil
}

// What is longer than a message can be is refused by all, and nobody is lost for it, nor waits for a rank whose part
// of it is not too long.
func TestTooLong(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("no slice is as long")
	}
	const ranks = 5
	most := mvich.MaxMessage
	length := ranks*most + 1
	huge, err := unix.Mmap(-1, 0, length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE) // nobody looks at it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(huge) })
	refused := func(c *mvich.Comm, name string, err error) error {
		if !errors.Is(err, mvich.ErrCount) {
			return fmt.Errorf("%s: %v", name, err)
		}
		return c.Barrier()
	}
	newJob(t, 2, jobConfig{}).run(t, func(c *mvich.Comm) error {
		return errors.Join(
			refused(c, "send", c.Send(huge[:most+1], 1-c.Rank(), 0)),
			refused(c, "bcast", c.Bcast(huge[:most+1], 0)),
		)
	})
	newJob(t, ranks, jobConfig{}).run(t, func(c *mvich.Comm) error {
		return errors.Join(
			refused(c, "bcast of two blocks each", c.Bcast(huge[:3*most], 0)),
			refused(c, "bcast", c.Bcast(huge, 0)),
			refused(c, "allreduce, the first block", mvich.AllReduce(c, huge, huge, mvich.Sum[byte])),
			refused(c, "reduce, the first block", mvich.Reduce(c, huge, huge, mvich.Sum[byte], 1)),
		)
	})
}

// Ranks that disagree about lengths are told so.
func TestCollectiveLengths(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		b := make([]byte, 10+c.Rank())
		err := c.Bcast(b, 0)
		if c.Rank() == 1 && !errors.Is(err, mvich.ErrCount) {
			return fmt.Errorf("bcast: %v", err)
		}
		return nil
	})
}

func TestOperators(t *testing.T) {
	for name, c := range map[string]struct {
		op   mvich.Op[int]
		want []int
	}{
		"sum": {mvich.Sum[int], []int{9, 3}}, "prod": {mvich.Prod[int], []int{18, -10}},
		"min": {mvich.Min[int], []int{3, -2}}, "max": {mvich.Max[int], []int{6, 5}},
		"and": {mvich.And[int], []int{2, 4}}, "or": {mvich.Or[int], []int{7, -1}}, "xor": {mvich.Xor[int], []int{5, -5}},
	} {
		got := []int{6, -2}
		c.op(got, []int{3, 5})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A rank that has given wrong lengths is told so, and its next operation is the next one of the others.
func TestWrongLengths(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		b := make([]int, 3)
		for name, f := range map[string]func() error{
			"gather": func() error { return mvich.Gather(c, b, b, 0) },
			"reduce": func() error { return mvich.Reduce(c, b[:1], b, mvich.Sum, 0) },
		} {
			if err := f(); c.Rank() == 0 && !errors.Is(err, mvich.ErrCount) || c.Rank() == 1 && err != nil {
				return fmt.Errorf("%s: %v", name, err)
			}
			must(c.Barrier())
		}
		color := []int{-5, 0}[c.Rank()]
		part, err := c.Split(color, 0)
		if color < 0 && !errors.Is(err, mvich.ErrSettings) || color == 0 && (err != nil || part.Size() != 1) {
			return fmt.Errorf("split: %v", err)
		}
		sum := []int{0}
		if err := mvich.AllReduce(c, sum, []int{1}, mvich.Sum); err != nil || sum[0] != 2 {
			return fmt.Errorf("after the split: %v, %v", sum, err)
		}
		return nil
	})
}
