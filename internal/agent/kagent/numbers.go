package kagent

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// DefaultMaxVIs is the default size of the VI table; index 0 is not used.
const DefaultMaxVIs = 32768

// Numbers hands out VI numbers: index | generation << 16. The generation of an index starts at random and
// increases with each use, and an index is reused only after all others. So frames for a VI that is gone, of
// this run or of an earlier one, do not reach a new VI. All methods may be called concurrently.
type Numbers struct {
	mu   sync.Mutex
	gen  []uint16 // generation of each index, current or next
	used []bool
	free []uint16 // ring of free indexes, oldest first
	at   []uint16 // where each free index is in the ring
	head int      // first free index in the ring
	n    int      // free indexes
}

// NewNumbers makes a set with the indexes 1 to limit-1. The limit is brought
// into [2, 65536]; 0 means DefaultMaxVIs.
func NewNumbers(limit int) *Numbers {
	if limit <= 0 {
		limit = DefaultMaxVIs
	}
	limit = min(max(limit, 2), 1<<16)
	s := &Numbers{
		gen: make([]uint16, limit), used: make([]bool, limit), at: make([]uint16, limit),
		free: make([]uint16, limit-1), n: limit - 1,
	}
	seed := make([]byte, 2*limit)
	rand.Read(seed)
	for i := range s.gen {
		s.gen[i] = binary.NativeEndian.Uint16(seed[2*i:])
	}
	for i := range s.free {
		s.put(i, uint16(i+1))
	}
	return s
}

// New hands out a number, or fails with ErrNoVI.
func (s *Numbers) New() (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 {
		return 0, ErrNoVI
	}
	i := s.free[s.head]
	s.head = (s.head + 1) % len(s.free)
	s.n--
	s.used[i] = true
	return uint32(i) | uint32(s.gen[i])<<16, nil
}

// Take hands out the number num, which a previous agent had handed out, and reports whether its
// index was free.
func (s *Numbers) Take(num uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := int(num & 0xffff)
	if i == 0 || i >= len(s.used) || s.used[i] {
		return false
	}
	// Move the oldest free index there, and drop its place.
	s.put(int(s.at[i]), s.free[s.head])
	s.head = (s.head + 1) % len(s.free)
	s.n--
	s.used[i], s.gen[i] = true, uint16(num>>16)
	return true
}

// Free takes a number back and reports whether it had been handed out.
func (s *Numbers) Free(num uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live(num) {
		return false
	}
	i := uint16(num)
	s.used[i] = false
	s.gen[i]++
	s.put((s.head+s.n)%len(s.free), i)
	s.n++
	return true
}

// put puts a free index into a place of the ring.
func (s *Numbers) put(at int, i uint16) { s.free[at], s.at[i] = i, uint16(at) }

// Used returns how many numbers are handed out.
func (s *Numbers) Used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.free) - s.n
}

// Live reports whether num is handed out.
func (s *Numbers) Live(num uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live(num)
}

func (s *Numbers) live(num uint32) bool {
	i := int(num & 0xffff)
	return i < len(s.used) && s.used[i] && uint32(s.gen[i]) == num>>16
}

// NewKey makes the key of a connection: random, never 0.
func NewKey() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:])
		if k := binary.NativeEndian.Uint64(b[:]); k != 0 {
			return k
		}
	}
}

// NewSeq makes the first sequence number of a connection.
func NewSeq() uint32 { return uint32(NewKey()) }
