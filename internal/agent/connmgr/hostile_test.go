package connmgr_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// Messages that are reflected to their sender connect no manager with itself, and cause no storm.
func TestReflected(t *testing.T) {
	offer := kagent.Offer{VI: 0x10001, Key: 7, Window: 10, MaxPayload: 1400, Level: 2, MaxTransfer: 1 << 16}
	local, remote := kagent.Address{Host: here4, Disc: client}, kagent.Address{Host: there4, Disc: echo}
	for name, ask := range map[string]func(m connmgr.Client) error{
		"request": func(m connmgr.Client) error {
			_, err := m.Request(within(3*time.Second), local, remote, offer)
			return err
		},
		"request to a discriminator that is served here": func(m connmgr.Client) error {
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
		"between peers": func(m connmgr.Client) error {
			_, _, err := m.RequestPeer(within(3*time.Second), local, remote, offer)
			return err
		},
		"between peers of one discriminator": func(m connmgr.Client) error {
			_, in, err := m.RequestPeer(within(3*time.Second), local, kagent.Address{Host: remote.Host, Disc: client}, offer)
			if err == nil && in != nil {
				in.Reject(wire.CMReasonProgram)
				t.Error("the request of its own is one of a peer")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
				s.reflects = true
				nstest.ErrorIf(t, ask(m) == nil, "it is connected")
				time.Sleep(10 * time.Second)
				if n := len(s.take()); n == 0 || n > 60 {
					t.Errorf("%d messages in 13 s", n)
				}
				time.Sleep(time.Minute)
				nstest.Equal(t, "messages in a minute of silence", len(s.take()), 0)
			})
		})
	}
}

// otherVersion is a message as another version of the format writes it.
func otherVersion(t *testing.T, msg wire.CM) []byte {
	t.Helper()
	b := bytesOf(t, msg)
	b[0]++
	wire.PutChecksum(b)
	return b
}

// A request of another version is rejected at once, with an error that names both versions. It leaves nothing behind, and
// neither the rejection nor any other message of another version has an answer. One that is damaged has no effect.
func TestAnotherVersion(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		before := m.Remembered()
		m.Receive(otherVersion(t, requestOf(5, echo)), here4, agent4)
		if a := s.one(t); a.Type != wire.CMReject || a.ID != 5 || a.Reason != wire.CMReasonVersion {
			t.Errorf("the answer is %+v", a)
		}
		reject := wire.CM{Type: wire.CMReject, ID: 5, Reason: wire.CMReasonVersion}
		for _, msg := range []wire.CM{reject, {Type: wire.CMHello, ID: 6}, {Type: wire.CMConfirm, ID: 5, Cookie: 1}, {Type: wire.CMCancel, ID: 5}} {
			m.Receive(otherVersion(t, msg), here4, agent4)
		}
		damaged := bytesOf(t, requestOf(7, echo))
		damaged[0]++
		m.Receive(damaged, here4, agent4)
		nstest.Equal(t, "messages to other versions", len(s.take()), 0)
		nstest.Equal(t, "things that are remembered", m.Remembered()-before, 0)
		nstest.Equal(t, "malformed messages", m.Counters().Malformed, 6)

		r := asks(t, m, s)
		reject.ID = r.msg.ID + 1
		m.Receive(otherVersion(t, reject), here4, agent4)
		reject.ID--
		m.Receive(otherVersion(t, reject), here4, spoofed(1))
		time.Sleep(100 * time.Millisecond) // of virtual time, in which it would end
		nstest.ErrorIf(t, len(r.ended) > 0, "the rejection of another exchange, or of another host, ends the request")
		m.Receive(otherVersion(t, reject), here4, agent4)
		err := <-r.ended
		var rejected *kagent.RejectedError
		want := fmt.Sprintf("%v has version %d, this host version %d: update the older of the two", there4, wire.VersionNumber+1, wire.VersionNumber)
		if !errors.As(err, &rejected) || rejected.Reason != wire.CMReasonVersion || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// strangers sends messages derived from a fuzzer's input to a manager, whose program does what the input
// selects.
type strangers struct {
	t   *testing.T
	m   connmgr.Client
	way *sink
	l   kagent.Listener
	bg  sync.WaitGroup
	own uint64 // exchange of the program's own request, whose messages go elsewhere

	from    netip.AddrPort // the sender of the next message
	balance map[netip.AddrPort]int
	proven  map[netip.AddrPort]bool
	cookies map[netip.AddrPort]uint64 // the last that went there, or the last key
}

// account updates the balance of each address: bytes that came from it less those sent to it.
func (s *strangers) account(sent []parcel) {
	s.t.Helper()
	for _, a := range sent {
		answer, err := wire.ParseCM(a.b)
		nstest.Must(s.t, err)
		if answer.ID == s.own {
			continue
		}
		switch answer.Type {
		case wire.CMRetry:
			s.cookies[a.to] = answer.Cookie
		case wire.CMAccept:
			s.cookies[a.to] = answer.Key
		}
		if s.balance[a.to] -= len(a.b); s.balance[a.to] < 0 && !s.proven[a.to] {
			s.t.Fatalf("%v has sent %d bytes less than it was sent, the last a %v", a.to, -s.balance[a.to], answer.Type)
		}
	}
}

// say sends a message. It gets at most one answer, to its source. account checks the length of the answer: a
// Request that is shorter than the one that it repeats may get the longer one's answer.
func (s *strangers) say(msg wire.CM) {
	s.t.Helper()
	b, err := msg.Append(nil)
	if err != nil {
		return // it cannot be written
	}
	s.balance[s.from] += len(b)
	s.m.Receive(b, here4, s.from)
	sent := s.way.take()
	answers := 0
	for _, a := range sent {
		answer, err := wire.ParseCM(a.b)
		nstest.Must(s.t, err)
		if answer.Type == wire.CMRequest {
			continue // it asks again
		}
		if answers++; answers > 1 || a.to != s.from {
			s.t.Fatalf("%d: a %v of %d bytes to %v answers a %v of %d from %v", answers, answer.Type, len(a.b), a.to, msg.Type, len(b), s.from)
		}
	}
	s.account(sent)
}

// serve has the program take a request, if there is one, and accept it, reject it, or leave it.
func (s *strangers) serve(how byte) {
	in, err := s.l.Wait(within(0))
	if err != nil {
		return
	}
	switch how % 3 {
	case 0:
		o := kagent.Offer{VI: 2, Key: kagent.NewKey(), Level: 2}
		if in.Offer().Handshake != "" || how&64 != 0 { // also one that nobody has asked for
			o.Handshake, o.Confirm = kagent.Opaque(make([]byte, wire.CMShareLen)), kagent.Opaque(string(make([]byte, wire.CMProofLen-1))+"!")
		}
		s.bg.Go(func() { in.Accept(within(5*time.Second), o) })
	case 1:
		in.Reject(wire.CMReasonProgram)
	}
}

// For any messages of others in any order, any actions of the program and any times: each message gets at most
// one answer, sent to its source; an address that has not proven itself gets no more bytes than it has sent; no
// state grows beyond its bound.
func FuzzManager(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{1, 1, 1, 4, 3, 1, 1, 0, 7, 1, 1, 0})
	f.Add([]byte{8, 1, 0, 0, 9, 1, 0, 0, 6, 1, 0, 0, 5, 1, 2, 3, 2, 1, 1, 1})
	// accepted, forged
	f.Add([]byte{0, 0, 0, 0, 12, 0, 0, 0, 3, 0, 0, 0, 11, 0, 0, 99, 0, 0, 0, 0, 11, 0, 0, 99})
	// accepted, confirmed
	f.Add([]byte{0, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 9})
	// proven by a cookie
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 12, 0, 0, 0, 11, 0, 0, 99, 0, 0, 0, 0})
	// rejected, left, cancelled
	f.Add([]byte{0, 0, 0, 0, 12, 0, 0, 1, 0, 0, 0, 0, 12, 0, 0, 2, 6, 0, 0, 0, 0, 1, 0, 64, 12, 0, 0, 0})
	// accepted, asked again
	f.Add([]byte{0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 255})
	// accepted late
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 66, 12, 0, 0, 0, 11, 0, 0, 255})
	// handshakes
	f.Add([]byte{0, 0, 0, 64, 12, 0, 0, 0, 11, 0, 0, 255, 0, 1, 0, 0, 0, 1, 0, 0, 12, 0, 0, 66, 11, 0, 0, 255})
	// rejected late
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 66, 12, 0, 0, 1, 11, 0, 0, 255, 0, 0, 0, 0, 11, 0, 0, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4*200 {
			return // nothing new
		}
		alone(t, func(t *testing.T, m connmgr.Client, way *sink) {
			l := listens(t, m)
			defer l.Close()
			ctx, cancel := context.WithCancel(t.Context())
			asked := background(func() error { // one's own, which a stranger may try to answer
				_, err := m.Request(ctx, kagent.Address{Disc: client}, kagent.Address{Host: there4, Disc: echo},
					kagent.Offer{VI: 0x10001, Key: 7, Window: 10, MaxPayload: 1400, Level: 2, MaxTransfer: 1 << 16})
				return err
			})
			defer func() { cancel(); <-asked }()
			synctest.Wait() // it has asked
			s := &strangers{
				t: t, m: m, way: way, l: l, own: way.one(t).ID,
				balance: make(map[netip.AddrPort]int), proven: make(map[netip.AddrPort]bool), cookies: make(map[netip.AddrPort]uint64),
			}
			defer s.bg.Wait()
			discs := [][]byte{echo, client, []byte("nobody"), nil}
			before := m.Remembered()
			messages := 0
			for ; len(script) >= 4; script = script[4:] {
				v := script[3]
				s.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2 + script[2]%3}), wire.Port)
				msg := wire.CM{Type: wire.CMType(script[0]%15 + 1), ID: 1 + uint64(script[1]%4), To: discs[v&3], From: discs[v>>2&3]}
				switch msg.Type {
				case 12: // time passes
					time.Sleep(time.Duration(v) * 15 * time.Millisecond)
				case 13:
					s.serve(v)
				case 14: // confirm with the key of the Accept
					if msg = (wire.CM{Type: wire.CMConfirm, ID: msg.ID, Cookie: s.cookies[s.from]}); v&64 != 0 {
						msg = wire.CM{Type: wire.CMConfirm, ID: msg.ID, Handshake: append(make([]byte, wire.CMProofLen-1), '!')}
					}
					s.proven[s.from] = true
					s.say(msg)
					messages++
				default:
					switch msg.Type {
					case 15: // repeat the Request with the cookie
						msg.Type, msg.Cookie = wire.CMRequest, s.cookies[s.from]
						s.proven[s.from] = true
						fallthrough
					case wire.CMRequest, wire.CMAccept:
						msg.VI, msg.Key, msg.Window, msg.MaxPayload, msg.Level, msg.MaxTransfer = 1+uint32(v), uint64(v), 9, 1400, 1<<(v%3), 1<<16
						msg.Flags = uint16(v >> 4)
					case wire.CMReject, wire.CMCancel:
						msg.Reason = wire.CMReason(v % 14)
					case wire.CMRetry, wire.CMConfirm:
						msg.Cookie = uint64(v)
					}
					if v&64 != 0 {
						msg.Handshake = make([]byte, wire.CMShareLen)
					}
					s.say(msg)
					messages++
				}
				synctest.Wait()
				s.account(way.take())
			}
			if grown := m.Remembered() - before; grown > 3*messages {
				t.Fatalf("%d things are remembered of %d messages", grown, messages)
			}
			cancel()
			l.Close()
			time.Sleep(10 * time.Second)
			s.account(way.take())
			if kept := m.Remembered(); kept > 0 {
				t.Fatalf("%d things are remembered for ever", kept)
			}
		})
	})
}
