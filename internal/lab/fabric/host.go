package fabric

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// HostDelay is the time from a frame's arrival until the host handles it.
const HostDelay = 2 * Microsecond

const (
	chunkSize = 2048
	frame     = 1514    // bytes of a full frame
	payload   = 1424    // bytes of a message in it
	arenaSize = 1 << 20 // for programs
)

// HostConfig is the configuration of a host. Zero fields mean defaults.
type HostConfig struct {
	RxChunks, TxChunks int // default 1024, as vipl's
	Congestion         vipl.CongestionControl

	// The program has no processor for times of Busy on average, which begin BusyEvery after the last one on average. Both are
	// exponentially distributed, ns; 0: never.
	BusyEvery, Busy int64
}

// Host is a NIC, with the program that uses it.
type Host struct {
	NIC        *vipl.NIC
	sim        *Sim
	agent      *kagenttest.Agent
	queue      *xdpnictest.Queue
	wire       *xdpnictest.Wire
	arena      *hugepages.Arena
	virtual    provider.Virtual
	uplink     *Port
	wakeAt     int64
	config     HostConfig
	busy, free int64                    // the next time without a processor, or this one, and its end
	turns      []func()                 // of the program, called after each progress of the engine
	flows      map[uint32]uint32        // by the VI to which frames go; numbered in the order of their first frames, as VI numbers are random
	tcp        map[uint32]func(*packet) // segments that arrive, by flow
}

// newHost adds a host whose frames leave by the link up, to the node at its end. It fails by package fail.
func (s *Sim) newHost(c HostConfig, up Link, to node) *Host {
	c.RxChunks = cmp.Or(c.RxChunks, vipl.DefaultRxChunks)
	h := &Host{
		sim: s, config: c, agent: s.agent.Agent(fmt.Sprint("h", len(s.hosts))), wire: xdpnictest.NewWire(),
		uplink: s.port(up, newBuffer(0), to), flows: make(map[uint32]uint32), tcp: make(map[uint32]func(*packet)),
	}
	q := xdpnictest.Config{ChunkSize: chunkSize, RxChunks: c.RxChunks, TxChunks: c.TxChunks, MAC: h.agent.Link().MAC, Admit: h.agent.Admit}
	pool := q.PoolBytes()
	h.arena = fail.Must(hugepages.New(hugepages.Config{Size: pool + arenaSize, Reserve: pool, Policy: hugepages.Avoid}))
	q.Memory = h.arena.Bytes()
	h.queue = fail.Must(h.wire.Queue(q))
	h.wire.Route(h.carry)
	h.virtual.Now = func() int64 { return s.now }
	h.NIC = fail.Must(provider.OpenNIC[*vipl.NIC](provider.Provider{Port: h.queue, Agent: h.agent, Arena: h.arena, Virtual: &h.virtual}))
	h.NIC.ErrorCallback(func(vipl.ErrorDescriptor) {}) // of Close
	s.hosts = append(s.hosts, h)
	s.byMAC[h.agent.Link().MAC] = h
	return h
}

// Close ends the network: the interfaces are removed, then the NICs are closed. It returns an error if chunks are
// missing.
func (s *Sim) Close() (err error) {
	defer fail.Catch(&err)
	for _, h := range s.hosts {
		h.agent.Change(func(l *kagent.Link) { *l = kagent.Link{Name: l.Name, Index: l.Index, Queue: l.Queue, Gone: true} })
	}
	for _, h := range s.hosts {
		fail.If(h.NIC.Close())
		fail.If(h.queue.Audit())
		h.wire.Close()
		fail.If(errors.Join(h.queue.Close(), h.arena.Close()))
	}
	return nil
}

// Addr is the host's address.
func (h *Host) Addr() netip.Addr { return h.agent.Addr() }

// carry sends a frame of the NIC onto the uplink.
func (h *Host) carry(_ *xdpnictest.Queue, frame []byte) {
	to := h.sim.byMAC[[6]byte(frame)]
	if to == nil {
		return
	}
	vi := binary.BigEndian.Uint32(frame[46:])
	flow, ok := h.flows[vi]
	if !ok {
		h.sim.flows++
		flow = h.sim.flows
		h.flows[vi] = flow
	}
	h.uplink.send(&packet{to: to, flow: flow, size: len(frame), frame: bytes.Clone(frame), ect: frame[tosAt]&3 != 0})
}

// The frames are IPv4, without a VLAN tag.
const tosAt = 15

// markCE sets the mark (CE) and updates the IP header's checksum, as a router does.
func markCE(frame []byte) {
	was := binary.BigEndian.Uint16(frame[tosAt-1:])
	frame[tosAt] |= 3
	sum := uint32(^binary.BigEndian.Uint16(frame[24:])) + uint32(^was) + uint32(binary.BigEndian.Uint16(frame[tosAt-1:]))
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum&0xffff+sum>>16))
}

func (h *Host) receive(f *packet) {
	if f.seg != nil {
		if take := h.tcp[f.flow]; take != nil {
			h.sim.After(HostDelay, func() { take(f) })
		}
		return
	}
	if f.ce {
		markCE(f.frame)
	}
	h.queue.Arrive(f.frame)
	h.wake(h.sim.now + HostDelay)
}

// wake gives the host a turn at t at the latest.
func (h *Host) wake(t int64) {
	if h.wakeAt != 0 && h.wakeAt <= t {
		return
	}
	h.wakeAt = t
	h.sim.at(t, func() {
		if h.wakeAt == t {
			h.wakeAt = 0
			h.turn()
		}
	})
}

// isBusy reports whether the program has no processor until h.free.
func (h *Host) isBusy() bool {
	if h.config.BusyEvery == 0 {
		return false
	}
	random := func(mean int64) int64 { return int64(h.sim.rng.ExpFloat64() * float64(mean)) }
	for h.free < h.sim.now {
		h.busy = h.free + random(h.config.BusyEvery)
		h.free = h.busy + random(h.config.Busy)
	}
	return h.sim.now >= h.busy && h.sim.now < h.free
}

// turn is one poll of the program: the engine makes progress, and the program handles what has completed.
func (h *Host) turn() {
	if h.isBusy() {
		h.wake(h.free)
		return
	}
	h.virtual.Progress()
	for _, f := range h.turns {
		f()
	}
	if due := h.virtual.Due(); due < 1<<62 {
		h.wake(max(due, h.sim.now+1))
	}
}
