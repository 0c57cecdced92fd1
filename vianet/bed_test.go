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

// lossy are the faults of a wire that loses frames.
var lossy = xdpnictest.Faults{Seed: 5, Loss: 0.01, Dup: 0.01, Reorder: 0.01}

// wasLossy checks that the wire has lost frames.
func (h *hosts) wasLossy(t *testing.T) {
	t.Helper()
	nstest.ErrorIf(t, h.wire.Lost() == 0, "the wire has lost no frame")
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
	tags       [2]int // protection tags that the NICs have without any connection

	wire     *xdpnictest.Wire   // in memory
	fabric   *kagenttest.Fabric // in memory
	nsA, nsB *nstest.NS         // over a veth pair
}

// start makes a stack on each NIC.
func (h *hosts) start(t testing.TB, o vianet.Options) *hosts {
	t.Helper()
	h.a, h.b = newStack(t, h.nicA, o), newStack(t, h.nicB, o)
	h.tags = [2]int{h.nicA.Status().Ptags, h.nicB.Status().Ptags}
	return h
}

func inMemory(t testing.TB, o vianet.Options) *hosts { return inMemoryBy(t, o, memorynic.Config{}) }

// inMemoryBy is inMemory with NICs that are opened as c says.
func inMemoryBy(t testing.TB, o vianet.Options, c memorynic.Config) *hosts {
	t.Helper()
	return inMemoryOf(t, o, c, c)
}

// inMemoryOf is inMemory with NICs that are opened as a and b say, by default with 1024 chunks for receiving. When they are
// closed no chunk may be missing.
func inMemoryOf(t testing.TB, o vianet.Options, a, b memorynic.Config) *hosts {
	t.Helper()
	noLeaks(t)
	h := &hosts{fabric: kagenttest.NewFabric(kagenttest.Faults{}), wire: xdpnictest.NewWire()}
	t.Cleanup(h.wire.Close)
	open := func(name string, c memorynic.Config) *vipl.NIC {
		c.Queue.RxChunks = cmp.Or(c.Queue.RxChunks, 1024)
		return memorynic.Open(t, h.wire, h.fabric.Agent(name), c).NIC
	}
	h.nicA, h.nicB = open("a", a), open("b", b)
	return h.start(t, o)
}

// overVeth makes hosts with a NIC at both ends of a veth pair.
func overVeth(t testing.TB, mtu int, o vianet.Options) *hosts {
	t.Helper()
	h := &hosts{}
	h.nsA, h.nsB = nstest.Pair(t, nstest.Options{MTU: mtu})
	noLeaks(t)
	open := func(ns *nstest.NS) (nic *vipl.NIC) {
		must(t, ns.Do(func() (err error) {
			nic, err = vipl.OpenNIC(ns.Name, vipl.WithSilence(memorynic.Unhurried))
			return err
		}))
		t.Cleanup(func() { check(t, nic.Close()) })
		return nic
	}
	h.nicA, h.nicB = open(h.nsA), open(h.nsB)
	return h.start(t, o)
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

// packets are NICs whose frames also leave in packets.
var packets = memorynic.Config{Packets: true}

// configurations are the data paths that tests run over.
var configurations = []struct {
	name    string
	options vianet.Options
	nics    memorynic.Config
}{
	{"read", vianet.Options{}, memorynic.Config{}},
	{"write", vianet.Options{NoRDMARead: true}, memorynic.Config{}},
	{"buffers", vianet.Options{Threshold: -1}, memorynic.Config{}},
	{"small pool", vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Threshold: 2000}, memorynic.Config{}},
	{"asleep", vianet.Options{Spin: -1, Registered: -1}, memorynic.Config{}},
	{"packets", vianet.Options{}, packets},
	{"packets, small pool", vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Threshold: 2000}, packets},
}

func eachConfiguration(t *testing.T, f func(t *testing.T, h *hosts)) {
	t.Helper()
	for _, l := range configurations {
		t.Run(l.name, func(t *testing.T) { f(t, inMemoryBy(t, l.options, l.nics)) })
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
