package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
)

var mpichNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, " +
	"in namespaces of their own joined by veth pairs of the same MTU without an XDP program."

// missingNote is of a row, a turn and a cause.
const missingNote = "No figures of %s from turn %d on, or not all of it: %v."

// theirs is MPICH's program, or none.
type theirs struct {
	dir  string
	path string // empty: MPICH is not installed
}

// newMPICH makes the program; note says how it is connected.
func (s *session) newMPICH(g *report.Group, note string) (t theirs, err error) {
	if !mpich.Installed() {
		g.Notes = append(g.Notes, fmt.Sprintf("No figures of %s: MPICH is not installed (Debian's package %s).", mpichRow, mpich.Package))
		return t, nil
	}
	if t.dir, err = os.MkdirTemp("", "via-xdp-mpich-"); err != nil {
		return t, err
	}
	if t.path, err = mpich.Build(s.ctx, t.dir); err != nil {
		t.close()
		return t, err
	}
	g.Notes = append(g.Notes, note, "MPICH "+mpich.Version(s.ctx)+".")
	return t, nil
}

func (t theirs) close() {
	if t.dir != "" {
		os.RemoveAll(t.dir)
	}
}

// trips is how many round trips, or windows of messages, of a size MPICH makes.
func trips(s *session, bytes int) (pings, windows int) {
	if s.Quick {
		return 50, 1
	}
	return max(20, min(5000, 20_000_000/bytes)), max(2, min(100, 50_000_000/(64*bytes)))
}

// theirMessages measures MPICH in one turn.
func (s *session) theirMessages(t theirs, sheet *sheet, p part, turn int) error {
	if t.path == "" {
		return nil
	}
	for _, bytes := range p.sizes {
		s.step("%s, %s (turn %d of %d)", mpichRow, sizeName(bytes), turn, s.turns())
		pings, windows := trips(s, bytes)
		series, x := p.place(row{Row: bench.Row{Label: mpichRow}}, bytes)
		at := sheet.at(series, x)
		for name, count := range map[string]int{"latency": pings, "bw": windows} {
			ctx, cancel := context.WithTimeout(s.ctx, mpichTime)
			rows, err := mpich.Run{
				Program: []string{t.path}, Names: []string{name}, Ranks: 2, MTU: p.mtu, Min: bytes, Max: bytes, Iterations: count,
			}.Measure(ctx)
			cancel()
			if err != nil {
				return err
			}
			got := rows[0]
			if name == "latency" {
				at.put(report.Min, got.Least)
				at.put(report.P50, got.P50)
				at.put(report.Mean, got.Mean)
				at.put(report.P99, got.P99)
				at.n += int64(got.Count)
			} else {
				at.put(report.Bandwidth, got.MBps)
				at.put(report.Rate, got.Messages)
			}
		}
	}
	return nil
}

// mpichTime bounds one run of it.
const mpichTime = 30 * time.Second

// rankProgram is this program with the arguments by which it becomes a rank that
// measures mvich, as MPICH's does.
func (s *session) rankProgram() ([]string, error) {
	if len(s.RankArgs) == 0 {
		return nil, errors.New("no arguments with which this program becomes a rank")
	}
	self, err := os.Executable()
	return append([]string{self}, s.RankArgs...), err
}

// iterations is n, or few when quick.
func (s *session) iterations(n int) int {
	if s.Quick {
		return 5
	}
	return n
}
