package suite

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/memreg"
)

// tableGroup measures how a descriptor's handle and address become bytes of
// the program: by the table of package memreg, which takes no lock, and by the
// plain way, a map behind a lock. It runs in this process, beside idle workers.
var tableGroup = group{
	name: "abl-table", title: "Translation by a table without locks, and by a locked map",
	cost: func(s *session) time.Duration {
		return s.about(len(tableRegions(s.Quick))*len(translators), 0)
	},
	run: runTable,
}

// translations are timed together: a single one takes less than the clock.
const translations = 1000

// regionBytes is the size of each region that is registered.
const regionBytes = 4096

func tableRegions(quick bool) []int { return fewer(quick, powers(16, 1, 1<<16), 256) }

// translator is one way to translate.
type translator struct {
	name   string
	locked bool // by a map behind a lock
	beside bool // while another goroutine translates all the time, too
}

var translators = []translator{
	{name: "table"},
	{name: "locked map", locked: true},
	{name: "table, two goroutines", beside: true},
	{name: "locked map, two goroutines", locked: true, beside: true},
}

func runTable(s *session) (*report.Group, error) {
	g := &report.Group{
		Axis: report.Axis{Name: "registered regions", Log: true}, Base: translators[0].name,
		Notes:      []string{fmt.Sprintf("The time of %d translations, each of a region in random order; not pinned, and disturbances are not noticed.", translations)},
		Conditions: bench.HostConditions(),
	}
	for _, t := range translators {
		g.Series = append(g.Series, report.Series{Name: t.name})
	}
	for _, regions := range tableRegions(s.Quick) {
		f, err := newTranslation(regions)
		if err != nil {
			return nil, err
		}
		turns := make([][]float64, len(translators))
		n := make([]int64, len(translators))
		for turn := 1; turn <= s.turns(); turn++ {
			for i, t := range translators {
				if err := s.ctx.Err(); err != nil {
					return nil, err
				}
				s.step("%s, %d regions (turn %d of %d)", t.name, regions, turn, s.turns())
				took, batches, err := f.measure(t, s.duration())
				if err != nil {
					return nil, err
				}
				turns[i] = append(turns[i], took.Seconds()*1e6)
				n[i] += batches * translations
			}
		}
		for i := range translators {
			g.Series[i].Points = append(g.Series[i].Points, report.Point{
				X: float64(regions), N: n[i],
				Values: map[report.Metric]report.Value{report.Operation: report.ValueOf(turns[i])},
			})
		}
	}
	return g, nil
}

// translation is a table with regions, the same as a map, and the order in
// which they are asked for.
type translation struct {
	table *memreg.Table
	tag   *memreg.Ptag
	order []*memreg.Region

	mu     sync.RWMutex
	byName map[memreg.Handle]*memreg.Region
}

func newTranslation(regions int) (*translation, error) {
	table, err := memreg.NewTable(memreg.Limits{})
	if err != nil {
		return nil, err
	}
	f := &translation{table: table, byName: map[memreg.Handle]*memreg.Region{}}
	if f.tag, err = table.CreatePtag(); err != nil {
		return nil, err
	}
	memory := make([]byte, regionBytes) // may be registered many times
	for range regions {
		r, err := table.Register(memory, memreg.Attributes{Ptag: f.tag})
		if err != nil {
			return nil, err
		}
		f.order = append(f.order, r)
		f.byName[r.Handle()] = r
	}
	f.order = slices.Repeat(f.order, (translations+regions-1)/regions)
	rand.Shuffle(len(f.order), func(i, j int) { f.order[i], f.order[j] = f.order[j], f.order[i] })
	return f, nil
}

// measure translates for a while and returns the median time of a batch, and
// how many there were.
func (f *translation) measure(t translator, d time.Duration) (median time.Duration, batches int64, err error) {
	batch := f.byTable
	if t.locked {
		batch = f.byMap
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var over atomic.Bool
	var other sync.WaitGroup
	if t.beside {
		other.Go(func() {
			for at := 0; !over.Load(); at += translations {
				if batch(at) != nil {
					return // the same error as here
				}
			}
		})
	}
	defer other.Wait()
	defer over.Store(true)
	var took []time.Duration
	at := 0
	for start := time.Now(); time.Since(start) < d; at += translations {
		before := time.Now()
		if err := batch(at); err != nil {
			return 0, 0, err
		}
		took = append(took, time.Since(before))
	}
	slices.Sort(took)
	return took[len(took)/2], int64(len(took)), nil
}

// byTable makes a batch of translations, from a place in the order on.
func (f *translation) byTable(at int) error {
	for i := range translations {
		r := f.order[(at+i)%len(f.order)]
		if _, _, err := f.table.Resolve(r.Handle(), r.Addr(), regionBytes, f.tag); err != nil {
			return err
		}
	}
	return nil
}

// byMap is byTable by way of the map.
func (f *translation) byMap(at int) error {
	for i := range translations {
		r := f.order[(at+i)%len(f.order)]
		if _, err := f.lookUp(r.Handle(), r.Addr(), regionBytes); err != nil {
			return err
		}
	}
	return nil
}

// lookUp checks what Resolve checks.
func (f *translation) lookUp(h memreg.Handle, addr uint64, n uint32) ([]byte, error) {
	f.mu.RLock()
	r := f.byName[h]
	f.mu.RUnlock()
	switch {
	case r == nil:
		return nil, memreg.ErrHandle
	case r.Ptag() != f.tag:
		return nil, memreg.ErrPtag
	}
	return r.Slice(addr, n)
}
