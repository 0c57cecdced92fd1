package suite

import (
	"fmt"
	"slices"

	"viaxdp/bench"
)

// Names of transports that many groups have.
const (
	rawRings    = "raw-afxdp"
	rawCopy     = "raw-afxdp-copy"
	unreliable  = "vi-unreliable"
	delivery    = "vi-reliable-delivery"
	waiting     = "vi-reliable-delivery-wait"
	reception   = "vi-reliable-reception"
	rdmaWrite   = "vi-rdma-write"
	rdmaRead    = "vi-rdma-read"
	tcpSpin     = "tcp-spin"
	tcpBlock    = "tcp-block"
	udpSpin     = "udp-spin"
	besideLabel = "tcp-spin on the XDP pair"
)

// plain are rows of transports that are used as usual. The name of one whose
// latency is a whole round trip says so.
func plain(names ...string) []row {
	var rows []row
	for _, n := range names {
		label := n
		if bench.RoundTrip(n) {
			label += " (round trip)"
		}
		rows = append(rows, row{Row: bench.Row{Label: label, Name: n}})
	}
	return rows
}

// with is a row of a VI with options.
func with(label, name string, o bench.VIOptions) row {
	return row{Row: bench.Row{Label: label, Name: name, VI: o}}
}

// along are rows of Reliable Delivery with one option at each of its values,
// which are their places on the axis.
func along(values []int, what string, set func(*bench.VIOptions, int)) []row {
	var rows []row
	for _, n := range values {
		r := with(fmt.Sprintf("%s, %d %s", delivery, n, what), delivery, bench.VIOptions{})
		set(&r.VI, n)
		r.x = float64(n)
		rows = append(rows, r)
	}
	return rows
}

// fewer is all of them, or when quick some.
func fewer(quick bool, all []int, some ...int) []int {
	if quick {
		return some
	}
	return all
}

// powers are those of base from the first to the last, which is there in any
// case.
func powers(base, first, last int) []int {
	var values []int
	for v := first; v < last; v *= base {
		values = append(values, v)
	}
	return append(values, last)
}

// exchange is a part with ping-pong and stream at message sizes.
func exchange(rows []row, sizes []int) part {
	return part{rows: rows, sizes: sizes, latency: true, bandwidth: true, place: bySize}
}

// concat joins rows.
func concat(rows ...[]row) []row { return slices.Concat(rows...) }

// mtuSuffix ends the name of a series with an MTU other than its group's.
func mtuSuffix(mtu int) string { return fmt.Sprintf(" MTU %d", mtu) }

// sizeName is a size as people write it.
func sizeName(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d B", bytes)
}
