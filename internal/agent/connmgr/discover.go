package connmgr

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// Times and bounds of discovery.
const (
	helloAgain   = 20 * time.Millisecond  // when the second hello follows the first
	helloTime    = 100 * time.Millisecond // how long answers are collected
	maxNeighbors = 4096                   // addresses that one Discover collects
	maxAnswers   = 100                    // answers to hellos in a second
)

// Discover asks from each of the interface's own addresses which hosts are on the link; see
// [kagent.Agent]. It fails with ErrClosed, or if not one hello could be sent.
func (m *Manager) Discover(ctx context.Context, own []netip.Addr) ([]kagent.Neighbor, error) {
	hops := make(map[netip.Addr]int)
	for _, a := range own {
		hops[kagent.Plain(a)] = 0
	}
	hello := wire.CM{Type: wire.CMHello, ID: kagent.NewKey()}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, m.cause
	}
	m.hellos[hello.ID] = hops
	m.mu.Unlock()
	err := m.ask(ctx, &hello, own)
	m.mu.Lock()
	delete(m.hellos, hello.ID)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	list := make([]kagent.Neighbor, 0, len(hops))
	for a, n := range hops {
		list = append(list, kagent.Neighbor{Addr: a, Hops: n})
	}
	slices.SortFunc(list, func(a, b kagent.Neighbor) int {
		return cmp.Or(a.Hops-b.Hops, a.Addr.Compare(b.Addr))
	})
	return list, nil
}

// ask sends the hello twice and waits for the answers.
func (m *Manager) ask(ctx context.Context, hello *wire.CM, own []netip.Addr) error {
	b, err := hello.Append(nil)
	if err != nil {
		return err
	}
	var sent bool
	var lost error
	for _, pause := range [...]time.Duration{helloAgain, helloTime - helloAgain} {
		for _, from := range own {
			if err := m.transport.Broadcast(b, kagent.Plain(from)); err != nil {
				lost = err
			} else {
				sent = true
			}
		}
		select {
		case <-time.After(pause):
			continue
		case <-m.done:
			err = m.cause
		case <-ctx.Done():
		}
		break
	}
	if err == nil && lost != nil && !sent {
		err = fmt.Errorf("nobody can be asked: %w", lost)
	}
	return err
}

// onHello answers a hello of another host, in as many bytes. A hello that was sent to this host alone gets no
// answer, since its source may be spoofed. Caller holds m.mu.
func (m *Manager) onHello(msg *wire.CM, local netip.Addr, from netip.AddrPort) datagram {
	if _, mine := m.hellos[msg.ID]; mine || local != Everyone(local.Is4()) || from.Port() != m.port ||
		!m.answers.Take(time.Now(), maxAnswers, time.Second) {
		return datagram{}
	}
	return encode(wire.CM{Type: wire.CMHere, ID: msg.ID}, netip.Addr{}, from)
}

// onHere processes the answer to a hello. Caller holds m.mu.
func (m *Manager) onHere(msg *wire.CM, from netip.AddrPort) {
	hops, asked := m.hellos[msg.ID]
	if _, known := hops[from.Addr()]; asked && !known && len(hops) < maxNeighbors {
		hops[from.Addr()] = 1
	}
}
