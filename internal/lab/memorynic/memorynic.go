// Package memorynic gives a test NICs over queues in memory, which need no privilege.
package memorynic

import (
	"fmt"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/agent/provider"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Config says how a NIC is opened; zero fields mean defaults.
type Config struct {
	Queue   xdpnictest.Config // but for Memory, Admit and MAC
	Arena   int               // bytes beside the chunks; 0: 8 MiB
	Silence time.Duration     // after which a peer is dead; 0: Unhurried
	PSK     *vipl.PSK         // or nil

	Agent func(*kagenttest.Agent) kagent.Agent // makes of the agent what the NIC is opened with; nil: the agent itself
}

// Unhurried is a silence that is longer than a busy machine deschedules a live process.
const Unhurried = 30 * time.Second

// waitLimit is how long frames may be on their way after the last one was sent.
const waitLimit = time.Minute

// Host is a NIC and the queue that it sends by.
type Host struct {
	NIC   *vipl.NIC
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
	var with kagent.Agent = agent
	if c.Agent != nil {
		with = c.Agent(agent)
	}
	if h.NIC, err = provider.OpenNIC[*vipl.NIC](
		provider.Provider{Port: h.Queue, Agent: with, Arena: arena}, vipl.WithSilence(c.Silence), vipl.WithPSK(c.PSK),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.NIC.Close(); err != nil {
			t.Error(err)
		}
		wait := waitLimit
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

// T is what Open needs of a test.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Failed() bool
	Cleanup(func())
}

// Example is a T for an example function, which has none. What goes wrong panics.
type Example struct{ cleanups []func() }

// End does what a test does at its end.
func (e *Example) End() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}

// Cleanup has f called by End.
func (e *Example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

// Error, Errorf and Fatal panic.
func (e *Example) Error(args ...any)                 { panic(fmt.Sprint(args...)) }
func (e *Example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (e *Example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }

// Failed returns false: a failure panics.
func (e *Example) Failed() bool { return false }

// Helper does nothing.
func (e *Example) Helper() {}
