// Package pairtest gives a test two programs that talk: a NIC at each end of a
// veth pair, and a VI on each, connected.
package pairtest

import (
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
)

// End is one side.
type End struct {
	NS  *nstest.NS
	Nic *vipl.Nic
	VI  *vipl.VI
	mem *vipl.Region

	recv *vipl.Descriptor // posted last
}

const (
	patience = time.Minute
	// Size is the longest message.
	Size = 4096
)

// Connected makes both sides, with VIs of a level. All of it ends with the
// test. It calls nstest.Require first.
func Connected(t testing.TB, o nstest.Options, level vipl.ReliabilityLevel, opts ...vipl.Option) (a, b *End) {
	t.Helper()
	na, nb := nstest.Pair(t, o)
	return Join(t, Open(t, na, opts...), Open(t, nb, opts...), nb.IPv4, level)
}

// Open opens a side's NIC, without a VI, until the end of the test. Without another
// option, a peer that the machine keeps from speaking is not taken for dead.
func Open(t testing.TB, ns *nstest.NS, opts ...vipl.Option) *End {
	t.Helper()
	e := &End{NS: ns}
	opts = append([]vipl.Option{vipl.WithSilence(patience)}, opts...)
	check(t, ns.Do(func() (err error) {
		e.Nic, err = vipl.OpenNic(ns.Name, opts...)
		return err
	}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %+v", ns.Name, e.Nic.Status())
		}
		if err := e.Nic.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Join makes a VI of a level on the NIC of each side and connects them; host is
// an address of b. The ends that it returns share the NICs with a and b.
func Join(t testing.TB, a, b *End, host netip.Addr, level vipl.ReliabilityLevel) (_, _ *End) {
	t.Helper()
	a, b = a.withVI(t, level), b.withVI(t, level)
	accepted := make(chan error, 1)
	at := vipl.NetAddress{Host: host, Discriminator: []byte("pairtest")}
	go func() {
		r, err := b.Nic.ConnectWait(at, patience)
		if err == nil {
			err = r.Accept(b.VI)
		}
		accepted <- err
	}()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) { // until b waits
		if _, err = a.VI.ConnectRequest(vipl.NetAddress{}, at, patience); err == nil {
			check(t, <-accepted)
			return a, b
		}
	}
	t.Fatalf("no connection: %v", err)
	return nil, nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (e *End) withVI(t testing.TB, level vipl.ReliabilityLevel) *End {
	t.Helper()
	e = &End{NS: e.NS, Nic: e.Nic}
	tag, err := e.Nic.CreatePtag()
	check(t, err)
	e.mem, err = e.Nic.AllocMem(128+2*Size, vipl.MemAttributes{Ptag: tag})
	check(t, err)
	e.VI, err = e.Nic.CreateVi(vipl.ViAttributes{Level: level, Ptag: tag}, nil, nil)
	check(t, err)
	return e
}

// Send sends a message to the other side and returns what arrived there.
func (e *End) Send(t testing.TB, to *End, message []byte) []byte {
	t.Helper()
	e.Post(t, to, message)
	_, err := to.VI.RecvWait(patience)
	check(t, err)
	return e.Sent(t, to)
}

// Post posts a receive on the other side and a message for it.
func (e *End) Post(t testing.TB, to *End, message []byte) {
	t.Helper()
	var err error
	to.recv, err = to.mem.Descriptor(0, 1)
	check(t, err)
	to.recv.SetSegments(to.mem.Segment(128, Size))
	check(t, to.VI.PostRecv(to.recv, to.mem.Handle()))
	e.PostSend(t, message)
}

// PostSend posts a message; a receive for it is posted already.
func (e *End) PostSend(t testing.TB, message []byte) {
	t.Helper()
	send, err := e.mem.Descriptor(64, 1)
	check(t, err)
	copy(e.mem.Bytes()[128+Size:], message)
	send.SetSegments(e.mem.Segment(128+Size, len(message)))
	check(t, e.VI.PostSend(send, e.mem.Handle()))
}

// Sent waits until what Post has sent is complete, and returns what arrived.
func (e *End) Sent(t testing.TB, to *End) []byte {
	t.Helper()
	_, err := e.VI.SendWait(patience)
	check(t, err)
	return to.mem.Bytes()[128 : 128+int(to.recv.Length)]
}
