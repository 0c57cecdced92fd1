package vianet

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A deadline that is moved counts from then on, and has passed only when it has.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline
		is := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got := isClosed(d.passed()); got != want {
				t.Errorf("passed: %v, want %v", got, want)
			}
		}
		is(false)
		d.set(time.Now().Add(time.Second))
		waiter := d.passed()
		is(false)
		time.Sleep(time.Second)
		is(true)
		if !isClosed(waiter) {
			t.Error("who waited before does not hear of it")
		}
		d.set(time.Time{})
		is(false)
		d.set(time.Now().Add(-time.Second))
		is(true)
		d.set(time.Now().Add(2 * time.Second))
		is(false)
		waiter = d.passed()
		d.set(time.Now().Add(time.Second)) // earlier, for those who wait, too
		time.Sleep(time.Second)
		is(true)
		if !isClosed(waiter) {
			t.Error("who waited does not hear of the earlier one")
		}
		d.set(time.Now().Add(time.Second))
		d.set(time.Time{})
		time.Sleep(time.Hour)
		is(false)
	})
}

// Who dials waits for the greeting as long as the context lasts.
func TestGreetingComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := func() *Conn {
			return &Conn{stack: &Stack{closed: make(chan struct{})}, ready: make(chan struct{}), gone: make(chan struct{})}
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), dialTime, syscall.ETIMEDOUT)
		defer cancel()
		late := waiting()
		time.AfterFunc(dialTime-time.Second, func() { close(late.ready) })
		if err := late.greeting(ctx); err != nil {
			t.Errorf("a late one: %v", err)
		}
		if err := waiting().greeting(ctx); err != syscall.ETIMEDOUT {
			t.Errorf("none: %v", err)
		}
	})
}

// A limit that is moved counts from then on; who waits is woken when it has passed, and the signal of one that was
// moved away since says nothing.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit{signal: make(chan struct{}, 1)}
		is := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got := l.passed(); got != want {
				t.Errorf("passed: %v, want %v", got, want)
			}
			if raised := len(l.signal) > 0; raised != want {
				t.Errorf("the signal is raised: %v, want %v", raised, want)
			}
			lower(l.signal)
		}
		is(false)
		l.set(time.Now().Add(time.Second))
		is(false)
		time.Sleep(time.Second)
		is(true)
		l.set(time.Time{})
		is(false)
		l.set(time.Now().Add(-time.Second))
		is(true)
		l.set(time.Now().Add(2 * time.Second))
		is(false)
		l.set(time.Now().Add(time.Second)) // earlier
		time.Sleep(time.Second)
		is(true)
		l.set(time.Now().Add(time.Second))
		l.set(time.Now().Add(3 * time.Second)) // later
		time.Sleep(2 * time.Second)
		is(false)
		time.Sleep(time.Second)
		is(true)
		l.set(time.Now().Add(time.Second))
		l.ring() // the timer's function came late: it is about another time
		is(false)
		l.set(time.Time{})
		time.Sleep(time.Hour)
		is(false)
	})
}

// Who waits past a limit ends, also if its signal was taken by a look at the state.
func TestLimitWithoutSignal(t *testing.T) {
	s := &Stack{}
	s.spinning.Store(true) // others poll
	l := limit{signal: make(chan struct{}, 1)}
	l.set(time.Unix(1, 0))
	lower(l.signal)
	c := &Conn{stack: s}
	if err := c.await(l.signal, &l, &spinner{}, 0); err != os.ErrDeadlineExceeded {
		t.Error(err)
	}
}

// Who sets deadlines with each message makes no garbage.
func TestLimitAllocates(t *testing.T) {
	l := limit{signal: make(chan struct{}, 1)}
	l.set(time.Now().Add(time.Hour)) // makes the timer
	if n := testing.AllocsPerRun(100, func() {
		l.set(time.Now().Add(time.Hour))
		l.set(time.Unix(1, 0))
		l.set(time.Time{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Polling that does not pay is given up, tried again now and then, grows when it pays, and comes back when a sleep
// was so short that it would have paid.
func TestSpinner(t *testing.T) {
	p := spinner{most: 64 * time.Microsecond, budget: 64 * time.Microsecond}
	inVain := func() { p.slept(time.Millisecond, p.most, false) }
	p.paid()
	if got := p.next(); got != p.most {
		t.Errorf("%v, the most is %v", got, p.most)
	}
	for p.next() > 0 {
		inVain()
	}
	if p.budget >= spinLeast {
		t.Errorf("given up at %v", p.budget)
	}
	tries := 0
	for range 4 * spinRetry {
		if p.next() > 0 {
			tries++
			for p.budget >= spinLeast {
				inVain()
			}
		}
	}
	if tries != 4 {
		t.Errorf("%d tries in %d waits", tries, 4*spinRetry)
	}
	p.budget = spinLeast
	p.paid()
	if p.budget != 2*spinLeast {
		t.Errorf("%v after it paid", p.budget)
	}
	p.budget = 0
	if p.slept(p.most, p.most, false); p.budget != p.most {
		t.Errorf("%v after a sleep as short as polling", p.budget)
	}
	for range 100 {
		p.slept(spinTurns*p.most, p.most, true)
	}
	if p.budget != p.most {
		t.Errorf("%v after turns with others, one of whom polled", p.budget)
	}
	if p.slept(spinTurns*p.most+1, p.most, true); p.budget != p.most/2 {
		t.Errorf("%v after a wait that was much longer than those of others", p.budget)
	}
	p.budget = 0
	if p.slept(p.most, p.most, true); p.budget != p.most {
		t.Errorf("%v after a sleep beside another's polling that was short", p.budget)
	}
	if never := newSpinner(-1); never.next() != 0 {
		t.Error("it polls although it must not")
	}
}

// Segments come out in the order in which they went in, and the memory of those that are gone is used again.
func TestSegments(t *testing.T) {
	var q segments
	in, out := 0, 0
	for range 100 {
		for range 3 {
			q.add(segment{buffer: in})
			in++
		}
		for range 2 + in%2 {
			if q.empty() {
				break
			}
			if got := q.first().buffer; got != out {
				t.Fatalf("%d, want %d", got, out)
			}
			q.drop()
			out++
		}
	}
	for ; !q.empty(); out++ {
		if got := q.first().buffer; got != out {
			t.Fatalf("%d, want %d", got, out)
		}
		q.drop()
	}
	if in != out {
		t.Errorf("%d went in, %d came out", in, out)
	}
	room := cap(q.list)
	for range 10_000 {
		q.add(segment{})
		q.add(segment{})
		q.drop()
		q.drop()
	}
	if cap(q.list) != room {
		t.Errorf("room for %d has become %d", room, cap(q.list))
	}
}

// A port belongs to one; 0 is another one each time, until there are none.
func TestPorts(t *testing.T) {
	var p ports
	if n, err := p.take(80); n != 80 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := p.take(80); err != syscall.EADDRINUSE {
		t.Errorf("in use: %v", err)
	}
	seen := make(map[uint16]bool)
	for range lastPort - firstPort + 1 {
		n, err := p.take(0)
		if err != nil || n < firstPort || seen[n] {
			t.Fatalf("%d, %v", n, err)
		}
		seen[n] = true
	}
	if _, err := p.take(0); err != syscall.EADDRNOTAVAIL {
		t.Errorf("all in use: %v", err)
	}
	p.release(firstPort + 5)
	if n, err := p.take(0); n != firstPort+5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
