package vianet_test

import (
	"testing"

	"viaxdp/vianet"
)

// The same over AF_XDP and a veth pair.
func TestVeth(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := overVeth(t, 1500, o)
		a, b := h.pair(t)
		exchange(t, a, b, 2<<20)
		if a.Close() != nil || b.Close() != nil {
			t.Error("Close failed")
		}
		h.conforms(t)
		a, b = h.pair(t)
		blockedEnds(t, a, b)
	}
}

func blockedEnds(t *testing.T, a, b *vianet.Conn) {
	t.Helper()
	checkFutureTimeout(t, a, b)
	checkCloseTimeout(t, a, b)
}
