package xdpnictest

// ring is a queue of bounded length.
type ring[T any] struct {
	at   []T
	head int // first entry
	n    int // entries
}

func newRing[T any](size int) ring[T] { return ring[T]{at: make([]T, size)} }

func (r *ring[T]) room() int { return len(r.at) - r.n }

// put adds an entry; there must be room.
func (r *ring[T]) put(v T) {
	r.at[(r.head+r.n)%len(r.at)] = v
	r.n++
}

// peek is entry i from the head.
func (r *ring[T]) peek(i int) *T { return &r.at[(r.head+i)%len(r.at)] }

// pop takes n entries off.
func (r *ring[T]) pop(n int) {
	r.head = (r.head + n) % len(r.at)
	r.n -= n
}
