package vipl

import (
	"testing"

	"viaxdp/reliable"
)

// Acknowledgements learn to wait for data that comes soon, in small steps, and to
// wait for none that comes late.
func TestPatience(t *testing.T) {
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
		var a patience
		now, last, alone := int64(1_000_000), int64(ackDelay), false
		for range 30 {
			by := a.owes(now, 1)
			wait := by - now
			if wait < ackDelay || wait > ackMost || wait > last+last/4 {
				t.Fatalf("%s: it waits for %d ns, after %d", c.name, wait, last)
			}
			last = wait
			if alone = by < now+c.answer; alone {
				a.wentAlone(by)
			}
			now += c.answer
			a.dataGoes(now)
			now += 1_000_000
		}
		if alone != c.alone {
			t.Errorf("%s: in the end alone: %v", c.name, alone)
		}
		if c.alone && last != ackDelay {
			t.Errorf("%s: it waits for %d ns in vain", c.name, last)
		}
	}
}

// One that is due at once, or asked for soon, says nothing about waiting; where
// others wait, too, it waits longer.
func TestPatienceOfOthers(t *testing.T) {
	var a patience
	now := int64(1_000_000)
	if by := a.owes(now, crowd); by != now+ackCrowd {
		t.Errorf("in a crowd it waits for %d ns", by-now)
	}
	a.wentAlone(now + ackSoon)
	a.dataGoes(now + 2*ackSoon)
	if a.wait != 0 {
		t.Errorf("it has learnt to wait for %d ns", a.wait)
	}
}

// lateAnswers is the patience of a connection whose program has answered so late 40 times.
func lateAnswers(late int64) (a patience, now int64) {
	now = 1_000_000
	for range 40 {
		if by := a.owes(now, 1); by < now+late {
			a.wentAlone(by)
		}
		a.dataGoes(now + late)
		now += 2 * late
	}
	return a, now
}

// What made the acknowledgement go before its time says nothing about waiting either, nor
// does the peer that asks for it; that one is not made to wait as long again.
func TestPatienceOfThePeer(t *testing.T) {
	const late = 1_500_000
	for _, pressed := range []bool{false, true} {
		a, now := lateAnswers(late)
		learnt := a.wait
		for range 10 {
			if a.owes(now, 1); pressed {
				a.pressed()
			}
			a.wentAlone(now + 4*ackDelay) // at once, of many frames or by the peer's wish
			a.dataGoes(now + late)
			now += 2 * late
		}
		if !pressed && a.wait != learnt || pressed && a.wait > ackDelay {
			t.Errorf("pressed %v: it waits for %d ns, and had learnt %d", pressed, a.wait, learnt)
		}
	}
}

// What was learnt from late answers is unlearnt when they become rare, and when there
// are none any more.
func TestPatienceIsUnlearnt(t *testing.T) {
	const late = 1_500_000
	for name, then := range map[string]func(a *patience, now *int64){
		"most answers come at once": func(a *patience, now *int64) {
			for k := range 500 {
				by, answer := a.owes(*now, 1), *now+20_000
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
		"no answers come": func(a *patience, now *int64) {
			for range 100 {
				a.wentAlone(a.owes(*now, 1))
				*now += ackMost / 5
			}
		},
	} {
		a, now := lateAnswers(late)
		if a.wait < late {
			t.Fatalf("it has learnt to wait for %d ns only", a.wait)
		}
		if then(&a, &now); a.wait > 2*ackDelay {
			t.Errorf("%s: it waits for %d ns", name, a.wait)
		}
	}
}

// Where frames are late, and a gap is no news, the peer still hears of what is held behind one
// as soon as of a burst's end, however long acknowledgements have learned to wait.
func TestGapIsToldSoon(t *testing.T) {
	r := reliable.NewReceiver(1, 64)
	for range 100 { // gaps that late frames fill
		next := r.Next()
		r.Arrive(next+1, false)
		r.Hold(next+1, 0)
		r.Arrive(next, false)
		r.Pop()
	}
	r.Acked()
	const now = 1000
	p := &port{ackEvery: 16}
	c := &conn{vi: &VI{attrs: ViAttributes{Level: ReliableDelivery}}, receiver: r}
	c.patience.wait = 2_000_000
	r.Arrive(r.Next(), false)
	p.owe(c, now)
	if c.oweBy <= now+ackDelay {
		t.Fatalf("in order: after %d ns", c.oweBy-now)
	}
	r.Arrive(r.Next()+1, false)
	r.Hold(r.Next()+1, 0)
	p.owe(c, now)
	if wait := c.oweBy - now; wait <= 0 || wait > ackDelay {
		t.Errorf("behind a gap: after %d ns, want %d", wait, ackDelay)
	}
}
