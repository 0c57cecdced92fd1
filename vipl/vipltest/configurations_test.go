package vipltest_test

import (
	"sync"
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// shm is a configuration of two NICs with which the suite runs.
type shm struct {
	name, text string
	config     vipltest.Config
	short      bool // runs with -short, too
	veth       bool // needs privilege
}

var shmLinks = []shm{
	{name: "memory", text: "queues joined in memory", short: true, config: inMemory(0, 0)},
	{
		name: "memory with faults", text: "the same, where frames get lost, damaged, come twice, overtake each other and take their time",
		config: inMemory(42, 0),
	},
	{name: "memory, long frames", text: "the same with frames of up to nine chunks", config: inMemory(43, longMTU)},
	{name: "veth generic", text: "AF_XDP over a veth pair, generic mode, MTU 1500", short: true, veth: true, config: overVeth(1500, xdpnic.ModeGeneric)},
	{name: "veth generic 9000", text: "the same with MTU 9000", veth: true, config: overVeth(9000, xdpnic.ModeGeneric)},
	{name: "veth generic 65535", text: "the same with MTU 65535", veth: true, config: overVeth(65535, xdpnic.ModeGeneric)},
	{name: "veth native", text: "AF_XDP over a veth pair, native mode, MTU 1500", veth: true, config: overVeth(1500, xdpnic.ModeNative)},
	{
		name: "veth generic 9000, sealed", text: "the same with MTU 9000, generic mode, authenticated and encrypted by a pre-shared key",
		veth: true, config: overVeth(9000, xdpnic.ModeGeneric, vipl.WithPSK(psk)),
	},
}

// psk is a pre-shared key of the minimum length.
var psk, _ = vipl.NewPSK(make([]byte, 32))

// TestConformance runs the suite in every configuration, and compares the results with
// docs/conformance.md. The configurations run in parallel: they share nothing and mostly wait.
func TestConformance(t *testing.T) {
	var mu sync.Mutex
	results := make(map[string]map[string]string)
	t.Cleanup(func() { compareReport(t, results) }) // when all configurations are done
	for _, l := range shmLinks {
		t.Run(l.name, func(t *testing.T) {
			if !testsize.Every() && !*update && !l.short {
				t.Skip("the same rules and code as in others: runs in CI")
			}
			if l.veth {
				nstest.Require(t)
			}
			t.Parallel()
			r := vipltest.Run(t, l.config)
			mu.Lock()
			defer mu.Unlock()
			results[l.name] = r
		})
	}
}

// RX chunks of a NIC in memory: an unreliable megabyte arrives at once, before any poll.
const rxChunks = 1024

// arenaBytes is what a NIC has for AllocMem: a few messages of the largest size.
const arenaBytes = 16 << 20

// shortSilence is the time after which a peer is taken for dead where it is to
// be; no shorter than what a busy machine may keep a living one from its work.
const shortSilence = time.Second

// longSilence is that time elsewhere: longer than a process waits for a CPU on a shared
// machine, and short enough for rules that wait for a connection to end although the
// notification was lost.
const longSilence = 8 * time.Second

// longMTU makes frames of several chunks, which have 2048 bytes.
const longMTU = 15_000

// inMemory is NICs over a wire in memory, which has faults if their seed is not 0, on queues that take frames of several
// chunks if the MTU, 1500 when it is 0, asks for it. When they are closed no
// chunk may be missing.
func inMemory(seed uint64, mtu int) vipltest.Config {
	c := configOf(func(t testing.TB, silence time.Duration) (a, b *vipl.NIC, cut func()) {
		wire := xdpnictest.NewWire()
		t.Cleanup(wire.Close)
		fabric := kagenttest.NewFabric(kagenttest.Faults{})
		for i, nic := range []**vipl.NIC{&a, &b} {
			agent := fabric.Agent([]string{"a", "b"}[i])
			if mtu > 0 {
				agent.SetMTU(mtu)
			}
			*nic = memorynic.Open(t, wire, agent, memorynic.Config{
				Queue: xdpnictest.Config{RxChunks: rxChunks, MultiBuffer: mtu > 0}, Arena: arenaBytes, Silence: silence,
			}).NIC
		}
		if seed != 0 {
			wire.SetFaults(xdpnictest.Faults{Seed: seed, Loss: 0.01, Corrupt: 0.01, Dup: 0.02, Reorder: 0.02, Jitter: 50 * time.Microsecond})
		}
		return a, b, func() { wire.Cut(true) }
	})
	c.Lossy = seed != 0
	return c
}

// overVeth is NICs at both ends of a veth pair.
func overVeth(mtu int, mode xdpnic.Mode, more ...vipl.Option) vipltest.Config {
	return configOf(func(t testing.TB, silence time.Duration) (a, b *vipl.NIC, cut func()) {
		opts := append(more, vipl.WithMode(mode, true), vipl.WithHugepages(hugepages.Avoid), vipl.WithArena(3*arenaBytes), vipl.WithSilence(silence))
		na, nb := nstest.Pair(t, nstest.Options{MTU: mtu})
		return pairtest.Open(t, na, opts...).NIC, pairtest.Open(t, nb, opts...).NIC, func() { nb.SetLink(t, false) }
	})
}

// configOf is NICs that open opens, and that do not reach each other after a call of cut.
func configOf(open func(t testing.TB, silence time.Duration) (a, b *vipl.NIC, cut func())) vipltest.Config {
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.NIC) {
			a, b, _ = open(t, longSilence)
			return a, b
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.NIC, silence func()) { return open(t, shortSilence) },
	}
}
