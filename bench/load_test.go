package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// fakePeer echoes messages after a time, by a clock of its own: each look at it,
// and each poll, takes a microsecond.
type fakePeer struct {
	t     time.Duration
	delay time.Duration // of an echo
	most  int           // messages under way; 0: any number
	sees  func(number uint32)

	// One side stalls from the first time to the second.
	stall       [2]time.Duration
	senderHalts bool // the sender, in one call; else the peer

	room   []byte
	flight []flying
}

type flying struct {
	message []byte
	back    time.Duration
}

func (f *fakePeer) clock() time.Duration {
	f.t += time.Microsecond
	if f.senderHalts && f.t >= f.stall[0] && f.t < f.stall[1] {
		f.t = f.stall[1]
	}
	return f.t
}

func (f *fakePeer) begin(loadRound) {}
func (f *fakePeer) next() []byte    { f.room = make([]byte, MaxLoadBytes); return f.room }
func (f *fakePeer) flush() bool     { return true }
func (f *fakePeer) window() int     { return cmp.Or(f.most, math.MaxInt32) }

func (f *fakePeer) commit(n int) {
	p := f.room[:n]
	if f.sees != nil && loadKind(p) == loadMessage {
		f.sees(loadNumber(p))
	}
	f.flight = append(f.flight, flying{p, f.t + f.delay})
}

func (f *fakePeer) poll() []byte {
	f.clock()
	if len(f.flight) == 0 || f.flight[0].back > f.t {
		return nil
	}
	if !f.senderHalts && f.t >= f.stall[0] && f.t < f.stall[1] {
		return nil
	}
	p := f.flight[0].message
	f.flight = f.flight[1:]
	return p
}

// against runs a load against a fake peer.
func against(t *testing.T, f *fakePeer, l Load) (loadOutcome, *loader) {
	t.Helper()
	nstest.Must(t, l.validate())
	ld := newLoader(loadRound{l, 7}, f, f.clock, watchdog{})
	out, err := ld.run()
	nstest.Must(t, err)
	return out, ld
}

// A stall of 10 ms at 1000 messages a second delays ten messages, each by the rest of
// the stall when it was due, on whichever side the stall is. One that counted from when
// messages were sent would see one late message, or none.
func TestLoadSeesStall(t *testing.T) {
	for _, c := range []struct {
		who    string
		sender bool
	}{{"sender", true}, {"peer", false}} {
		t.Run(c.who, func(t *testing.T) {
			const ms = time.Millisecond
			f := &fakePeer{delay: 20 * time.Microsecond, senderHalts: c.sender, stall: [2]time.Duration{100*ms + ms/2, 110*ms + ms/2}}
			out, l := against(t, f, Load{Bytes: 64, Rate: 1000, Duration: 200 * ms})
			if out.Sent != 200 || l.echoed != 200 || out.Due != 200 || out.Unsent != 0 {
				t.Errorf("outcome %+v", out)
			}
			late := map[int]int{} // by whole milliseconds
			for _, b := range l.times.Distribution() {
				late[int(time.Duration(b.From)/ms)] += int(b.Count)
			}
			for delay := range 10 {
				want := 1
				if delay == 0 {
					want = 191 // the last one, and all that were not delayed
				}
				if late[delay] != want {
					t.Errorf("%d messages took %d ms, want %d; all: %v", late[delay], delay, want, late)
				}
			}
			if p99 := time.Duration(l.times.ValueAtQuantile(99)); p99 < 7*ms {
				t.Errorf("the stall is not in the 99th percentile, %v", p99)
			}
		})
	}
}

// Without a stall every message takes the time of its echo, and all that was due was
// sent and came back.
func TestLoadInTime(t *testing.T) {
	for _, poisson := range []bool{false, true} {
		f := &fakePeer{delay: 50 * time.Microsecond}
		out, l := against(t, f, Load{
			Bytes: 100, Rate: 20_000, Poisson: poisson, Seed: 1, Duration: 100 * time.Millisecond,
		})
		if out.Sent != out.Due || int64(l.echoed) != out.Sent || out.Outstanding > 3 || out.Unsent != 0 {
			t.Errorf("poisson %v: outcome %+v", poisson, out)
		}
		if !poisson && out.Due != 2000 {
			t.Errorf("%d messages were due", out.Due)
		}
		if worst := time.Duration(l.times.Max()); worst > 100*time.Microsecond {
			t.Errorf("poisson %v: a message took %v", poisson, worst)
		}
	}
}

// A rate that is too high still ends on time. Unsent messages count with their
// lateness.
func TestLoadTooHigh(t *testing.T) {
	// One message under way, of 1 ms: a thousand a second.
	f := &fakePeer{delay: time.Millisecond, most: 1}
	out, l := against(t, f, Load{Bytes: 16, Rate: 2000, Duration: time.Second})
	if out.Due != 2000 || out.InTime > 1000 || out.InTime < 900 {
		t.Errorf("outcome %+v", out)
	}
	if int64(l.echoed) != out.Sent || out.Sent+out.Unsent != out.Due || out.Outstanding != out.Due-out.InTime {
		t.Errorf("messages are missing: %+v", out)
	}
	nstest.Equal(t, "messages in the histogram", l.times.TotalCount(), out.Due)
	if f.t > 1100*time.Millisecond {
		t.Errorf("it ended at %v", f.t)
	}
	if p50 := time.Duration(l.times.ValueAtQuantile(50)); p50 < 200*time.Millisecond {
		t.Errorf("half of the messages took no more than %v, far beyond the rate", p50)
	}
}

// Without a rate a window of messages is kept under way.
func TestLoadClosedLoop(t *testing.T) {
	f := &fakePeer{delay: time.Millisecond}
	most := 0
	f.sees = func(uint32) { most = max(most, len(f.flight)+1) }
	out, l := against(t, f, Load{Bytes: 16, Duration: 100 * time.Millisecond})
	nstest.Equal(t, "messages under way", most, LoadWindow)
	if out.InTime < 90*LoadWindow || int64(l.echoed) != out.Sent || out.Unsent != 0 {
		t.Errorf("outcome %+v", out)
	}
}

// Protocol errors are detected.
func TestLoadNoticesFaults(t *testing.T) {
	for _, c := range []struct {
		fault string
		do    func(p []byte)
		want  string
	}{
		{"other number", func(p []byte) { p[4]++ }, "not that of"},
		{"not sent", func(p []byte) { p[6] = 1 }, "not sent yet"},
		{"not due", func(p []byte) { p[14] = 1 }, "not sent yet"},
		{"another load", func(p []byte) { p[2]++ }, "no echo"},
	} {
		f := &fakePeer{}
		f.sees = func(n uint32) {
			if n == 5 {
				c.do(f.room)
			}
		}
		l := newLoader(loadRound{Load{Bytes: 32, Duration: time.Second}, 1}, f, f.clock, watchdog{})
		nstest.ErrSays(t, c.fault, nstest.Err(l.run()), c.want)
	}
}

// A sender whose control connection has ended stops, and so does its peer.
func TestLoadStopped(t *testing.T) {
	ctx, stop := stopping(t)
	stop()
	w := watchdog{ctx: ctx}
	f := &fakePeer{delay: time.Hour}
	r := loadRound{Load{Bytes: 16, Rate: minLoadRate, Duration: time.Second}, 1}
	nstest.WantErr(t, "sender", nstest.Err(newLoader(r, f, f.clock, w).run()), ErrStopped)
	// In the midst of a load, with nothing under way.
	w.ctx, stop = stopping(t)
	f = &fakePeer{sees: func(uint32) { stop() }}
	nstest.WantErr(t, "waiting sender", nstest.Err(newLoader(r, f, f.clock, w).run()), ErrStopped)
	e := &echoer{round: r, port: &fakePeer{}, watch: w}
	nstest.WantErr(t, "echo", nstest.Err(e.run()), ErrStopped)
}

// A running sender allocates nothing.
func TestLoadAllocations(t *testing.T) {
	f := &quietPeer{buf: make([]byte, MaxLoadBytes)}
	r := loadRound{Load{Bytes: 64, Rate: 1e6, Poisson: true, Duration: time.Minute}, 1}
	l := newLoader(r, f, func() time.Duration { f.t += time.Microsecond; return f.t }, watchdog{})
	allocated := testing.AllocsPerRun(1000, func() { l.turn(l.now()) })
	if allocated != 0 || l.echoed == 0 {
		t.Errorf("%v allocations a turn, %d echoes", allocated, l.echoed)
	}
}

// quietPeer gives each message back at once.
type quietPeer struct {
	fakePeer
	buf  []byte
	full bool
}

func (q *quietPeer) next() []byte {
	if q.full {
		return nil
	}
	return q.buf
}
func (q *quietPeer) commit(int) { q.full = true }
func (q *quietPeer) poll() []byte {
	if !q.full {
		return nil
	}
	q.full = false
	return q.buf[:64]
}

// Times are in order and, in the long run, as many as the rate says; random
// ones are the same for the same seed only.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Load{
			Rate: rapid.Float64Range(1, 1e7).Draw(t, "rate"), Poisson: rapid.Bool().Draw(t, "poisson"),
			Seed: rapid.Uint64().Draw(t, "seed"),
		}
		const n = 20_000
		a, b := newSchedule(l), newSchedule(l)
		last := time.Duration(0)
		for range n {
			at := a.next()
			if again := b.next(); at < last || at != again {
				t.Fatalf("%v after %v, and again %v", at, last, again)
			}
			last = at
		}
		mean := float64(last) / n * l.Rate / float64(time.Second)
		if slip := math.Abs(mean - 1); slip > 0.05 || !l.Poisson && slip > 0.001 {
			t.Fatalf("the mean gap is %v of what it should be", mean)
		}
		l.Seed++
		if l.Poisson && newSchedule(l).next() == b.next() {
			t.Fatal("another seed, the same times")
		}
	})
}

func TestLoadValidate(t *testing.T) {
	good := Load{Bytes: 64, Rate: 1000, Duration: time.Second}
	nstest.Must(t, good.validate())
	for title, spoil := range map[string]func(*Load){
		"short":     func(l *Load) { l.Bytes = MinLoadBytes - 1 },
		"long":      func(l *Load) { l.Bytes = MaxLoadBytes + 1 },
		"no time":   func(l *Load) { l.Duration = 0 },
		"for ever":  func(l *Load) { l.Duration = time.Hour },
		"negative":  func(l *Load) { l.Rate = -1 },
		"not a one": func(l *Load) { l.Rate = math.NaN() },
		"too low":   func(l *Load) { l.Rate = minLoadRate - 1 },
		"none due":  func(l *Load) { l.Rate, l.Duration = minLoadRate, MinLoadTime },
		"too many":  func(l *Load) { l.Rate, l.Duration = maxLoadRate, MaxLoadTime },
	} {
		l := good
		spoil(&l)
		if l.validate() == nil {
			t.Errorf("%s: accepted", title)
		}
	}
}

// beyond is a rate that nothing here reaches.
const beyond = 5e7

// loads measures a closed loop and two rates with one session, and checks that no
// message is missing.
func loads(ctx context.Context, s *Session) error {
	closed, err := s.Load(ctx, Load{Bytes: 64, Duration: 10 * time.Millisecond})
	if err != nil {
		return fmt.Errorf("closed loop: %w", err)
	}
	if n := closed.RoundTrips.TotalCount(); n == 0 || n != closed.Sent || closed.Unsent != 0 {
		return fmt.Errorf("closed loop, %d times: %+v", n, closed)
	}
	for _, l := range []Load{
		{Bytes: 64, Rate: 2000, Duration: 50 * time.Millisecond},
		{Bytes: 1000, Rate: 2000, Poisson: true, Seed: 3, Duration: 50 * time.Millisecond},
		{Bytes: 64, Rate: beyond, Duration: 10 * time.Millisecond},
	} {
		r, err := s.Load(ctx, l)
		if err != nil {
			return fmt.Errorf("%+v: %w", l, err)
		}
		due := int64(math.Round(r.Offered * l.Duration.Seconds()))
		switch {
		case due == 0 || due != r.Sent+r.Unsent || !l.Poisson && math.Abs(float64(due)-l.Rate*l.Duration.Seconds()) > 1:
			return fmt.Errorf("%+v: %d were due: %+v", l, due, r)
		case r.RoundTrips.TotalCount() != due || r.RoundTrips.Min() <= 0:
			return fmt.Errorf("%+v: %d times of %d messages", l, r.RoundTrips.TotalCount(), due)
		case l.Rate == beyond && (r.Achieved >= r.Offered || r.Outstanding == 0):
			return fmt.Errorf("%+v: a rate that cannot be was reached: %+v", l, r)
		}
	}
	return nil
}

// Every transport that carries loads does so, one after the other in a session.
func TestLoadOverVeth(t *testing.T) {
	b := onBed(t)
	for _, name := range []string{"vi-reliable-delivery", "vi-reliable-reception", "tcp-spin"} {
		b.within(t, name, MaxLoadBytes, func(s *Session) error { return loads(t.Context(), s) })
	}
}

// A transport that sleeps refuses a load.
func TestLoadRefuses(t *testing.T) {
	s := onLoopback(t, "tcp-block", MaxLoadBytes)
	nstest.ErrSays(t, "tcp-block", nstest.Err(s.Load(t.Context(), Load{Bytes: 64, Rate: 1000, Duration: time.Second})), "carries no load")
}
