package mpiapps

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// onOneNIC runs f on ranks that share a NIC in memory.
func onOneNIC(t *testing.T, ranks int, f func(c *mvich.Comm) error) {
	t.Helper()
	nic := memorynic.Alone(t, memorynic.Config{Arena: 16 << 20})
	launchers := mvich.Local(ranks)
	var wait sync.WaitGroup
	for rank := range ranks {
		wait.Go(func() {
			w, err := mvich.Init(nic, launchers[rank], mvich.WithSpin(50))
			if err == nil {
				err = errors.Join(f(w.Comm()), w.Finalize())
			}
			nstest.ErrorIf(t, err != nil, "rank %d: %v", rank, err)
		})
	}
	wait.Wait()
}

// Every application gets the result of a serial run, for any partition of the square, including uneven ones.
func TestRun(t *testing.T) {
	for _, name := range Names() {
		for _, ranks := range []int{1, 2, 3, 4, 6} {
			t.Run(fmt.Sprint(name, ranks), func(t *testing.T) {
				onOneNIC(t, ranks, func(c *mvich.Comm) error {
					r, err := Run(c, name, Options{Size: 37, Steps: 200})
					if c.Rank() > 0 {
						if r != nil {
							return errors.New("a rank that is not the first has a result")
						}
						return err
					}
					if err != nil {
						return err
					}
					if r.Name != name || r.Ranks != ranks || r.Size != 37 || r.Steps < 50 || r.Seconds <= 0 || r.SerialSeconds <= 0 ||
						r.Communication < 0 || r.Communication > 1 || name == "stencil" && r.Difference != 0 {
						return fmt.Errorf("%+v", r)
					}
					var out bytes.Buffer
					if err := r.Print(&out); err != nil || !strings.Contains(out.String(), fmt.Sprintf("ranks: %d:", ranks)) {
						return fmt.Errorf("printed %q, %w", &out, err)
					}
					return nil
				})
			})
		}
	}
}

// A block that no message can carry to rank 0 is refused before it is computed.
func TestLargestSquare(t *testing.T) {
	for ranks, want := range map[int]error{1: nil, 2: ErrApp, 4: ErrApp, 5: nil} {
		onOneNIC(t, ranks, func(c *mvich.Comm) error {
			nstest.WantErr(t, fmt.Sprint(ranks, " ranks"), nstest.Err(newPlane(c, MaxSize)), want)
			return nil
		})
	}
}

// A step of the stencil makes each point the mean of its neighbours.
func TestOneStep(t *testing.T) {
	const n = 9
	before := func(row, col int) float64 {
		if row == 0 || col == 0 || row == n+1 || col == n+1 {
			return temperature(n, row, col)
		}
		return 0
	}
	got, err := apps["stencil"].serial(n, 1)
	nstest.Must(t, err)
	for row := 1; row <= n; row++ {
		for col := 1; col <= n; col++ {
			want := (before(row-1, col) + before(row+1, col) + before(row, col-1) + before(row, col+1)) / 4
			if v := got[(row-1)*n+col-1]; math.Abs(v-want) > 1e-12 {
				t.Errorf("%d, %d: %v, want %v", row, col, v, want)
			}
		}
	}
}

// The solution of conjugate gradients solves the system.
func TestSolution(t *testing.T) {
	const n = 20
	x, err := apps["cg"].serial(n, 1000)
	nstest.Must(t, err)
	at := func(row, col int) float64 {
		if row < 1 || col < 1 || row > n || col > n {
			return 0
		}
		return x[(row-1)*n+col-1]
	}
	worst, largest := 0., 0.
	for row := 1; row <= n; row++ {
		for col := 1; col <= n; col++ {
			left := 4*at(row, col) - at(row-1, col) - at(row+1, col) - at(row, col-1) - at(row, col+1)
			worst = max(worst, math.Abs(left-load(row, col)))
			largest = max(largest, math.Abs(load(row, col)))
		}
	}
	nstest.ErrorIf(t, worst > 1e-7 || largest < 0.9, "off by %v, where the right side is up to %v", worst, largest)
}

// A wrong result is an error, and so are impossible options.
func TestWrong(t *testing.T) {
	for _, test := range []struct {
		got  []float64
		want float64
	}{{[]float64{1, 2, -4}, 0}, {[]float64{1, 3, -4}, 0.25}, {[]float64{math.NaN(), 2, -4}, math.NaN()}} {
		if d := difference(test.got, []float64{1, 2, -4}); d != test.want && !(math.IsNaN(d) && math.IsNaN(test.want)) {
			t.Errorf("%v differs by %v, want %v", test.got, d, test.want)
		}
	}
	broken := apps["stencil"]
	broken.solve = func(p *plane, steps int) (*block, int, error) {
		if p.c == nil {
			steps--
		}
		return relaxed(p, steps)
	}
	apps["broken"] = broken
	defer delete(apps, "broken")
	onOneNIC(t, 2, func(c *mvich.Comm) error {
		_, err := Run(c, "broken", Options{Size: 8, Steps: 5})
		nstest.ErrorIf(t, c.Rank() == 0 && !errors.Is(err, ErrWrong), "a wrong result: %v", err)
		for _, o := range []Options{{Size: 1}, {Size: -3}, {Size: 1 << 20}, {Size: 8, Steps: -1}} {
			nstest.WantErr(t, fmt.Sprintf("%+v", o), nstest.Err(Run(c, "stencil", o)), ErrApp)
		}
		nstest.WantErr(t, "no such application", nstest.Err(Run(c, "nothing", Options{})), ErrApp)
		return nil
	})
}
