package fabric

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"viaxdp/internal/lab/fail"
)

// Sizes is a distribution of flow sizes: points of the cumulative distribution, linear between two of them.
type Sizes struct {
	Name   string
	points []sizePoint
}

type sizePoint struct{ bytes, share float64 }

// WebSearch is the distribution of DCTCP's paper (SIGCOMM 2010), as in the simulators of HPCC and others.
var WebSearch = Sizes{"web-search", []sizePoint{
	{1, 0}, {10e3, 0.15}, {20e3, 0.2}, {30e3, 0.3}, {50e3, 0.4}, {80e3, 0.53}, {200e3, 0.6}, {1e6, 0.7}, {2e6, 0.8}, {5e6, 0.9}, {10e6, 0.97}, {30e6, 1},
}}

// DataMining is the distribution of VL2 (SIGCOMM 2009), as in pFabric's simulator, in packets of 1460 bytes. The 4 % of
// flows above 10 MB are cut to 10 MB, because a run would otherwise wait for them alone.
var DataMining = Sizes{"data-mining", []sizePoint{
	{1, 0}, {1460, 0.5}, {2 * 1460, 0.6}, {3 * 1460, 0.7}, {7 * 1460, 0.8}, {267 * 1460, 0.9}, {2107 * 1460, 0.95}, {10e6, 0.96}, {10e6, 1},
}}

// at returns the size that a share of the flows does not exceed.
func (z Sizes) at(share float64) int64 {
	i := 1
	for i < len(z.points)-1 && z.points[i].share < share {
		i++
	}
	a, b := z.points[i-1], z.points[i]
	return max(1, int64(a.bytes+(b.bytes-a.bytes)*(share-a.share)/(b.share-a.share)))
}

// mean returns the mean size in bytes.
func (z Sizes) mean() (m float64) {
	for i := 1; i < len(z.points); i++ {
		a, b := z.points[i-1], z.points[i]
		m += (b.share - a.share) * (a.bytes + b.bytes) / 2
	}
	return m
}

// A Transport makes flows of one kind.
type Transport int

// Transports of a Mix and an Incast: VIs, and the model of DCTCP.
const (
	OverVI Transport = iota
	OverDCTCP
)

func (t Transport) String() string { return [...]string{"VI", "DCTCP"}[t] }

// paths are a network and the connections of its flows. A flow gets an idle pair of VIs, or a new TCP flow. The methods fail by
// package fail.
type paths struct {
	*LeafSpine
	transport Transport
	streams   []*Stream
	idle      map[[2]*Host][]*Stream
	tcps      []*TCP
}

func newPaths(seed uint64, c HostConfig, z Shape, t Transport) (*paths, error) {
	l, err := NewLeafSpine(seed, c, z)
	return &paths{LeafSpine: l, transport: t, idle: make(map[[2]*Host][]*Stream)}, err
}

// stream returns an idle connection between two hosts.
func (p *paths) stream(from, to *Host) *Stream {
	key := [2]*Host{from, to}
	if n := len(p.idle[key]); n > 0 {
		st := p.idle[key][n-1]
		p.idle[key] = p.idle[key][:n-1]
		return st
	}
	st := fail.Must(p.NewStream(from, to))
	p.streams = append(p.streams, st)
	return st
}

// transfer sends n bytes, and calls done when they have been received.
func (p *paths) transfer(from, to *Host, n int64, done func(now int64)) {
	if p.transport == OverDCTCP {
		f := p.NewTCP(DCTCP, from, to)
		p.tcps = append(p.tcps, f)
		f.Transfer(n, done)
		return
	}
	st := p.stream(from, to)
	st.Transfer(n, func(now int64) {
		key := [2]*Host{from, to}
		p.idle[key] = append(p.idle[key], st)
		done(now)
	})
}

// await runs until no flow is open, for d at most. open counts the flows, and all is how many there are.
func (p *paths) await(d int64, what string, open *int, all int) {
	if !p.RunUntil(d, func() bool { return *open == 0 }) {
		fail.If(cmp.Or(failed(p.streams), fmt.Errorf("%d of %d %s", *open, all, what)))
	}
}

// resent returns the retransmissions and the timeouts of all flows.
func (p *paths) resent() (frames, timeouts uint64) {
	for _, f := range p.tcps {
		frames, timeouts = frames+f.Resent, timeouts+f.Timeouts
	}
	if p.transport == OverVI {
		for _, h := range p.Hosts {
			for _, v := range h.NIC.Status().VIs {
				frames, timeouts = frames+v.Resent, timeouts+v.Timeouts
			}
		}
	}
	return frames, timeouts
}

// ideal returns how long n bytes take between two hosts of an empty network.
func (l *LeafSpine) ideal(from, to *Host, n int64) int64 {
	links := []Link{l.shape.Host, l.shape.Host}
	if slices.Index(l.Hosts, from)/l.shape.PerLeaf != slices.Index(l.Hosts, to)/l.shape.PerLeaf {
		links = append(links, l.shape.Trunk, l.shape.Trunk)
	}
	frames := (n + payload - 1) / payload
	bytes := n + frames*(frame-payload+onWire)
	t := float64(8*bytes) * Second / l.shape.Host.Rate
	for i, k := range links {
		t += float64(k.Delay)
		if i > 0 { // a switch forwards a frame when it has all of it
			t += float64(8*min(bytes, frame+onWire)) * Second / k.Rate
		}
	}
	return int64(t)
}

// Finished is a flow that has ended.
type Finished struct {
	Bytes    int64
	Slowdown float64 // its time, divided by that in an empty network
}

// Percentile returns a percentile of the slowdown of the flows whose size is in [least, below), and the number of these
// flows: the least slowdown that a share of them does not exceed (nearest rank).
func Percentile(flows []Finished, least, below int64, share float64) (slowdown float64, n int) {
	var list []float64
	for _, f := range flows {
		if f.Bytes >= least && f.Bytes < below {
			list = append(list, f.Slowdown)
		}
	}
	if len(list) == 0 {
		return 0, 0
	}
	slices.Sort(list)
	return list[max(1, int(math.Ceil(share*float64(len(list)))))-1], len(list)
}

// Mix is flows between random hosts. They begin at random times (a Poisson process) and load the hosts' links to Load.
type Mix struct {
	Seed      uint64
	Transport Transport
	Shape     Shape
	Host      HostConfig
	Sizes     Sizes
	Load      float64 // share of the hosts' rate
	Time      int64   // during which flows begin, ns
}

// Mixed is the result of a Mix or an Incast.
type Mixed struct {
	Flows            []Finished
	Goodput          float64 // until the last flow was over, bits per second
	Resent, Timeouts uint64
	MeanQueue        float64 // bytes; Mix: of the hosts' links while flows begin, Incast: of the receiver's during the rounds
}

// Run runs the flows until all have ended, for at most 100 times Time.
func (m Mix) Run() (r Mixed, err error) {
	defer fail.Catch(&err)
	p := fail.Must(newPaths(m.Seed, m.Host, m.Shape, m.Transport))
	defer fail.Closing(&err, p.Close)
	apart := m.Sizes.mean() * 8 * (frame + onWire) / payload / (m.Load * m.Shape.Host.Rate * float64(len(p.Hosts))) * Second
	open, all, bytes := 0, 0, int64(0)
	for t := p.rng.ExpFloat64() * apart; t < float64(m.Time); t += p.rng.ExpFloat64() * apart {
		size, a := m.Sizes.at(p.rng.Float64()), p.rng.IntN(len(p.Hosts))
		from, to := p.Hosts[a], p.Hosts[(a+1+p.rng.IntN(len(p.Hosts)-1))%len(p.Hosts)]
		open, all, bytes = open+1, all+1, bytes+size
		p.After(int64(t), func() {
			begun := p.Now()
			p.transfer(from, to, size, func(now int64) {
				open--
				r.Flows = append(r.Flows, Finished{size, float64(now-begun) / float64(p.ideal(from, to, size))})
			})
		})
	}
	begun := p.Now()
	p.Run(m.Time)
	for _, d := range p.Down {
		r.MeanQueue += d.MeanQueue() / float64(len(p.Down))
	}
	p.await(100*m.Time, "flows are not over", &open, all)
	r.ended(p, begun, bytes)
	return r, failed(p.streams)
}

// ended records the counts of all flows.
func (r *Mixed) ended(p *paths, begun, bytes int64) {
	r.Goodput = float64(8*bytes) * Second / float64(max(1, p.Now()-begun))
	r.Resent, r.Timeouts = p.resent()
}

// Incast is rounds of messages: in each, several hosts send one to the same host at the same time.
type Incast struct {
	Seed      uint64
	Transport Transport
	Shape     Shape
	Host      HostConfig
	Senders   int
	Bytes     int64
	Rounds    int
	Small     int   // rounds of messages of one byte before those
	Within    int64 // the messages of a round begin at random times within it, ns; 0: at once
}

// Run runs the rounds one after the other. A message's slowdown is its time, divided by that of one message with the
// bytes of all senders in an empty network.
func (c Incast) Run() (r Mixed, err error) {
	defer fail.Catch(&err)
	p := fail.Must(newPaths(c.Seed, c.Host, c.Shape, c.Transport))
	defer fail.Closing(&err, p.Close)
	to := p.Hosts[0]
	round := func(bytes int64, done func(from *Host, took int64)) {
		open := c.Senders
		for i := range c.Senders {
			from := p.Hosts[len(p.Hosts)-1-i]
			p.After(p.rng.Int64N(c.Within+1), func() {
				begun := p.Now()
				p.transfer(from, to, bytes, func(now int64) {
					open--
					done(from, now-begun)
				})
			})
		}
		p.await(10*Second, "messages have not arrived", &open, c.Senders)
	}
	if c.Transport == OverVI {
		c.Small = max(c.Small, 1) // a connection has measured a round trip, as TCP has by its handshake
	}
	for range c.Small {
		round(1, func(*Host, int64) {})
	}
	busy := int64(0)
	for range c.Rounds {
		p.Run(Millisecond)
		begun := p.Now()
		p.Down[0].Forget()
		round(c.Bytes, func(from *Host, took int64) {
			r.Flows = append(r.Flows, Finished{c.Bytes, float64(took) / float64(p.ideal(from, to, c.Bytes*int64(c.Senders)))})
		})
		took := p.Now() - begun
		busy += took
		r.MeanQueue += p.Down[0].MeanQueue() * float64(took)
	}
	r.MeanQueue /= float64(max(1, busy))
	r.ended(p, p.Now()-busy, c.Bytes*int64(c.Senders*c.Rounds))
	return r, failed(p.streams)
}

// Failure is a spine that fails under the load of streams.
type Failure struct {
	Seed    uint64
	Shape   Shape
	Host    HostConfig
	Streams int // from the hosts of the first leaf to those of the last
	Before  int64
	After   int64 // observed after the failure
}

// Failed is the result of a Failure.
type Failed struct {
	Before, After float64 // bits per second of all streams; After: in the second half of that time
	Recovered     int64   // ns until all streams make progress and together have 0.9 of After; below 0: never
	Trip          int64   // round trip of an empty network, ns
	Resent        uint64
}

// sampleEvery is the interval at which rates are sampled after a failure.
const sampleEvery = 100 * Microsecond

// Run runs the streams.
func (f Failure) Run() (r Failed, err error) {
	defer fail.Catch(&err)
	p := fail.Must(newPaths(f.Seed, f.Host, f.Shape, OverVI))
	defer fail.Closing(&err, p.Close)
	for i := range f.Streams {
		from, to := p.Hosts[i], p.Hosts[len(p.Hosts)-1-i]
		p.stream(from, to).Start()
		r.Trip = 2 * p.ideal(from, to, 1)
	}
	received := func() (of []int64) { // by each stream
		for _, st := range p.streams {
			of = append(of, st.Received)
		}
		return of
	}
	sum := func(s []int64) (n int64) {
		for _, x := range s {
			n += x
		}
		return n
	}
	rate := func(bytes, time int64) float64 { return float64(8*bytes) * Second / float64(time) }
	p.Run(f.Before / 2)
	base := sum(received())
	p.Run(f.Before - f.Before/2)
	r.Before = rate(sum(received())-base, f.Before-f.Before/2)
	p.FailSpine(0, true)
	resent, _ := p.resent()
	var samples [][]int64
	for at := int64(0); at < f.After; at += sampleEvery {
		samples = append(samples, received())
		p.Run(sampleEvery)
	}
	after, _ := p.resent()
	r.Resent = after - resent
	half := samples[len(samples)/2]
	r.After = rate(sum(received())-sum(half), f.After-int64(len(samples)/2)*sampleEvery)
	r.Recovered = -1
	for i := 1; i+4 < len(samples) && r.Recovered < 0; i++ {
		moved := true
		for k := range p.streams {
			moved = moved && samples[i+4][k] > samples[i][k]
		}
		if moved && rate(sum(samples[i+4])-sum(samples[i]), 4*sampleEvery) >= 0.9*min(r.After, r.Before) {
			r.Recovered = int64(i) * sampleEvery
		}
	}
	return r, failed(p.streams)
}
