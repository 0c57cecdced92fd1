package torture

import (
	"errors"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// accounted checks that no frame vanished between the XDP program and the user's program:
// each frame that was redirected to the socket was received or is counted as dropped by
// cause. All VIs are at rest.
func accounted(t *testing.T, r [2]*Report) {
	t.Helper()
	for side := range r {
		var a frameCounts
		a.receive(r[side])
		s := r[side].Queue
		err := a.atReceiver()
		nstest.ErrorIf(t, err != nil, "side %d: %v: %+v", side, err, s)
		nstest.ErrorIf(t, s.ChunkErrors > 0 || s.TxRefused > 0 || s.KernelStats.Tx_invalid_descs > 0 || s.KernelStats.Rx_invalid_descs > 0,
			"side %d: rules of the rings were broken: %+v", side, s)
	}
}

// telling is how many messages of a side are enough for a judgement.
const telling = 500

// overload runs flows for a share of time, and until there were enough messages and ok
// returns true. It counts each flow's messages only from when all flows have taken some;
// the caller judges the reports. The link has no faults. It checks both sides afterwards.
func overload(t *testing.T, nic NICConfig, ok func(r [2]*Report) bool, cfgs ...FlowConfig) (running [2]*Report) {
	t.Helper()
	b := newBed(t, BedConfig{})
	nic.Silence = unhurried
	must(t, b.Open(nic))
	flows := 0
	for _, cfg := range cfgs {
		must(t, b.Start(cfg))
		flows += cfg.Flows
	}
	before := talking(t, b, flows)
	time.Sleep(2 * share(t))
	running, err := b.Until(waitLimit, func(r [2]*Report) bool {
		for side := range r {
			for i := range r[side].Flows {
				r[side].Flows[i].Taken -= before[side].Flows[i].Taken
			}
		}
		return r[0].Taken >= before[0].Taken+telling && r[1].Taken >= before[1].Taken+telling && ok(r)
	})
	if !errors.Is(err, errTooLate) {
		must(t, err)
	}
	for side := range running {
		if n := running[side].Taken - before[side].Taken; n < telling {
			t.Errorf("side %d: only %d messages came in two minutes", side, n)
		}
	}
	unbroken(t, asked(t, b, doStop))
	unanswered(t, b, [2]Unwanted{})
	if n := calm(b); n.Overrun > 0 || n.Refused > 0 {
		t.Errorf("the middle was overrun: %+v", n)
	}
	asked(t, b, doFree)
	accounted(t, asked(t, b, doClose))
	return running
}

// A receiver that is slower than its senders loses nothing and does not stop others.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	cfg := mixed("slow", vipl.ReliableDelivery, 3)
	cfg.Pause, cfg.MaxBytes, cfg.Depth = 2*time.Millisecond, 60_000, 32
	slow := func(r [2]*Report) bool { return 2*r[0].Behind > r[0].Taken && 2*r[1].Behind > r[1].Taken }
	r := overload(t, NICConfig{}, slow, cfg)
	if !slow(r) {
		t.Errorf("the receivers were not slow: of %d and %d messages only %d and %d had to wait for them",
			r[0].Taken, r[1].Taken, r[0].Behind, r[1].Behind)
	}
}

// spareTx is how many TX chunks the engine leaves for acknowledgements: with no more than
// that free, data waits.
const spareTx = 8

// With few chunks everything waits for chunks, and still all arrives.
func TestTinyRings(t *testing.T) {
	t.Parallel()
	for _, level := range levels[1:] {
		t.Run(level.String(), func(t *testing.T) {
			cfg := mixed("tiny", level, 6)
			cfg.MaxBytes = 30_000
			short := func(r [2]*Report) bool {
				for side := range r {
					if r[side].Socket["rx_dropped"] == 0 || r[side].LeastTx > spareTx {
						return false
					}
				}
				return true
			}
			r := overload(t, NICConfig{RxChunks: 16, TxChunks: 32}, short, cfg)
			for side := range r {
				dropped := r[side].Socket["rx_dropped"]
				t.Logf("side %d: %d frames found no chunk, %d chunks to send were free at least", side, dropped, r[side].LeastTx)
				nstest.ErrorIf(t, dropped == 0 || r[side].LeastTx > spareTx, "side %d: there were chunks enough", side)
			}
		})
	}
}

// shares are the least and the greatest that any of some flows has taken.
func shares(flows []Tally) (least, greatest uint64) {
	least = flows[0].Taken
	for i := range flows {
		least, greatest = min(least, flows[i].Taken), max(greatest, flows[i].Taken)
	}
	return least, greatest
}

// mostShare is how many times as much as another one a flow may take.
const mostShare = 4

func alike(flows []Tally) bool {
	least, greatest := shares(flows)
	return least > 0 && greatest <= mostShare*least
}

// Several senders into one receiver get fair shares: none starves, and none takes more
// than mostShare times as much as another. A flow that got no CPU for a while must have
// time to catch up.
func TestFairShares(t *testing.T) {
	t.Parallel()
	const senders = 4
	r := overload(t, NICConfig{}, func(r [2]*Report) bool { return alike(r[0].Flows) && alike(r[1].Flows) },
		mixed("fair", vipl.ReliableDelivery, senders))
	for side := range r {
		if !alike(r[side].Flows) {
			least, greatest := shares(r[side].Flows)
			t.Errorf("side %d: from %d to %d messages a flow", side, least, greatest)
		}
	}
}

// Levels share a NIC: unreliable flows without flow control do not stop reliable ones.
func TestLevelsTogether(t *testing.T) {
	t.Parallel()
	flood := mixed("flood", vipl.UnreliableDelivery, 2)
	flood.Flood = true
	b := newBed(t, BedConfig{})
	must(t, b.Open(NICConfig{RxChunks: 256, TxChunks: 256, Silence: unhurried}))
	must(t, b.Start(flood))
	must(t, b.Start(mixed("beside", vipl.ReliableReception, 2)))
	b.Site.Middle.SetBoth(testbed.Faults{Seed: 77, Loss: 0.005})
	_, err := b.Until(waitLimit, func(r [2]*Report) bool {
		return eachFlow(r, func(f *Tally) bool { return f.Taken >= 200 }) && len(r[0].Flows) == 4
	})
	must(t, err)
	if n := calm(b); n.Lost == 0 {
		t.Errorf("nothing was lost: %+v", n)
	}
	r := asked(t, b, doStop)
	for side := range r {
		for i, f := range r[side].Flows {
			if i >= flood.Flows && len(f.Breaks) > 0 {
				t.Errorf("side %d: reliable flow broke: %s", side, f.Breaks[0].Cause)
			}
		}
	}
	unanswered(t, b, [2]Unwanted{})
	accounted(t, asked(t, b, doClose))
}
