package ping

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// waitLimit is how long an answer may take.
const waitLimit = 30 * time.Second

func ask(t *testing.T, from *nstest.NS, host netip.Addr, within time.Duration) (r Reply, err error) {
	t.Helper()
	if e := from.Do(func() error {
		p, e := Open(netip.AddrPortFrom(host, 0), from.Name)
		if e != nil {
			return e
		}
		defer p.Close()
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		r, err = p.Ask(ctx)
		return nil
	}); e != nil {
		t.Fatal(e)
	}
	return r, err
}

// An agent answers, by IPv4 and IPv6; a host without one says so; where there is
// no host, nothing comes.
func TestAsk(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	for _, host := range []netip.Addr{b.IPv4, b.IPv6} {
		if r, err := ask(t, a, host, waitLimit); !errors.Is(err, ErrNobody) {
			t.Errorf("%v without an agent: %+v, %v", host, r, err)
		}
	}
	agent := nstest.In(t, b, func() (*device.Local, error) {
		return device.Open(kagent.Config{Interface: b.Name, Queue: kagent.AnyQueue, ArenaBytes: 8 << 20})
	})
	defer agent.Close()
	for _, host := range []netip.Addr{b.IPv4, b.IPv6} {
		r, err := ask(t, a, host, waitLimit)
		if err != nil || r.From != host || r.Version != wire.VersionNumber || r.RoundTrip <= 0 || r.RoundTrip > waitLimit {
			t.Errorf("%v: %+v, %v", host, r, err)
		}
	}
	nowhere := netip.MustParseAddr("10.99.0.77")
	if r, err := ask(t, a, nowhere, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v: %+v, %v", nowhere, r, err)
	}
}

// Messages that are no answer are skipped; an answer of another version is reported as such.
func TestAnswer(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	nstest.Must(t, err)
	defer c.Close()
	for name, replies := range map[string]func(request wire.CM) [][]byte{
		"noise first": func(r wire.CM) [][]byte {
			other, _ := (&wire.CM{Type: wire.CMNoMatch, ID: r.ID + 2}).Append(nil)
			good, _ := (&wire.CM{Type: wire.CMNoMatch, ID: r.ID}).Append(nil)
			return [][]byte{{}, []byte("x"), make([]byte, 48), other, good}
		},
		"another version": func(r wire.CM) [][]byte {
			reject, _ := (&wire.CM{Type: wire.CMReject, ID: r.ID}).Append(nil)
			other := bytes.Clone(reject)
			reject[0], other[0], other[23] = wire.Version+1, wire.Version+1, ^other[23]
			wire.PutChecksum(reject)
			wire.PutChecksum(other)
			return [][]byte{other, reject}
		},
	} {
		go func() {
			b := make([]byte, 1500)
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			m, err := wire.ParseCM(b[:n])
			nstest.Check(t, err)
			for _, r := range replies(m) {
				c.WriteTo(r, from)
			}
		}()
		p, err := Open(c.LocalAddr().(*net.UDPAddr).AddrPort(), "")
		nstest.Must(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		r, err := p.Ask(ctx)
		want := uint8(wire.VersionNumber)
		if name == "another version" {
			want++
		}
		nstest.ErrorIf(t, err != nil || r.Version != want, "%s: %+v, %v", name, r, err)
		cancel()
		p.Close()
	}
}

// A link-local address without an interface, or with one that is not there, gets an answer that a user can act on.
func TestLinkLocalWithoutInterface(t *testing.T) {
	for _, address := range []string{"fe80::99", "fe80::99%nosuch"} {
		p, err := Open(netip.AddrPortFrom(netip.MustParseAddr(address), 0), "")
		if err == nil {
			p.Close()
		}
		nstest.ErrSays(t, address, err, "takes an interface")
	}
	p, err := Open(netip.MustParseAddrPort("[fe80::99]:4793"), "lo")
	if err != nil { // lo has no route there
		nstest.ErrorIf(t, strings.Contains(err.Error(), "takes an interface"), "with -I: %v", err)
		return
	}
	p.Close()
}

func TestCancelled(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	nstest.Must(t, err)
	defer c.Close()
	p, err := Open(c.LocalAddr().(*net.UDPAddr).AddrPort(), "")
	nstest.Must(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		c.ReadFrom(make([]byte, 1500))
		cancel()
	}()
	nstest.WantErr(t, "Ask", nstest.Err(p.Ask(ctx)), context.Canceled)
}

// slow is a connection on which nothing comes, and whose deadline takes a while to have an effect.
type slow struct {
	net.Conn
	told  chan struct{}
	ended atomic.Bool
}

func (s *slow) Write(b []byte) (int, error) { return len(b), nil }

func (s *slow) Read([]byte) (int, error) {
	<-s.told
	return 0, os.ErrDeadlineExceeded
}

func (s *slow) SetDeadline(t time.Time) error {
	if t.Before(time.Now()) {
		close(s.told)
		time.Sleep(20 * time.Millisecond)
		s.ended.Store(true)
	}
	return nil
}

// The end of one question's context must not end the next question.
func TestNothingLeftBehind(t *testing.T) {
	c := &slow{told: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	cancel()
	nstest.WantErr(t, "Ask", nstest.Err((&Pinger{conn: c}).Ask(ctx)), context.Canceled)
	nstest.ErrorIf(t, !c.ended.Load(), "the deadline is still being set")
}

// FuzzAnswer: a datagram counts as an answer only with the number of the question, also one of another version.
func FuzzAnswer(f *testing.F) {
	const id = 77
	for _, m := range []wire.CM{
		{Type: wire.CMNoMatch, ID: id},
		{Type: wire.CMNoMatch, ID: id + 1},
		{Type: wire.CMReject, ID: id, Reason: wire.CMReasonProgram},
	} {
		b, err := m.Append(nil)
		nstest.Must(f, err)
		f.Add(b)
	}
	other, err := (&wire.CM{Type: wire.CMReject, ID: id}).Append(nil)
	nstest.Must(f, err)
	other[0]++
	wire.PutChecksum(other)
	f.Add(other)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := answer(b, id)
		if !ok {
			return
		}
		if m, err := wire.ParseCM(b); b[0] == wire.Version && (err != nil || m.ID != id) || r.Version != b[0]&0xf || b[23] != id {
			t.Errorf("%x is an answer: %+v", b, r)
		}
	})
}
