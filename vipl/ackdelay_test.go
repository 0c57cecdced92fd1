package vipl

import (
	"testing"

	"viaxdp/internal/base/reliable"
	"viaxdp/internal/lab/nstest"
)

// The acknowledgement delay grows in small steps for data that is sent soon, and not for data that is sent late.
func TestAckDelay(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer int64 // ns from a frame of the peer to data of ours
		alone  bool  // whether the acknowledgement goes alone in the end
	}{
		{"at once", 10_000, false},
		{"within a few programs' turns", 300_000, false},
		{"as long as is worth it", ackMost, false},
		{"later than that", ackMost + 1, true},
	} {
		var a ackDelay
		now, last, alone := int64(1_000_000), int64(defaultAckDelay), false
		for range 30 {
			by := a.begin(now, 1)
			wait := by - now
			nstest.FatalIf(t, wait < defaultAckDelay || wait > ackMost || wait > last+last/4, "%s: it waits for %d ns, after %d", c.name, wait, last)
			last = wait
			if alone = by < now+c.answer; alone {
				a.wentAlone(by)
			}
			now += c.answer
			a.dataGoes(now)
			now += 1_000_000
		}
		nstest.ErrorIf(t, alone != c.alone, "%s: in the end alone: %v", c.name, alone)
		nstest.ErrorIf(t, c.alone && last != defaultAckDelay, "%s: it waits for %d ns in vain", c.name, last)
	}
}

// An acknowledgement that is due at once, or requested soon, does not change the estimate. If other connections
// owe one too, the delay is longer.
func TestAckDelayOfOthers(t *testing.T) {
	var a ackDelay
	now := int64(1_000_000)
	by := a.begin(now, sharedAcks)
	nstest.ErrorIf(t, by != now+sharedAckDelay, "in a crowd it waits for %d ns", by-now)
	a.wentAlone(now + ackSoon)
	a.dataGoes(now + 2*ackSoon)
	nstest.ErrorIf(t, a.wait != 0, "it has learnt to wait for %d ns", a.wait)
}

// lateAnswers returns the ackDelay of a connection whose program has answered this late 40 times.
func lateAnswers(late int64) (a ackDelay, now int64) {
	now = 1_000_000
	for range 40 {
		if by := a.begin(now, 1); by < now+late {
			a.wentAlone(by)
		}
		a.dataGoes(now + late)
		now += 2 * late
	}
	return a, now
}

// An acknowledgement that something else forced early does not change the estimate either, nor does a request
// of the peer; the requested one is not delayed as long again.
func TestAckDelayOfThePeer(t *testing.T) {
	const late = 1_500_000
	for _, pressed := range []bool{false, true} {
		a, now := lateAnswers(late)
		learnt := a.wait
		for range 10 {
			if a.begin(now, 1); pressed {
				a.pressed()
			}
			a.wentAlone(now + 4*defaultAckDelay) // at once, of many frames or by the peer's wish
			a.dataGoes(now + late)
			now += 2 * late
		}
		nstest.ErrorIf(t, !pressed && a.wait != learnt || pressed && a.wait > defaultAckDelay, "pressed %v: it waits for %d ns, and had learnt %d", pressed, a.wait, learnt)
	}
}

// The delay decays when late answers become rare, and when there are none any more.
func TestAckDelayIsUnlearnt(t *testing.T) {
	const late = 1_500_000
	for name, then := range map[string]func(a *ackDelay, now *int64){
		"most answers come at once": func(a *ackDelay, now *int64) {
			for k := range 500 {
				by, answer := a.begin(*now, 1), *now+20_000
				if k%50 == 0 {
					answer = *now + late
				}
				if by < answer {
					a.wentAlone(by)
				}
				a.dataGoes(answer)
				*now += 2 * late
			}
		},
		"no answers come": func(a *ackDelay, now *int64) {
			for range 100 {
				a.wentAlone(a.begin(*now, 1))
				*now += ackMost / 5
			}
		},
	} {
		a, now := lateAnswers(late)
		nstest.FatalIf(t, a.wait < late, "it has learnt to wait for %d ns only", a.wait)
		then(&a, &now)
		nstest.ErrorIf(t, a.wait > 2*defaultAckDelay, "%s: it waits for %d ns", name, a.wait)
	}
}

// If reordering is known, and a gap is not reported at once, frames buffered behind a gap are acknowledged as soon
// as the end of a burst is, however long the acknowledgement delay is.
func TestGapIsToldSoon(t *testing.T) {
	r := reliable.NewReceiver(1, 64)
	for range 100 { // gaps that late frames fill
		next := r.Next()
		r.Arrive(next+1, false)
		r.Buffer(next+1, 0)
		r.Arrive(next, false)
		r.Pop()
	}
	r.Acked()
	const now = 1000
	p := &port{shares: shares{window: 64}}
	c := &conn{vi: &VI{attrs: VIAttributes{Level: ReliableDelivery}}, receiver: r}
	c.ack.delay.wait = 2_000_000
	r.Arrive(r.Next(), false)
	p.oweAck(c, now)
	nstest.FatalIf(t, c.ack.due <= now+defaultAckDelay, "in order: after %d ns", c.ack.due-now)
	r.Arrive(r.Next()+1, false)
	r.Buffer(r.Next()+1, 0)
	p.oweAck(c, now)
	wait := c.ack.due - now
	nstest.ErrorIf(t, wait <= 0 || wait > defaultAckDelay, "behind a gap: after %d ns, want %d", wait, defaultAckDelay)
}
