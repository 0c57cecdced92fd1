package vianet_test

import (
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/memorynic"
	"viaxdp/internal/nstest"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// noLeaks fails a test that leaves a goroutine behind.
func noLeaks(t testing.TB) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
}

// longSilence is more than a busy machine keeps a living peer from its work.
const longSilence = 30 * time.Second

// lossy is what a wire does that is to lose frames.
var lossy = xdpnictest.Faults{Seed: 5, Loss: 0.01, Dup: 0.01, Reorder: 0.01}

// wasLossy checks that the wire has lost frames.
func (h *hosts) wasLossy(t *testing.T) {
	t.Helper()
	if h.wire.Lost() == 0 {
		t.Error("the wire has lost no frame")
	}
}

// memoryNics opens a NIC at both ends of a wire in memory. When they are closed no
// chunk may be missing.
func memoryNics(t testing.TB, f xdpnictest.Faults, silence time.Duration) (a, b *vipl.Nic, wire *xdpnictest.Wire) {
	t.Helper()
	noLeaks(t)
	wire = xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	open := func(name string) *vipl.Nic {
		return memorynic.Open(t, wire, fabric.Agent(name), memorynic.Config{
			Queue: xdpnictest.Config{RxChunks: 1024}, Silence: silence,
		}).Nic
	}
	a, b = open("a"), open("b")
	wire.SetFaults(f)
	return a, b, wire
}

// vethNics opens a NIC at both ends of a veth pair.
func vethNics(t testing.TB, mtu int) (a, b *vipl.Nic) {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{MTU: mtu})
	noLeaks(t)
	nics := make([]*vipl.Nic, 2)
	for i, ns := range []*nstest.NS{na, nb} {
		if err := ns.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(ns.Name, vipl.WithSilence(longSilence))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nics[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return nics[0], nics[1]
}

// newStack makes a stack that is closed with the test, and then has nothing left
// on the NIC.
func newStack(t testing.TB, nic *vipl.Nic, o vianet.Options) *vianet.Stack {
	t.Helper()
	s, err := vianet.New(nic, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// hosts are two stacks that can reach each other.
type hosts struct {
	a, b       *vianet.Stack
	nicA, nicB *vipl.Nic
	wire       *xdpnictest.Wire // nil over a veth pair
}

func inMemory(t testing.TB, o vianet.Options) *hosts {
	t.Helper()
	h := &hosts{}
	h.nicA, h.nicB, h.wire = memoryNics(t, xdpnictest.Faults{}, longSilence)
	h.a, h.b = newStack(t, h.nicA, o), newStack(t, h.nicB, o)
	return h
}

func (h *hosts) listen(t testing.TB) *vianet.Listener {
	t.Helper()
	l, err := h.b.Listen("via", net.JoinHostPort(h.nicB.Query().Address.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	return l.(*vianet.Listener)
}

func (h *hosts) dial(t testing.TB, to net.Addr) *vianet.Conn {
	t.Helper()
	c, err := h.a.Dial("via", to.String())
	if err != nil {
		t.Fatal(err)
	}
	return c.(*vianet.Conn)
}

// pair connects the hosts.
func (h *hosts) pair(t testing.TB) (a, b *vianet.Conn) {
	t.Helper()
	l := h.listen(t)
	defer l.Close()
	a = h.dial(t, l.Addr())
	l.SetDeadline(time.Now().Add(patience))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, c.(*vianet.Conn)
}

// lanes are the ways of data that tests run over.
var lanes = []struct {
	name    string
	options vianet.Options
}{
	{"read", vianet.Options{}},
	{"write", vianet.Options{NoRDMARead: true}},
	{"buffers", vianet.Options{Threshold: -1}},
	{"small pool", vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320, Threshold: 2000}},
	{"asleep", vianet.Options{Spin: -1, Registered: -1}},
}

func eachLane(t *testing.T, f func(t *testing.T, h *hosts)) {
	t.Helper()
	for _, l := range lanes {
		t.Run(l.name, func(t *testing.T) { f(t, inMemory(t, l.options)) })
	}
}
