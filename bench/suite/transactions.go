package suite

import (
	"fmt"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// transactionGroups are VIBe's test of a programming model: a client that calls
// a server.
var transactionGroups = []group{{
	name: "vibe-transactions", title: "Transactions: a request and its reply",
	cost: func(s *session) time.Duration {
		return s.about(len(callers)*len(replies(s.Quick)), len(callers))
	},
	run: runTransactions,
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
func runTransactions(s *session) (*report.Group, error) {
	g := &report.Group{
		Axis: report.Axis{Name: "reply size", Unit: "bytes", Log: true}, Base: tcpSpin,
		Notes: []string{
			fmt.Sprintf("A request has %d bytes. One transaction is under way at a time; its time is the whole of it, from the request until all of the reply is there, not half of that.", bench.RequestBytes),
			"Messages are transactions here: so many a second, and the CPU time that the client (tx) and the server (rx) spend on each.",
			"With a reply by RDMA write the client sends its request as ever, and looks at the last word of the reply in its memory; the server takes the request from a receive.",
			loneKernelPair,
		},
	}
	t, labels := newSheet(nil), map[string]string{}
	var transports []string
	for _, c := range callers {
		transports = append(transports, c.transport)
		labels[c.transport] = c.label
	}
	sizes := replies(s.Quick)
	err := s.inTurns(g, transports, sizes[len(sizes)-1], func(turn int, name string, at *bench.Session) error {
		for _, bytes := range sizes {
			s.step("%s, %s (turn %d of %d)", labels[name], sizeName(bytes), turn, s.turns())
			r, err := at.Transactions(s.ctx, bench.Transactions{Reply: bytes, Duration: s.duration()})
			if err != nil {
				return err
			}
			p := t.at(labels[name], float64(bytes))
			p.times(r.Times, micro)
			p.put(report.Rate, r.PerSecond)
			p.put(report.CPUTx, r.CPUTx)
			p.put(report.CPURx, r.CPURx)
			p.disturb(turn, r.Disturbed)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, t.fill(g, s.at.Group, s.Out)
}
