package connmgr_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// spoofed returns the n-th source address of an attacker.
func spoofed(n uint32) netip.AddrPort {
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], 11<<24|n)
	return netip.AddrPortFrom(netip.AddrFrom4(ip), wire.Port)
}

// requestOf returns a stranger's request.
func requestOf(id uint64, disc []byte) wire.CM {
	return wire.CM{Type: wire.CMRequest, ID: id, VI: 1, Key: 7, Level: 2, MaxTransfer: 1 << 16, To: disc}
}

// bytesTo adds up what was sent to an address.
func bytesTo(sent []parcel, to netip.AddrPort) (n int) {
	for _, p := range sent {
		if p.to == to {
			n += len(p.b)
		}
	}
	return n
}

// An address that never answers gets no more bytes than came from it, for any actions of the server.
func TestUnprovenBytes(t *testing.T) {
	handshake := make([]byte, wire.CMShareLen)
	for _, c := range []struct {
		name      string
		requests  int // of one exchange
		handshake []byte
		serve     func(in kagent.Incoming)
	}{
		{"accepted", 1, nil, func(in kagent.Incoming) { in.Accept(within(5*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2}) }},
		{"accepted, asked again", 7, nil, func(in kagent.Incoming) { in.Accept(within(5*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2}) }},
		{"accepted late", 3, nil, func(in kagent.Incoming) {
			time.Sleep(time.Second)
			in.Accept(within(5*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2})
		}},
		{"accepted with a handshake", 1, handshake, func(in kagent.Incoming) {
			in.Accept(within(5*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2, Handshake: kagent.Opaque(handshake), Confirm: "sixteen bytes..."})
		}},
		{"accepted with a handshake that nobody asked for", 2, nil, func(in kagent.Incoming) {
			in.Accept(within(5*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2, Handshake: kagent.Opaque(handshake)})
		}},
		{"rejected", 1, nil, func(in kagent.Incoming) { in.Reject(wire.CMReasonProgram) }},
		{"rejected late", 4, nil, func(in kagent.Incoming) {
			time.Sleep(time.Second)
			in.Reject(wire.CMReasonProgram)
		}},
		{"not answered", 3, nil, func(kagent.Incoming) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone(t, func(t *testing.T, m *connmgr.Manager, s *sink) {
				l, err := m.Listen(kagent.Address{Disc: echo})
				nstest.Must(t, err)
				var served sync.WaitGroup
				served.Go(func() {
					for {
						in, err := l.Wait(within(time.Minute))
						if err != nil {
							return
						}
						served.Go(func() { c.serve(in) })
					}
				})
				received := 0
				victim := spoofed(1)
				msg := requestOf(5, echo)
				msg.Handshake = c.handshake
				for range c.requests {
					b := bytesOf(t, msg)
					received += len(b)
					m.Receive(b, here4, victim)
					time.Sleep(20 * time.Millisecond)
				}
				time.Sleep(20 * time.Second)
				l.Close()
				sent := s.take()
				if n := bytesTo(sent, victim); n > received {
					t.Errorf("%d bytes in %d messages for %d bytes in %d", n, len(sent), received, c.requests)
				}
				served.Wait()
			})
		})
	}
}

// For any messages of strangers after a connect, a late copy of its Request does not come in a second time.
func TestForgedForgetNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  func(n uint32) wire.CM
	}{
		{"requests for nobody", func(n uint32) wire.CM { return requestOf(uint64(n), []byte("nobody")) }},
		{"requests", func(n uint32) wire.CM { return requestOf(uint64(n), echo) }},
		{"cancels", func(n uint32) wire.CM { return wire.CM{Type: wire.CMCancel, ID: uint64(n)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
				l, err := b.Listen(kagent.Address{Disc: echo})
				nstest.Must(t, err)
				const id = 1 << 40
				msg := requestOf(id, echo)
				client := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.77"), wire.Port)
				b.Receive(bytesOf(t, msg), b.Addr(), client)
				in, err := l.Wait(within(time.Second))
				nstest.Must(t, err)
				accepted := make(chan error, 1)
				go func() { accepted <- in.Accept(within(time.Second), offer(b, t)) }()
				synctest.Wait()
				in.Established() // by a frame that has the key
				nstest.Must(t, <-accepted)
				for n := range uint32(5000) {
					b.Receive(bytesOf(t, c.msg(1+n)), b.Addr(), spoofed(n))
				}
				b.Receive(bytesOf(t, msg), b.Addr(), client)
				for {
					again, err := l.Wait(within(time.Millisecond))
					if err != nil {
						nstest.ErrorIf(t, !errors.Is(err, kagent.ErrTimeout), "%v", err)
						return
					}
					nstest.FatalIf(t, again.Remote().Host == client.Addr(), "the request came in a second time")
					again.Reject(wire.CMReasonProgram)
				}
			})
		})
	}
}

// After a request got "no match", a late copy does not come in when there is a Wait: its requester has given
// up.
func TestLateCopyFindsNobody(t *testing.T) {
	alone(t, func(t *testing.T, m *connmgr.Manager, s *sink) {
		msg := requestOf(5, echo)
		m.Receive(bytesOf(t, msg), here4, agent4)
		l, err := m.Listen(kagent.Address{Disc: echo})
		nstest.Must(t, err)
		s.take()
		m.Receive(bytesOf(t, msg), here4, agent4)
		for _, p := range s.take() {
			if a, err := wire.ParseCM(p.b); err != nil || a.Type != wire.CMNoMatch {
				t.Errorf("the copy is answered by %v, %v", a.Type, err)
			}
		}
		nstest.WantErr(t, "it came in", nstest.Err(l.Wait(within(time.Second))), kagent.ErrTimeout)
	})
}

// The same holds if the strangers have proven their addresses, and are rejected.
func TestRejectedForgetNothing(t *testing.T) {
	alone(t, func(t *testing.T, m *connmgr.Manager, s *sink) {
		f := &flood{t: t, m: m, s: s}
		l := f.listen(0, "x")
		msg := requestOf(1<<40, []byte("x"))
		m.Receive(bytesOf(t, msg), here4, agent4)
		in := f.take(l)
		accepted := make(chan error, 1)
		go func() { accepted <- in.Accept(within(time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2}) }()
		synctest.Wait()
		in.Established()
		nstest.Must(t, <-accepted)
		for range 5000 {
			f.ask(1, "x")
			f.take(l).Reject(wire.CMReasonProgram)
		}
		m.Receive(bytesOf(t, msg), here4, agent4)
		if again, err := l.Wait(within(time.Millisecond)); err == nil {
			t.Errorf("a request of %v came in", again.Remote())
		}
	})
}

// An acceptor that requires a proof accepts no other confirmation, and continues to wait for the right one.
func TestConfirmNeedsProof(t *testing.T) {
	proof := string(make([]byte, wire.CMProofLen))
	for _, c := range []struct {
		name  string
		want  string // what the acceptor asks for
		sends string // what the requester confirms with
		good  bool
	}{
		{"none asked, none sent", "", "", true},
		{"the right one", proof, proof, true},
		{"none", proof, "", false},
		{"another", proof, "another of 16 b.", false},
		{"not asked for", "", proof, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
				ao, bo := offer(a, t), offer(b, t)
				bo.Confirm = kagent.Opaque(c.want)
				served := serve(b, echo, bo)
				synctest.Wait()
				ans, err := a.Request(within(time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
				nstest.Must(t, err)
				nstest.ErrorIf(t, ans.Offer.Confirm != "", "the acceptor told what it wants to hear")
				nstest.Must(t, ans.ConfirmWith([]byte(c.sends)))
				synctest.Wait()
				if n := b.Counters().Forged; (n == 0) != c.good {
					t.Errorf("%d forged confirmations were counted", n)
				}
				select {
				case got := <-served:
					nstest.ErrorIf(t, !c.good || got.err != nil, "accepted: %v", got.err)
				default:
					if c.good {
						t.Error("not accepted")
					} else if got := <-served; !errors.Is(got.err, kagent.ErrVanished) && !errors.Is(got.err, kagent.ErrTimeout) {
						t.Errorf("in the end: %v", got.err)
					}
				}
			})
		})
	}
}
