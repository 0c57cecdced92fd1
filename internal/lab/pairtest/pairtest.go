// Package pairtest gives a test two programs that talk: a NIC at each end of a
// veth pair, and a VI on each, connected.
package pairtest

import (
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// End is one side.
type End struct {
	NS  *nstest.NS
	NIC *vipl.NIC
	VI  *vipl.VI
	mem *vipl.Region

	recv *vipl.Descriptor // posted last
}

const (
	waitLimit = time.Minute
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

// Open opens a side's NIC, without a VI, until the end of the test. By default the
// silence is so long that a descheduled peer is not taken for dead.
func Open(t testing.TB, ns *nstest.NS, opts ...vipl.Option) *End {
	t.Helper()
	e := &End{NS: ns}
	opts = append([]vipl.Option{vipl.WithSilence(waitLimit)}, opts...)
	e.NIC = nstest.In(t, ns, func() (*vipl.NIC, error) { return vipl.OpenNIC(ns.Name, opts...) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %+v", ns.Name, e.NIC.Status())
		}
		if err := e.NIC.Close(); err != nil {
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
		r, err := b.NIC.ConnectWait(at, waitLimit)
		if err == nil {
			err = r.Accept(b.VI)
		}
		accepted <- err
	}()
	var err error
	for end := time.Now().Add(waitLimit); time.Now().Before(end); time.Sleep(time.Millisecond) { // until b waits
		if _, err = a.VI.ConnectRequest(vipl.NetAddress{}, at, waitLimit); err == nil {
			nstest.Must(t, <-accepted)
			return a, b
		}
	}
	t.Fatalf("no connection: %v", err)
	return nil, nil
}

func (e *End) withVI(t testing.TB, level vipl.ReliabilityLevel) *End {
	t.Helper()
	e = &End{NS: e.NS, NIC: e.NIC}
	tag, err := e.NIC.CreatePtag()
	nstest.Must(t, err)
	e.mem, err = e.NIC.AllocMem(128+2*Size, vipl.MemAttributes{Ptag: tag})
	nstest.Must(t, err)
	e.VI, err = e.NIC.CreateVI(vipl.VIAttributes{Level: level, Ptag: tag}, nil, nil)
	nstest.Must(t, err)
	return e
}

// Send sends a message to the other side and returns what arrived there.
func (e *End) Send(t testing.TB, to *End, message []byte) []byte {
	t.Helper()
	e.Post(t, to, message)
	_, err := to.VI.RecvWait(waitLimit)
	nstest.Must(t, err)
	return e.Sent(t, to)
}

// Post posts a receive on the other side and a message for it.
func (e *End) Post(t testing.TB, to *End, message []byte) {
	t.Helper()
	var err error
	to.recv, err = to.mem.Descriptor(0, 1)
	nstest.Must(t, err)
	to.recv.SetSegments(to.mem.Segment(128, Size))
	nstest.Must(t, to.VI.PostRecv(to.recv, to.mem.Handle()))
	e.PostSend(t, message)
}

// PostSend posts a message; a receive for it is posted already.
func (e *End) PostSend(t testing.TB, message []byte) {
	t.Helper()
	send, err := e.mem.Descriptor(64, 1)
	nstest.Must(t, err)
	copy(e.mem.Bytes()[128+Size:], message)
	send.SetSegments(e.mem.Segment(128+Size, len(message)))
	nstest.Must(t, e.VI.PostSend(send, e.mem.Handle()))
}

// Sent waits until what Post has sent is complete, and returns what arrived.
func (e *End) Sent(t testing.TB, to *End) []byte {
	t.Helper()
	_, err := e.VI.SendWait(waitLimit)
	nstest.Must(t, err)
	return to.mem.Bytes()[128 : 128+int(to.recv.Length)]
}
