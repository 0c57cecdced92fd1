package vianet_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// testTimeout is how long a test waits for an expected event.
const testTimeout = time.Minute

// noLeaks fails a test that leaves a goroutine behind.
func noLeaks(t testing.TB) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
}

// longSilence is longer than a busy machine deschedules a live peer.
const longSilence = 30 * time.Second

// lossy are the faults of a wire that loses frames.
var lossy = xdpnictest.Faults{Seed: 5, Loss: 0.01, Dup: 0.01, Reorder: 0.01}

// wasLossy checks that the wire has lost frames.
func (h *hosts) wasLossy(t *testing.T) {
	t.Helper()
	nstest.ErrorIf(t, h.wire.Lost() == 0, "the wire has lost no frame")
}

// memoryNics opens a NIC at both ends of a wire in memory. When they are closed no chunk may be missing.
func memoryNics(t testing.TB, silence time.Duration, packets bool) (a, b *vipl.NIC, wire *xdpnictest.Wire) {
	t.Helper()
	c := memorynic.Config{Silence: silence, Packets: packets}
	return nicsOn(t, kagenttest.NewFabric(kagenttest.Faults{}), c, c)
}

// nicsOn is memoryNics for agents on a fabric of the test's, by default with 1024 chunks for receiving.
func nicsOn(t testing.TB, fabric *kagenttest.Fabric, ofA, ofB memorynic.Config) (a, b *vipl.NIC, wire *xdpnictest.Wire) {
	t.Helper()
	noLeaks(t)
	wire = xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	open := func(name string, c memorynic.Config) *vipl.NIC {
		c.Queue.RxChunks = cmp.Or(c.Queue.RxChunks, 1024)
		return memorynic.Open(t, wire, fabric.Agent(name), c).NIC
	}
	return open("a", ofA), open("b", ofB), wire
}

// vethNics opens a NIC at both ends of a veth pair.
func vethNics(t testing.TB, na, nb *nstest.NS) (a, b *vipl.NIC) {
	t.Helper()
	noLeaks(t)
	open := func(ns *nstest.NS) *vipl.NIC { return openIn(t, ns, vipl.WithSilence(longSilence)) }
	return open(na), open(nb)
}

// openIn opens the NIC of a namespace.
func openIn(t testing.TB, ns *nstest.NS, o ...vipl.Option) (nic *vipl.NIC) {
	t.Helper()
	nstest.Must(t, ns.Do(func() (err error) {
		nic, err = vipl.OpenNIC(ns.Name, o...)
		return err
	}))
	t.Cleanup(func() { check(t, nic.Close()) })
	return nic
}

// newStack makes a stack that is closed with the test, and then has nothing left on the NIC.
func newStack(t testing.TB, nic *vipl.NIC, o vianet.Options) *vianet.Stack {
	t.Helper()
	s, err := vianet.New(nic, o)
	must(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// hosts are two stacks that can reach each other.
type hosts struct {
	a, b       *vianet.Stack
	nicA, nicB *vipl.NIC
	wire       *xdpnictest.Wire // nil over a veth pair
	tags       [2]int           // protection tags that the NICs have without any connection
}

// over makes a stack on each of two NICs.
func over(t testing.TB, a, b *vipl.NIC, wire *xdpnictest.Wire, o vianet.Options) *hosts {
	t.Helper()
	h := &hosts{a: newStack(t, a, o), b: newStack(t, b, o), nicA: a, nicB: b, wire: wire}
	h.tags = [2]int{a.Status().Ptags, b.Status().Ptags}
	return h
}

func inMemory(t testing.TB, o vianet.Options) *hosts { return inMemoryBy(t, o, false) }

// inMemoryBy is inMemory where frames also leave in packets, if packets is true.
func inMemoryBy(t testing.TB, o vianet.Options, packets bool) *hosts {
	t.Helper()
	a, b, wire := memoryNics(t, longSilence, packets)
	return over(t, a, b, wire, o)
}

func overVeth(t testing.TB, mtu int, o vianet.Options) *hosts {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{MTU: mtu})
	a, b := vethNics(t, na, nb)
	return over(t, a, b, nil, o)
}

// bearBreaks is for tests that break connections.
func (h *hosts) bearBreaks() {
	for _, n := range []*vipl.NIC{h.nicA, h.nicB} {
		n.ErrorCallback(func(vipl.ErrorDescriptor) {})
	}
}

func (h *hosts) listen(t testing.TB) *vianet.Listener {
	t.Helper()
	l, err := h.b.Listen("via", net.JoinHostPort(h.nicB.Query().Address.String(), "0"))
	must(t, err)
	return l.(*vianet.Listener)
}

func (h *hosts) dial(t testing.TB, to net.Addr) *vianet.Conn {
	t.Helper()
	c, err := h.a.Dial("via", to.String())
	must(t, err)
	return c.(*vianet.Conn)
}

// pair connects the hosts.
func (h *hosts) pair(t testing.TB) (a, b *vianet.Conn) {
	t.Helper()
	l := h.listen(t)
	defer l.Close()
	a = h.dial(t, l.Addr())
	b = accept(t, l)
	b.SetDeadline(never)
	return a, b
}

// background calls f in the background, and sends the outcome on the channel.
func background(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// goWrite writes b in the background.
func goWrite(c net.Conn, b []byte) <-chan error {
	return background(func() error { return nstest.Err(c.Write(b)) })
}

// goRead reads at most n bytes in the background.
func goRead(c net.Conn, n int) <-chan error {
	return background(func() error { return nstest.Err(c.Read(make([]byte, n))) })
}

// asleep is for tests in a synctest bubble, where time stands still while a goroutine polls.
var asleep = vianet.Options{Spin: -1}

// configurations are the data paths that tests run over.
var configurations = []struct {
	name    string
	options vianet.Options
	packets bool
}{
	{"read", vianet.Options{}, false},
	{"write", vianet.Options{NoRDMARead: true}, false},
	{"buffers", vianet.Options{Threshold: -1}, false},
	{"small pool", vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Threshold: 2000}, false},
	{"asleep", vianet.Options{Spin: -1, Registered: -1}, false},
	{"packets", vianet.Options{}, true},
	{"packets, small pool", vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Threshold: 2000}, true},
}

func eachConfiguration(t *testing.T, f func(t *testing.T, h *hosts)) {
	t.Helper()
	for _, l := range configurations {
		t.Run(l.name, func(t *testing.T) { f(t, inMemoryBy(t, l.options, l.packets)) })
	}
}

var must, check, isErr = nstest.Must, nstest.Check, nstest.WantErr

// The same over AF_XDP and a veth pair.
func TestVeth(t *testing.T) {
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := overVeth(t, 1500, o)
		a, b := h.pair(t)
		exchange(t, a, b, 2<<20)
		nstest.ErrorIf(t, a.Close() != nil || b.Close() != nil, "Close failed")
		h.conforms(t)
		a, b = h.pair(t)
		blockedEnds(t, a, b)
	}
}

// readsAll fails the test if a stream is not want, followed by its end.
func readsAll(t testing.TB, r io.Reader, want []byte) {
	t.Helper()
	got, err := io.ReadAll(r)
	nstest.ErrorIf(t, err != nil || !bytes.Equal(got, want), "%d bytes came of %d, or others, %v", len(got), len(want), err)
}

// readsNothing fails the test if a Read of n bytes gives any, or another error.
func readsNothing(t testing.TB, what string, c net.Conn, n int, want error) {
	t.Helper()
	k, err := c.Read(make([]byte, n))
	nstest.ErrorIf(t, k != 0 || !errors.Is(err, want), "%s: %d bytes, %v, want %v", what, k, err, want)
}
