package vianet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// carry writes b to one side of a connection, in one Write, and reads it from the other.
func carry(t *testing.T, from, to *vianet.Conn, b []byte) {
	t.Helper()
	carryInto(t, from, to, b, make([]byte, len(b)))
}

// carryInto is carry with memory for what is read.
func carryInto(t *testing.T, from, to *vianet.Conn, b, got []byte) {
	t.Helper()
	wrote := goWrite(from, b)
	_, err := io.ReadFull(to, got)
	must(t, errors.Join(err, <-wrote))
	nstest.FatalIf(t, !bytes.Equal(got, b), "other bytes, from %d on", firstDifference(got, b))
}

// Written data counts by its path on the side that wrote it, and read data on the other, even after the connection
// is gone.
func TestStatsOfTraffic(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	for range 10 {
		carry(t, a, b, make([]byte, 100))
	}
	large := make([]byte, 300_000)
	carry(t, a, b, large)
	for range 2 { // after which both sides have a ring
		carry(t, a, b, large[:64<<10])
		carry(t, b, a, large[:64<<10])
	}
	await.Until(t, "both sides write to a ring", func() bool { return vianet.Ringed(a) })
	ofA := vianet.Stats{
		Dialed: 1, Messages: vianet.Traffic{Times: 10, Bytes: 1000},
		Read: vianet.Traffic{Times: 3, Bytes: 300_000 + 128<<10}, Received: 128 << 10,
	}
	ofB := vianet.Stats{
		Accepted: 1, Read: vianet.Traffic{Times: 2, Bytes: 128 << 10}, Received: 1000 + 300_000 + 128<<10,
	}
	check := func(when string) {
		t.Helper()
		for i, want := range []vianet.Stats{ofA, ofB} {
			got := []*vianet.Stack{h.a, h.b}[i].Stats()
			got.Registered, got.Reused, got.RegisteredBytes = 0, 0, 0 // is another test's
			nstest.ErrorIf(t, got != want, "%s: host %d: %+v, want %+v", when, i, got, want)
		}
	}
	ofA.Conns, ofB.Conns = 1, 1
	check("before the ring")
	carry(t, a, b, large[:64<<10])
	ofA.Ring = vianet.Traffic{Times: 1, Bytes: 64 << 10}
	ofB.Received += 64 << 10
	check("by the ring")
	a.Close()
	<-vianet.Gone(b) // b has seen the end, so its Close sends nothing
	b.Close()
	ofA.Conns, ofB.Conns = 0, 0
	await.Until(t, "they are gone", func() bool { return h.a.Stats().Conns+h.b.Stats().Conns == 0 })
	check("afterwards")
}

// If the peer cannot read memory, it is written to.
func TestStatsOfWrites(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	a, b := h.pair(t)
	carry(t, a, b, make([]byte, 300_000))
	nstest.Equal(t, "what was written", h.a.Stats().Written, vianet.Traffic{Times: 1, Bytes: 300_000})
	nstest.Equal(t, "what was read", h.a.Stats().Read, vianet.Traffic{})
}

// Lack of memory counts wherever it occurs. A buffer is registered once; it and its parts are found afterwards.
func TestStatsOfMemory(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	buf, got := make([]byte, 300_000), make([]byte, 300_000)
	free := exhaust(t, h.nicA)
	isErr(t, "Dial", nstest.Err(h.a.Dial("via", "10.0.0.9:1")), syscall.ENOBUFS)
	nstest.Equal(t, "NoMemory after a Dial", h.a.Stats().NoMemory, 1)
	carry(t, a, b, buf)
	s := h.a.Stats()
	nstest.ErrorIf(t, s.NoMemory != 2 || s.Messages.Bytes != 300_000 || s.Registered != 0, "a Write without memory: %+v", s)
	isErr(t, "Alloc of too much", nstest.Err(h.a.Alloc(1<<30)), syscall.ENOBUFS)
	free()
	for range 3 {
		carry(t, a, b, buf)
	}
	s = h.a.Stats()
	nstest.ErrorIf(t, s.Registered != 1 || s.Reused != 2 || s.RegisteredBytes != len(buf) || s.NoMemory != 3, "%+v", s)
	before := h.b.Stats()
	for _, at := range []int{0, 1000, 200_000} { // read into one buffer, and parts of it
		carryInto(t, a, b, buf[at:], got[at:])
	}
	s = h.b.Stats()
	nstest.ErrorIf(t, s.Registered != before.Registered+1 || s.Reused != before.Reused+2,
		"a buffer and parts of it: %+v, and before %+v", s, before)
}

// Connections count by their origin, and a request counts as refused if the backlog is full.
func TestStatsOfConnections(t *testing.T) {
	h := inMemory(t, vianet.Options{Backlog: 1})
	l := h.listen(t)
	h.dial(t, l.Addr()).Close()
	isErr(t, "nobody has accepted the first", nstest.Err(h.a.Dial("via", l.Addr().String())), syscall.ECONNREFUSED)
	or := newWay(t)
	nobody := net.JoinHostPort(h.nicB.Query().Address.String(), "7")
	check(t, nstest.Err(h.a.DialOr(t.Context(), "via", nobody, or.dial)))
	h.a.DialOr(t.Context(), "via", nobody, func(context.Context) (net.Conn, error) { return nil, syscall.EPERM })
	s := h.a.Stats()
	nstest.ErrorIf(t, s.Dialed != 1 || s.Accepted != 0 || s.FellBack != 1 || s.Refused != 0, "who dials: %+v", s)
	await.Until(t, "the listener has the first", func() bool { return h.b.Stats().Accepted > 0 })
	s = h.b.Stats()
	nstest.ErrorIf(t, s.Dialed != 0 || s.Accepted != 1 || s.FellBack != 0 || s.Refused == 0, "who listens: %+v", s)
}

// A Write that finds no room at the peer counts as one stall, however long it waits.
func TestStatsOfStalls(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	written := len(fill(t, a))
	before := h.a.Stats().Stalls
	wrote := goWrite(a, make([]byte, 100))
	await.Until(t, "the Write waits", func() bool { return h.a.Stats().Stalls > before })
	for range 3 { // it looks again, and waits again
		await.Until(t, "it is woken", vianet.Rouse(a))
	}
	check(t, nstest.Err(io.ReadFull(b, make([]byte, written+100))))
	check(t, <-wrote)
	nstest.Equal(t, "Writes that have waited", h.a.Stats().Stalls, before+1)
	nstest.Equal(t, "those of the reader", h.b.Stats().Stalls, 0)
}

// If the peer resets a connection, it counts as broken. If this side has closed it before all was delivered, it
// counts as that instead.
func TestStatsOfEnds(t *testing.T) {
	for _, closed := range []bool{false, true} {
		h := lingering(t, vianet.Options{}, memorynic.Config{})
		a, b := h.pair(t)
		fill(t, a)
		if closed {
			a.Close()
		}
		b.SetLinger(0)
		b.Close()
		<-vianet.Gone(a)
		if !closed {
			a.Close()
		}
		await.Until(t, "they are gone", func() bool { return h.a.Stats().Conns+h.b.Stats().Conns == 0 })
		s := h.a.Stats()
		nstest.ErrorIf(t, (s.Broken == 1) == closed || (s.Undelivered == 1) != closed, "closed before: %v: %+v", closed, s)
		s = h.b.Stats()
		nstest.ErrorIf(t, s.Broken+s.Undelivered != 0, "closed before: %v: who has broken it: %+v", closed, s)
	}
}

// A peer that closes after CloseRead of this side has not broken the connection, although it cannot end a stream for which
// there is no room.
func TestStatsOfReadClosed(t *testing.T) {
	h := lingering(t, vianet.Options{}, memorynic.Config{})
	a, b := h.pair(t)
	fill(t, b)
	must(t, a.CloseRead())
	await.Until(t, "the peer knows", func() bool { return errors.Is(nstest.Err(b.Write(nil)), vianet.ErrReadClosed) })
	must(t, b.Close())
	<-vianet.Gone(a)
	check(t, errors.Join(a.CloseWrite(), a.Close()))
	await.Until(t, "they are gone", func() bool { return h.a.Stats().Conns+h.b.Stats().Conns == 0 })
	nstest.Equal(t, "connections that were broken or not delivered", h.a.Stats().Broken+h.a.Stats().Undelivered, 0)
}

// neverLess fails the test if a counter of the stacks decreases before end is called.
func neverLess(t *testing.T, stacks ...*vianet.Stack) (end func()) {
	var looking sync.WaitGroup
	done := make(chan struct{})
	for _, s := range stacks {
		looking.Go(func() {
			for last, over := s.Stats(), false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				now := s.Stats()
				less := now.Messages.Bytes < last.Messages.Bytes || now.Received < last.Received || now.Dialed < last.Dialed
				nstest.ErrorIf(t, less, "%+v, and then %+v", last, now)
				last = now
			}
		})
	}
	return func() { close(done); looking.Wait() }
}

// exhaust registers memory until no more can be, and gives it back.
func exhaust(t *testing.T, nic *vipl.NIC) (free func()) {
	t.Helper()
	tag, err := nic.CreatePtag()
	must(t, err)
	var all []*vipl.Region
	buf := make([]byte, 1)
	for {
		r, err := nic.RegisterMem(buf, vipl.MemAttributes{Ptag: tag})
		if errors.Is(err, vipl.ErrResource) {
			break
		}
		must(t, err)
		all = append(all, r)
	}
	return func() {
		t.Helper()
		for _, r := range all {
			must(t, r.Deregister())
		}
		must(t, tag.Destroy())
	}
}

// If no memory can be registered, no connection can be made, and a Read of a transfer fails without losing
// anything. A Write uses messages.
func TestNoMemory(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := inMemory(t, o)
		l := h.listen(t)
		a, b := h.pair(t)
		a.SetDeadline(time.Now().Add(testTimeout))
		b.SetDeadline(time.Now().Add(testTimeout))
		data := randomBytes(300_000, 5)

		free := exhaust(t, h.nicA)
		isErr(t, "Dial", nstest.Err(h.a.Dial("via", l.Addr().String())), syscall.ENOBUFS)
		before := h.nicA.Counters().Reads
		carry(t, a, b, data) // by messages
		nstest.Equal(t, "RDMA reads of what cannot be registered", h.nicA.Counters().Reads-before, 0)
		done, got := goWrite(b, data), make([]byte, len(data))
		for _, n := range []int{1, 1000, len(data)} {
			readsNothing(t, fmt.Sprintf("Read of %d bytes", n), a, n, syscall.ENOBUFS)
		}
		free()
		check(t, errors.Join(nstest.Err(io.ReadFull(a, got)), <-done))
		nstest.ErrorIf(t, !bytes.Equal(got, data), "other bytes afterwards")
		h.dial(t, l.Addr()).Close()
		l.Close()
	}
}

// A Read that has no buffer to ask with keeps no staging buffer, or after some of them no Read would ask any more.
func TestNothingStagedWithoutBuffer(t *testing.T) {
	a, _ := inMemory(t, vianet.Options{}).pair(t)
	staged, err := vianet.StagedWithoutBuffer(a)
	nstest.Must(t, err)
	nstest.Equal(t, "staging buffers", staged, 0)
}

// Memory kept registered for reuse makes room for current needs: a connection, its ring, and staging buffers.
func TestKeptMemoryGivesWay(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	c, d := h.pair(t)
	var kept [8][100_000]byte
	for i := range kept {
		carry(t, c, d, kept[i][:])
	}
	defer exhaust(t, h.nicA)()
	a := h.dial(t, l.Addr())
	b := accept(t, l)
	a.SetDeadline(time.Now().Add(testTimeout))
	for range 2 {
		wrote := goWrite(b, make([]byte, 100_000))
		for range 100 {
			must(t, nstest.Err(io.ReadFull(a, make([]byte, 1000))))
		}
		must(t, <-wrote)
	}
	nstest.ErrorIf(t, !vianet.HasRing(a), "no ring")
	s := h.a.Stats()
	nstest.ErrorIf(t, s.NoMemory > 0 || s.RegisteredBytes == 0, "%+v", s)
}

// At most Backlog connections wait for Accept; more are refused, and each Accept makes room for another.
func TestBacklog(t *testing.T) {
	for given, want := range map[int]int{0: 128, 1: 1, 5: 5, 150: 150} {
		t.Run(fmt.Sprint(given), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkBacklog(t, given, want) })
		})
	}
}

func checkBacklog(t *testing.T, given, want int) {
	h := inMemory(t, vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Backlog: given, Spin: asleep.Spin})
	l := h.listen(t)
	var dialed, accepted []byte
	dial := func() {
		t.Helper()
		c := h.dial(t, l.Addr())
		t.Cleanup(func() { c.Close() })
		dialed = append(dialed, byte(len(dialed)))
		must(t, nstest.Err(c.Write(dialed[len(dialed)-1:])))
	}
	take := func() {
		t.Helper()
		c := accept(t, l)
		t.Cleanup(func() { c.Close() })
		got := make([]byte, 1)
		must(t, nstest.Err(io.ReadFull(c, got)))
		accepted = append(accepted, got[0])
	}
	for range want {
		dial()
	}
	isErr(t, "one more than there are places", nstest.Err(h.a.Dial("via", l.Addr().String())), syscall.ECONNREFUSED)
	take()
	dial()
	for range want {
		take()
	}
	slices.Sort(accepted)
	nstest.Same(t, "accepted", accepted, dialed)
	nstest.Equal(t, "those that were refused and wait", vianet.Waiting(l), 0)
}
