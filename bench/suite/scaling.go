package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/mpirun"
	"viaxdp/internal/testbed"
	"viaxdp/mvich/mpiapps"
)

// scalingGroups are applications of mvich on more and more ranks.
var scalingGroups = []group{{
	slow: true, name: "layers-scaling", title: "Strong scaling of a stencil and of conjugate gradients over mvich",
	cost: func(s *session) time.Duration {
		run := 3 * time.Second
		if s.Quick {
			run = ranksTime
		}
		cpus, _ := testbed.AllowedCPUs() // scaling says what is wrong
		return time.Duration(s.turns()*len(mpiapps.Names())*len(scalingRanks(len(cpus)))) * run
	},
	run: (*session).scaling,
}}

// ranksTime is about what starting and ending ranks takes.
const ranksTime = 500 * time.Millisecond

// scalingRanks are the ranks of each run, as many at most as there are CPUs, but 4 in any
// case. The first is what the others are compared with.
func scalingRanks(cpus int) (all []int) {
	for n := 1; n <= min(max(4, cpus), testbed.MaxStar); n *= 2 {
		all = append(all, n)
	}
	return all
}

// mostWaited is the share of the time that ranks may be without a CPU, where they are
// not more than CPUs, before their figures are doubtful.
const mostWaited = 0.1

// scalingTime bounds one run.
const scalingTime = 5 * time.Minute

// scaling runs each application with each number of ranks in each turn. Every run
// checks its result against a serial one.
func (s *session) scaling() (*report.Group, error) {
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	g := &report.Group{Axis: report.Axis{Name: "ranks", Log: true}, Conditions: bench.HostConditions(), Notes: []string{
		"The same problem on each number of ranks, in namespaces of their own, joined by a veth pair or a bridge. Speed-up is the time of one rank by that of all, in the same turn; efficiency is speed-up by ranks. Communication is the share of the time that is spent in calls of mvich, waiting included, mean of the ranks.",
		"Rank 0 of each run computes the problem alone afterwards; a result that differs (the stencil's by a bit, that of conjugate gradients by a millionth of the largest value) fails the run.",
		fmt.Sprintf("Ranks run on %d CPUs: more of them cannot be faster, and those that wait sleep.", len(cpus)),
	}}
	if len(s.AppArgs) == 0 {
		return nil, errors.New("no arguments with which this program becomes a rank of an application")
	}
	g.Conditions.Interface, g.Conditions.MTU = testbed.StarInterface, s.mtu()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t, counts := newSheet(nil), scalingRanks(len(cpus))
	for turn := 1; turn <= s.turns(); turn++ {
		for _, name := range mpiapps.Names() {
			var alone float64
			for _, ranks := range counts {
				s.step("%s, ranks: %d (turn %d of %d)", name, ranks, turn, s.turns())
				r, err := s.runApp(self, name, ranks)
				if err != nil {
					return nil, fmt.Errorf("%s, ranks: %d: %w", name, ranks, err)
				}
				if ranks == counts[0] {
					alone = r.Seconds
				}
				at := t.at(fmt.Sprintf("%s, %d x %d", name, r.Size, r.Size), float64(ranks))
				at.put(report.Elapsed, 1e3*r.Seconds)
				at.put(report.Speedup, alone/r.Seconds)
				at.put(report.Efficiency, alone/r.Seconds/float64(ranks))
				at.put(report.Communication, r.Communication)
				at.n += int64(r.Steps)
				var reasons []string
				if ranks <= len(cpus) && r.Waited > mostWaited {
					reasons = []string{fmt.Sprintf("a rank waited for a CPU more than %.0f %% of the time", 100*mostWaited)}
				}
				at.disturb(turn, reasons)
			}
		}
	}
	return g, t.fill(g, s.at.Group, s.Out)
}

// runApp runs an application once.
func (s *session) runApp(self, name string, ranks int) (*mpiapps.Result, error) {
	args := append([]string{self}, s.AppArgs...)
	args = append(args, "--json")
	if s.Quick {
		args = append(args, "--size", "64", "--steps", "20")
	}
	ctx, cancel := context.WithTimeout(s.ctx, scalingTime)
	defer cancel()
	var out, errs bytes.Buffer
	err := mpirun.Run(ctx, mpirun.Job{Ranks: ranks, Program: append(args, name), MTU: s.mtu(), Stdout: &out, Stderr: &errs})
	if err != nil {
		if said := bytes.TrimSpace(errs.Bytes()); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	var r mpiapps.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("it printed %q: %w", out.Bytes(), err)
	}
	if r.Ranks != ranks || !(r.Seconds > 0) {
		return nil, fmt.Errorf("it printed %q", out.Bytes())
	}
	return &r, nil
}
