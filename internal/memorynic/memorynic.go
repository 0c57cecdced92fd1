// Package memorynic gives a test NICs over queues in memory, which need no privilege.
package memorynic

import (
	"time"

	"viaxdp/hugepages"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Config says how a NIC is opened; zero fields mean defaults.
type Config struct {
	Queue   xdpnictest.Config // but for Memory, Admit and MAC
	Arena   int               // bytes beside the chunks; 0: 8 MiB
	Silence time.Duration     // after which a peer is dead; 0: Unhurried
	PSK     *vipl.PSK         // or nil
}

// Unhurried is a silence that is longer than a busy machine keeps the living from
// their work.
const Unhurried = 30 * time.Second

// patience is how long frames may be on their way when nobody sends any more.
const patience = time.Minute

// Host is a NIC and the queue that it sends by.
type Host struct {
	Nic   *vipl.Nic
	Queue *xdpnictest.Queue
}

// Open opens a NIC for an agent, on a queue of a wire, until the test ends. No chunk
// may then be missing or have been used wrongly.
func Open(t T, wire *xdpnictest.Wire, agent *kagenttest.Agent, c Config) *Host {
	t.Helper()
	if c.Arena == 0 {
		c.Arena = 8 << 20
	}
	if c.Silence == 0 {
		c.Silence = Unhurried
	}
	pool := c.Queue.PoolBytes()
	arena, err := hugepages.New(hugepages.Config{Size: pool + c.Arena, Reserve: pool, Policy: hugepages.Avoid})
	if err != nil {
		t.Fatal(err)
	}
	link := agent.Link()
	c.Queue.Memory, c.Queue.Admit, c.Queue.MAC = arena.Bytes(), agent.Admit, link.MAC
	h := &Host{}
	if h.Queue, err = wire.Queue(c.Queue); err != nil {
		t.Fatal(err)
	}
	if h.Nic, err = vipl.Open(vipl.Provider{
		Port: h.Queue, Agent: agent, Arena: arena, Silence: c.Silence, PSK: c.PSK,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Nic.Close(); err != nil {
			t.Error(err)
		}
		wait := patience
		if t.Failed() {
			wait = time.Second
		}
		for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if h.Queue.Flush(); h.Queue.Owners().InFlight == 0 { // nothing is on its way any more
				break
			}
		}
		if err := h.Queue.Audit(); err != nil {
			t.Errorf("host %s: %v", link.Name, err)
		}
		if o := h.Queue.Owners(); o.Held+o.Leased+o.InFlight+o.Recycled > 0 {
			t.Errorf("host %s: chunks are missing: %+v", link.Name, o)
		}
		if err := h.Queue.Close(); err != nil {
			t.Error(err)
		}
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}
