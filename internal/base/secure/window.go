package secure

const (
	windowWords = 32
	// Window is how far a packet number may lie behind the newest one.
	Window = (windowWords - 1) * 64
)

// window remembers which packets came: a bit for each of the newest, in a ring of
// words (RFC 6479). The word that the newest is in is only partly used.
type window struct {
	top  uint64 // one more than the highest number that came
	bits [windowWords]uint64
}

// fresh reports whether a packet with number n may be accepted.
func (w *window) fresh(n uint64) bool {
	if n >= w.top {
		return true
	}
	return n/64+windowWords > (w.top-1)/64 && w.bits[n/64%windowWords]&(1<<(n%64)) == 0
}

// take records that packet n came.
func (w *window) take(n uint64) {
	if n >= w.top {
		if w.top > 0 {
			at, to := (w.top-1)/64, n/64
			for range min(to-at, windowWords) {
				at++
				w.bits[at%windowWords] = 0
			}
		}
		w.top = n + 1
	}
	w.bits[n/64%windowWords] |= 1 << (n % 64)
}
