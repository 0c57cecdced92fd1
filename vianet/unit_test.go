package vianet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// Dial waits for the greeting until its context ends.
func TestGreetingComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := func() *Conn {
			return &Conn{stack: &Stack{closed: t.Context()}, ready: make(chan struct{}), gone: make(chan struct{})}
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), dialTime, syscall.ETIMEDOUT)
		defer cancel()
		late := waiting()
		time.AfterFunc(dialTime-time.Second, func() { close(late.ready) })
		nstest.WantErr(t, "a late one", late.greeting(ctx), nil)
		nstest.Equal(t, "none", waiting().greeting(ctx), error(syscall.ETIMEDOUT))
	})
}

// A limit that is moved counts from then on; a waiter is woken when it has passed, and the signal of a limit that was
// moved since means nothing.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limit{signal: make(chan struct{}, 1)}
		is := func(want bool) {
			t.Helper()
			synctest.Wait()
			nstest.Equal(t, "passed", l.passed(), want)
			nstest.Equal(t, "the signal is raised", len(l.signal) > 0, want)
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

// A call that waits past its limit ends, even if a check of the state has taken its signal.
func TestLimitWithoutSignal(t *testing.T) {
	s := &Stack{}
	s.spinning.Store(true) // others poll
	l := limit{signal: make(chan struct{}, 1)}
	l.set(time.Unix(1, 0))
	lower(l.signal)
	c := &Conn{stack: s}
	nstest.Equal(t, "await", c.await(l.signal, &l, &spinner{}, 0), os.ErrDeadlineExceeded)
}

// A program that sets deadlines with each message makes no garbage.
func TestLimitAllocates(t *testing.T) {
	l := limit{signal: make(chan struct{}, 1)}
	l.set(time.Now().Add(time.Hour)) // makes the timer
	nstest.Equal(t, "allocations", testing.AllocsPerRun(100, func() {
		l.set(time.Now().Add(time.Hour))
		l.set(time.Unix(1, 0))
		l.set(time.Time{})
	}), 0)
}

// Polling stops if it does not pay, is tried again now and then, grows when it pays, and resumes after a sleep so
// short that it would have paid.
func TestSpinner(t *testing.T) {
	p := spinner{most: 64 * time.Microsecond, budget: 64 * time.Microsecond}
	inVain := func() { p.slept(time.Millisecond, p.most, false) }
	p.paid()
	nstest.Equal(t, "the first time", p.next(), p.most)
	for p.next() > 0 {
		inVain()
	}
	nstest.ErrorIf(t, p.budget >= spinLeast, "given up at %v", p.budget)
	tries := 0
	for range 4 * spinRetry {
		if p.next() > 0 {
			tries++
			for p.budget >= spinLeast {
				inVain()
			}
		}
	}
	nstest.ErrorIf(t, tries != 4, "%d tries in %d waits", tries, 4*spinRetry)
	p.budget = spinLeast
	p.paid()
	nstest.Equal(t, "after it paid", p.budget, 2*spinLeast)
	p.budget = 0
	p.slept(p.most, p.most, false)
	nstest.Equal(t, "after a sleep as short as polling", p.budget, p.most)
	for range 100 {
		p.slept(spinTurns*p.most, p.most, true)
	}
	nstest.Equal(t, "after turns with others, one of whom polled", p.budget, p.most)
	p.slept(spinTurns*p.most+1, p.most, true)
	nstest.Equal(t, "after a wait that was much longer than those of others", p.budget, p.most/2)
	p.budget = 0
	p.slept(p.most, p.most, true)
	nstest.Equal(t, "after a sleep beside another's polling that was short", p.budget, p.most)
	never := newSpinner(-1)
	nstest.Equal(t, "where it must not poll", never.next(), 0)
	always := newSpinner(math.MaxInt64)
	always.paid()
	wraps := always.most*spinTurns < always.most || always.most+bulkMost < always.most
	nstest.ErrorIf(t, always.next() < time.Minute || wraps, "the longest time has become %v of %v", always.budget, always.most)
}

// Writes leave the doorbell to a poller, unless it was descheduled for long.
func TestRingLater(t *testing.T) {
	for _, c := range []struct {
		polls bool
		alone int32
		want  int
	}{{false, 0, 0}, {true, 0, 100}, {true, 30, 70}, {true, 200, 0}} {
		s, later := &Stack{}, 0
		s.spinning.Store(c.polls)
		s.alone.Store(c.alone)
		for range 100 {
			if s.mayRingLater() {
				later++
			}
		}
		nstest.ErrorIf(t, later != c.want, "%+v: %d of 100 Writes leave it to others", c, later)
	}
}

// spinForever polls as long as something comes.
func spinForever() *spinner { return &spinner{most: time.Hour, budget: time.Hour} }

// A poller ends with its deadline, however much there is to do for other connections.
func TestDeadlineBesideTraffic(t *testing.T) {
	s := noDrivers(t)
	c, err := newConn(s)
	nstest.Must(t, err)
	defer c.free()
	c.mu.Lock()
	err = c.post()
	c.mu.Unlock()
	nstest.Must(t, errors.Join(err, c.vi.Disconnect())) // flushes them
	past := &limit{signal: make(chan struct{}, 1)}
	past.set(time.Now())
	s.spin(make(chan struct{}), past, spinForever(), 0)
	left := 0
	var batch entries
	for n := s.arrivals.poll(&batch); n > 0; n = s.arrivals.poll(&batch) {
		left += n
	}
	nstest.ErrorIf(t, left == 0 || left == c.pool.half, "of %d completions of others it left %d", c.pool.half, left)
}

// A call that goes to sleep leaves the work to a driver, even one that it has just evicted and that has not noticed.
func TestHandover(t *testing.T) {
	s := noDrivers(t)
	s.arrivals.want(1)
	<-s.arrivals.poke
	s.arrivals.waiting.Store(true)
	sig := make(chan struct{}, 1)
	raise(sig)
	s.spin(sig, &limit{}, spinForever(), 0)
	s.takeOver()
	nstest.ErrorIf(t, len(s.arrivals.poke) == 0, "the driver waits for its next tick, a millisecond later")
}

// A sleeping call needs completions of sends while another call polls. It gets them even if the poller leaves with
// what it wanted at the moment when the driver of arrivals goes to sleep.
func TestLeft(t *testing.T) {
	s := noDrivers(t)
	s.spinning.Store(true)
	s.sends.want(1)
	nstest.ErrorIf(t, len(s.sends.poke) > 0, "a driver is poked for what a call polls for")
	s.spinning.Store(false)
	nstest.ErrorIf(t, !s.arrivals.mayWait(s.polls.Load()), "it does not wait")
	nstest.ErrorIf(t, len(s.sends.poke) == 0, "no driver waits for sends")
	s.sends.want(-1)
	lower(s.sends.poke)
	s.sends.want(1) // while no call polls
	nstest.ErrorIf(t, len(s.sends.poke) == 0, "no driver is poked")
}

// Segments come out in order, and the memory of removed ones is reused.
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
			nstest.Equal(t, "the first", q.first().buffer, out)
			q.drop()
			out++
		}
	}
	for ; !q.empty(); out++ {
		nstest.Equal(t, "the first", q.first().buffer, out)
		q.drop()
	}
	nstest.ErrorIf(t, in != out, "%d went in, %d came out", in, out)
	room := cap(q.list)
	for range 10_000 {
		q.add(segment{})
		q.add(segment{})
		q.drop()
		q.drop()
	}
	nstest.Equal(t, "room", cap(q.list), room)
}

// A port has one owner. Port 0 gives a new one each time, until none is left.
func TestPorts(t *testing.T) {
	var p ports
	n, err := p.take(80)
	nstest.ErrorIf(t, n != 80 || err != nil, "%d, %v", n, err)
	nstest.WantErr(t, "in use", nstest.Err(p.take(80)), syscall.EADDRINUSE)
	seen := make(map[uint16]bool)
	for range lastPort - firstPort + 1 {
		n, err := p.take(0)
		nstest.FatalIf(t, err != nil || n < firstPort || seen[n], "%d, %v", n, err)
		seen[n] = true
	}
	nstest.WantErr(t, "all in use", nstest.Err(p.take(0)), syscall.EADDRNOTAVAIL)
	p.release(firstPort + 5)
	n, err = p.take(0)
	nstest.ErrorIf(t, n != firstPort+5 || err != nil, "%d, %v", n, err)
}

// After a minute one caller asks a silent host again. An answer ends the silence, and a short silence does not count.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silence
		to := func(host byte) Addr { return Addr{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 80)} }
		asks := func(host byte, want bool) {
			t.Helper()
			ask, silent := s.part([]Addr{to(host)})
			nstest.ErrorIf(t, len(ask)+len(silent) != 1 || len(ask) == 1 != want, "host %d is to be asked: %v; not: %v", host, ask, silent)
		}
		take := func(host byte, err error, ago time.Duration) {
			s.take(t.Context(), to(host).Addr(), err, time.Now().Add(-ago))
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		asks(1, true)
		take(1, vipl.ErrTimeout, silentLeast-1)
		asks(1, true)
		take(1, vipl.ErrResource, time.Hour) // which is of this host
		asks(1, true)
		s.take(cancelled, to(1).Addr(), vipl.ErrTimeout, time.Now().Add(-time.Hour))
		asks(1, true)
		little, end := context.WithTimeout(t.Context(), silentLeast-1)
		defer end()
		start := time.Now()
		time.Sleep(time.Hour) // this side was kept from looking
		s.take(little, to(1).Addr(), vipl.ErrTimeout, start)
		asks(1, true)
		take(1, vipl.ErrTimeout, silentLeast)
		asks(1, false)
		asks(2, true)
		ask, silent := s.part([]Addr{to(1), to(2)})
		nstest.ErrorIf(t, !slices.Equal(ask, []Addr{to(2)}) || len(silent) != 1, "of both %v are to be asked, %v not", ask, silent)
		time.Sleep(silentTime - 1)
		asks(1, false)
		time.Sleep(time.Nanosecond)
		asks(1, true)
		asks(1, false) // until there is an answer
		take(1, vipl.ErrNotReachable, silentLeast)
		time.Sleep(silentTime - 1)
		asks(1, false)
		time.Sleep(time.Nanosecond)
		asks(1, true)
		s.take(cancelled, to(1).Addr(), vipl.ErrTimeout, time.Now().Add(-time.Hour)) // says nothing
		asks(1, false)
		time.Sleep(fallbackTime)
		asks(1, true)
		for _, err := range []error{nil, vipl.ErrNoMatch, vipl.ErrRejected} {
			s.remember(to(1).Addr())
			asks(1, false)
			take(1, err, time.Second)
			asks(1, true)
		}
		local := netip.MustParseAddr("fe80::2")
		onLink := []Addr{{netip.AddrPortFrom(local.WithZone("eth0"), 80)}}
		s.remember(local.WithZone("eth0"))
		ask, _ = s.part(onLink)
		nstest.ErrorIf(t, len(ask) > 0, "a host of this link that is silent is asked")
		s.forget(local) // a request of its own has no zone
		ask, _ = s.part(onLink)
		nstest.ErrorIf(t, len(ask) != 1, "a host of this link that was heard of is not asked")
	})
}

// Half the time is left for the fallback.
func TestAnswerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nstest.Equal(t, "with all the time there is", answerTime(t.Context()), fallbackTime)
		for _, left := range []time.Duration{time.Second, 2 * fallbackTime, time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			nstest.Equal(t, fmt.Sprint("with ", left), answerTime(ctx), min(left/2, fallbackTime))
			cancel()
		}
	})
}

// The number of remembered silent hosts is bounded: those that expire last are kept.
func TestSilenceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silence
		for i := range 4 * silentMost {
			s.remember(netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1)))
			s.remember(netip.MustParseAddr("fd00::1"))
			time.Sleep(time.Millisecond)
		}
		nstest.ErrorIf(t, len(s.until) != silentMost, "%d hosts are remembered", len(s.until))
		for i, want := range map[int]bool{0: true, 1: false, 3 * silentMost: false, 3*silentMost + 1: true, 4*silentMost - 1: true} {
			_, ok := s.until[netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1))]
			nstest.Equal(t, fmt.Sprintf("host %d is remembered", i), ok, want)
		}
	})
}

// FuzzParse: for any input, parse returns an error, or a header that describes the message and encodes to the same
// bytes.
func FuzzParse(f *testing.F) {
	for k := kind(0); k <= kindEnd; k++ {
		for _, h := range []header{
			{kind: k}, {kind: k, id: version, credits: 3, length: 4096}, {kind: k, length: 4},
			{kind: k, id: 2, length: 9, handle: 7, addr: 1 << 40}, {kind: k, length: 9, handle: 7, addr: 1<<64 - 9},
		} {
			b := make([]byte, headerLen+int(h.length&7))
			h.put(b)
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, payload, err := parse(b)
		if err != nil {
			return
		}
		nstest.FatalIf(t, h.kind == 0 || h.kind >= kindEnd || len(payload) != len(b)-headerLen, "%v with %d of %d bytes", h.kind, len(payload), len(b))
		nstest.FatalIf(t, h.kind == kindData && int(h.length) != len(payload), "%d bytes of data that are said to be %d", len(payload), h.length)
		nstest.FatalIf(t, h.kind != kindData && len(payload) > 0, "%v with %d bytes", h.kind, len(payload))
		nstest.FatalIf(t, h.kind == kindAnnounce && h.addr+uint64(h.length) < h.addr, "memory past the end of the address space")
		again := make([]byte, headerLen)
		h.put(again)
		nstest.FatalIf(t, !bytes.Equal(again, b[:headerLen]), "%x became %x", b[:headerLen], again)
	})
}

// A header comes out as it went in, at the offsets of the table.
func TestHeaderLayout(t *testing.T) {
	h := header{kind: kindAnnounce, credits: 0x0203, id: 0x04050607, length: 0x08090a0b, handle: 0x0c0d0e0f, addr: 0x1011121314151617}
	b := make([]byte, headerLen)
	h.put(b)
	want := []byte{byte(kindAnnounce), 0}
	for i := byte(2); i < 0x18; i++ {
		want = append(want, i)
	}
	nstest.ErrorIf(t, !bytes.Equal(b, want), "%x, want %x", b, want)
	got, _, err := parse(b)
	nstest.ErrorIf(t, err != nil || got != h, "%+v, %v", got, err)
}

// ringed is a connection that has a ring and as much credit, both unused, but no VI.
func ringed() *Conn {
	return &Conn{
		stack: &Stack{}, pool: &pool{half: 34}, greeted: true, window: 9, credits: 4,
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		ring: ring{lease: &lease{buf: make([]byte, ringSize)}, size: ringSize, open: ringSize},
	}
}

// Immediate data comes out as it went in, at the bits of the comment.
func TestImmediateLayout(t *testing.T) {
	for _, c := range []struct {
		credits uint16
		id      uint32
		want    uint32
	}{{0, ringID, 0}, {0x1234, ringID, 0x1234}, {0xffff, 1, 0x1ffff}, {1, 1<<32 - 1, 0x10001}} {
		h := header{kind: kindFilled, credits: c.credits, id: c.id}
		v := h.immediate()
		got, err := parseImmediate(v, 7)
		want := header{kind: kindFilled, credits: c.credits, id: min(c.id, 1), length: 7}
		nstest.ErrorIf(t, v != c.want || err != nil || got != want, "%+v: %#x, %+v, %v", h, v, got, err)
	}
}

// A write whose length cannot be is refused, whatever the NIC reports. TestRingLies has what a NIC does report.
func TestFilledLies(t *testing.T) {
	room := func(c *Conn) {
		c.in = incoming{open: true, id: 3, length: 50, roomLand: &landing{n: 50, stage: true, lease: &lease{buf: make([]byte, 50)}}}
	}
	for name, test := range map[string]struct {
		prepare func(c *Conn)
		v, n    uint32
		want    error
	}{
		"all of a ring":            {nil, 0, ringSize, nil},
		"more than a ring holds":   {nil, 0, ringSize + 1, errTransfer},
		"more than there ever is":  {nil, 0, 1<<32 - 1, errTransfer},
		"more than is free":        {func(c *Conn) { c.ring.open = 5 }, 0, 6, errTransfer},
		"across the end":           {func(c *Conn) { c.ring.at = ringSize - 5 }, 0, 6, errTransfer},
		"no ring":                  {func(c *Conn) { c.ring = ring{} }, 0, 1, errTransfer},
		"before the greeting":      {func(c *Conn) { c.greeted = false }, 0, 1, errOrder},
		"a room":                   {room, immediateRoom, 50, nil},
		"less than a room":         {room, immediateRoom, 49, errTransfer},
		"more than a room":         {room, immediateRoom, 51, errTransfer},
		"4 GiB more than a room":   {room, immediateRoom, 1<<32 - 1, errTransfer},
		"a room that is not named": {func(c *Conn) { room(c); c.due.room = true }, immediateRoom, 50, errTransfer},
		"no room":                  {nil, immediateRoom, 50, errTransfer},
		"a room to read from":      {func(c *Conn) { room(c); c.in.read = true }, immediateRoom, 50, errTransfer},
		"the ring in a transfer":   {room, 0, 50, errOrder},
	} {
		c := ringed()
		if test.prepare != nil {
			test.prepare(c)
		}
		h, err := parseImmediate(test.v, test.n)
		if err == nil {
			err = c.take(&h, nil, 0)
		}
		nstest.ErrorIf(t, err != test.want, "%s: %v, want %v", name, err, test.want)
	}
}

// FuzzImmediate: for any RDMA writes to a ring, and Reads in between, what is queued lies in the ring in the order of
// the stream and does not overlap, nothing exceeds the ring, the data buffers or the credits, and no byte is lost.
func FuzzImmediate(f *testing.F) {
	op := func(v, n uint32) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, v), n)
	}
	read := uint32(1 << 31)
	f.Add(slices.Concat(op(0, ringSize), op(read, 100), op(0, 1)))
	f.Add(slices.Concat(op(2, 100_000), op(3, 100_000), op(read, 200_000), op(0, 62_144), op(1, 9)))
	f.Add(slices.Concat(op(0, 0), op(immediateRoom, 5), op(1<<17, 5), op(0, 1<<32-1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ringed()
		in, out, granted, at := 0, 0, ringSize, 0
		for ; len(b) >= 8; b = b[8:] {
			v, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
			if v&read != 0 { // a Read, after which the peer learns what was read
				out += c.consume(make([]byte, n%(2*ringSize)))
				c.spent = c.spent[:0]
				if c.due.ring {
					c.due.ring = false
					granted += c.ring.freed
					c.ring.open, c.ring.freed = c.ring.open+c.ring.freed, 0
				}
			} else if h, err := parseImmediate(v, n); err == nil {
				credits := c.credits
				if c.take(&h, nil, len(c.spent)) != nil {
					return // the connection is over
				}
				s := c.queue.list[len(c.queue.list)-1]
				nstest.FatalIf(t, v>>16 != 0 || c.credits != credits+int(v), "%#x is taken, credits %d and then %d", v, credits, c.credits)
				nstest.FatalIf(t, len(s.data) != int(n) || &s.data[0] != &c.ring.lease.buf[at], "%d bytes from elsewhere than %d", n, at)
				in, at = in+int(n), (at+int(n))%ringSize
			} else {
				return
			}
			nstest.FatalIf(t, in > granted || in-out > ringSize || len(c.spent) > c.dataBuffers() || c.credits > c.window,
				"%d in, %d out, %d granted, %d buffers, %d credits", in, out, granted, len(c.spent), c.credits)
			nstest.FatalIf(t, c.ring.open != granted-in, "%d bytes open, not %d", c.ring.open, granted-in)
		}
		out += c.consume(make([]byte, ringSize))
		nstest.FatalIf(t, out != in, "%d bytes in, %d out", in, out)
	})
}

// system errors report themselves as package net's do.
func TestSystemError(t *testing.T) {
	for _, code := range []vipl.Return{vipl.ErrNoMatch, vipl.ErrRejected, vipl.ErrNotReachable, vipl.ErrResource, vipl.ErrTimeout} {
		err := systemError(&vipl.OpError{Op: "ConnectRequest", Return: code})
		nstest.ErrorIf(t, !errors.Is(err, code), "%v is not %v any more", err, code)
		nstest.Equal(t, fmt.Sprintf("Timeout of %v", err), isTimeout(err), code == vipl.ErrTimeout)
	}
	nstest.Equal(t, "another error", systemError(errOrder), errOrder)
}
