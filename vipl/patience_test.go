package vipl

import "testing"

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
