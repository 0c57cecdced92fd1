// Package crc32c computes the CRC-32 with Castagnoli's polynomial, as package
// hash/crc32 does, but on processors with wide carry-less multiplication
// (AVX-512 and VPCLMULQDQ: Intel from Ice Lake, AMD from Zen 4) three to five
// times as fast where there is enough data, and twice as fast for a few bytes
// that are not aligned.
//
//	sum := crc32c.Update(0, header)
//	sum = crc32c.Update(sum, payload)
//
// The sum is folded four registers of 64 bytes at a time, as V. Gopal et al.,
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
// (Intel, 2009) shows for registers of 16 bytes.
//
// All functions may be called concurrently; nothing is allocated.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Update is crc32.Update with the Castagnoli table: the sum of what gave sum,
// followed by b.
func Update(sum uint32, b []byte) uint32 {
	if len(b) >= leastWide && wide {
		whole := len(b) &^ (block - 1)
		sum = ^foldWide(^sum, b[:whole], &folds)
		b = b[whole:]
	}
	if len(b) <= mostShort && short {
		return ^foldShort(^sum, b)
	}
	return crc32.Update(sum, table, b)
}

const (
	block = 256 // bytes that are folded at a time
	// leastWide is from when on folding pays.
	leastWide = block
	// mostShort is up to when one instruction for each eight bytes is best, which
	// hash/crc32 has, too, but only for bytes that are aligned.
	mostShort = 160
)

// power is x^n modulo the polynomial, bits reversed, in the form in which
// carry-less multiplication takes it.
func power(n int) uint64 {
	const polynomial = 0x82f63b78 // Castagnoli's, bits reversed
	p := uint32(1) << 31          // 1
	for range n {
		// The highest power is the lowest bit.
		if p&1 != 0 {
			p = p>>1 ^ polynomial
		} else {
			p >>= 1
		}
	}
	return uint64(p) << 1
}

// folds are the factors that move 16 bytes forward by a number of bits, for the first
// eight bytes and for the other eight.
var folds = [...][2]uint64{
	factors(8 * block), factors(8 * 192), factors(8 * 128), factors(8 * 64),
	factors(8 * 48), factors(8 * 32), factors(8 * 16), {},
}

func factors(bits int) [2]uint64 { return [2]uint64{power(bits + 32), power(bits - 32)} }
