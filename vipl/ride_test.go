package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// A program that takes its time for each answer comes to send it with the
// acknowledgement of the question, and not behind it.
func TestAcknowledgementsRideOnLateAnswers(t *testing.T) {
	const learning, exchanges = 40, 20
	const looks = 256 // polls in vain, after which the clock is looked at
	for _, late := range []time.Duration{20 * time.Microsecond, 400 * time.Microsecond, 1500 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
			xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
			say := func(from, to *vipl.VI, x, y *box) {
				postRecv(t, to, y, 0, 64)
				postSend(t, from, x, 1, 64)
				for range 8 { // both poll, while the answer is made
					for range looks {
						n.a.Poll()
						n.b.Poll()
					}
					time.Sleep(late / 8)
				}
				if _, err := to.RecvDone(); err != nil {
					t.Fatal(err)
				}
				sent(t, from, 0)
			}
			var before uint64
			for k := range learning + exchanges {
				if k == learning {
					before = n.a.Counters().Acks + n.b.Counters().Acks
				}
				say(va, vb, xa, xb)
				say(vb, va, xb, xa)
			}
			if alone := n.a.Counters().Acks + n.b.Counters().Acks - before; alone > exchanges/10 {
				t.Errorf("answers after %v: %d acknowledgements of %d went alone", late, alone, 2*exchanges)
			}
			if again := n.a.Counters().Resent + n.b.Counters().Resent; again > 4 {
				t.Errorf("answers after %v: %d frames were sent again", late, again)
			}
		})
	}
}

// A late answer among many that come at once does not make the peer send again what waits
// for its acknowledgement.
func TestAcknowledgementsDoNotWaitForRareAnswers(t *testing.T) {
	const looks = 256
	const early, late = 20 * time.Microsecond, 1500 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
		say := func(from, to *vipl.VI, x, y *box, d time.Duration) {
			postRecv(t, to, y, 0, 64)
			postSend(t, from, x, 1, 64)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(early) {
				for range looks {
					n.a.Poll()
					n.b.Poll()
				}
			}
			if _, err := to.RecvDone(); err != nil {
				t.Fatal(err)
			}
			sent(t, from, 0)
		}
		for k := range 1000 {
			if k%50 == 0 {
				say(va, vb, xa, xb, late)
			} else {
				say(va, vb, xa, xb, early)
			}
			say(vb, va, xb, xa, early)
		}
		if again := n.a.Counters().Resent + n.b.Counters().Resent; again > 4 {
			t.Errorf("%d frames were sent again", again)
		}
	})
}
