package vianet_test

import (
	"io"
	"testing"
	"time"

	"viaxdp/vianet"
)

// Writes leave the doorbell to who polls, if somebody does and comes back soon.
func TestRingLater(t *testing.T) {
	for _, c := range []struct {
		polls bool
		alone int32
		want  int
	}{{false, 0, 0}, {true, 0, 100}, {true, 30, 70}, {true, 200, 0}} {
		if later := vianet.RingLater(c.polls, c.alone, 100); later != c.want {
			t.Errorf("%+v: %d of 100 Writes leave it to others", c, later)
		}
	}
}

// Who polls ends with its deadline, however much there is to do for others.
func TestDeadlineBesideTraffic(t *testing.T) {
	nic, _, _ := memoryNics(t, longSilence)
	took, left, err := vianet.PollPast(nic)
	must(t, err)
	if took == 0 || left == 0 {
		t.Errorf("it took %d completions of others and left %d", took, left)
	}
}

// Who goes to sleep leaves the work to a keeper, although it has just sent it away.
func TestHandover(t *testing.T) {
	nic, _, _ := memoryNics(t, longSilence)
	told, err := vianet.Handover(nic)
	must(t, err)
	if !told {
		t.Error("the keeper goes on to its next look, a millisecond later")
	}
}

// Who needs to hear of sends beside somebody who polls, and sleeps, hears of them also when that one leaves with what
// it wanted and the keeper of arrivals goes to sleep at that moment.
func TestLeft(t *testing.T) {
	nic, _, _ := memoryNics(t, longSilence)
	told, err := vianet.Left(nic)
	must(t, err)
	if !told {
		t.Error("no keeper waits for sends")
	}
}

// Nobody is roused to look for what somebody polls for.
func TestRoused(t *testing.T) {
	for _, polls := range []bool{false, true} {
		if roused := vianet.Roused(polls); roused == polls {
			t.Errorf("somebody polls: %v; a keeper is roused: %v", polls, roused)
		}
	}
}

// Completions of sends that nobody needs to hear of are taken off their queue all the same, by who polls or by a
// keeper: it does not grow.
func TestSendsAreTidied(t *testing.T) {
	for _, spin := range []time.Duration{0, -1} {
		h := inMemory(t, vianet.Options{Spin: spin})
		a, b := h.pair(t)
		before := vianet.SendEntries(h.a)
		done := make(chan error, 1)
		go func() {
			_, err := io.Copy(b, b)
			done <- err
		}()
		message := make([]byte, 64)
		for range 3 * before {
			must(t, errOf(a.Write(message)))
			must(t, errOf(io.ReadFull(a, message)))
		}
		if after := vianet.SendEntries(h.a); after != before {
			t.Errorf("polling %v: the queue has grown from %d entries to %d", spin, before, after)
		}
		a.Close()
		check(t, <-done)
	}
}
