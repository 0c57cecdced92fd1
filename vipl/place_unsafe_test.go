package vipl_test

import (
	"bytes"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"viaxdp/vipl"
)

// All bytes arrive and no others change, wherever a write begins and ends.
func TestCopyAscending(t *testing.T) {
	for from := range 9 {
		for n := range 40 {
			var words [8]uint64 // aligned
			memory := unsafe.Slice((*byte)(unsafe.Pointer(&words)), 64)
			src := make([]byte, n)
			for i := range src {
				src[i] = byte(i + 1)
			}
			want := make([]byte, 64)
			copy(want[from:], src)
			vipl.CopyAscending(memory[from:from+n], src)
			errorIf(t, !bytes.Equal(memory, want), "%d bytes at %d: % x", n, from, memory)
		}
	}
}

// A program that polls the last word of a write, or a word that contains a shorter write, sees the whole word,
// and the race detector reports nothing.
func TestLastWordIsWhole(t *testing.T) {
	for _, c := range []struct{ from, n, word int }{
		{0, 8, 8}, {4, 4, 4}, {0, 4, 4}, {4, 8, 4}, {3, 9, 4}, {0, 12, 4}, {0, 16, 8}, {7, 1, 1}, {6, 2, 1}, {1, 7, 4}, {3, 5, 4},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var words [2]uint64
			memory := unsafe.Slice((*byte)(unsafe.Pointer(&words)), 16)
			end := c.from + c.n
			load := func() uint64 { return atomic.LoadUint64(&words[(end-1)/8]) }
			if end%8 != 0 {
				load = func() uint64 { return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&memory[end-4])))) }
			}
			const rounds = 20_000
			var stop atomic.Bool
			written := make(chan struct{})
			go func() {
				defer close(written)
				for i := 0; i < rounds && !stop.Load(); i++ {
					vipl.CopyAscending(memory[c.from:end], bytes.Repeat([]byte{byte(i)}, c.n))
				}
			}()
			for done := false; !done; {
				select {
				case <-written:
					done = true
				default:
				}
				w := load()
				var b [8]byte
				*(*uint64)(unsafe.Pointer(&b)) = w
				last := b[8-c.word:]
				if end%8 != 0 {
					last = b[4-c.word : 4]
				}
				if bytes.Count(last, last[:1]) != c.word {
					stop.Store(true)
					t.Errorf("half a word: % x", last)
				}
				runtime.Gosched()
			}
		})
	}
}
