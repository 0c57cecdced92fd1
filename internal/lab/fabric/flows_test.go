package fabric

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
)

// network is a leaf-spine network of 25 Gbit/s whose switches mark.
func network(leaves, perLeaf, spines int) Shape {
	link := Link{Rate: 25e9, Delay: Microsecond, Mark: 65 * frame}
	return Shape{Leaves: leaves, PerLeaf: perLeaf, Spines: spines, Host: link, Trunk: link, Buffer: 1 << 20}
}

// p99 is the 99 % slowdown of flows below a size.
func p99(t *testing.T, r Mixed, below int64) float64 {
	t.Helper()
	slowdown, n := Percentile(r.Flows, 0, below, 0.99)
	nstest.FatalIf(t, n == 0, "no flows below %d bytes", below)
	return slowdown
}

func TestPercentile(t *testing.T) {
	var flows []Finished
	for i := range 100 {
		flows = append(flows, Finished{Bytes: int64(i), Slowdown: float64(i + 1)})
	}
	for _, c := range []struct {
		below int64
		share float64
		want  float64
	}{{100, 0.5, 50}, {100, 0.99, 99}, {100, 1, 100}, {3, 0.5, 2}, {1, 0.99, 1}, {0, 0.5, 0}} {
		if got, n := Percentile(flows, 0, c.below, c.share); got != c.want || n != int(c.below) {
			t.Errorf("%v of %d flows: %v of %d, want %v", c.share, c.below, got, n, c.want)
		}
	}
}

// Messages of 64 KiB to one host fill its link, also those of new connections whose first windows overflow a switch.
// None waits for a timer, and the last ones are not later than DCTCP's.
func TestIncastOfMany(t *testing.T) {
	cases := []struct {
		senders int
		within  int64
	}{
		{64, 0}, {24, 20 * Microsecond},
		{64, 20 * Microsecond}, {48, 20 * Microsecond}, {48, 0}, {32, 20 * Microsecond}, {32, 0}, {24, 0}, {16, 20 * Microsecond}, {16, 0},
	}
	for _, k := range testsize.Some(cases, 2) {
		t.Run(fmt.Sprintf("%d within %d us", k.senders, k.within/Microsecond), func(t *testing.T) {
			c := Incast{Seed: 1, Shape: network(5, 16, 4), Senders: k.senders, Bytes: 64 << 10, Rounds: 3, Within: k.within}
			if testing.Short() {
				c.Rounds = 1
			}
			ours, err := c.Run()
			must(t, err)
			c.Transport = OverDCTCP
			theirs, err := c.Run()
			must(t, err)
			full := payload / float64(frame+onWire) * c.Shape.Host.Rate
			slowest := [2]float64{p99(t, ours, math.MaxInt64), p99(t, theirs, math.MaxInt64)}
			t.Logf("goodput %.3f, DCTCP %.3f; p99 %.2f, %.2f; resent %d, %d", ours.Goodput/full, theirs.Goodput/full, slowest[0], slowest[1],
				ours.Resent, theirs.Resent)
			if ours.Goodput < 0.9*full || ours.Timeouts > 0 || slowest[0] > 1.5*slowest[1] {
				t.Errorf("goodput %.3f, %d timeouts, p99 slowdown %.2f, DCTCP's %.2f", ours.Goodput/full, ours.Timeouts, slowest[0], slowest[1])
			}
		})
	}
}

// Small messages do not enlarge a window that they do not fill: long ones behind them leave as those of new connections. The
// windows of 16 senders that had doubled with each round trip overflowed the switch.
func TestIncastAfterSmallMessages(t *testing.T) {
	c := Incast{Seed: 1, Shape: network(5, 16, 4), Senders: 16, Bytes: 64 << 10, Rounds: 1, Within: 20 * Microsecond}
	fresh, err := c.Run()
	must(t, err)
	c.Small = 50
	r, err := c.Run()
	must(t, err)
	if r.Resent > 0 || p99(t, r, math.MaxInt64) > 1.2*p99(t, fresh, math.MaxInt64) {
		t.Errorf("%d frames sent again, p99 slowdown %.2f, of new connections %.2f", r.Resent, p99(t, r, math.MaxInt64), p99(t, fresh, math.MaxInt64))
	}
}

// The mean queue of an incast is that of its rounds: the time between them, in which nothing is sent, does not count.
func TestIncastQueue(t *testing.T) {
	c := Incast{Seed: 1, Shape: network(2, 8, 2), Senders: 4, Bytes: 10 * payload, Rounds: 3}
	r, err := c.Run()
	must(t, err)
	// All frames arrive in the first third of a round, and then leave one after the other.
	if least := float64(4*10*frame) / 6; r.MeanQueue < least || r.MeanQueue > 4*10*frame {
		t.Errorf("mean queue %.0f bytes, want %.0f or more: %+v", r.MeanQueue, least, r)
	}
}

// The time of a message is from its own beginning, not from that of its round.
func TestIncastSlowdown(t *testing.T) {
	r, err := Incast{Seed: 1, Shape: network(2, 8, 2), Senders: 1, Bytes: 64 << 10, Rounds: 8, Within: Millisecond}.Run()
	must(t, err)
	for _, f := range r.Flows {
		nstest.ErrorIf(t, f.Slowdown < 1 || f.Slowdown > 1.5, "a message alone has a slowdown of %.2f", f.Slowdown)
	}
}

// Flows of both distributions end as soon as DCTCP's, in a small network; the bench group has 64 hosts. A seed replays
// a run.
func TestMix(t *testing.T) {
	for _, z := range []Sizes{DataMining, WebSearch} {
		t.Run(z.Name, func(t *testing.T) {
			m := Mix{Seed: 1, Shape: network(2, 8, 2), Host: HostConfig{RxChunks: 2048, TxChunks: 2048}, Sizes: z, Load: 0.6, Time: 6 * Millisecond}
			if testing.Short() {
				m.Time = Millisecond
			}
			ours, err := m.Run()
			must(t, err)
			if z.Name == DataMining.Name {
				again, err := m.Run()
				must(t, err)
				nstest.ErrorIf(t, !reflect.DeepEqual(ours, again), "two runs of a seed differ")
			}
			m.Transport = OverDCTCP
			theirs, err := m.Run()
			must(t, err)
			all := [2]float64{p99(t, ours, math.MaxInt64), p99(t, theirs, math.MaxInt64)}
			t.Logf("%d flows: p99 %.2f, DCTCP %.2f; queue %.0f, %.0f bytes; resent %d, %d", len(ours.Flows), all[0], all[1],
				ours.MeanQueue, theirs.MeanQueue, ours.Resent, theirs.Resent)
			few := testing.Short() // the 99 % slowdown is that of a single flow
			if len(ours.Flows) != len(theirs.Flows) || all[0] > 1.2*all[1] && !few || ours.Timeouts > 0 {
				t.Errorf("%d and %d flows, p99 slowdown %.2f, DCTCP's %.2f, %d timeouts", len(ours.Flows), len(theirs.Flows), all[0], all[1], ours.Timeouts)
			}
		})
	}
}

// Streams whose spine fails go on by another one within 5 ms.
func TestFailure(t *testing.T) {
	for _, n := range []int{4, 8} {
		r, err := Failure{Seed: 1, Shape: network(2, 8, 2), Streams: n, Before: 5 * Millisecond, After: 8 * Millisecond}.Run()
		must(t, err)
		t.Logf("%d streams: %+v", n, r)
		if r.Recovered < 0 || r.Recovered > max(10*r.Trip, 5*Millisecond) || r.After < 0.9*25e9*payload/(frame+onWire) {
			t.Errorf("%d streams: %+v", n, r)
		}
	}
}

// A network of 256 hosts carries a message from each leaf to the next one.
func TestManyHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 256 hosts")
	}
	p, err := newPaths(1, HostConfig{RxChunks: 256, TxChunks: 256}, network(16, 16, 8), OverVI)
	must(t, err)
	defer func() { must(t, p.Close()) }()
	must(t, fail.Try(func() {
		open := 0
		for i := 0; i < len(p.Hosts); i += 16 {
			from, to := p.Hosts[i], p.Hosts[(i+16)%len(p.Hosts)]
			open++
			p.transfer(from, to, Message, func(took int64) {
				open--
				if ideal := p.ideal(from, to, Message); took > 3*ideal/2 || took < ideal {
					t.Errorf("a message took %d ns, in an empty network %d", took, ideal)
				}
			})
		}
		p.await(Second, "messages have not arrived", &open, open)
	}))
}

// Sizes that are drawn have the mean and the shares of their distribution.
func TestSizes(t *testing.T) {
	for _, z := range []Sizes{WebSearch, DataMining} {
		const draws = 100_000
		sum := 0.
		for i := range draws {
			sum += float64(z.at((float64(i) + 0.5) / draws))
		}
		if mean := sum / draws; math.Abs(mean/z.mean()-1) > 0.01 {
			t.Errorf("%s: mean %.0f, of those drawn %.0f", z.Name, z.mean(), mean)
		}
		rapid.Check(t, func(t *rapid.T) {
			a, b := rapid.Float64Range(0, 1).Draw(t, "a"), rapid.Float64Range(0, 1).Draw(t, "b")
			if last := z.points[len(z.points)-1]; (a < b) && z.at(a) > z.at(b) || z.at(a) < 1 || float64(z.at(b)) > last.bytes {
				t.Errorf("%d at %v, %d at %v", z.at(a), a, z.at(b), b)
			}
		})
	}
}
