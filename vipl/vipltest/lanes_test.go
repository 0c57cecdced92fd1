package vipltest_test

import (
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/nstest"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// lane is a way between two NICs over which the suite runs.
type lane struct {
	name, text string
	config     vipltest.Config
	short      bool // runs with -short, too
	veth       bool // needs privilege
}

var lanes = []lane{
	{name: "memory", text: "queues joined in memory", short: true, config: inMemory(xdpnictest.Faults{}, 0)},
	{
		name: "memory with faults", text: "the same, where frames get lost, damaged, come twice, overtake each other and take their time",
		config: lossy(inMemory(xdpnictest.Faults{
			Seed: 42, Loss: 0.01, Corrupt: 0.01, Dup: 0.02, Reorder: 0.02, Jitter: 50 * time.Microsecond,
		}, 0)),
	},
	{
		name: "memory, long frames", text: "the same with frames of up to nine chunks",
		config: lossy(inMemory(xdpnictest.Faults{
			Seed: 43, Loss: 0.01, Corrupt: 0.01, Dup: 0.02, Reorder: 0.02, Jitter: 50 * time.Microsecond,
		}, longMTU)),
	},
	{name: "veth generic", text: "AF_XDP over a veth pair, generic mode, MTU 1500", short: true, veth: true, config: overVeth(1500, xdpnic.ModeGeneric)},
	{name: "veth generic 9000", text: "the same with MTU 9000", veth: true, config: overVeth(9000, xdpnic.ModeGeneric)},
	{name: "veth generic 65535", text: "the same with MTU 65535", veth: true, config: overVeth(65535, xdpnic.ModeGeneric)},
	{name: "veth native", text: "AF_XDP over a veth pair, native mode, MTU 1500", veth: true, config: overVeth(1500, xdpnic.ModeNative)},
	{
		name: "veth generic 9000, sealed", text: "the same with MTU 9000, generic mode, authenticated and encrypted by a pre-shared key",
		veth: true, config: overVeth(9000, xdpnic.ModeGeneric, vipl.WithPSK(psk)),
	},
}

// psk is a pre-shared key of the length that there must be.
var psk, _ = vipl.NewPSK(make([]byte, 32))

func lossy(c vipltest.Config) vipltest.Config {
	c.Lossy = true
	return c
}

// TestConformance runs the suite over every lane, and compares what came of it
// with docs/conformance.md.
func TestConformance(t *testing.T) {
	results := make(map[string][]vipltest.Result)
	for _, l := range lanes {
		t.Run(l.name, func(t *testing.T) {
			if testing.Short() && !l.short {
				t.Skip("not with -short")
			}
			if l.veth {
				nstest.Require(t)
			}
			results[l.name] = vipltest.Run(t, l.config)
		})
	}
	compareReport(t, results)
}

// RX chunks of a NIC in memory: an unreliable megabyte comes at once, before
// anybody looks.
const rxChunks = 1024

// arenaBytes is what a NIC has for AllocMem: a few messages of the largest size.
const arenaBytes = 16 << 20

// shortSilence is the time after which a peer is taken for dead where it is to
// be; no shorter than what a busy machine may keep a living one from its work.
const shortSilence = time.Second

// longSilence is that time elsewhere: longer than a machine that others share keeps
// anybody from his work, and short enough for rules to wait for the end of a
// connection of which a bad way lost the news.
const longSilence = 8 * time.Second

// longMTU makes frames of several chunks, which have 2048 bytes.
const longMTU = 15_000

// inMemory is NICs over a wire in memory, on queues that take frames of several
// chunks if the MTU, 1500 when it is 0, asks for it. When they are closed no
// chunk may be missing.
func inMemory(f xdpnictest.Faults, mtu int) vipltest.Config {
	open := func(t testing.TB, silence time.Duration) (a, b *vipl.Nic, wire *xdpnictest.Wire) {
		t.Helper()
		wire = xdpnictest.NewWire()
		t.Cleanup(wire.Close)
		fabric := kagenttest.NewFabric(kagenttest.Faults{})
		a = openInMemory(t, wire, fabric.Agent("a"), mtu, silence)
		b = openInMemory(t, wire, fabric.Agent("b"), mtu, silence)
		wire.SetFaults(f)
		return a, b, wire
	}
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.Nic) {
			a, b, _ = open(t, longSilence)
			return a, b
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.Nic, silence func()) {
			a, b, wire := open(t, shortSilence)
			return a, b, func() { wire.Cut(true) }
		},
	}
}

func openInMemory(t testing.TB, wire *xdpnictest.Wire, agent *kagenttest.Agent, mtu int, silence time.Duration) *vipl.Nic {
	t.Helper()
	c := xdpnictest.Config{RxChunks: rxChunks, MultiBuffer: mtu > 0}
	if mtu > 0 {
		agent.SetMTU(mtu)
	}
	pool := c.PoolBytes()
	arena, err := hugepages.New(hugepages.Config{Size: pool + arenaBytes, Reserve: pool, Policy: hugepages.Avoid})
	if err != nil {
		t.Fatal(err)
	}
	link := agent.Link()
	c.Memory, c.Admit, c.MAC = arena.Bytes(), agent.Admit, link.MAC
	queue, err := wire.Queue(c)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vipl.Open(vipl.Provider{Port: queue, Agent: agent, Arena: arena, Silence: silence})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if queue.Flush(); queue.Owners().InFlight == 0 { // nothing is on its way any more
				break
			}
		}
		if err := queue.Audit(); err != nil {
			t.Errorf("host %s: %v", link.Name, err)
		}
		if o := queue.Owners(); o.Held+o.Leased+o.InFlight+o.Recycled > 0 {
			t.Errorf("host %s: chunks are missing: %+v", link.Name, o)
		}
		if err := queue.Close(); err != nil {
			t.Error(err)
		}
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// overVeth is NICs at both ends of a veth pair.
func overVeth(mtu int, mode xdpnic.Mode, more ...vipl.Option) vipltest.Config {
	open := func(t testing.TB, silence time.Duration) (nics []*vipl.Nic, ends []*nstest.NS) {
		t.Helper()
		a, b := nstest.Pair(t, nstest.Options{MTU: mtu})
		ends = []*nstest.NS{a, b}
		for _, ns := range ends {
			var n *vipl.Nic
			if err := ns.Do(func() (err error) {
				n, err = vipl.OpenNic(ns.Name, append(more, vipl.WithMode(mode, true), vipl.WithHugepages(hugepages.Avoid),
					vipl.WithArena(3*arenaBytes), vipl.WithSilence(silence))...)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
			nics = append(nics, n)
		}
		return nics, ends
	}
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.Nic) {
			nics, _ := open(t, longSilence)
			return nics[0], nics[1]
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.Nic, silence func()) {
			nics, ends := open(t, shortSilence)
			return nics[0], nics[1], func() { setDown(t, ends[1]) }
		},
	}
}

// setDown takes an interface down: nothing comes in or goes out any more.
func setDown(t testing.TB, ns *nstest.NS) {
	t.Helper()
	link, err := ns.Netlink().LinkByIndex(ns.Index)
	if err == nil {
		err = ns.Netlink().LinkSetDown(link)
	}
	if err != nil {
		t.Fatal(err)
	}
}
