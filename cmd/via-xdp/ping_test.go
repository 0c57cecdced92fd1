package main

import (
	"testing"
	"time"

	"viaxdp/internal/ops/ping"
)

// The median of an even number of answers is that of the middle two.
func TestPingSum(t *testing.T) {
	for _, c := range []struct {
		us               []int
		least, mid, most float64
	}{{nil, 0, 0, 0}, {[]int{5}, 5, 5, 5}, {[]int{9, 1}, 1, 5, 9}, {[]int{9, 1, 2}, 1, 2, 9}, {[]int{8, 1, 2, 4}, 1, 3, 8}} {
		var p pinged
		for _, n := range c.us {
			p.Replies = append(p.Replies, ping.Reply{RoundTrip: time.Duration(n) * time.Microsecond})
		}
		if p.sum(); p.Min != c.least || p.Median != c.mid || p.Max != c.most {
			t.Errorf("%v: least %v, median %v, most %v; want %v, %v, %v", c.us, p.Min, p.Median, p.Max, c.least, c.mid, c.most)
		}
	}
}
