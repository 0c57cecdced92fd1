package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// pattern is the content of checked messages: every message of a round starts
// at another place of one table of random bytes, so that a byte that is lost,
// moved, doubled or taken from another message is seen.
var pattern = func() []byte {
	table := make([]byte, MaxMessage+patternShift)
	r := rand.New(rand.NewPCG(0x7669612d, 0x786470)) // both sides have the same
	for i := 0; i+8 <= len(table); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			table[i+j] = byte(v >> (8 * j))
		}
	}
	return table
}()

// patternShift is the number of starting places; a prime, so that it has
// nothing in common with sizes and counts.
const patternShift = 8191

// content is the part of message number i from byte off, n bytes long. The
// echo of a message has the same content.
func content(i, off, n int) []byte {
	start := i*257%patternShift + off
	return pattern[start : start+n]
}

// verify compares a part of a message with what was sent.
func verify(i, off int, got []byte) error {
	want := content(i, off, len(got))
	if bytes.Equal(got, want) {
		return nil
	}
	for j := range got {
		if got[j] != want[j] {
			return fmt.Errorf("message %d: byte %d is %#02x, not %#02x", i, off+j, got[j], want[j])
		}
	}
	return nil
}
