package torture

import (
	"errors"
	"testing"
	"time"

	"viaxdp/internal/testbed"
	"viaxdp/vipl"
)

// accounted says that no frame vanished between the program and the program's
// user: what was redirected to the socket was received or is counted as dropped
// by cause. All VIs are at rest.
func accounted(t *testing.T, r [2]*Report) {
	t.Helper()
	for side := range r {
		s := &r[side].Queue
		named := s.RxFrames + s.RxTooManySegs + s.RxBadEntries + s.KernelStats.Rx_dropped + s.KernelStats.Rx_ring_full
		if r[side].Program.Redirected != named {
			t.Errorf("side %d: %d frames were redirected, %d arrived or were dropped by name: %+v", side, r[side].Program.Redirected, named, *s)
		}
		if e := r[side].Engine.Frames; e != s.RxFrames {
			t.Errorf("side %d: the queue has given %d frames, the engine has seen %d", side, s.RxFrames, e)
		}
		if s.ChunkErrors > 0 || s.TxRefused > 0 || s.KernelStats.Tx_invalid_descs > 0 || s.KernelStats.Rx_invalid_descs > 0 {
			t.Errorf("side %d: rules of the rings were broken: %+v", side, *s)
		}
	}
}

// telling is how many messages of a side say something about how it goes.
const telling = 500

// overload runs flows for a share of time, and until there were enough messages,
// without faults on the way, and looks at both sides afterwards.
func overload(t *testing.T, nic NICConfig, cfgs ...FlowConfig) (running, closed [2]*Report) {
	t.Helper()
	b := newBed(t, BedConfig{})
	must(t, b.Open(nic))
	flows := 0
	for _, cfg := range cfgs {
		must(t, b.Start(cfg))
		flows += cfg.Flows
	}
	before, err := b.Until(patience, func(r [2]*Report) bool {
		for side := range r {
			for i := range r[side].Flows {
				if r[side].Flows[i].Taken == 0 {
					return false
				}
			}
		}
		return r[0].Open == flows && r[1].Open == flows
	})
	if err != nil {
		t.Fatalf("%v: %+v", err, before)
	}
	time.Sleep(2 * share(t))
	running, err = b.Until(patience, func(r [2]*Report) bool {
		return r[0].Taken >= before[0].Taken+telling && r[1].Taken >= before[1].Taken+telling
	})
	if !errors.Is(err, errTooLate) {
		must(t, err)
	}
	for side := range running {
		if n := running[side].Taken - before[side].Taken; n < telling {
			t.Errorf("side %d: only %d messages came in a minute", side, n)
		}
		for i := range running[side].Flows {
			running[side].Flows[i].Taken -= before[side].Flows[i].Taken
		}
	}
	r, err := b.Stop()
	must(t, err)
	unbroken(t, r)
	if n := calm(b); n.Overrun > 0 || n.Refused > 0 {
		t.Errorf("the middle was overrun: %+v", n)
	}
	_, err = b.Free()
	must(t, err)
	closed, err = b.CloseNICs()
	must(t, err)
	for side := range closed {
		promises(t, side, closed[side])
	}
	accounted(t, closed)
	return running, closed
}

// A receiver that is slower than its senders loses nothing and stops nobody.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	cfg := mixed("slow", vipl.ReliableDelivery, 3)
	cfg.Pause, cfg.MaxBytes, cfg.Depth = 2*time.Millisecond, 60_000, 32
	overload(t, NICConfig{}, cfg)
}

// With few chunks everything waits for everything, and still all arrives.
func TestTinyRings(t *testing.T) {
	t.Parallel()
	for _, level := range levels[1:] {
		t.Run(level.String(), func(t *testing.T) {
			cfg := mixed("tiny", level, 6)
			cfg.MaxBytes = 30_000
			_, r := overload(t, NICConfig{RxChunks: 32, TxChunks: 32}, cfg)
			drops := uint64(0)
			for side := range r {
				drops += r[side].Queue.KernelStats.Rx_dropped + r[side].Queue.KernelStats.Rx_ring_full + r[side].Queue.TxAgain
			}
			t.Logf("%d times a ring was full or empty", drops)
		})
	}
}

// Several senders into one receiver get shares alike: none starves, none takes
// more than some times what another one gets.
func TestFairShares(t *testing.T) {
	t.Parallel()
	const senders, most = 4, 4
	r, _ := overload(t, NICConfig{}, mixed("fair", vipl.ReliableDelivery, senders))
	for side := range r {
		least, greatest := r[side].Flows[0].Taken, uint64(0)
		for _, f := range r[side].Flows {
			least, greatest = min(least, f.Taken), max(greatest, f.Taken)
		}
		if least == 0 || greatest > most*least {
			t.Errorf("side %d: from %d to %d messages a flow", side, least, greatest)
		}
	}
}

// Levels share a NIC: unreliable flows that know no measure do not stop reliable
// ones.
func TestLevelsTogether(t *testing.T) {
	t.Parallel()
	flood := mixed("flood", vipl.UnreliableDelivery, 2)
	flood.Flood = true
	b := newBed(t, BedConfig{})
	must(t, b.Open(NICConfig{RxChunks: 256, TxChunks: 256}))
	must(t, b.Start(flood))
	must(t, b.Start(mixed("beside", vipl.ReliableReception, 2)))
	b.Site.Middle.SetBoth(testbed.Faults{Seed: 77, Loss: 0.005})
	_, err := b.Until(patience, func(r [2]*Report) bool {
		for side := range r {
			for i := range r[side].Flows {
				if r[side].Flows[i].Taken < 200 {
					return false
				}
			}
		}
		return len(r[0].Flows) == 4
	})
	must(t, err)
	if n := calm(b); n.Lost == 0 {
		t.Errorf("nothing was lost: %+v", n)
	}
	r, err := b.Stop()
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
		for i, f := range r[side].Flows {
			if i >= flood.Flows && len(f.Breaks) > 0 {
				t.Errorf("side %d: reliable flow broke: %s", side, f.Breaks[0].Cause)
			}
		}
	}
	r, err = b.CloseNICs()
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
	}
	accounted(t, r)
}
