// Package crc32c computes the CRC-32 with Castagnoli's polynomial, like package hash/crc32. On processors with wide
// carry-less multiplication (AVX-512 and VPCLMULQDQ: Intel from Ice Lake, AMD from Zen 4) it is three to five times
// as fast for enough data, and twice as fast for a few unaligned bytes.
//
//	sum := crc32c.Update(0, header)
//	sum = crc32c.Update(sum, payload)
//	sum = crc32c.Copy(sum, frame, payload) // copies the payload on the way
//
// The sum is folded four registers of 64 bytes at a time, as V. Gopal et al.,
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
// (Intel, 2009) shows for registers of 16 bytes.
//
// All functions may be called concurrently; nothing is allocated.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Update is crc32.Update with the Castagnoli table: given the sum of some bytes, it returns the sum of those bytes
// followed by b.
func Update(sum uint32, b []byte) uint32 {
	if len(b) >= leastWide && wide {
		whole := len(b) &^ (register - 1)
		sum = ^foldWide(^sum, b[:whole], &folds)
		b = b[whole:]
	}
	return updateShort(sum, b)
}

// Copy copies b to dst, which is at least as long and does not overlap with it, and returns Update(sum, dst[:len(b)]). It
// reads b once: the sum is that of the copy, even if b changes meanwhile.
func Copy(sum uint32, dst, b []byte) uint32 {
	dst = dst[:len(b)]
	if len(b) >= leastWide && wide {
		whole := len(b) &^ (register - 1)
		sum = ^foldCopy(^sum, &dst[0], b[:whole], &folds)
		dst, b = dst[whole:], b[whole:]
	}
	copy(dst, b)
	return updateShort(sum, dst)
}

func updateShort(sum uint32, b []byte) uint32 {
	if len(b) <= mostShort && short {
		return ^foldShort(^sum, b)
	}
	return crc32.Update(sum, table, b)
}

const (
	block    = 256 // bytes per folding step
	register = 64  // bytes of each of its registers, and of a step at the end
	// leastWide is the length from which folding pays.
	leastWide = block
	// mostShort is the length up to which one instruction for each eight bytes is fastest. hash/crc32 also uses it,
	// but only for aligned bytes.
	mostShort = 160
)

// power returns x^n modulo the polynomial, bits reversed, in the form that carry-less multiplication needs.
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

// folds has the factors that move 16 bytes forward by a number of bits, for the first eight bytes and for the other
// eight.
var folds = [...][2]uint64{
	factors(8 * block), factors(8 * 192), factors(8 * 128), factors(8 * register),
	factors(8 * 48), factors(8 * 32), factors(8 * 16), {},
}

func factors(bits int) [2]uint64 { return [2]uint64{power(bits + 32), power(bits - 32)} }
