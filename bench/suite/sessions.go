package suite

import (
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// with opens a transport for f on the session's bed.
func (s *session) with(g *report.Group, name string, maxBytes int, f func(*bench.Session)) {
	s.within(s.bed(s.mtu()), g, bench.Row{Name: name}, maxBytes, f)
}

// within opens a transport for f on a bed. change, if any, alters the parameters of both sides.
func (s *session) within(bed *bench.Bed, g *report.Group, row bench.Row, maxBytes int, f func(*bench.Session), change ...func(*bench.Params)) {
	fail.If(bed.Session(s.ctx, s.asSet(row), maxBytes, func(at *bench.Session) error {
		return fail.Try(func() {
			f(at)
			g.Conditions = conditionsOf(g.Conditions, at.Conditions())
		})
	}, change...))
}

// leastP999 is how many messages must have been measured for the slowest
// thousandth to be one of them.
const leastP999 = 1000

// times takes the times of a turn in nanoseconds; us makes of each what is
// reported, in microseconds.
func (g *gathered) times(h *hdrhistogram.Histogram, us func(ns int64) float64) {
	g.put(report.Min, us(h.Min()))
	g.put(report.Max, us(h.Max()))
	g.put(report.P50, us(h.ValueAtQuantile(50)))
	g.put(report.Mean, us(int64(h.Mean())))
	g.put(report.Stdev, us(int64(h.StdDev())))
	g.put(report.P99, us(h.ValueAtQuantile(99)))
	if h.TotalCount() >= leastP999 {
		g.put(report.P999, us(h.ValueAtQuantile(99.9)))
	}
	g.n += h.TotalCount()
	g.histograms = append(g.histograms, h)
}

// micro is a time in nanoseconds, in microseconds.
func micro(ns int64) float64 { return float64(ns) / 1e3 }

// transactionGroups are VIBe's test of a programming model: a client that calls
// a server.
var transactionGroups = []group{{
	name: "vibe-transactions", title: "Transactions: a request and its reply",
	turn: 2 * time.Second, run: runTransactions,
}}

// callers are the transports of transactions, and what their rows are called.
var callers = []struct{ transport, label string }{
	{delivery, delivery},
	{rdmaWrite, delivery + ", reply by RDMA write"},
	{tcpSpin, tcpSpin},
}

// replies are the sizes of a reply.
func replies(quick bool) []int { return fewer(quick, powers(4, 4, 64<<10), 4, 4096) }

// runTransactions measures them one at a time.
func runTransactions(s *session) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "reply size", Unit: "bytes", Log: true}, Base: tcpSpin,
		Notes: []string{
			fmt.Sprintf("A request has %d bytes. One transaction is under way at a time; its time is the whole of it, from the request until all of the reply is there, not half of that.", bench.RequestBytes),
			"Messages are transactions here: so many a second, and the CPU time that the client (tx) and the server (rx) spend on each.",
			"With a reply by RDMA write the client sends its request as ever, and looks at the last word of the reply in its memory; the server takes the request from a receive.",
			loneKernelPair,
		},
	}
	sizes := replies(s.Quick)
	return s.gather(g, s.turns(), func(t *sheet) {
		for _, c := range callers {
			s.with(g, c.transport, sizes[len(sizes)-1], func(at *bench.Session) {
				for _, bytes := range sizes {
					s.step("%s, %s", c.label, sizeName(bytes))
					r := fail.Must(at.Transactions(s.ctx, bytes, s.duration()))
					p := t.at(c.label, float64(bytes))
					p.times(r.RoundTrips, micro)
					p.put(report.Rate, r.PerSecond)
					p.put(report.CPUTx, r.CPUTx)
					p.put(report.CPURx, r.CPURx)
					p.disturb(r.Disturbed)
				}
			})
		}
	})
}

// opsGroups are VIBe's operations that move no data.
var opsGroups = []group{
	{name: "vibe-ops", title: "Operations that move no data", turn: time.Second / 2, run: runOps},
	{name: "vibe-register", title: "Registering and deregistering memory", turn: time.Second / 2, run: runRegister},
}

// operations is how often each operation is done in a turn.
func operations(quick bool) int {
	if quick {
		return 20
	}
	return 200
}

// registered are the sizes of memory.
func registered(quick bool) []int {
	return fewer(quick, powers(4, 4<<10, 64<<20), 4<<10, 1<<20)
}

const medianOfOperations = "Each operation is timed singly, from the call until its return; a turn's figure is the median. Reading the clock takes part in it."

// runOps measures tags, completion queues, VIs and connections.
func runOps(s *session) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "operation"},
		Notes: []string{
			medianOfOperations,
			"Connect is VipConnectRequest of a client to a server that waits in VipConnectWait, until the connection stands on the client's side; disconnect is VipDisconnect there, until the server has acknowledged it.",
			"Connect of TCP is package net's Dial to a server in Accept; close does not wait for the server.",
		},
	}
	order := []string{
		bench.OpCreateVI, bench.OpDestroyVI, bench.OpConnect, bench.OpDisconnect, bench.OpConnectTCP, bench.OpCloseTCP, bench.OpCreateCQ, bench.OpDestroyCQ,
		bench.OpCreatePtag, bench.OpDestroyPtag,
	}
	return s.gather(g, s.turns(), func(t *sheet) {
		// Each operation is a row of its own, and has no place on an axis.
		at := func(o bench.OperationTimes) *gathered { return t.at(o.Name, float64(slices.Index(order, o.Name))) }
		for i, name := range order {
			t.at(name, float64(i)).label = name
		}
		s.with(g, delivery, bench.MaxLoadBytes, func(session *bench.Session) {
			s.step("connections")
			putOperations(fail.Must(session.Connections(s.ctx, operations(s.Quick))), at)
		})
		s.operate(g, nil, at)
	})
}

// runRegister measures memory, by its size.
func runRegister(s *session) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "memory", Unit: "bytes", Log: true},
		Notes: []string{
			medianOfOperations,
			"Memory of the arena is given out cleared, which is what its time consists of. It was mapped when the NIC was opened.",
			"The program's memory is neither mapped nor pinned by registering it: bytes are copied between it and the NIC's frames.",
		},
	}
	return s.gather(g, s.turns(), func(t *sheet) {
		s.operate(g, registered(s.Quick), func(o bench.OperationTimes) *gathered { return t.at(o.Name, float64(o.Bytes)) })
	})
}

// operate measures the operations of a NIC: those on memory, or without sizes the others.
func (s *session) operate(g *report.Group, sizes []int, at func(bench.OperationTimes) *gathered) {
	bed := s.bed(s.mtu())
	s.step("operations")
	r := fail.Must(bed.Operate(s.ctx, bench.Operations{Sizes: sizes, Count: operations(s.Quick)}))
	putOperations(r, at)
	g.Conditions = conditionsOf(g.Conditions, r.Conditions)
}

// putOperations takes the figures of one turn.
func putOperations(r *bench.OperationsResult, to func(bench.OperationTimes) *gathered) {
	for _, o := range r.Times {
		at := to(o)
		at.put(report.Operation, micro(o.Times.ValueAtQuantile(50)))
		at.n += o.Times.TotalCount()
		at.histograms = append(at.histograms, o.Times.Histogram)
		at.disturb(r.Disturbed)
	}
}
