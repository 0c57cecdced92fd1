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
	accepts := func(o kagent.Offer, late time.Duration) func(kagent.Incoming) {
		o.VI, o.Key, o.Level = 2, 9, 2
		return func(in kagent.Incoming) {
			time.Sleep(late)
			in.Accept(within(5*time.Second), o)
		}
	}
	for _, c := range []struct {
		name      string
		requests  int // of one exchange
		handshake []byte
		serve     func(in kagent.Incoming)
	}{
		{"accepted", 1, nil, accepts(kagent.Offer{}, 0)},
		{"accepted, asked again", 7, nil, accepts(kagent.Offer{}, 0)},
		{"accepted late", 3, nil, accepts(kagent.Offer{}, time.Second)},
		{"accepted with a handshake", 1, handshake, accepts(kagent.Offer{Handshake: kagent.Opaque(handshake), Confirm: "sixteen bytes..."}, 0)},
		{"accepted with a handshake that nobody asked for", 2, nil, accepts(kagent.Offer{Handshake: kagent.Opaque(handshake)}, 0)},
		{"rejected", 1, nil, func(in kagent.Incoming) { in.Reject(wire.CMReasonProgram) }},
		{"rejected late", 4, nil, func(in kagent.Incoming) {
			time.Sleep(time.Second)
			in.Reject(wire.CMReasonProgram)
		}},
		{"not answered", 3, nil, func(kagent.Incoming) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
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
	const strangers = connmgr.MaxFinished + 1000
	for _, c := range []struct {
		name    string
		msg     func(n uint32) wire.CM
		noMatch uint64
	}{
		{"requests for nobody", func(n uint32) wire.CM { return requestOf(uint64(n), []byte("nobody")) }, strangers},
		{"requests", func(n uint32) wire.CM { return requestOf(uint64(n), echo) }, 0},
		{"cancels", func(n uint32) wire.CM { return wire.CM{Type: wire.CMCancel, ID: uint64(n)} }, 0},
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
				accepted := accept(in)
				in.Established() // by a frame that has the key
				nstest.Must(t, <-accepted)
				for n := range uint32(strangers) {
					b.Receive(bytesOf(t, c.msg(1+n)), b.Addr(), spoofed(n))
				}
				nstest.Equal(t, "requests without a match", b.Counters().NoMatch, c.noMatch)
				// Those that are refused are in two lists; beside them the connect, the listener and those that are unproven.
				if n := b.Remembered(); n > 2*connmgr.MaxFinished+3+2*32 {
					t.Errorf("%d things are remembered of %d messages", n, strangers)
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
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		msg := requestOf(5, echo)
		m.Receive(bytesOf(t, msg), here4, agent4)
		l, err := m.Listen(kagent.Address{Disc: echo})
		nstest.Must(t, err)
		s.take()
		m.Receive(bytesOf(t, msg), here4, agent4)
		for _, a := range s.said(t) {
			nstest.Equal(t, "the answer to the copy", a.Type, wire.CMNoMatch)
		}
		nstest.WantErr(t, "it came in", nstest.Err(l.Wait(within(time.Second))), kagent.ErrTimeout)
	})
}

// The same holds if the strangers have proven their addresses, and are rejected.
func TestRejectedForgetNothing(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		f := &flood{t: t, m: m, s: s}
		l := f.listen(0, "x")
		msg := requestOf(1<<40, []byte("x"))
		m.Receive(bytesOf(t, msg), here4, agent4)
		in := f.take(l)
		accepted := accept(in)
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
				ans, err := a.Request(within(time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
				nstest.Must(t, err)
				nstest.ErrorIf(t, ans.Offer.Confirm != "", "the acceptor told what it wants to hear")
				nstest.Must(t, ans.ConfirmWith([]byte(c.sends)))
				synctest.Wait()
				if n := b.Counters().Forged; (n == 0) != c.good {
					t.Errorf("%d forged confirmations were counted", n)
				}
				nstest.ErrorIf(t, (len(served) > 0) != c.good, "accepted %v, want %v", !c.good, c.good)
				err = <-served
				if late := errors.Is(err, kagent.ErrVanished) || errors.Is(err, kagent.ErrTimeout); c.good && err != nil || !c.good && !late {
					t.Errorf("in the end: %v", err)
				}
			})
		})
	}
}
