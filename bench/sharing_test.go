package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

func TestSharingShares(t *testing.T) {
	for rates, want := range map[[4]float64]float64{{5, 5}: 0.5, {1, 3}: 0.25, {4}: 1} {
		for _, vis := range []int{1, 0} { // without VIs it is the share of the first flow
			r := SharingResult{Rates: rates[:], VIs: vis}
			nstest.ErrorIf(t, r.Share() != want, "%d VIs, %v: share %v, want %v", vis, rates, r.Share(), want)
		}
	}
}

// The mean queue is that of the time that counts: before it NICs are opened, and behind it what is left of TCP flows leaves.
func TestMeanQueue(t *testing.T) {
	const ms = time.Millisecond
	var sum atomic.Uint64
	w := watchQueue(sum.Load)
	time.Sleep(2 * queueEvery) // in which a sample is taken besides the first and the last one
	sum.Store(1)
	w.close()
	first, last := w.samples[0], w.samples[len(w.samples)-1]
	nstest.ErrorIf(t, len(w.samples) < 3 || first.sum != 0 || last.sum != 1 || last.at-first.at < 2*queueEvery, "samples %+v", w.samples)
	// Nothing waits for a second; then 1000 bytes for 100 ms, and 5000 bytes behind that.
	w.samples = []queueSample{{0, 0}, {1000 * ms, 0}, {1050 * ms, 1000 * 50e6}, {1100 * ms, 1000 * 100e6}, {1200 * ms, 1000*100e6 + 5000*100e6}}
	for _, c := range []struct {
		begin, end time.Duration
		want       float64
	}{{1000 * ms, 1100 * ms, 1000}, {1010 * ms, 1090 * ms, 1000}, {1100 * ms, 1200 * ms, 5000}, {-ms, 1300 * ms, 500}} {
		nstest.Equal(t, fmt.Sprintf("from %v to %v", c.begin, c.end), w.mean(c.begin, c.end), c.want)
	}
}

// A VI and a TCP flow fill a bottleneck that marks, and no more than it: the VI's frames come marked, and the path is
// free afterwards. Impossible loads are refused, and the end of a context ends the flows.
func TestShare(t *testing.T) {
	nstest.Require(t)
	bed, err := StartBed(t.Context(), BedConfig{Mode: "generic", WorkerArgs: []string{asWorker}, Stderr: os.Stderr, Through: true})
	nstest.Must(t, err)
	defer bed.Close()
	at := Bottleneck{Rate: 50_000_000, Queue: 200_000, Mark: 10_000, Trip: time.Millisecond}
	load := SharingLoad{VIs: 1, TCPs: []string{"cubic"}, Apart: 10 * time.Millisecond, Warm: 100 * time.Millisecond, Time: 3 * time.Second}
	r, err := bed.Share(t.Context(), at, load)
	nstest.Must(t, err)
	if len(r.Rates) != 2 || r.Rates[0] <= 0 || r.Used > 1.2 || !(r.Jain() <= 1) || r.Marked == 0 || r.Queue <= 0 || r.Sent == 0 || r.Conditions.Mode != "generic" {
		t.Errorf("%+v", r)
	}
	for what, change := range map[string]func(*SharingLoad){
		"0 VIs of 0 flows: 1 to": func(l *SharingLoad) { l.VIs, l.TCPs = 0, nil }, "-1 VIs": func(l *SharingLoad) { l.VIs = -1 }, "at most a minute": func(l *SharingLoad) { l.Time = time.Hour },
	} {
		l := load
		change(&l)
		nstest.ErrSays(t, what, nstest.Err(bed.Share(t.Context(), at, l)), what)
	}
	tcps := SharingLoad{TCPs: []string{"cubic", "reno"}, Warm: 100 * time.Millisecond, Time: 500 * time.Millisecond}
	r, err = bed.Share(t.Context(), at, tcps)
	nstest.Must(t, err)
	if len(r.Rates) != 2 || r.Rates[0] <= 0 || r.Rates[1] <= 0 || r.Used > 1.2 || r.Sent != 0 {
		t.Errorf("without VIs: %+v", r)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	load.Time = 50 * time.Second
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	nstest.WantErr(t, "the end of the context", nstest.Err(bed.Share(ctx, at, load)), why)
}
