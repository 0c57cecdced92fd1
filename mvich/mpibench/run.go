// Package mpibench measures package mvich as the benchmarks of Ohio State University measure every MPI, so that its
// figures stand beside theirs:
//
//	latency    two ranks, a message there and one back; half of the time
//	bw         two ranks, windows of 64 messages one way, then a word back
//	bibw       the same both ways at once
//	mbw_mr     pairs of ranks, all at once: bandwidth and messages a second
//	allreduce  all ranks; the mean over ranks of the time of one
//	alltoall   the same; the size is what one rank has for one other
//
// Every rank calls [Run]; rank 0 has the rows, which [Print] prints in OSU's columns. Bandwidth is in MB/s of 10^6
// bytes, time in microseconds.
//
// Iterations, windows and warming up are OSU's, fewer of them for large messages. Options make them shorter, for
// tests, and where many runs are compared.
package mpibench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"viaxdp/mvich"
)

// ErrBench: no such benchmark, the number of ranks does not suit it, or the options are wrong.
var ErrBench = errors.New("mpibench: cannot be run")

// Options of a run. The zero value of a field means OSU's.
type Options struct {
	MinSize, MaxSize int // bytes; 1 to 4 MiB
	Step             int // from one size to the next, times; 2
	Iterations       int // for each size
	Warmup           int // iterations before, that do not count; OSU's, or as many as count
	Window           int // messages in flight, of bw, bibw and mbw_mr

	// MostBytes makes iterations fewer where a message each, or a window of them, would come to more bytes than that;
	// 0: however many. One is made in any case.
	MostBytes int
}

// Row is the result for one size.
type Row struct {
	Size  int     // bytes
	Time  float64 // microseconds, of latency and collective operations
	MBps  float64 // of the others
	Rate  float64 // messages a second, of the same
	Count int     // iterations that were measured
}

// What a message, and a window of them, may have at most.
const (
	mostSize   = 1<<31 - 1 // bytes, as mvich
	mostWindow = 1 << 20   // messages
)

// largeMessage is the size from which on OSU does fewer iterations.
const largeMessage = 8192

// bench is one of the benchmarks: it does count iterations of a size, and says what one rank makes of the time that
// they took.
type bench struct {
	title      string
	column     string // of its figure
	ranks      func(n int) bool
	windows    bool // its iterations are windows of messages
	iterations int  // of small messages; large ones get a tenth
	warmup     int
	do         func(r *run, size, count int) error
	row        func(r *run, size, count int, took time.Duration) Row
}

var benches = map[string]bench{
	"latency":   {"Latency Test", "Latency (us)", two, false, 10000, 200, (*run).pingPong, (*run).halfRound},
	"bw":        {"Bandwidth Test", "Bandwidth (MB/s)", two, true, 100, 10, (*run).oneWay, (*run).bandwidth},
	"bibw":      {"Bi-Directional Bandwidth Test", "Bandwidth (MB/s)", two, true, 100, 10, (*run).bothWays, (*run).bandwidth},
	"mbw_mr":    {"Multiple Bandwidth / Message Rate Test", "MB/s", even, true, 100, 10, (*run).oneWay, (*run).bandwidth},
	"allreduce": {"Allreduce Latency Test", "Avg Latency(us)", anyNumber, false, 1000, 200, (*run).allReduce, (*run).each},
	"alltoall":  {"All-to-All Latency Test", "Avg Latency(us)", anyNumber, false, 1000, 200, (*run).allToAll, (*run).each},
}

func two(n int) bool       { return n == 2 }
func even(n int) bool      { return n >= 2 && n%2 == 0 }
func anyNumber(n int) bool { return n >= 1 }

// Names lists the benchmarks.
func Names() []string { return slices.Sorted(maps.Keys(benches)) }

// run is what one rank needs of a benchmark.
type run struct {
	c        *mvich.Comm
	name     string
	window   int
	out, in  []byte
	requests []*mvich.Request
	partner  int  // in pairs: the first half of the ranks sends to the second
	sender   bool // in pairs
}

// Run does a benchmark. All ranks of c call it with the same arguments; rank 0 gets the rows, the others none.
func Run(c *mvich.Comm, name string, o Options) ([]Row, error) {
	b, ok := benches[name]
	switch {
	case !ok:
		return nil, unknown(name)
	case !b.ranks(c.Size()):
		return nil, fmt.Errorf("%w: %s with %d ranks", ErrBench, name, c.Size())
	}
	if err := o.fill(); err != nil {
		return nil, err
	}
	half := max(c.Size()/2, 1)
	r := &run{
		c: c, name: name, window: o.Window, sender: c.Rank() < half, partner: (c.Rank() + half) % c.Size(),
		out: make([]byte, o.MaxSize*c.Size()), in: make([]byte, o.MaxSize*c.Size()),
	}
	for i := range r.out { // what was never written may be one page, again and again
		r.out[i], r.in[i] = 'a', 'b'
	}
	var rows []Row
	for _, size := range o.sizes() {
		row, err := r.measure(b, size, o)
		if err != nil {
			return nil, fmt.Errorf("mpibench: %s of %d bytes: %w", name, size, err)
		}
		if c.Rank() == 0 {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func (o *Options) fill() error {
	o.MinSize = cmp.Or(o.MinSize, 1)
	o.MaxSize = cmp.Or(o.MaxSize, max(4<<20, o.MinSize))
	o.Window = cmp.Or(o.Window, 64)
	o.Step = cmp.Or(o.Step, 2)
	if o.MinSize < 1 || o.MaxSize < o.MinSize || o.MaxSize > mostSize || o.Step < 2 ||
		o.Window < 1 || o.Window > mostWindow || min(o.Iterations, o.Warmup, o.MostBytes) < 0 {
		return fmt.Errorf("%w: sizes %d to %d by %d, window of %d, %d iterations after %d, of %d bytes",
			ErrBench, o.MinSize, o.MaxSize, o.Step, o.Window, o.Iterations, o.Warmup, o.MostBytes)
	}
	return nil
}

// sizes are those that are measured.
func (o *Options) sizes() (all []int) {
	size := o.MinSize
	for ; size <= o.MaxSize/o.Step; size *= o.Step {
		all = append(all, size)
	}
	return append(all, size)
}

// measure does one size, and gives the mean over the ranks that have a share in it.
func (r *run) measure(b bench, size int, o Options) (Row, error) {
	count, warmup := b.times(size, o)
	if err := errors.Join(b.do(r, size, warmup), r.c.Barrier()); err != nil {
		return Row{}, err
	}
	began := time.Now()
	if err := b.do(r, size, count); err != nil {
		return Row{}, err
	}
	took := []int64{int64(time.Since(began))}
	if err := mvich.AllReduce(r.c, took, took, mvich.Sum); err != nil {
		return Row{}, err
	}
	mean := time.Duration(took[0] / int64(r.c.Size()))
	row := b.row(r, size, count, mean)
	row.Size, row.Count = size, count
	return row, nil
}

// times is how many iterations of a size count, and how many come before.
func (b bench) times(size int, o Options) (count, warmup int) {
	count, warmup = b.iterations, b.warmup
	if size > largeMessage {
		count, warmup = count/10, warmup/10
	}
	if o.Iterations > 0 {
		count = o.Iterations
	}
	if b.windows {
		size *= o.Window
	}
	if o.MostBytes > 0 {
		count = max(min(count, o.MostBytes/size), 1)
	}
	if o.Warmup > 0 {
		return count, o.Warmup
	}
	return count, min(warmup, count)
}

// Iterations is how many iterations of a benchmark and a size are measured.
func Iterations(name string, size int, o Options) (int, error) {
	b, ok := benches[name]
	if !ok {
		return 0, unknown(name)
	}
	if err := o.fill(); err != nil {
		return 0, err
	}
	count, _ := b.times(size, o)
	return count, nil
}

func unknown(name string) error {
	return fmt.Errorf("%w: no benchmark %q: there are %s", ErrBench, name, strings.Join(Names(), ", "))
}

// Print prints rows as OSU's benchmarks do; the first line begins with the name.
func Print(w io.Writer, name string, rows []Row) error {
	b, ok := benches[name]
	if !ok {
		return unknown(name)
	}
	line := fmt.Sprintf("# %s: mvich %s\n%-10s%18s", name, b.title, "# Size", b.column)
	if b.windows {
		line += fmt.Sprintf("%18s", "Messages/s")
	}
	if _, err := fmt.Fprintln(w, line); err != nil {
		return err
	}
	for _, r := range rows {
		line := fmt.Sprintf("%-10d%18.2f", r.Size, r.Time+r.MBps)
		if b.windows {
			line += fmt.Sprintf("%18.2f", r.Rate)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
