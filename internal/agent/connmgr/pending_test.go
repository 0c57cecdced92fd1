package connmgr_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// flood sends requests of many strangers.
type flood struct {
	t *testing.T
	m connmgr.Client
	s *sink
	n uint32 // strangers until now
}

// ask sends requests of n strangers, which prove their addresses, for a discriminator. It returns the last
// answer.
func (f *flood) ask(n int, disc string) (answer wire.CM) {
	f.t.Helper()
	for range n {
		f.n++
		msg := wire.CM{Type: wire.CMRequest, ID: uint64(f.n), VI: 1, Key: 7, Level: 1, To: []byte(disc)}
		answer = f.prove(msg, spoofed(f.n))
	}
	return answer
}

// prove sends a stranger's request until the stranger has proven its address, and returns the last answer.
func (f *flood) prove(msg wire.CM, from netip.AddrPort) (answer wire.CM) {
	f.t.Helper()
	answer = f.say(msg, from)
	if answer.Type == 0 { // it came in, on a quiet host
		answer = f.say(msg, from)
	}
	if answer.Type == wire.CMRetry {
		msg.Cookie = answer.Cookie
		answer = f.say(msg, from)
	}
	nstest.FatalIf(f.t, answer.Type == 0, "no answer to a request of a proven address")
	return answer
}

// say sends a stranger's message, and returns the answer, if there is one.
func (f *flood) say(msg wire.CM, from netip.AddrPort) wire.CM {
	f.t.Helper()
	f.s.take()
	f.m.Receive(bytesOf(f.t, msg), here4, from)
	return f.s.last(f.t)
}

func (f *flood) listen(user uint32, disc string) kagent.Listener {
	f.t.Helper()
	l, err := f.m.For(user).Listen(kagent.Address{Disc: []byte(disc)})
	nstest.Must(f.t, err)
	return l
}

func (f *flood) take(l kagent.Listener) kagent.Incoming {
	f.t.Helper()
	in, err := l.Wait(within(time.Millisecond))
	nstest.Must(f.t, err)
	return in
}

// A user whose listeners are flooded, and whose programs take requests and do not answer, takes no room from
// another user's listener, which may have as many.
func TestFairShareOfUsers(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		const hog, other, most, door = 7, 8, 1024, 64
		f := &flood{t: t, m: m, s: s}
		var names []string
		var doors []kagent.Listener
		for i := range 2 * most / door {
			names = append(names, string(rune('A'+i)))
			doors = append(doors, f.listen(hog, names[i]))
		}
		var first kagent.Incoming
		for i, name := range names {
			f.ask(door, name)
			for range 2 { // some are taken
				if in := f.take(doors[i]); first == nil {
					first = in
				}
			}
		}
		if n := m.Pending(hog); n < most-2 || n > most {
			t.Fatalf("the flooded user has %d", n)
		}
		f.ask(door, names[0])
		l := f.listen(other, "other")
		if a := f.ask(1, "other"); a.Type != wire.CMPending {
			t.Fatalf("the other user's first request: %v (%v)", a.Type, a.Reason)
		}
		in := f.take(l)
		if a := f.ask(door, "other"); a.Type != wire.CMPending || m.Pending(other) != 1+door {
			t.Fatalf("the other user has %d of %d requests, the last: %v", m.Pending(other), 1+door, a.Type)
		}
		for _, name := range names { // which has the most, and pays with its own
			f.ask(door, name)
		}
		if in.Err() != nil || m.Pending(other) != 1+door || m.Pending(hog)+m.Pending(other) != most {
			t.Errorf("after another flood the other user has %d, the flooded one %d; the one that was taken: %v", m.Pending(other), m.Pending(hog), in.Err())
		}
		nstest.ErrorIf(t, first.Err() != nil, "a request that was taken went before those that wait: %v", first.Err())
		for _, l := range doors { // all are taken: no queue to pay with
			for m.Pending(hog) > 0 {
				if _, err := l.Wait(within(0)); err != nil {
					break
				}
			}
		}
		nstest.ErrorIf(t, m.Counters().Refused == 0, "requests that made room for others are not counted")
		before := m.Pending(hog)
		f.listen(other, "more")
		if a := f.ask(2, "more"); a.Type != wire.CMPending || first.Err() == nil || m.Pending(hog) != before-2 {
			t.Errorf("beside requests that are all taken: %v (%v), the first of them: %v", a.Type, a.Reason, first.Err())
		}
	})
}

// The same holds between listeners of one user: the flooded one loses its requests.
func TestFairShareOfListeners(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		f := &flood{t: t, m: m, s: s}
		for i := range 16 {
			name := string(rune('A' + i))
			f.listen(7, name)
			f.ask(64, name)
		}
		quiet := f.listen(7, "quiet")
		if a := f.ask(1, "quiet"); a.Type != wire.CMPending {
			t.Fatalf("%v (%v), want Pending", a.Type, a.Reason)
		}
		for i := range 16 {
			f.ask(64, string(rune('A'+i)))
		}
		in := f.take(quiet)
		if host := in.Remote().Host; host != netip.AddrFrom4([4]byte{11, 0, 4, 1}) || m.Pending(7) != 1024 {
			t.Errorf("the request is of %v; %d are pending", host, m.Pending(7))
		}
	})
}

// A program that waits for the next request and answers none is given the last ones: as
// many as there may be, however many ask.
func TestBoundOfTaken(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		const most = 1024
		f := &flood{t: t, m: m, s: s}
		l := f.listen(7, "taken")
		var taken []kagent.Incoming
		end := background(func() error {
			for {
				in, err := l.Wait(t.Context())
				if err != nil {
					return err
				}
				taken = append(taken, in)
			}
		})
		for range 2 * most {
			synctest.Wait() // until it waits
			f.ask(1, "taken")
		}
		synctest.Wait()
		l.Close()
		<-end
		if n := m.Pending(7); n != most || len(taken) != 2*most {
			t.Errorf("%d of %d requests are pending, want %d", n, len(taken), most)
		}
		for i, in := range taken {
			if gone := in.Err() != nil; gone != (i < len(taken)-most) {
				t.Fatalf("request %d of %d: %v", i, len(taken), in.Err())
			}
		}
	})
}
