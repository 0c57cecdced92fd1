package mvich_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/xdpnic/xdpnictest"
)

// Every collective operation on 1 to 9 ranks, with lengths on both sides of the bounds between algorithms, against
// the expected result; also with losses.
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
						everyRooted(c, length, root)
					}
					everyUnrooted(c, length)
				}
				return nil
			})
			j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
		})
	}
}

// contribution is what a rank contributes.
func contribution(rank, length int) []int64 {
	s := make([]int64, length)
	for i := range s {
		s[i] = int64(1000*rank + i*i%997)
	}
	return s
}

// combined is the sum of what ranks 0 to last contribute.
func combined(last, length int) []int64 {
	s := make([]int64, length)
	for rank := range last + 1 {
		mvich.Sum(s, contribution(rank, length))
	}
	return s
}

// together is what n ranks contribute, one behind the other.
func together(n, length int) (all []int64) {
	for rank := range n {
		all = append(all, contribution(rank, length)...)
	}
	return all
}

// gives checks the result of an operation that has ended with err.
func gives(what string, err error, got, want []int64) {
	if err == nil && !slices.Equal(got, want) {
		err = errors.New("wrong result")
	}
	if err != nil {
		must(fmt.Errorf("%s of %d elements: %w", what, len(want), err))
	}
}

func everyRooted(c *mvich.Comm, length, root int) {
	n, me := c.Size(), c.Rank()
	// at is want where the operation gives it to the root only.
	at := func(got, want []int64) []int64 {
		if me == root {
			return want
		}
		return got
	}
	b := make([]int64, length)
	if me == root {
		b = contribution(root, length)
	}
	gives("bcast", mvich.Bcast(c, b, root), b, contribution(root, length))

	src, dst := contribution(me, length), make([]int64, length)
	gives("reduce", mvich.Reduce(c, dst, src, mvich.Sum, root), dst, at(make([]int64, length), combined(n-1, length)))
	gives("reduce's source", nil, src, contribution(me, length))

	all := make([]int64, n*length)
	gives("gather", mvich.Gather(c, all, src, root), all, at(all, together(n, length)))
	gives("scatter", mvich.Scatter(c, dst, together(n, length), root), dst, src)

	// Parts that are longer the higher the rank, in reverse order and with a gap of one element.
	counts, displs := make([]int, n), make([]int, n)
	total := 0
	for rank := n - 1; rank >= 0; rank-- {
		counts[rank], displs[rank] = length+rank, total
		total += counts[rank] + 1
	}
	want, got, part := make([]int64, total), make([]int64, total), make([]int64, counts[me])
	for rank := range n {
		copy(want[displs[rank]:], contribution(rank, counts[rank]))
	}
	mine := contribution(me, counts[me])
	gives("gatherv", mvich.Gatherv(c, got, counts, displs, mine, root), got, at(got, want))
	gives("scatterv", mvich.Scatterv(c, part, want, counts, displs, root), part, mine)
}

func everyUnrooted(c *mvich.Comm, length int) {
	n, me := c.Size(), c.Rank()
	src, dst := contribution(me, length), make([]int64, length)
	gives("allreduce", mvich.AllReduce(c, dst, src, mvich.Sum), dst, combined(n-1, length))
	gives("allreduce by max", mvich.AllReduce(c, dst, src, mvich.Max), dst, contribution(n-1, length))
	gives("scan", mvich.Scan(c, dst, src, mvich.Sum), dst, combined(me, length))
	all := make([]int64, n*length)
	gives("allgather", mvich.AllGather(c, all, src), all, together(n, length))

	// What rank a has for rank b begins with a*n+b.
	out, want := make([]int64, n*length), make([]int64, n*length)
	for other := range n {
		copy(out[other*length:], contribution(me*n+other, length))
		copy(want[other*length:], contribution(other*n+me, length))
	}
	gives("alltoall", mvich.AllToAll(c, all, out), all, want)

	// In place.
	gives("alltoall in place", mvich.AllToAll(c, out, out), out, want)
	b := slices.Clone(src)
	gives("allreduce in place", mvich.AllReduce(c, b, b, mvich.Sum), b, combined(n-1, length))
	copy(b, src)
	gives("scan in place", mvich.Scan(c, b, b, mvich.Sum), b, combined(me, length))
	mine := all[me*length:][:length]
	copy(mine, src)
	gives("allgather in place", mvich.AllGather(c, all, mine), all, together(n, length))
	for root := range n {
		in, out, whole := src, dst, all
		if me == root {
			clear(all)
			copy(mine, src)
			in, out, whole = mine, mine, together(n, length)
		}
		gives("gather in place", mvich.Gather(c, all, in, root), all, whole)
		gives("scatter in place", mvich.Scatter(c, out, all, root), out, src)
		gives("what was scattered", nil, all, whole)
	}
}

// All ranks refuse data that is longer than a message can be. No rank is lost for it, and none waits for a rank
// whose part is not too long.
func TestTooLong(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("no slice is as long")
	}
	const ranks = 5
	most := mvich.MaxMessage
	length := ranks*most + 1
	// never accessed
	huge, err := unix.Mmap(-1, 0, length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	noError(t, err)
	t.Cleanup(func() { unix.Munmap(huge) })
	refused := func(c *mvich.Comm, name string, err error) error {
		mustBe(name, err, mvich.ErrCount)
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
		nstest.ErrorIf(t, !slices.Equal(got, c.want), "%s: %v, want %v", name, got, c.want)
	}
}

// A rank that gives wrong lengths, or gets another one, gets an error, and its next operation matches the next one of the
// others.
func TestWrongLengths(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		err := c.Bcast(make([]byte, 10+c.Rank()), 0)
		failIf(errors.Is(err, mvich.ErrCount) != (c.Rank() == 1), "bcast: %v", err)
		b := make([]int, 3)
		for name, f := range map[string]func() error{
			"gather": func() error { return mvich.Gather(c, b, b, 0) },
			"reduce": func() error { return mvich.Reduce(c, b[:1], b, mvich.Sum, 0) },
		} {
			err := f()
			failIf(c.Rank() == 0 && !errors.Is(err, mvich.ErrCount) || c.Rank() == 1 && err != nil, "%s: %v", name, err)
			must(c.Barrier())
		}
		color := []int{-5, 0}[c.Rank()]
		part, err := c.Split(color, 0)
		failIf(color < 0 && !errors.Is(err, mvich.ErrSettings) || color == 0 && (err != nil || part.Size() != 1), "split: %v", err)
		sum := []int{0}
		err = mvich.AllReduce(c, sum, []int{1}, mvich.Sum)
		failIf(err != nil || sum[0] != 2, "after the split: %v, %v", sum, err)
		return nil
	})
}
