// Package memorynic gives a test NICs over queues in memory, which need no privilege.
package memorynic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Config says how a NIC is opened; zero fields mean defaults.
type Config struct {
	Queue   xdpnictest.Config // but for Memory, Admit and MAC
	Arena   int               // bytes beside the chunks; 0: 8 MiB
	Silence time.Duration     // after which a peer is dead; 0: Unhurried
	PSK     *vipl.PSK         // or nil
	Packets bool              // frames also leave in GSO packets, which arrive whole

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
	c.Arena, c.Silence = cmp.Or(c.Arena, 8<<20), cmp.Or(c.Silence, Unhurried)
	if c.Packets {
		c.Queue.MultiBuffer, c.Queue.ChunkSize = true, 4096
	}
	pool := c.Queue.PoolBytes()
	arena, err := hugepages.New(hugepages.Config{Size: pool + c.Arena, Reserve: pool, Policy: hugepages.Avoid})
	nstest.Must(t, err)
	link := agent.Link()
	c.Queue.Memory, c.Queue.Admit, c.Queue.MAC = arena.Bytes(), agent.Admit, link.MAC
	h := &Host{}
	h.Queue, err = wire.Queue(c.Queue)
	nstest.Must(t, err)
	var with kagent.Agent = agent
	if c.Agent != nil {
		with = c.Agent(agent)
	}
	var packets provider.GSO
	if c.Packets {
		packets = GSO(h.Queue, agent)
	}
	h.NIC, err = provider.OpenNIC[*vipl.NIC](
		provider.Provider{Port: h.Queue, Agent: with, Arena: arena, GSO: packets}, vipl.WithSilence(c.Silence), vipl.WithPSK(c.PSK),
	)
	nstest.Must(t, err)
	t.Cleanup(func() {
		nstest.Check(t, h.NIC.Close())
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
		nstest.Check(t, errors.Join(h.Queue.Close(), arena.Close()))
	})
	return h
}

// Alone opens the NIC of a host that can reach no other.
func Alone(t T, c Config) *vipl.NIC {
	t.Helper()
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	return Open(t, wire, kagenttest.NewFabric(kagenttest.Faults{}).Agent("alone"), c).NIC
}

// GSO returns what sends the GSO packets of an agent's queue.
func GSO(q *xdpnictest.Queue, agent *kagenttest.Agent) *xdpnictest.GSO {
	return &xdpnictest.GSO{Queue: q, Path: func(src netip.Addr, dst netip.AddrPort) (wire.Link, error) {
		path, err := agent.Path(context.Background(), src, dst.Addr())
		path.PortOffset = uint8(dst.Port() - wire.Port)
		return path.Link, err
	}}
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

// Refused is an agent that refuses the first Times connects of its NIC, after the peer has accepted
// and sent something: an RDMA write of no bytes, which a VI that takes writes does not answer at
// once. Set Wire and NIC before the NIC connects.
type Refused struct {
	*kagenttest.Agent
	Wire *xdpnictest.Wire
	NIC  *vipl.NIC

	mu    sync.Mutex
	Times int
	first map[uint32]uint32 // the peer's first sequence number, by the number of the VI
}

// Request implements the agent. It records the peer's answer.
func (r *Refused) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	answer, err := r.Agent.Request(ctx, local, remote, o)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.first == nil {
			r.first = make(map[uint32]uint32)
		}
		r.first[o.VI] = answer.Offer.Seq
	}
	return answer, err
}

// Enter implements the agent. When it returns, the write has been taken.
func (r *Refused) Enter(num uint32, key uint64, peer netip.Addr) error {
	if err := r.Agent.Enter(num, key, peer); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.first[num]; !ok || r.Times == 0 {
		return nil
	}
	r.Times--
	if err := r.send(num, key, peer); err != nil {
		return err
	}
	return &kagent.RejectedError{Reason: wire.CMReasonProgram}
}

// send sends the VI the write as its peer.
func (r *Refused) send(num uint32, key uint64, peer netip.Addr) error {
	from := [6]byte{2, 0xbb}
	q, err := r.Wire.Queue(xdpnictest.Config{MAC: from})
	if err != nil {
		return err
	}
	defer q.Close()
	template, err := wire.NewTemplate(wire.Link{SrcMAC: from, DstMAC: r.Link().MAC, Src: peer, Dst: r.Addr()})
	if err != nil {
		return err
	}
	h := wire.Header{Kind: wire.KindWrite, Flags: wire.FlagFirst | wire.FlagLast, VI: num, Key: key, Seq: r.first[num], Window: 8}
	frames := r.NIC.Counters().Frames
	q.SendFrame(&template, h, nil)
	for r.NIC.Counters().Frames == frames {
		r.NIC.Poll()
	}
	return nil
}

// Unconfirming wraps an agent: it requests connections and never confirms the answer.
func Unconfirming(a *kagenttest.Agent) kagent.Agent { return unconfirming{a} }

type unconfirming struct{ *kagenttest.Agent }

// Request implements the agent. It ends with its context.
func (a unconfirming) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	_, _ = a.Agent.Request(ctx, local, remote, o)
	<-ctx.Done()
	return nil, ctx.Err()
}
