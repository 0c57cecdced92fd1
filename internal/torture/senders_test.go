package torture

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/internal/testbed"
	"viaxdp/vipl"
)

// starParties starts a party in each namespace of a star, which open their
// interfaces, the first as cfg says.
func starParties(t *testing.T, n int, cfg NICConfig) (*testbed.Star, []*Party) {
	t.Helper()
	nstest.Require(t)
	star, err := testbed.NewStar(n, 1500)
	must(t, err)
	t.Cleanup(star.Close)
	parties := make([]*Party, n)
	for i := range parties {
		p, err := star.Spawn(i, []string{asParty}, os.Stderr)
		must(t, err)
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("party %d: %v", i, err)
			}
		})
		parties[i] = &Party{Process: p, answers: bufio.NewReader(p.Out)}
		nic := NICConfig{Interface: testbed.StarInterface, Silence: unhurried}
		if i == 0 {
			nic = cfg
			nic.Interface, nic.Silence = testbed.StarInterface, unhurried
		}
		_, err = parties[i].call(order{Op: opOpen, NIC: &nic})
		must(t, err)
	}
	return star, parties
}

// all gives an order to all parties at the same time.
func all(t *testing.T, parties []*Party, op string) []*Report {
	t.Helper()
	for _, p := range parties {
		must(t, p.say(order{Op: op}))
	}
	reports := make([]*Report, len(parties))
	for i, p := range parties {
		var err error
		if reports[i], err = p.hear(); err != nil {
			t.Fatalf("party %d: %s: %v", i, op, err)
		}
	}
	return reports
}

// Two programs on hosts of their own send to a third, which has room for few frames:
// it gets alike of both, and no frame vanishes without a count, on the way or in it.
func TestFairSenders(t *testing.T) {
	t.Parallel()
	const senders, flows = 2, 2
	star, parties := starParties(t, 1+senders, NICConfig{RxChunks: 64, TxChunks: 64})
	dropsBefore, err := star.Drops()
	must(t, err)
	for i := 1; i <= senders; i++ {
		for _, asks := range []bool{false, true} {
			cfg := mixed(fmt.Sprint("sender-", i), vipl.ReliableDelivery, flows)
			cfg.Asks, cfg.MaxBytes, cfg.Depth = asks, 30_000, 32
			from, to := 0, i
			if asks {
				from, to = i, 0
				cfg.Seed += uint64(i) << 32
			}
			cfg.Peer = star.Ends[to].IPv4.Addr()
			_, err := parties[from].call(order{Op: opStart, Flows: &cfg})
			must(t, err)
		}
	}

	// until asks the receiver what it has taken of each sender until that is as wanted.
	until := func(ok func(r *Report, of []Tally) bool) (r *Report, of []Tally) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			r, err := parties[0].Report()
			must(t, err)
			of := make([]Tally, senders)
			for i, f := range r.Flows {
				of[i/flows].Taken += f.Taken
			}
			if ok(r, of) {
				return r, of
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d flows are connected, messages of the senders: %d and %d", r.Open, senders*flows, of[0].Taken, of[1].Taken)
			}
		}
	}
	_, before := until(func(r *Report, of []Tally) bool {
		return r.Open == senders*flows && of[0].Taken > 0 && of[1].Taken > 0
	})
	_, since := until(func(_ *Report, of []Tally) bool {
		sum := uint64(0)
		for i := range of {
			of[i].Taken -= before[i].Taken
			sum += of[i].Taken
		}
		return sum >= telling && alike(of)
	})
	t.Logf("%d and %d messages", since[0].Taken, since[1].Taken)

	for i, r := range all(t, parties, opStop) {
		promises(t, i, r)
		for _, b := range r.Breaks {
			t.Errorf("party %d: flow %s broke (%s) after %d sent, %d taken", i, b.Flow, b.Cause, b.Sent, b.Taken)
		}
	}
	all(t, parties, opFree)
	sent := uint64(0)
	for i, r := range all(t, parties[1:], opClose) {
		promises(t, 1+i, r)
		accountedAt(t, fmt.Sprint("sender ", i), r)
		sent += r.Queue.Transmitted
		if n := r.Queue.Transmitted; n != r.Queue.TxFrames || r.Queue.TxLostBusy > 0 {
			t.Errorf("sender %d: of %d frames %d were sent: %+v", i, r.Queue.TxFrames, n, r.Queue)
		}
	}
	// What was sent last may still be on its way. A frame may be counted at both ends of a
	// pair, so that only too few counts say something.
	var came, drops uint64
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		r, err := parties[0].Report()
		must(t, err)
		p := r.Program
		came = p.Redirected + p.Short + p.Version + p.NoVI + p.Key + p.Source + p.Queue + p.NoSocket
		drops, err = star.Drops()
		must(t, err)
		if drops -= dropsBefore; came+drops >= sent || time.Now().After(end) {
			break
		}
	}
	if came > sent || came+drops < sent {
		t.Errorf("the senders sent %d frames, %d came, and %d were dropped by name", sent, came, drops)
	}
	r := all(t, parties[:1], opClose)[0]
	promises(t, 0, r)
	accountedAt(t, "receiver", r)
	t.Logf("%d frames sent, %d came, %d dropped on the way, %d at the receiver's rings", sent, came, drops,
		r.Queue.KernelStats.Rx_dropped+r.Queue.KernelStats.Rx_ring_full)
}
