package connmgr_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
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

// For any messages of strangers after a connect, also of some that have proven their addresses and are rejected, a late
// copy of its Request does not come in a second time; and no more is remembered than is allowed.
func TestForgedForgetNothing(t *testing.T) {
	const strangers = connmgr.MaxFinished + 1000
	each := func(msg func(n uint32) wire.CM) func(*flood, kagent.Listener) {
		return func(f *flood, _ kagent.Listener) {
			for n := range uint32(strangers) {
				f.m.Receive(bytesOf(f.t, msg(1+n)), here4, spoofed(n))
			}
		}
	}
	for _, c := range []struct {
		name    string
		flood   func(f *flood, l kagent.Listener)
		noMatch uint64
	}{
		{"requests for nobody", each(func(n uint32) wire.CM { return requestOf(uint64(n), []byte("nobody")) }), strangers},
		{"requests", each(func(n uint32) wire.CM { return requestOf(uint64(n), echo) }), 0},
		{"cancels", each(func(n uint32) wire.CM { return wire.CM{Type: wire.CMCancel, ID: uint64(n)} }), 0},
		{"rejected", func(f *flood, l kagent.Listener) {
			for range strangers {
				f.ask(1, string(echo))
				f.take(l).Reject(wire.CMReasonProgram)
			}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
				f := &flood{t: t, m: m, s: s}
				l := f.listen(0, string(echo))
				msg := requestOf(1<<40, echo)
				m.Receive(bytesOf(t, msg), here4, agent4)
				in := f.take(l)
				accepted := accept(in)
				in.Established() // by a frame that has the key
				nstest.Must(t, <-accepted)
				c.flood(f, l)
				nstest.Equal(t, "requests without a match", m.Counters().NoMatch, c.noMatch)
				// Those that are refused are in two lists; beside them the connect, the listener and those that are unproven.
				if n := m.Remembered(); n > 2*connmgr.MaxFinished+3+2*32 {
					t.Errorf("%d things are remembered of %d messages", n, strangers)
				}
				m.Receive(bytesOf(t, msg), here4, agent4)
				for {
					again, err := l.Wait(within(time.Millisecond))
					if err != nil {
						nstest.WantErr(t, "in the end", err, kagent.ErrTimeout)
						return
					}
					nstest.FatalIf(t, again.Remote().Host == there4, "the request came in a second time")
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
		l := listens(t, m)
		s.take()
		m.Receive(bytesOf(t, msg), here4, agent4)
		for _, a := range s.said(t) {
			nstest.Equal(t, "the answer to the copy", a.Type, wire.CMNoMatch)
		}
		nstest.WantErr(t, "it came in", nstest.Err(l.Wait(within(time.Second))), kagent.ErrTimeout)
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
				late := errors.Is(err, kagent.ErrVanished) || errors.Is(err, kagent.ErrTimeout)
				nstest.ErrorIf(t, c.good && err != nil || !c.good && !late, "in the end: %v", err)
			})
		})
	}
}
