package vianet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

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

// Where no memory can be registered a connection cannot come about, and a Read of a transfer says so; it loses
// nothing. A Write goes by messages.
func TestNoMemory(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := inMemory(t, o)
		l := h.listen(t)
		a, b := h.pair(t)
		a.SetDeadline(time.Now().Add(ackDelay))
		b.SetDeadline(time.Now().Add(ackDelay))
		data := randomBytes(300_000, 5)

		free := exhaust(t, h.nicA)
		if c, err := h.a.Dial("via", l.Addr().String()); !errors.Is(err, syscall.ENOBUFS) {
			t.Errorf("Dial: %v, %v", c, err)
		}
		before := h.nicA.Counters()
		done := goWrite(a, data)
		got := make([]byte, len(data))
		_, err := io.ReadFull(b, got)
		if err = errors.Join(err, <-done); err != nil || !bytes.Equal(got, data) {
			t.Errorf("written by messages: %v", err)
		}
		if after := h.nicA.Counters(); after.Reads != before.Reads {
			t.Errorf("%d RDMA reads of what cannot be registered", after.Reads-before.Reads)
		}
		done = goWrite(b, data)
		for _, n := range []int{1, 1000, len(data)} {
			if k, err := a.Read(make([]byte, n)); k != 0 || !errors.Is(err, syscall.ENOBUFS) {
				t.Errorf("Read of %d bytes: %d, %v", n, k, err)
			}
		}
		free()
		clear(got)
		_, err = io.ReadFull(a, got)
		if err = errors.Join(err, <-done); err != nil || !bytes.Equal(got, data) {
			t.Errorf("afterwards: %v", err)
		}
		h.dial(t, l.Addr()).Close()
		l.Close()
	}
}

// Memory that stays registered for the next time gives way to what is needed now: to a connection, to the ring of
// one, to what is read in small pieces.
func TestKeptMemoryGivesWay(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	defer l.Close()
	c, d := h.pair(t)
	var kept [8][100_000]byte
	for i := range kept {
		carry(t, c, d, kept[i][:])
	}
	defer exhaust(t, h.nicA)()
	a := h.dial(t, l.Addr())
	b := accept(t, l)
	a.SetDeadline(time.Now().Add(ackDelay))
	for range 2 {
		wrote := goWrite(b, make([]byte, 100_000))
		for range 100 {
			must(t, errOf(io.ReadFull(a, make([]byte, 1000))))
		}
		must(t, <-wrote)
	}
	if !vianet.HasRing(a) {
		t.Error("no ring")
	}
	if s := h.a.Stats(); s.NoMemory > 0 || s.RegisteredBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// As many connections as the backlog has places wait for Accept; more are refused, and when one is accepted another
// has its place.
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
	defer l.Close()
	var dialed, accepted []byte
	dial := func() {
		t.Helper()
		c := h.dial(t, l.Addr())
		t.Cleanup(func() { c.Close() })
		dialed = append(dialed, byte(len(dialed)))
		must(t, errOf(c.Write(dialed[len(dialed)-1:])))
	}
	accept := func() {
		t.Helper()
		l.SetDeadline(time.Now().Add(ackDelay))
		c, err := l.Accept()
		must(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(ackDelay))
		got := make([]byte, 1)
		must(t, errOf(io.ReadFull(c, got)))
		accepted = append(accepted, got[0])
	}
	for range want {
		dial()
	}
	if c, err := h.a.Dial("via", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("one more than there are places: %v, %v", c, err)
	}
	accept()
	dial()
	for range want {
		accept()
	}
	if slices.Sort(accepted); !bytes.Equal(accepted, dialed) {
		t.Errorf("accepted %v", accepted)
	}
	if n := vianet.Waiting(l); n != 0 {
		t.Errorf("%d that were refused wait", n)
	}
}
