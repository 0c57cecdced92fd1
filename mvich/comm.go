package mvich

import (
	"cmp"
	"fmt"
	"slices"
)

// Comm is a communicator: an ordered group of ranks, and a context in which their messages meet no others. Dup, Split
// and collective operations are called by all its ranks, in the same order, one at a time; its other methods may be
// called concurrently.
type Comm struct {
	w       *World
	context uint32 // of messages; that of collective operations is one more
	group   []int  // ranks in the world, by rank here
	places  []int  // ranks here, by rank in the world; -1: not a member
	rank    int
	known   []bool // dead that the program knows of, by rank here
	turn    int    // collective operations so far
}

const (
	worldContext = 0
	contextStep  = 2
)

// Undefined is the color of ranks that are to be in none of the communicators that Split makes.
const Undefined = -1

func (w *World) newComm(context uint32, group []int, rank int) *Comm {
	c := &Comm{
		w: w, context: context, group: group, rank: rank,
		places: slices.Repeat([]int{-1}, len(w.peers)), known: make([]bool, len(group)),
	}
	for i, rank := range group {
		c.places[rank] = i
	}
	return c
}

// Rank is this rank's number in the communicator.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks of the communicator.
func (c *Comm) Size() int { return len(c.group) }

// World is the world that the communicator is of.
func (c *Comm) World() *World { return c.w }

// rankOf is RankOf of a valid rank.
func (c *Comm) rankOf(world int) int { return c.places[world] }

// WorldRank is the number in the world of a rank here, or -1 where there is none.
func (c *Comm) WorldRank(rank int) int {
	if rank < 0 || rank >= len(c.group) {
		return -1
	}
	return c.group[rank]
}

// RankOf is the rank here of a rank of the world, such as that of a RankError; -1 where it is not a member.
func (c *Comm) RankOf(world int) int {
	if world < 0 || world >= len(c.places) {
		return -1
	}
	return c.rankOf(world)
}

// Dup makes a communicator of the same ranks with a context of its own. All ranks call it.
func (c *Comm) Dup() (*Comm, error) {
	context, err := c.agree()
	if err != nil {
		return nil, err
	}
	return c.w.newComm(context, c.group, c.rank), nil
}

// Split makes a communicator of each set of ranks that give the same color, ordered by key, and by rank here where
// keys are equal. Colors are not negative; ranks that give Undefined get nil. All ranks call it.
func (c *Comm) Split(color, key int) (*Comm, error) {
	context, err := c.agree()
	if err != nil {
		return nil, err
	}
	all := make([]int64, 2*c.Size())
	if err := AllGather(c, all, []int64{int64(color), int64(key)}); err != nil {
		return nil, err
	}
	switch {
	case color == Undefined:
		return nil, nil
	case color < 0: // the others go on
		return nil, fmt.Errorf("%w: color %d", ErrSettings, color)
	}
	var members []int // ranks here
	for rank := range c.Size() {
		if all[2*rank] == int64(color) {
			members = append(members, rank)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	group := make([]int, len(members))
	for i, rank := range members {
		group[i] = c.group[rank]
	}
	return c.w.newComm(context, group, slices.Index(members, c.rank)), nil
}

// agree gives all ranks a context that no other communicator has: one of those of rank 0, whatever communicators
// other goroutines make meanwhile. The parts that Split makes share it, as they have no rank in common.
func (c *Comm) agree() (uint32, error) {
	next := make([]uint32, 1)
	if c.rank == 0 {
		next[0] = c.w.takeContext()
	}
	err := Bcast(c, next, 0)
	switch {
	case err != nil:
	case next[0] == worldContext:
		err = errContexts
	default:
		err = c.w.enterContext(next[0], c.group[0])
	}
	return next[0], err
}

// takeContext returns a context of this rank's, or worldContext when none is left.
func (w *World) takeContext() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	context := w.nextContext
	if context != worldContext {
		if w.nextContext += contextStep * uint32(len(w.peers)); w.nextContext < context {
			w.nextContext = worldContext
		}
	}
	return context
}

// enterContext notes that a context is in use. A rank that gives a context of another rank, or one in use, is taken
// for dead: messages of two communicators would mix.
func (w *World) enterContext(context uint32, giver int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	owner := (context/contextStep + uint32(len(w.peers)) - 1) % uint32(len(w.peers))
	if context%contextStep == 0 && owner == uint32(giver) && !w.contexts[context] {
		w.contexts[context] = true
		return nil
	}
	p := w.peers[giver]
	w.lose(p, fmt.Errorf("%w: it gave the context %d, which is another's or in use", ErrProtocol, context))
	w.pushDirty()
	return p.lost()
}
