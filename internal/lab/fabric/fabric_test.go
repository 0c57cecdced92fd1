package fabric

import (
	"fmt"
	"reflect"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
)

var must = nstest.Must

func run(t *testing.T, e Sharing) Shared {
	t.Helper()
	if e.Seed == 0 {
		e.Seed = 1
	}
	r, err := e.Run()
	must(t, err)
	t.Logf("%+v", r)
	return r
}

// near is a bottleneck on a local network.
func near(queue int) Link { return Link{Rate: 200e6, Delay: 20 * Microsecond, Limit: queue} }

// A seed replays a run, and another one makes another run.
func TestReplay(t *testing.T) {
	e := Sharing{Seed: 7, Bottleneck: near(50_000), VIs: 2, TCPs: []TCPAlgorithm{Cubic}, Apart: 10 * Millisecond, Time: Second / 2}
	e.Bottleneck.Loss = 0.01
	one, two := run(t, e), run(t, e)
	e.Seed++
	three := run(t, e)
	nstest.ErrorIf(t, !reflect.DeepEqual(one, two), "two runs of a seed:\n%+v\n%+v", one, two)
	nstest.ErrorIf(t, reflect.DeepEqual(one, three), "another seed made the same run")
}

// A stream fills a bottleneck, whether frames are lost at random or not, and does not fill its buffer.
func TestAlone(t *testing.T) {
	rates := []float64{10e6, 200e6, 1e9}
	for _, rate := range testsize.Some(rates, 2) {
		for _, loss := range []float64{0, 0.001, 0.01, 0.05} {
			t.Run(fmt.Sprintf("%.0f Mbit/s, %.1f %%", rate/1e6, 100*loss), func(t *testing.T) {
				long := int64(Second / 4)
				if rate < 100e6 {
					long = 2 * Second // few frames
				}
				l := Link{Rate: rate, Delay: 20 * Microsecond, Limit: 500_000, Loss: loss}
				r := run(t, Sharing{Bottleneck: l, VIs: 1, Warm: long, Time: long})
				if share := r.VI[0] / rate / (1 - loss); share < 0.85 {
					t.Errorf("payload is %.2f of the rate", share)
				}
				nstest.ErrorIf(t, r.Queue > 0.5*float64(l.Limit), "the queue has %.0f bytes on average", r.Queue)
			})
		}
	}
}

// Beside a flow that fills any queue a stream gets its share, and the link stays full.
func TestBesideCubic(t *testing.T) {
	queues := []int{150_000, 50_000, 300_000, 1_000_000}
	for _, queue := range testsize.Some(queues, 1) {
		t.Run(fmt.Sprint(queue), func(t *testing.T) {
			r := run(t, Sharing{Bottleneck: near(queue), VIs: 1, TCPs: []TCPAlgorithm{Cubic}, Apart: 100 * Millisecond, Warm: Second, Time: 6 * Second})
			nstest.ErrorIf(t, r.OfVI < 0.3 || r.OfVI > 0.65 || r.Used < 0.9, "share %.2f, link used %.2f", r.OfVI, r.Used)
		})
	}
}

// fixed is a window that nothing changes. Like that of a BBR flow it does not fill a deep queue.
type fixed struct{ unpaced }

func (fixed) acked(*TCP, int, bool) {}
func (fixed) lost(*TCP)             {}

// Beside a flow whose window is bounded a stream does not fill a deep queue. A stream that did had four fifths of the link.
func TestBesideABoundedWindow(t *testing.T) {
	const window, apart = 60, 100 * Millisecond
	d, err := NewDumbbell(1, 2, HostConfig{}, near(1_000_000))
	must(t, err)
	defer d.Close()
	st, err := d.NewStream(d.Left[0], d.Right[0])
	must(t, err)
	f := d.NewTCP(Cubic, d.Left[1], d.Right[1])
	f.control, f.cwnd = fixed{}, window
	st.Start()
	d.After(apart, f.Start)
	d.Run(apart + Second)
	d.Bottleneck.Forget()
	before, other := st.Received, f.Received
	d.Run(4 * Second)
	must(t, st.Err)
	before, other = st.Received-before, f.Received-other
	share := float64(before) / float64(before+other)
	t.Logf("share %.2f, mean queue %.0f bytes, %d dropped", share, d.Bottleneck.MeanQueue(), d.Bottleneck.Stats.Dropped)
	if share < 0.3 || share > 0.65 || d.Bottleneck.Stats.Dropped > 0 {
		t.Errorf("share %.2f, %d frames dropped", share, d.Bottleneck.Stats.Dropped)
	}
}

// The same holds on a long path, where after a loss no queue shows for seconds. A CUBIC flow fills that room slowly. In
// a queue that it keeps full, bursts lose frames.
func TestBesideCubicOnALongPath(t *testing.T) {
	if !testsize.Every() {
		t.Skip("simulates 1 Gbit/s for 20 s")
	}
	cases := []struct {
		rate  float64
		queue int
		time  int64
	}{{1e9, 150_000, 10 * Second}, {200e6, 50_000, 10 * Second}, {200e6, 300_000, 30 * Second}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%.0f Mbit/s, %d KB", c.rate/1e6, c.queue/1000), func(t *testing.T) {
			l := Link{Rate: c.rate, Delay: 5 * Millisecond, Limit: c.queue}
			host := HostConfig{RxChunks: 4096, TxChunks: 4096} // more than the path and the queue hold
			r := run(t, Sharing{Bottleneck: l, Host: host, VIs: 1, TCPs: []TCPAlgorithm{Cubic}, Apart: 100 * Millisecond, Warm: 10 * Second, Time: c.time})
			nstest.ErrorIf(t, r.OfVI < 0.3 || r.OfVI > 0.65 || r.Used < 0.9, "share %.2f, link used %.2f", r.OfVI, r.Used)
		})
	}
}

// Streams share a link evenly, also if they start late. Two of them leave the queue short.
func TestStreamsShare(t *testing.T) {
	cases := []struct {
		vis, queue int
		apart      int64
	}{
		{2, 150_000, 200 * Millisecond}, {2, 50_000, 0}, {2, 150_000, 0}, {10, 50_000, 0}, {10, 150_000, 0},
		// Streams that begin in the queue of others do not know the least round trip.
		{10, 1_000_000, Millisecond}, {10, 1_000_000, 3 * Millisecond},
	}
	for _, c := range testsize.Some(cases, 1) {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			r := run(t, Sharing{Bottleneck: near(c.queue), VIs: c.vis, Apart: c.apart, Warm: Second, Time: 3 * Second})
			nstest.ErrorIf(t, r.Jain < 0.98 || r.Used < 0.9, "Jain's index %.3f, link used %.2f", r.Jain, r.Used)
			nstest.ErrorIf(t, c.vis == 10 && c.apart > 0 && r.Queue > 100_000, "mean queue %.0f bytes", r.Queue)
			if c.vis == 2 && c.apart == 0 && (r.Resent > 0 || r.Queue > 40_000) {
				t.Errorf("%d retransmissions, mean queue %.0f bytes", r.Resent, r.Queue)
			}
		})
	}
}

// A program that has no processor for a while sees queues that are none, and gives way in vain. A stream that competes for
// that reason fills the queue, and then all others compete, too. Its dips bring the others along: all of them see the empty queue.
func TestBusyHostsShare(t *testing.T) {
	seeds := uint64(3)
	if !testsize.Every() {
		seeds = 1
	}
	for _, c := range []HostConfig{{BusyEvery: 10 * Millisecond, Busy: Millisecond}, {BusyEvery: 50 * Millisecond, Busy: 10 * Millisecond}} {
		t.Run(fmt.Sprintf("%d ms each %d ms", c.Busy/Millisecond, c.BusyEvery/Millisecond), func(t *testing.T) {
			var sum float64
			for seed := range seeds {
				r := run(t, Sharing{Seed: seed + 1, Bottleneck: near(1_000_000), Host: c, VIs: 10, Apart: 200 * Millisecond, Time: 10 * Second})
				sum += r.Jain
				nstest.ErrorIf(t, r.Used < 0.9, "seed %d: link used %.2f", seed+1, r.Used)
			}
			if mean := sum / float64(seeds); mean < 0.92 {
				t.Errorf("Jain's index %.3f, mean of %d seeds", mean, seeds)
			}
		})
	}
}

// A bottleneck that marks loses nothing: the queue ends at the threshold, beside other streams and beside DCTCP.
func TestMarks(t *testing.T) {
	cases := []struct {
		vis  int
		tcps []TCPAlgorithm
	}{{1, []TCPAlgorithm{DCTCP}}, {1, nil}, {2, nil}, {10, nil}}
	for _, c := range testsize.Some(cases, 1) {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			l := near(1_000_000)
			l.Mark = 30_000
			r := run(t, Sharing{Bottleneck: l, VIs: c.vis, TCPs: c.tcps, Apart: 50 * Millisecond, Warm: Second, Time: 2 * Second})
			if r.Drops+r.Resent > 0 || r.Queue > 1.5*float64(l.Mark) || r.Used < 0.95 || r.Jain < 0.98 || r.Marked == 0 {
				t.Errorf("%d drops, %d retransmissions, queue %.0f bytes, link used %.2f, Jain's index %.3f, %d of %d marks were seen",
					r.Drops, r.Resent, r.Queue, r.Used, r.Jain, r.Marked, r.Marks)
			}
		})
	}
}

// The models are those of the text books: two CUBIC flows fill a queue, two DCTCP flows stay at the threshold, and
// each pair shares the link.
func TestModels(t *testing.T) {
	l := near(150_000)
	r := run(t, Sharing{Bottleneck: l, TCPs: []TCPAlgorithm{Cubic, Cubic}, Warm: Second, Time: 5 * Second})
	nstest.ErrorIf(t, r.Jain < 0.9 || r.Used < 0.98 || r.Queue < 0.5*float64(l.Limit) || r.Timeouts > 0, "CUBIC: %+v", r)
	l.Mark = 30_000
	r = run(t, Sharing{Bottleneck: l, TCPs: []TCPAlgorithm{DCTCP, DCTCP}, Warm: Second, Time: 2 * Second})
	nstest.ErrorIf(t, r.Jain < 0.95 || r.Used < 0.98 || r.Queue > 1.2*float64(l.Mark) || r.TCPResent > 0, "DCTCP: %+v", r)
}

// A BBR flow alone leaves the queue short; two share the link. A CUBIC flow gets little of a short queue beside one, since
// losses do not slow BBR down; in a queue of two and more round trips it gets a share.
func TestModelOfBBR(t *testing.T) {
	far := func(queue int) Link { return Link{Rate: 200e6, Delay: 5 * Millisecond, Limit: queue} }
	e := Sharing{Bottleneck: far(150_000), TCPs: []TCPAlgorithm{BBR}, Warm: Second, Time: 3 * Second}
	if r := run(t, e); r.Used < 0.95 || r.Queue > 0.5*150_000 || r.Timeouts > 0 {
		t.Errorf("one: link used %.2f, mean queue %.0f bytes, %d timeouts", r.Used, r.Queue, r.Timeouts)
	}
	// Its startup has at most 2.885 times what the path holds in flight, and three bursts, whatever the queue could take.
	start := Sharing{Bottleneck: far(10_000_000), TCPs: []TCPAlgorithm{BBR}, Warm: 100 * Millisecond, Time: 100 * Millisecond}
	if r := run(t, start); r.Queue > 1.9*250_000+3*17*1514 {
		t.Errorf("startup: mean queue %.0f bytes", r.Queue)
	}
	if !testsize.Every() {
		return
	}
	e.TCPs, e.Apart, e.Warm, e.Time = []TCPAlgorithm{BBR, BBR}, 100*Millisecond, 11*Second, 10*Second // they probe for the round trip each 10 s
	if r := run(t, e); r.Jain < 0.95 || r.Used < 0.9 {
		t.Errorf("two: Jain's index %.2f, link used %.2f", r.Jain, r.Used)
	}
	// After an RTT probe they send at the rate of before.
	e.Bottleneck, e.Warm, e.Time = far(1_000_000), 9*Second, 3*Second
	if r := run(t, e); r.Used < 0.9 {
		t.Errorf("two, one of which probes for the round trip: link used %.2f", r.Used)
	}
	e.TCPs = []TCPAlgorithm{Cubic, BBR}
	for _, c := range []struct {
		queue       int
		least, most float64 // share of CUBIC
	}{{50_000, 0, 0.2}, {1_000_000, 0.3, 0.97}} {
		e.Bottleneck = far(c.queue)
		r := run(t, e)
		if share := r.TCP[0] / (r.TCP[0] + r.TCP[1]); share < c.least || share > c.most {
			t.Errorf("%d bytes of queue: CUBIC has %.2f", c.queue, share)
		}
	}
}

// Beside BBR a stream has a share of a queue that is not short, and of a short one at least what CUBIC has.
func TestBesideBBR(t *testing.T) {
	e := Sharing{Bottleneck: near(150_000), VIs: 1, TCPs: []TCPAlgorithm{BBR}, Apart: 100 * Millisecond, Warm: 2 * Second, Time: 4 * Second}
	if r := run(t, e); r.OfVI < 0.25 || r.OfVI > 0.65 || r.Used < 0.95 {
		t.Errorf("share %.2f, link used %.2f", r.OfVI, r.Used)
	}
	if !testsize.Every() {
		return
	}
	e.Bottleneck = Link{Rate: 200e6, Delay: 5 * Millisecond, Limit: 50_000}
	ours := run(t, e).OfVI
	e.VIs, e.TCPs = 0, []TCPAlgorithm{Cubic, BBR}
	r := run(t, e)
	if cubic := r.TCP[0] / (r.TCP[0] + r.TCP[1]); ours < 0.8*cubic {
		t.Errorf("a short queue: share %.2f, CUBIC %.2f", ours, cubic)
	}
}

// One stream fills a fast path and a long one, also one that loses frames at random.
func TestLongPath(t *testing.T) {
	big := HostConfig{RxChunks: 16384, TxChunks: 16384}
	cases := []struct {
		link       Link
		host       HostConfig
		least      float64
		warm, time int64
	}{
		{Link{Rate: 25e9, Delay: 100 * Microsecond, Limit: 1 << 20}, HostConfig{RxChunks: 2048, TxChunks: 2048}, 0.95, 50 * Millisecond, 100 * Millisecond},
		{Link{Rate: 25e9, Delay: 100 * Microsecond, Limit: 1 << 20, Loss: 0.001}, HostConfig{RxChunks: 2048, TxChunks: 2048}, 0.90, 50 * Millisecond, 100 * Millisecond},
		{Link{Rate: 1e9, Delay: 25 * Millisecond, Limit: 1 << 20}, big, 0.90, 5 * Second, 5 * Second},
		{Link{Rate: 1e9, Delay: 25 * Millisecond, Limit: 1 << 20, Loss: 0.001}, big, 0.90, 5 * Second, 5 * Second},
		{Link{Rate: 1e9, Delay: 25 * Millisecond, Limit: 1 << 20, Loss: 0.01}, big, 0.85, 5 * Second, 5 * Second},
	}
	for _, c := range testsize.Some(cases, 2) {
		t.Run(fmt.Sprintf("%.0f Gbit/s, %d us, %.1f %%", c.link.Rate/1e9, 2*c.link.Delay/Microsecond, 100*c.link.Loss), func(t *testing.T) {
			r := run(t, Sharing{Bottleneck: c.link, VIs: 1, Host: c.host, Warm: c.warm, Time: c.time})
			if share := r.VI[0] / c.link.Rate / (1 - c.link.Loss) * (frame + onWire) / payload; share < c.least {
				t.Errorf("payload is %.3f of what the link carries, want %.2f", share, c.least)
			}
		})
	}
}

// A path that becomes longer, as after a change of routes, is not taken for a queue for long, although it loses frames at random.
func TestPathBecomesLonger(t *testing.T) {
	const rate = 50e6
	d, err := NewDumbbell(1, 1, HostConfig{}, Link{Rate: rate, Delay: 5 * Millisecond, Limit: 500_000, Loss: 0.01})
	must(t, err)
	defer d.Close()
	st, err := d.NewStream(d.Left[0], d.Right[0])
	must(t, err)
	st.Start()
	d.After(2*Second, func() { d.Bottleneck.Delay = 15 * Millisecond })
	d.Run(9 * Second)
	before := st.Received
	d.Run(4 * Second)
	must(t, st.Err)
	if used := float64(st.Received-before) * 8 / 4 / rate; used < 0.7 {
		t.Errorf("7 s after the change the payload is %.2f of the rate", used)
	}
}

// A VI whose attribute chooses CUBIC fills the queue as TCP does, takes the same as TCP, and takes a random loss for
// congestion, which the default does not.
func TestChosenCubic(t *testing.T) {
	host := HostConfig{Congestion: vipl.CongestionCubic}
	r := run(t, Sharing{Bottleneck: near(150_000), Host: host, VIs: 1, TCPs: []TCPAlgorithm{Cubic}, Warm: Second, Time: 4 * Second})
	nstest.ErrorIf(t, r.OfVI < 0.35 || r.OfVI > 0.65 || r.Used < 0.98, "share %.2f, link used %.2f", r.OfVI, r.Used)
	if testing.Short() {
		return
	}
	r = run(t, Sharing{Bottleneck: near(150_000), Host: host, VIs: 1, Warm: Second, Time: 2 * Second})
	nstest.ErrorIf(t, r.Queue < 0.4*150_000 || r.Used < 0.98, "alone: queue %.0f bytes, link used %.2f", r.Queue, r.Used)
	far := Link{Rate: 200e6, Delay: 5 * Millisecond, Limit: 500_000, Loss: 0.01}
	cubic := run(t, Sharing{Bottleneck: far, Host: host, VIs: 1, Warm: Second, Time: 2 * Second})
	usual := run(t, Sharing{Bottleneck: far, VIs: 1, Warm: Second, Time: 2 * Second})
	nstest.ErrorIf(t, cubic.Used > 0.5 || usual.Used < 0.85, "1 %% lost at random: CUBIC uses %.2f, the default %.2f", cubic.Used, usual.Used)
}

// leafSpine is a small network of 25 Gbit/s.
func leafSpine(t *testing.T, seed uint64, hosts HostConfig) *LeafSpine {
	t.Helper()
	link := Link{Rate: 25e9, Delay: 2 * Microsecond, Mark: 100_000}
	n, err := NewLeafSpine(seed, hosts, Shape{Leaves: 2, PerLeaf: 4, Spines: 2, Host: link, Trunk: link, Buffer: 1 << 20})
	must(t, err)
	t.Cleanup(func() { must(t, n.Close()) })
	return n
}

// If a spine fails under load, its streams go on by the other one, and nothing is lost for the programs.
func TestSpineFails(t *testing.T) {
	n := leafSpine(t, 1, HostConfig{})
	const size = 4 << 20
	done := 0
	for i := range 4 {
		st, err := n.NewStream(n.Hosts[i], n.Hosts[4+i])
		must(t, err)
		st.Transfer(size, func(int64) { done++ })
		defer func() {
			nstest.ErrorIf(t, st.Err != nil || st.Received != size, "stream %d: %d of %d bytes, %v", i, st.Received, size, st.Err)
		}()
	}
	n.After(Millisecond/2, func() { n.FailSpine(0, true) })
	if !n.RunUntil(Second, func() bool { return done == 4 }) {
		t.Errorf("%d of 4 transfers are over", done)
	}
	t.Logf("all is there after %d us", n.Now()/Microsecond)
}

// Many answers for one host fit into its link.
func TestIncast(t *testing.T) {
	n := leafSpine(t, 1, HostConfig{})
	const size = 64 << 10
	done, last := 0, int64(0)
	for i := range 7 {
		st, err := n.NewStream(n.Hosts[1+i], n.Hosts[0])
		must(t, err)
		st.Transfer(size, func(now int64) { done, last = done+1, now })
	}
	if !n.RunUntil(Second, func() bool { return done == 7 }) {
		t.Fatalf("%d of 7 transfers are over", done)
	}
	ideal := float64(7*size*8) / 25e9 * Second
	t.Logf("%d us, ideal %.0f us, %+v", last/Microsecond, ideal/Microsecond, n.Down[0].Stats)
	if float64(last) > 1.5*ideal+100*Microsecond {
		t.Errorf("took %d us, ideal %.0f us", last/Microsecond, ideal/Microsecond)
	}
}
