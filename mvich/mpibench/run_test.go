package mpibench_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/mvich/mpibench"
)

// onOneNIC runs f on ranks that share a NIC in memory.
func onOneNIC(t *testing.T, ranks int, f func(c *mvich.Comm) error) {
	t.Helper()
	nic := memorynic.Alone(t, memorynic.Config{Arena: 4 << 20})
	launchers := mvich.Local(ranks)
	var wait sync.WaitGroup
	for rank := range ranks {
		wait.Go(func() {
			w, err := mvich.Init(nic, launchers[rank])
			if err == nil {
				err = errors.Join(f(w.Comm()), w.Finalize())
			}
			nstest.ErrorIf(t, err != nil, "rank %d: %v", rank, err)
		})
	}
	wait.Wait()
}

// Every benchmark returns a row for each size with consistent figures, and sends as many messages as it reports.
func TestBenchmarks(t *testing.T) {
	for _, name := range mpibench.Names() {
		t.Run(name, func(t *testing.T) {
			ranks := 2
			if strings.HasPrefix(name, "all") || name == "mbw_mr" {
				ranks = 4
			}
			onOneNIC(t, ranks, func(c *mvich.Comm) error {
				o := mpibench.Options{MaxSize: 16384, Iterations: 3, Warmup: 1, Window: 8}
				rows, err := mpibench.Run(c, name, o)
				if err != nil || c.Rank() > 0 {
					if len(rows) > 0 {
						return errors.New("a rank that is not the first has rows")
					}
					return err
				}
				nstest.Equal(t, "rows", len(rows), 15)
				for i, r := range rows {
					nstest.ErrorIf(t, r.Size != 1<<i || r.Count != 3, "%+v", r)
					nstest.ErrorIf(t, r.Time+r.MBps <= 0 || (r.Time > 0) == (r.MBps > 0), "%+v", r)
					nstest.ErrorIf(t, r.MBps > 0 && math.Abs(r.Rate*float64(r.Size)/1e6/r.MBps-1) > 1e-9,
						"%v messages a second of %d bytes are not %v MB/s", r.Rate, r.Size, r.MBps)
				}
				return printed(name, rows)
			})
		})
	}
}

// printed checks that what Print prints has a line for each row, with the size first.
func printed(name string, rows []mpibench.Row) error {
	var b strings.Builder
	if err := mpibench.Print(&b, name, rows); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != len(rows)+2 || !strings.HasPrefix(lines[1], "# Size") {
		return fmt.Errorf("printed:\n%s", b.String())
	}
	for i, line := range lines[2:] {
		if !strings.HasPrefix(line, fmt.Sprint(rows[i].Size, " ")) {
			return fmt.Errorf("line %q for %+v", line, rows[i])
		}
	}
	return nil
}

func TestWrong(t *testing.T) {
	onOneNIC(t, 1, func(c *mvich.Comm) error {
		run := func(name string, o mpibench.Options) error { return nstest.Err(mpibench.Run(c, name, o)) }
		for name, err := range map[string]error{
			"unknown":                    run("nothing", mpibench.Options{}),
			"alone":                      run("latency", mpibench.Options{}),
			"sizes":                      run("allreduce", mpibench.Options{MinSize: 8, MaxSize: 4}),
			"step":                       run("allreduce", mpibench.Options{Step: 1}),
			"a size that no message has": run("allreduce", mpibench.Options{MaxSize: math.MaxInt}),
			"a window that is too long":  run("allreduce", mpibench.Options{Window: math.MaxInt}),
			"not printed":                mpibench.Print(&strings.Builder{}, "nothing", nil),
		} {
			nstest.WantErr(t, name, err, mpibench.ErrBench)
		}
		return nil
	})
}

// Iterations are OSU's unless options reduce them, and Run makes as many as Iterations returns.
func TestIterations(t *testing.T) {
	for _, test := range []struct {
		name string
		size int
		o    mpibench.Options
		want int
	}{
		{"latency", 8192, mpibench.Options{}, 10000},
		{"latency", 8193, mpibench.Options{}, 1000},
		{"bw", 1, mpibench.Options{}, 100},
		{"bibw", 1 << 20, mpibench.Options{}, 10},
		{"alltoall", 1, mpibench.Options{Iterations: 7}, 7},
		{"latency", 1000, mpibench.Options{MostBytes: 9000}, 9},
		{"mbw_mr", 1000, mpibench.Options{MostBytes: 130_000}, 2},
		{"mbw_mr", 1000, mpibench.Options{MostBytes: 130_000, Window: 10}, 13},
		{"bw", 4 << 20, mpibench.Options{MostBytes: 1}, 1},
	} {
		n, err := mpibench.Iterations(test.name, test.size, test.o)
		nstest.ErrorIf(t, n != test.want || err != nil, "%s of %d bytes, %+v: %d, %v, want %d",
			test.name, test.size, test.o, n, err, test.want)
	}
	nstest.WantErr(t, "an unknown benchmark", nstest.Err(mpibench.Iterations("nothing", 1, mpibench.Options{})), mpibench.ErrBench)
	onOneNIC(t, 1, func(c *mvich.Comm) error {
		rows, err := mpibench.Run(c, "allreduce", mpibench.Options{MinSize: 3, MaxSize: 100, Step: math.MaxInt, Iterations: 1})
		if err != nil || len(rows) != 1 || rows[0].Size != 3 {
			return fmt.Errorf("one size: %+v, %w", rows, err)
		}
		return nil
	})
	onOneNIC(t, 2, func(c *mvich.Comm) error {
		o := mpibench.Options{MinSize: 16, MaxSize: 20000, Step: 32, MostBytes: 100_000, Window: 4}
		rows, err := mpibench.Run(c, "bw", o)
		if err != nil || c.Rank() > 0 {
			return err
		}
		var sizes []int
		for _, r := range rows {
			sizes = append(sizes, r.Size)
			n, err := mpibench.Iterations("bw", r.Size, o)
			nstest.ErrorIf(t, n != r.Count || err != nil, "%d iterations of %d bytes, want %d, %v", r.Count, r.Size, n, err)
		}
		nstest.Same(t, "sizes", sizes, []int{16, 512, 16384})
		return nil
	})
}
