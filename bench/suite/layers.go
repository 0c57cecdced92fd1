package suite

import (
	"fmt"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

const (
	vianetRow = "vianet"
	tcpNet    = "tcp-net"
)

// layerGroups measure package vianet beside the layer below it and the one that it
// replaces.
var layerGroups = []group{
	experiment{
		axis: alongSizes, base: delivery,
		notes: []string{"vianet sends from and receives into memory of the NIC's arena, as the VI does.", loneKernelPair},
		parts: func(quick bool) []part {
			rows := plain(vianetRow, delivery, tcpNet)
			first := exchange(rows, fewer(quick, slices.Concat([]int{8}, powers(4, 64, 1<<20)), 64, 65536))
			return []part{first, exchange(rows, fewer(quick, powers(4, 4096, 1<<20), 65536)).named(9000)}
		},
	}.group("layers-messages", "Messages of vianet beside a VI and package net", 12*time.Second),
	{
		name: "layers-http", title: "HTTP requests over vianet and over TCP",
		turn: 4 * time.Second, most: bench.MaxTime, run: (*session).layersHTTP,
	},
	{
		slow: true, name: "layers-loss", title: "Goodput and ping-pong of vianet when the network loses frames",
		turn: 9 * time.Second,
		run: func(s *session) *report.Group {
			rows := []faultRow{{vianetRow, vianetRow, "", 2000}, {delivery, delivery, "", 2000}, {report.LossTCP, tcpSpin, "cubic", 50}}
			some := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name != lossless && f.name != "loss-1%" })
			return s.underFaults(rows, some)
		},
	},
}

const (
	httpVianet = "net/http over vianet"
	httpTCP    = "net/http over TCP"
)

func (s *session) layersHTTP() *report.Group {
	load := bench.HTTPLoad{Bytes: 1024, Connections: 16, Duration: s.longer(time.Second)}
	g := &report.Group{Axis: alongSizes, Base: httpTCP, Notes: []string{
		fmt.Sprintf("net/http on both sides, unchanged: %d connections that are kept, each with one request under way. Messages are requests.", load.Connections),
		loneKernelPair,
	}}
	bed := s.bed(s.mtu())
	return s.gather(g, s.turns(), func(t *sheet) {
		for _, series := range []string{httpVianet, httpTCP} {
			s.step("%s", series)
			load.Vianet = series == httpVianet
			r := fail.Must(bed.HTTP(s.ctx, load))
			at := t.at(series, float64(load.Bytes))
			at.put(report.Rate, r.PerSecond)
			at.n += r.Requests
			at.disturb(r.Disturbed)
			g.Conditions = conditionsOf(g.Conditions, r.Conditions)
		}
	})
}
