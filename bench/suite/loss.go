package suite

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// lossGroups ask what faults of the network cost.
var lossGroups = []group{{
	slow: true, name: report.LossGroup, title: "Goodput and ping-pong when the network loses and reorders frames",
	turn: 30 * time.Second,
	run:  func(s *session) *report.Group { return s.underFaults(faultRows(s.Quick), faults) },
}}

// A fault is what the forwarder does to the frames of both directions.
type fault struct {
	name   string
	faults testbed.Faults
	hit    func(testbed.EmulatorCounters) uint64 // frames that it befell
}

// faults are the points of the group. The first has none: it is what the others are
// compared with.
var faults = []fault{
	{lossless, testbed.Faults{}, nil},
	{"loss-0.1%", testbed.Faults{Loss: 0.001}, lostFrames},
	{"loss-1%", testbed.Faults{Loss: 0.01}, lostFrames},
	{"loss-5%", testbed.Faults{Loss: 0.05}, lostFrames},
	{"burst-1%", testbed.Faults{Burst: 0.01 / burstFrames, BurstLen: burstFrames}, lostFrames},
	{"reorder-2%", testbed.Faults{Reorder: 0.02, ReorderBy: reorderBy}, func(n testbed.EmulatorCounters) uint64 { return n.Reordered }},
}

const (
	lossless    = "lossless"
	burstFrames = 8
	reorderBy   = 100 * time.Microsecond

	lossBulk = 64 << 10 // bytes of a message of the stream
	lossPing = 64       // and of the ping-pong
)

// lossName is how a loss is called.
func lossName(loss float64) string {
	if loss == 0 {
		return lossless
	}
	return fmt.Sprintf("loss-%g%%", 100*loss)
}

func lostFrames(n testbed.EmulatorCounters) uint64 { return n.Lost + n.LostInBurst }

// A faultRow is a transport, and TCP's congestion control.
type faultRow struct {
	label, transport, congestion string
	least                        int // round trips of a ping-pong, however long they take
}

// faultRows are ours and those of the kernel's TCP. A loss costs TCP's ping-pong a
// fifth of a second, so that it makes fewer round trips. A quick run has one TCP.
func faultRows(quick bool) []faultRow {
	rows := []faultRow{{delivery, delivery, "", 2000}, {report.LossTCP, tcpSpin, "cubic", 50}}
	if !quick && hasCongestion("bbr") {
		rows = append(rows, faultRow{report.LossBBR, tcpSpin, "bbr", 50})
	}
	return rows
}

// hasCongestion reports whether the kernel has a congestion control ready.
func hasCongestion(name string) bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return err == nil && slices.Contains(strings.Fields(string(b)), name)
}

// params are those of the row's endpoints. After losses in bursts, TCP's retransmission
// timeout is a fifth of a second and doubles each time. Kernels with TCP_RTO_MAX_MS
// bound it to a second.
func (r faultRow) params(p *bench.Params) {
	p.Congestion, p.WaitLimit = r.congestion, waitLimit
	if r.congestion != "" {
		p.LongestTimeout = time.Second
	}
}

// waitLimit is how long a side waits without progress: TCP's timer doubles up to
// minutes while a burst lasts, which ends with the eighth frame.
const waitLimit = time.Minute

const (
	settleTime = 50 * time.Millisecond  // of a stream after a fault
	lossTime   = 200 * time.Millisecond // of a stream and a ping-pong, at least: some frames are lost where one in a thousand is
	faultTime  = time.Minute            // in which a fault has to befall a frame; short streams have few
)

// underFaults measures each transport with each fault in each turn. The first fault is
// none.
func (s *session) underFaults(rows []faultRow, faults []fault) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "fault"},
		Notes: []string{
			"Two namespaces joined through a third, whose forwarder does the same to the frames of both directions: loses a share of them, each by itself (loss) or in runs of " +
				fmt.Sprint(burstFrames) + " (burst: the share of all that is lost), or holds a share back for " + fmt.Sprint(reorderBy) + " (reorder: none is lost). Each direction has a thread that runs on its sender's CPU before any other program.",
			fmt.Sprintf("Goodput is that of a stream of messages of %s, and its ratio to the mean of a lossless one right before it and one right behind it, of the same transport on the same path. The ping-pong is of %d bytes, and its latencies are whole round trips.", sizeName(lossBulk), lossPing),
			"Frames hit are those that the forwarder counts as lost or held back, of all that both sides sent; spurious are those that arrived again though they had arrived, as the receiver counts them (TCP: reports them, by DSACK). Both are of the stream.",
			"TCP runs on a pair of its own with the same faults, without an XDP program and without segmentation offload; its retransmission time-out is bounded to a second where the kernel can do that (Linux 6.15), since a burst of frames otherwise lasts for minutes.",
		},
	}
	s.through(func(bed *bench.Bed) {
		s.gather(g, s.turns(), func(t *sheet) {
			for _, row := range rows {
				s.faulty(bed, g, t, row, faults)
			}
		})
	})
	var all []bench.Row
	for _, row := range rows {
		all = append(all, bench.Row{Name: row.transport})
	}
	g.Conditions.Polling = bench.PollingOf(all)
	return g
}

// faulty measures a transport with all faults in one turn. Each stream with a fault is
// compared with streams without a fault right before and after it.
func (s *session) faulty(bed *bench.Bed, g *report.Group, t *sheet, row faultRow, faults []fault) {
	least := row.least
	if s.Quick {
		least = 20
	}
	m := lossMeter{session: s, bed: bed, xdp: bench.UsesXDP(row.transport), seed: uint64(t.turn)}
	bed.SetFaults(m.xdp, testbed.Faults{})
	s.within(bed, g, bench.Row{Name: row.transport}, lossBulk, func(at *bench.Session) {
		m.at = at
		none, bases := t.at(row.label, 0), []float64(nil)
		for i, f := range faults {
			s.step("%s, %s", row.label, f.name)
			p := t.at(row.label, float64(i))
			p.label = f.name
			if i > 0 {
				mbps, base := m.between(none, faults[0], p, f)
				bases = append(bases, base)
				p.put(report.Bandwidth, mbps)
				p.put(report.GoodputRatio, mbps/base)
			}
			m.set(f)
			r := fail.Must(m.at.PingPong(s.ctx, lossPing, s.longer(lossTime), least))
			p.times(r.RoundTrips, micro)
			p.disturb(r.Disturbed)
		}
		none.put(report.Bandwidth, report.ValueOf(bases).Median)
		none.put(report.GoodputRatio, 1)
		m.set(faults[0])
	}, row.params)
}

// lossMeter measures one transport in one turn.
type lossMeter struct {
	*session
	bed  *bench.Bed
	at   *bench.Session
	xdp  bool // it runs on the pair for AF_XDP
	seed uint64
}

// set begins a fault.
func (m *lossMeter) set(f fault) {
	f.faults.Seed = m.seed
	m.bed.SetFaults(m.xdp, f.faults)
}

// crossed are the frames that both sides have sent.
func (m *lossMeter) crossed() testbed.EmulatorCounters {
	a, b := m.bed.Crossed(m.xdp)
	return a.Plus(b)
}

// between streams with fault f, and right before and behind that with none: base is the
// mean of those two.
func (m *lossMeter) between(at *gathered, none fault, p *gathered, f fault) (mbps, base float64) {
	before := m.stream(at, none)
	mbps = m.stream(p, f)
	m.set(none)
	fail.Must(m.at.Stream(m.ctx, lossBulk, settleTime, 1)) // windows grow again
	return mbps, (before + m.stream(at, none)) / 2
}

// stream streams until the fault has befallen a frame, and notes what was sent again.
func (m *lossMeter) stream(p *gathered, f fault) (mbps float64) {
	m.set(f)
	before := fail.Must(m.at.Repeats(m.ctx))
	start := m.crossed()
	var n testbed.EmulatorCounters
	for end := time.Now().Add(faultTime); ; {
		r := fail.Must(m.at.Stream(m.ctx, lossBulk, m.longer(lossTime), 1))
		mbps = r.MBps
		p.disturb(r.Disturbed)
		if n = m.crossed().Since(start); f.hit == nil || f.hit(n) > 0 {
			break
		}
		if time.Now().After(end) {
			fail.With("none of %d frames met the fault", n.Taken)
		}
	}
	if n.Overrun > 0 {
		p.disturb([]string{"the forwarder was too slow for its frames"})
	}
	after := fail.Must(m.at.Repeats(m.ctx))
	repeats, sent := after.Since(before), float64(max(n.Taken, 1))
	if f.hit != nil {
		p.put(report.FaultRatio, float64(f.hit(n))/sent)
	}
	p.put(report.ResentRatio, float64(repeats.Resent)/sent)
	p.put(report.SpuriousRatio, float64(repeats.Spurious)/sent)
	return mbps
}
