package ordered

import (
	"runtime"
	"sync/atomic"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// A reader that sees a counter sees what was written before it.
func TestOrder(t *testing.T) {
	const rounds = 200_000
	var ring [8]uint64
	var written, read Uint64
	done := make(chan uint64)
	go func() {
		bad := uint64(0)
		for i := uint64(0); i < rounds; i++ {
			for written.Load() == i {
				runtime.Gosched()
			}
			if ring[i%8] != i*3 {
				bad++
			}
			read.Store(i + 1)
		}
		done <- bad
	}()
	for i := uint64(0); i < rounds; i++ {
		for i-read.Load() == 8 {
			runtime.Gosched()
		}
		ring[i%8] = i * 3
		written.Store(i + 1)
	}
	if bad := <-done; bad != 0 {
		t.Errorf("%d of %d words were not there when the counter was", bad, rounds)
	}
}

func TestStore(t *testing.T) {
	words := [3]uint32{1, 2, 3}
	StoreUint32(&words[1], 0xfedcba98)
	nstest.ErrorIf(t, words != [3]uint32{1, 0xfedcba98, 3}, "%#x", words)
	long := [3]uint64{1, 2, 3}
	StoreUint64(&long[1], 0xfedcba9876543210)
	nstest.ErrorIf(t, long != [3]uint64{1, 0xfedcba9876543210, 3}, "%#x", long)
}

func BenchmarkStore(b *testing.B) {
	b.Run("atomic", func(b *testing.B) {
		var v atomic.Uint64
		for i := range b.N {
			v.Store(uint64(i))
		}
	})
	b.Run("ordered", func(b *testing.B) {
		var v Uint64
		for i := range b.N {
			v.Store(uint64(i))
		}
	})
}
