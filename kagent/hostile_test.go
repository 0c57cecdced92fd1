package kagent_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/kagent"
	"viaxdp/wire"
)

// A mirror is a way on which somebody turns every datagram back to its sender, as if it came from whom it was for.
// With back false, datagrams end there.
type mirror struct {
	back bool
	in   chan func(kagent.Handler)
	over chan struct{}
	once sync.Once

	mu   sync.Mutex
	sent []letter
}

type letter struct {
	b  []byte
	to netip.AddrPort
}

func newMirror(back bool) *mirror {
	return &mirror{back: back, in: make(chan func(kagent.Handler), 1000), over: make(chan struct{})}
}

var mirrored = netip.MustParseAddr("10.0.0.1") // whose manager it is

func (m *mirror) Send(b []byte, _ netip.Addr, to netip.AddrPort) error {
	b = append([]byte(nil), b...)
	m.mu.Lock()
	m.sent = append(m.sent, letter{b, to})
	m.mu.Unlock()
	if m.back {
		select {
		case m.in <- func(h kagent.Handler) { h.Receive(b, mirrored, to) }:
		default: // a storm: there are too many already
		}
	}
	return nil
}

func (m *mirror) Broadcast(b []byte, from netip.Addr) error {
	return m.Send(b, from, netip.AddrPortFrom(kagent.Everyone(from.Is4()), wire.Port))
}

func (m *mirror) Serve(h kagent.Handler) error {
	for {
		select {
		case f := <-m.in:
			f(h)
		case <-m.over:
			return nil
		}
	}
}

func (m *mirror) Close() error {
	m.once.Do(func() { close(m.over) })
	return nil
}

// take gives what was sent, and forgets it.
func (m *mirror) take() []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := m.sent
	m.sent = nil
	return sent
}

// Messages that are turned back to their sender connect nobody with himself, and make no storm.
func TestReflected(t *testing.T) {
	offer := kagent.Offer{VI: 0x10001, Key: 7, Window: 10, MaxPayload: 1400, Level: 2, MaxTransfer: 1 << 16}
	local := kagent.Address{Host: mirrored, Disc: client}
	remote := kagent.Address{Host: netip.MustParseAddr("10.0.0.2"), Disc: echo}
	for name, ask := range map[string]func(m *kagent.Manager) error{
		"request": func(m *kagent.Manager) error {
			_, err := m.Request(within(3*time.Second), local, remote, offer)
			return err
		},
		"request to a discriminator that is served here": func(m *kagent.Manager) error {
			l, err := m.Listen(kagent.Address{Disc: echo})
			if err != nil {
				return nil
			}
			defer l.Close()
			go func() {
				if in, err := l.Wait(within(2 * time.Second)); err == nil {
					in.Reject(wire.CMReasonProgram)
				}
			}()
			_, err = m.Request(within(3*time.Second), local, remote, offer)
			return err
		},
		"between peers": func(m *kagent.Manager) error {
			_, _, err := m.RequestPeer(within(3*time.Second), local, remote, offer)
			return err
		},
		"between peers of one discriminator": func(m *kagent.Manager) error {
			a, in, err := m.RequestPeer(within(3*time.Second), local, kagent.Address{Host: remote.Host, Disc: client}, offer)
			if err == nil && in != nil {
				in.Reject(wire.CMReasonProgram)
				t.Error("the request of its own is one of a peer")
			}
			_ = a
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				way := newMirror(true)
				m := kagent.NewManager(way, 0)
				if err := ask(m); err == nil {
					t.Error("it is connected")
				}
				time.Sleep(10 * time.Second)
				if n := len(way.take()); n == 0 || n > 60 {
					t.Errorf("%d messages in 13 s", n)
				}
				time.Sleep(time.Minute)
				if n := len(way.take()); n > 0 {
					t.Errorf("%d messages in a minute of silence", n)
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Whatever messages of others come, in whatever order, each is answered by one at most, which is no longer and goes
// to where it came from; nothing grows.
func FuzzManager(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{1, 1, 1, 4, 3, 1, 1, 0, 7, 1, 1, 0})
	f.Add([]byte{8, 1, 0, 0, 9, 1, 0, 0, 6, 1, 0, 0, 5, 1, 2, 3, 2, 1, 1, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		way := newMirror(false)
		m := kagent.NewManager(way, 0)
		defer m.Close()
		l, err := m.Listen(kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithCancel(context.Background())
		var asked sync.WaitGroup
		defer asked.Wait()
		defer cancel()
		asked.Go(func() { // one's own, which a stranger may try to answer
			_, _ = m.Request(ctx, kagent.Address{Disc: client}, kagent.Address{Host: netip.MustParseAddr("10.0.0.2"), Disc: echo},
				kagent.Offer{VI: 0x10001, Key: 7, Window: 10, MaxPayload: 1400, Level: 2, MaxTransfer: 1 << 16})
		})
		for len(way.take()) == 0 { // it has asked
			time.Sleep(time.Microsecond)
		}
		discs := [][]byte{echo, client, []byte("nobody"), nil}
		before := m.Remembered()
		messages := 0
		for ; len(script) >= 4; script = script[4:] {
			v := script[3]
			msg := wire.CM{Type: wire.CMType(script[0]%10 + 1), ID: 1 + uint64(script[1]%4), To: discs[v&3], From: discs[v>>2&3]}
			switch msg.Type {
			case wire.CMRequest, wire.CMAccept:
				msg.VI, msg.Key, msg.Window, msg.MaxPayload, msg.Level, msg.MaxTransfer = 1+uint32(v), uint64(v), 9, 1400, 1<<(v%3), 1<<16
				msg.Flags = uint16(v >> 4)
			case wire.CMReject, wire.CMCancel:
				msg.Reason = wire.CMReason(v % 13)
			}
			if v&64 != 0 {
				msg.Handshake = make([]byte, wire.CMShareLen)
			}
			b, err := msg.Append(nil)
			if err != nil {
				continue // it cannot be written
			}
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2 + script[2]%3}), wire.Port)
			messages++
			m.Receive(b, mirrored, from)
			answers := 0
			for _, a := range way.take() {
				answer, err := wire.ParseCM(a.b)
				if err != nil {
					t.Fatal(err)
				}
				if answer.Type == wire.CMRequest {
					continue // it asks again
				}
				if answers++; answers > 1 || len(a.b) > len(b) || a.to != from {
					t.Fatalf("%d: a %v of %d bytes to %v answers a %v of %d from %v", answers, answer.Type, len(a.b), a.to, msg.Type, len(b), from)
				}
			}
		}
		if grown := m.Remembered() - before; grown > 3*messages {
			t.Fatalf("%d things are remembered of %d messages", grown, messages)
		}
	})
}
