package schedlat

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// An idle machine is not late over any time.
func TestOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Start()
		mark := m.Mark()
		time.Sleep(time.Hour)
		m.Close()
		if late := m.Late(); late != 0 {
			t.Errorf("late by %v where time waits for all", late)
		}
		if mark.Over(time.Hour) || !mark.Over(time.Hour-1) {
			t.Errorf("after an hour %v are allowed for one", mark.Allow(time.Hour))
		}
	})
}

// If no other thread gets a processor, all of that time counts.
func TestStarved(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	m := Start()
	defer m.Close()
	mark := m.Mark()
	for round := 0; m.Late() == 0; round++ {
		if round == 1000 {
			t.Fatal("a processor that was busy for 1000 times 7 ms made no thread late")
		}
		for since := time.Now(); time.Since(since) < 7*time.Millisecond; {
		}
		time.Sleep(time.Microsecond) // the meter's turn
	}
	if got := mark.Allow(time.Second); got < time.Second+m.Late() {
		t.Errorf("%v are allowed for a second on a machine that is late by %v", got, m.Late())
	}
}

// Late is a sum, which any long time makes large; what counts for silence is the worst second.
func TestSpells(t *testing.T) {
	m := &Meter{}
	start := time.Now()
	late := func(at, by time.Duration) { m.note(start.Add(at), by) }
	for i := range 100 { // a little each second
		late(time.Duration(i)*1100*time.Millisecond, 20*time.Millisecond)
	}
	if got := Worst(m.Spells(), start); got != 20*time.Millisecond {
		t.Errorf("20 ms in each second are %v in the worst", got)
	}
	end := 200 * time.Second
	late(end, 90*time.Millisecond)
	late(end+500*time.Millisecond, 60*time.Millisecond)
	late(end+900*time.Millisecond, 50500*time.Microsecond)
	late(end+1600*time.Millisecond, 2*time.Millisecond)
	late(end+10*time.Second, 5*time.Millisecond)
	for since, want := range map[time.Duration]time.Duration{
		0: 201 * time.Millisecond, end + time.Second: 53 * time.Millisecond, end + 5*time.Second: 5 * time.Millisecond, end + 10*time.Second: 0,
	} {
		if got := Worst(m.Spells(), start.Add(since)); got != want {
			t.Errorf("after %v: late by %v in the worst second, want %v", since, got, want)
		}
	}
	if n := len(m.Spells()); n > 4 {
		t.Errorf("%d spells are kept", n)
	}
}
