package testbed

import "testing"

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    string
	}{{nil, ""}, {[]int{0}, "0"}, {[]int{0, 1, 2, 3}, "0-3"}, {[]int{1, 3, 4, 8}, "1,3-4,8"}} {
		if got := ranges(c.numbers); got != c.want {
			t.Errorf("%v: %q, want %q", c.numbers, got, c.want)
		}
	}
}
