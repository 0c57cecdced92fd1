package crc32c

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// A power is what it is by hand: the highest bit stands for x^0, all one place
// to the left.
func TestPower(t *testing.T) {
	for n, want := range map[int]uint64{0: 1 << 32, 1: 1 << 31, 31: 1 << 1, 32: 0x82f63b78 << 1} {
		if got := power(n); got != want {
			t.Errorf("x^%d is %#x, want %#x", n, got, want)
		}
	}
}

// Every length and start gives what the standard library gives.
func TestUpdate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 70_000)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	to := make([]byte, len(b)+2)
	check := func(sum uint32, b []byte) {
		want := crc32.Update(sum, table, b)
		if got := Update(sum, b); got != want {
			t.Fatalf("%d bytes after %#x: %#x, want %#x", len(b), sum, got, want)
		}
		copied(t, sum, to, b, want)
	}
	for n := range 3 * block * 3 {
		check(0, b[:n])
		check(rng.Uint32(), b[n%67:][:n])
	}
	for range 2000 {
		from := rng.IntN(len(b))
		check(rng.Uint32(), b[from:from+rng.IntN(len(b)-from+1)])
	}
	clear(b)
	check(0, b)
	check(^uint32(0), b)
}

// copied checks Copy, which touches nothing beside the copy.
func copied(t *testing.T, sum uint32, to, b []byte, want uint32) {
	t.Helper()
	to = to[:len(b)+2]
	to[0], to[len(b)+1] = 0xa5, 0x5a
	clear(to[1 : len(b)+1])
	if got := Copy(sum, to[1:len(b)+1], b); got != want {
		t.Fatalf("%d bytes copied after %#x: %#x, want %#x", len(b), sum, got, want)
	}
	if !bytes.Equal(to[1:len(b)+1], b) || to[0] != 0xa5 || to[len(b)+1] != 0x5a {
		t.Fatalf("%d bytes are not copied exactly", len(b))
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("short"))
	f.Add(^uint32(0), make([]byte, 3*block+1))
	f.Fuzz(func(t *testing.T, sum uint32, b []byte) {
		if got, want := Update(sum, b), crc32.Update(sum, table, b); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
		copied(t, sum, make([]byte, len(b)+2), b, crc32.Update(sum, table, b))
		k := len(b) / 3
		if got, want := Update(Update(sum, b[:k]), b[k:]), crc32.Update(sum, table, b); got != want {
			t.Fatalf("in two parts %#x, want %#x", got, want)
		}
	})
}

// Each size twice: by the standard library and here.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{44, 64, 128, 160, 256, 512, 1450, 4096, 65536} {
		data := make([]byte, n+2)[2:] // as behind an Ethernet header
		for name, update := range map[string]func(uint32, []byte) uint32{
			"std":  func(sum uint32, d []byte) uint32 { return crc32.Update(sum, table, d) },
			"wide": Update,
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					update(1, data)
				}
			})
		}
	}
}

// BenchmarkCopy is the same with a copy: first copied, then summed, and both at once.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{64, 512, 1424, 4000} {
		from, to := make([]byte, 64<<10), make([]byte, 128<<10)
		for name, copies := range map[string]func(to, from []byte) uint32{
			"twice": func(to, from []byte) uint32 { return Update(0, to[:copy(to, from)]) },
			"once":  func(to, from []byte) uint32 { return Copy(0, to, from) },
		} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for i := 0; b.Loop(); i++ {
					at := i % (len(from) / n)
					copies(to[at*4096%(64<<10)+90:], from[at*n:][:n]) // behind the headers in a chunk
				}
			})
		}
	}
}
