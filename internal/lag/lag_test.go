package lag

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A machine that has time is not late, however long it is looked at.
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

// Where nobody else gets a processor, all of that time counts.
func TestStarved(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	m := Start()
	defer m.Close()
	mark := m.Mark()
	for round := 0; m.Late() == 0; round++ {
		if round == 1000 {
			t.Fatal("a processor that was busy for 1000 times 7 ms made nobody late")
		}
		for since := time.Now(); time.Since(since) < 7*time.Millisecond; {
		}
		time.Sleep(time.Microsecond) // the meter's turn
	}
	if got := mark.Allow(time.Second); got < time.Second+m.Late() {
		t.Errorf("%v are allowed for a second on a machine that is late by %v", got, m.Late())
	}
}
