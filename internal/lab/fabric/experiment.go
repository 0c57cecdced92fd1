package fabric

import (
	"slices"

	"viaxdp/internal/lab/fail"
)

// Sharing is flows that share a bottleneck.
type Sharing struct {
	Seed       uint64
	Bottleneck Link
	VIs        int            // streams, each between hosts of its own
	TCPs       []TCPAlgorithm // TCP flows, which start after the streams
	Apart      int64          // time between the starts of two flows, ns
	Warm, Time int64          // after the last start: not counted, and counted; ns
	Host       HostConfig
}

// Shared is the result of a Sharing. Rates are payload in bits per second.
type Shared struct {
	VI, TCP   []float64
	Queue     float64 // mean, bytes
	Used      float64 // share of the bottleneck's time
	Drops     uint64  // frames that the bottleneck dropped
	Marks     uint64  // frames that the bottleneck marked
	Resent    uint64  // frames of the VIs
	Marked    uint64  // frames that the VIs' receivers saw marked
	OfVI      float64 // share of the VIs in all payload
	Jain      float64 // fairness index of all flows
	TCPResent uint64  // packets of the TCP flows
	Timeouts  uint64  // of the TCP flows
}

// Run runs the flows.
func (e Sharing) Run() (r Shared, err error) {
	defer fail.Catch(&err)
	flows := e.VIs + len(e.TCPs)
	d := fail.Must(NewDumbbell(e.Seed, flows, e.Host, e.Bottleneck))
	defer fail.Closing(&err, d.Close)
	var vis []*Stream
	var tcps []*TCP
	r.VI, r.TCP = make([]float64, e.VIs), make([]float64, len(e.TCPs))
	for i := range flows {
		if i < e.VIs {
			st := fail.Must(d.NewStream(d.Left[i], d.Right[i]))
			vis = append(vis, st)
			d.After(int64(i)*e.Apart, st.Start)
			continue
		}
		f := d.NewTCP(e.TCPs[i-e.VIs], d.Left[i], d.Right[i])
		tcps = append(tcps, f)
		d.After(int64(i)*e.Apart, f.Start)
	}
	d.Run(int64(flows-1)*e.Apart + e.Warm)
	d.Bottleneck.Forget()
	count := func(sign float64) {
		for i, st := range vis {
			r.VI[i] += sign * float64(st.Received) * 8 * Second / float64(e.Time)
			r.Marked += uint64(int64(sign)) * st.to.NIC.Counters().Marked
			r.Resent += uint64(int64(sign)) * st.from.NIC.Counters().Resent
		}
		for i, f := range tcps {
			r.TCPResent += uint64(int64(sign)) * f.Resent
			r.Timeouts += uint64(int64(sign)) * f.Timeouts
			r.TCP[i] += sign * float64(f.Received) * 8 * Second / float64(e.Time)
		}
	}
	count(-1)
	d.Run(e.Time)
	count(1)
	b := d.Bottleneck
	r.Queue, r.Drops, r.Marks = b.MeanQueue(), b.Stats.Dropped, b.Stats.Marked
	r.Used = float64(8*b.Stats.Bytes) * Second / float64(e.Time) / b.Rate
	all := slices.Concat(r.VI, r.TCP)
	var sum, squares, ours float64
	for i, x := range all {
		sum += x
		squares += x * x
		if i < len(r.VI) {
			ours += x
		}
	}
	r.OfVI, r.Jain = ours/sum, sum*sum/squares/float64(len(all))
	return r, failed(vis)
}
