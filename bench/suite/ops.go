package suite

import (
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// opsGroups are VIBe's operations that move no data.
var opsGroups = []group{
	{
		name: "vibe-ops", title: "Operations that move no data",
		cost: func(s *session) time.Duration {
			return s.about(0, 2) + time.Duration(s.turns()*operations(s.Quick))*time.Millisecond
		},
		run: runOps,
	},
	{
		name: "vibe-register", title: "Registering and deregistering memory",
		cost: func(s *session) time.Duration {
			sum := time.Duration(0)
			for _, bytes := range registered(s.Quick) {
				sum += time.Duration(operations(s.Quick)*min(bytes, bench.LargeMemory)) * clearing
			}
			return s.about(0, 1) + time.Duration(s.turns())*sum/1000
		},
		run: runRegister,
	},
}

// clearing is about what it takes to clear a kilobyte of the arena.
const clearing = 50 * time.Nanosecond

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
func runOps(s *session) (*report.Group, error) {
	g := &report.Group{
		Axis: report.Axis{Name: "operation"},
		Notes: []string{
			medianOfOperations,
			"Connect is VipConnectRequest of a client to a server that waits in VipConnectWait, until the connection stands on the client's side; disconnect is VipDisconnect there, until the server has acknowledged it.",
		},
	}
	t := newSheet(nil)
	for _, name := range []string{
		bench.OpCreateVI, bench.OpDestroyVI, bench.OpConnect, bench.OpDisconnect, bench.OpCreateCQ, bench.OpDestroyCQ,
		bench.OpCreatePtag, bench.OpDestroyPtag,
	} {
		t.at(name, 0) // their order
	}
	err := s.inTurns(g, []string{delivery}, bench.MaxLoadBytes, func(turn int, _ string, at *bench.Session) error {
		s.step("connections (turn %d of %d)", turn, s.turns())
		r, err := at.Connections(s.ctx, operations(s.Quick))
		if err != nil {
			return err
		}
		t.operations(turn, r)
		return nil
	})
	if err == nil {
		err = s.operate(g, t, nil)
	}
	if err != nil {
		return nil, err
	}
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	for i := range g.Series {
		// Each operation is a row of its own, and has no place on an axis.
		g.Series[i].Points[0].X, g.Series[i].Points[0].Label = float64(i), g.Series[i].Name
	}
	return g, nil
}

// runRegister measures memory, by its size.
func runRegister(s *session) (*report.Group, error) {
	g := &report.Group{
		Axis: report.Axis{Name: "memory", Unit: "bytes", Log: true},
		Notes: []string{
			medianOfOperations,
			"Memory of the arena is given out cleared, which is what its time consists of. It was mapped when the NIC was opened.",
			"The program's memory is neither mapped nor pinned by registering it: bytes are copied between it and the NIC's frames.",
		},
	}
	t := newSheet(nil)
	if err := s.operate(g, t, registered(s.Quick)); err != nil {
		return nil, err
	}
	return g, t.fill(g, s.at.Group, s.Out)
}

// operate measures the operations of a NIC in each turn: those on memory, or
// without sizes the others.
func (s *session) operate(g *report.Group, t *sheet, sizes []int) error {
	bed, err := s.bed(s.mtu())
	if err != nil {
		return err
	}
	client, _ := bed.Workers()
	for turn := 1; turn <= s.turns(); turn++ {
		s.step("operations (turn %d of %d)", turn, s.turns())
		err := bed.Do(s.ctx, func() error {
			r, err := bench.Operate(s.ctx, client, bench.Operations{Sizes: sizes, Count: operations(s.Quick)}, bed.Opening)
			if err != nil {
				return err
			}
			t.operations(turn, r)
			g.Conditions = conditionsOf(g.Conditions, r.Conditions)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// operations takes the figures of one turn: a series of each operation, by the
// size of memory.
func (t *sheet) operations(turn int, r *bench.OperationsResult) {
	for _, o := range r.Times {
		at := t.at(o.Name, float64(o.Bytes))
		at.put(report.Operation, micro(o.Times.ValueAtQuantile(50)))
		at.n += o.Times.TotalCount()
		at.histograms = append(at.histograms, o.Times)
		at.disturb(turn, r.Disturbed)
	}
}
