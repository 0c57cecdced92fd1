package crc32c

import (
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
	check := func(sum uint32, b []byte) {
		if got, want := Update(sum, b), crc32.Update(sum, table, b); got != want {
			t.Fatalf("%d bytes after %#x: %#x, want %#x", len(b), sum, got, want)
		}
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

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), []byte("short"))
	f.Add(^uint32(0), make([]byte, 3*block+1))
	f.Fuzz(func(t *testing.T, sum uint32, b []byte) {
		if got, want := Update(sum, b), crc32.Update(sum, table, b); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
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
