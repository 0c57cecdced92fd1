package mvich

// fifo is a queue: first in, first out. The zero value is empty. Once it has
// grown to what it is used for it allocates nothing.
type fifo[T any] struct {
	ring []T // a power of two of places
	head int // of the oldest
	n    int
}

func (q *fifo[T]) len() int { return q.n }

func (q *fifo[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(8, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

// pop takes the oldest, which must be there.
func (q *fifo[T]) pop() (v T) {
	slot := &q.ring[q.head]
	v, *slot = *slot, v // the place keeps nothing alive
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}

// peek looks at the oldest, which must be there.
func (q *fifo[T]) peek() T { return q.ring[q.head] }

// each calls f with everything in the queue, the oldest first.
func (q *fifo[T]) each(f func(T)) {
	for i := range q.n {
		f(q.ring[(q.head+i)&(len(q.ring)-1)])
	}
}

// filter keeps what f says yes to.
func (q *fifo[T]) filter(f func(T) bool) {
	for range q.n {
		if v := q.pop(); f(v) {
			q.push(v)
		}
	}
}

// drain empties the queue into f.
func (q *fifo[T]) drain(f func(T)) {
	for q.n > 0 {
		f(q.pop())
	}
}
