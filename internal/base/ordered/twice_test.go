//go:build !race

package ordered

import (
	"sync/atomic"
	"testing"
)

// What is written, then announced by a counter, and then written again was there
// when the counter was: the compiler has not left the first one out.
func TestTwice(t *testing.T) {
	const rounds = 20_000_000
	var mem struct {
		data    uint64
		_       [120]byte // another line of the cache
		counter Uint64
	}
	begun, done := make(chan bool), make(chan uint64)
	go func() {
		close(begun)
		bad := uint64(0)
		for seen := uint64(0); seen < rounds; {
			seen = mem.counter.Load()
			if atomic.LoadUint64(&mem.data)>>1 < seen {
				bad++
			}
		}
		done <- bad
	}()
	<-begun
	for i := range uint64(rounds) {
		mem.data = (i + 1) << 1
		mem.counter.Store(i + 1)
		mem.data = (i+1)<<1 | 1
	}
	if bad := <-done; bad != 0 {
		t.Errorf("%d times a counter was there before what it announced", bad)
	}
}
