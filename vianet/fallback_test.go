package vianet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// otherWay is a fallback of DialOr.
type otherWay struct {
	conn  net.Conn
	err   error
	calls int
}

func (o *otherWay) dial(context.Context) (net.Conn, error) {
	o.calls++
	return o.conn, o.err
}

func newWay(t *testing.T) *otherWay {
	pipe, end := net.Pipe()
	t.Cleanup(func() { pipe.Close(); end.Close() })
	return &otherWay{conn: pipe}
}

// DialOr connects by VIA if there is a listener, else by the other network. If both fail, the error has both
// causes.
func TestDialOr(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	or := newWay(t)

	c, err := h.a.DialOr(t.Context(), "via", l.Addr().String(), or.dial)
	if _, ok := c.(*vianet.Conn); !ok || err != nil || or.calls != 0 {
		t.Fatalf("%T, %v, %d calls", c, err, or.calls)
	}
	c.Close()
	nobody := net.JoinHostPort(h.nicB.Query().Address.String(), "7")
	for i, address := range []string{nobody, "10.9.9.9:7"} {
		c, err := h.a.DialOr(t.Context(), "via", address, or.dial)
		nstest.ErrorIf(t, c != or.conn || err != nil || or.calls != i+1, "%s: %v, %v, %d calls", address, c, err, or.calls)
	}
	_, err = h.a.DialOr(t.Context(), "via", nobody, (&otherWay{err: syscall.EPERM}).dial)
	nstest.ErrorIf(t, !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, syscall.EPERM), "neither: %v", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	isErr(t, "cancelled", nstest.Err(h.a.DialOr(ctx, "via", nobody, or.dial)), context.Canceled)
	nstest.ErrorIf(t, nstest.Err(h.a.DialOr(t.Context(), "via", "nonsense", or.dial)) == nil, "no address")
	nstest.Equal(t, "calls", or.calls, 2)
}

// A host that does not answer by VIA delays one connection, and not each of them, until a message comes from the
// host or the fallback fails, too.
func TestDialOrRemembers(t *testing.T) { synctest.Test(t, dialOrRemembers) }

func dialOrRemembers(t *testing.T) {
	h := inMemory(t, asleep)
	l := h.listen(t)
	back, err := h.a.Listen("via", ":0")
	must(t, err)
	_, port, _ := net.SplitHostPort(back.Addr().String())
	host := h.nicB.Query().Address
	or := newWay(t)
	dial := func(byVIA bool) {
		t.Helper()
		c, err := h.a.DialOr(t.Context(), "via", l.Addr().String(), or.dial)
		if _, ok := c.(*vianet.Conn); ok != byVIA || err != nil {
			t.Fatalf("%T, %v", c, err)
		} else if ok {
			c.Close()
		}
	}
	silent := func() {
		t.Helper()
		h.fabric.Cut(host, true)
		dial(false)
		h.fabric.Cut(host, false) // undetected: the host is not asked again yet
		dial(false)
	}

	silent()
	c, err := h.b.Dial("via", net.JoinHostPort(h.nicA.Query().Address.String(), port))
	must(t, err)
	c.Close()
	dial(true) // the host has asked for a connection

	silent()
	c, err = h.a.Dial("via", l.Addr().String())
	must(t, err)
	c.Close()
	dial(true) // it has answered

	silent()
	c, err = h.a.DialOr(t.Context(), "via", l.Addr().String(), (&otherWay{err: syscall.ECONNREFUSED}).dial)
	nstest.FatalIf(t, err != nil, "the other way fails: %v", err)
	c.Close()
	dial(true)

	silent()
	h.fabric.Cut(host, true)
	_, err = h.a.DialOr(t.Context(), "via", l.Addr().String(), (&otherWay{err: syscall.EPERM}).dial)
	nstest.ErrorIf(t, !errors.Is(err, syscall.EPERM) || !errors.Is(err, os.ErrDeadlineExceeded), "neither goes: %v", err)
}

// If the fallback fails, VIA is tried after all, even with a silent host beside one that answers.
func TestDialOrAfterAll(t *testing.T) { synctest.Test(t, dialOrAfterAll) }

func dialOrAfterAll(t *testing.T) {
	h := inMemory(t, asleep)
	l := h.listen(t)
	there := l.Addr().(vianet.Addr)
	nobody := vianet.Addr{AddrPort: netip.AddrPortFrom(h.nicA.Query().Address, 7)}
	silent := func() {
		t.Helper()
		h.fabric.Cut(there.Addr(), true)
		must(t, nstest.Err(vianet.DialOrTo(t.Context(), h.a, []vianet.Addr{there}, newWay(t).dial)))
	}
	dial := func() (net.Conn, error) {
		or := &otherWay{err: syscall.EPERM}
		c, err := vianet.DialOrTo(t.Context(), h.a, []vianet.Addr{nobody, there}, or.dial)
		nstest.ErrorIf(t, or.calls != 1, "%d calls", or.calls)
		return c, err
	}

	silent()
	h.fabric.Cut(there.Addr(), false)
	c, err := dial()
	must(t, err)
	c.Close()

	silent()
	_, err = dial()
	for _, want := range []error{syscall.ECONNREFUSED, syscall.EPERM, os.ErrDeadlineExceeded} {
		nstest.WantErr(t, "none goes", err, want)
	}
}

// A DialOr with little time leaves some of it for the fallback.
func TestDialOrInTime(t *testing.T) { synctest.Test(t, dialOrInTime) }

func dialOrInTime(t *testing.T) {
	h := inMemory(t, asleep)
	host := h.nicB.Query().Address
	h.fabric.Cut(host, true)
	or := newWay(t)
	inTime := func(ctx context.Context) (net.Conn, error) {
		if end, _ := ctx.Deadline(); time.Until(end) < 100*time.Millisecond {
			return nil, os.ErrDeadlineExceeded
		}
		return or.dial(ctx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 450*time.Millisecond) // all of it is not enough to be remembered
	defer cancel()
	c, err := h.a.DialOr(ctx, "via", net.JoinHostPort(host.String(), "7"), inTime)
	nstest.ErrorIf(t, c != or.conn, "%v", err)
}

func aKey(t *testing.T) *vipl.PSK {
	t.Helper()
	key, err := vipl.NewPSK(make([]byte, 32))
	must(t, err)
	return key
}

// If only one side has a key, or the keys differ, the fallback is not called.
func TestDialOrWithKeys(t *testing.T) {
	key := aKey(t)
	for name, keys := range map[string][2]*vipl.PSK{"client": {key, nil}, "server": {nil, key}} {
		t.Run(name, func(t *testing.T) {
			h := inMemoryOf(t, asleep, memorynic.Config{PSK: keys[0]}, memorynic.Config{PSK: keys[1]})
			l := h.listen(t)
			or := newWay(t)
			isErr(t, "DialOr", nstest.Err(h.a.DialOr(t.Context(), "via", l.Addr().String(), or.dial)), syscall.EKEYREJECTED)
			nstest.Equal(t, "calls", or.calls, 0)
		})
	}
}

// The fallback is not called either if another address of the same host does not answer or belongs to no host.
func TestDialOrWithKeysOfSeveral(t *testing.T) { synctest.Test(t, dialOrWithKeysOfSeveral) }

func dialOrWithKeysOfSeveral(t *testing.T) {
	key := aKey(t)
	h := inMemoryOf(t, asleep, memorynic.Config{PSK: key}, memorynic.Config{})
	l := h.listen(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	at := func(host string) vianet.Addr {
		return vianet.Addr{AddrPort: netip.MustParseAddrPort(net.JoinHostPort(host, port))}
	}
	silent, nobodys := at("fd00::2"), at("10.9.9.9")
	there := at(h.nicB.Query().Address.String())
	or := newWay(t)
	_, err := vianet.DialOrTo(t.Context(), h.a, []vianet.Addr{nobodys, there}, or.dial)
	isErr(t, "one is of no host", err, syscall.EKEYREJECTED)
	nstest.Equal(t, "calls", or.calls, 0)
	h.fabric.Cut(silent.Addr(), true)
	for _, to := range [][]vianet.Addr{{silent, there}, {there, silent}, {nobodys, there, silent}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		isErr(t, fmt.Sprint(to), nstest.Err(vianet.DialTo(ctx, h.a, to)), syscall.EKEYREJECTED)
		cancel()
	}
}

// A listener's Failed gets the address of a refused peer, and the cause.
func TestListenerTellsOfKeys(t *testing.T) {
	key := aKey(t)
	h := inMemoryOf(t, asleep, memorynic.Config{PSK: key}, memorynic.Config{})
	told := make(chan error, 8)
	h.b = newStack(t, h.nicB, vianet.Options{Failed: func(err error) { told <- err }})
	l := h.listen(t)
	isErr(t, "Dial", nstest.Err(h.a.Dial("via", l.Addr().String())), syscall.EKEYREJECTED)
	await.Until(t, "it is told", func() bool { return len(told) > 0 })
	err := <-told
	isErr(t, "it is told", err, vipl.ErrSecurity)
	isErr(t, "it is told", err, syscall.EKEYREJECTED)
	op, ok := errors.AsType[*net.OpError](err)
	nstest.FatalIf(t, !ok || op.Source != l.Addr(), "it is told %v", err)
	peer, _ := op.Addr.(vianet.Addr)
	nstest.Equal(t, "peer", peer.Addr(), h.nicA.Query().Address)
	nstest.Equal(t, "further errors", len(told), 0)
	s := h.b.Stats()
	nstest.ErrorIf(t, s.Refused != 1 || s.Accepted != 0, "counted: %+v", s)
}

// Failed may close the stack.
func TestFailedCloses(t *testing.T) {
	h := inMemoryOf(t, asleep, memorynic.Config{PSK: aKey(t)}, memorynic.Config{})
	closed := make(chan error, 1)
	var s *vianet.Stack
	s = newStack(t, h.nicB, vianet.Options{Failed: func(error) { closed <- s.Close() }})
	h.b = s
	isErr(t, "Dial", nstest.Err(h.a.Dial("via", h.listen(t).Addr().String())), syscall.EKEYREJECTED)
	await.Until(t, "Close returns", func() bool { return len(closed) > 0 })
	check(t, <-closed)
}

// When the time is over the fallback is not called, but the host is remembered as silent.
func TestDialOrRemembersTooLate(t *testing.T) { synctest.Test(t, dialOrRemembersTooLate) }

func dialOrRemembersTooLate(t *testing.T) {
	h := inMemory(t, asleep)
	host := h.nicB.Query().Address
	h.fabric.Cut(host, true)
	or := newWay(t)
	for i := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		if i > 0 {
			cancel()
		}
		_, err := h.a.DialOr(ctx, "via", net.JoinHostPort(host.String(), "7"), or.dial)
		cancel()
		if i == 0 && err != nil || i > 0 && !errors.Is(err, context.Canceled) || or.calls != 1 {
			t.Fatalf("%v, %d calls", err, or.calls)
		}
	}
}

// When the interface of the NIC is removed, DialOr falls back, and the other calls say what is missing.
func TestInterfaceRemoved(t *testing.T) {
	h := overVeth(t, 0, vianet.Options{})
	h.bearBreaks()
	l := h.listen(t)
	link, err := h.nsA.Netlink().LinkByName(h.nsA.Name)
	must(t, err)
	must(t, h.nsA.Netlink().LinkDel(link)) // and its other end
	l.SetDeadline(time.Now().Add(testTimeout))
	isErr(t, "Accept", nstest.Err(l.Accept()), syscall.ENODEV) // waits until this side knows
	isErr(t, "Listen", nstest.Err(h.b.Listen("via", ":0")), syscall.ENODEV)
	or := newWay(t)
	port := fmt.Sprint(l.Addr().(vianet.Addr).Port())
	for _, to := range []string{l.Addr().String(), ":" + port, "0.0.0.0:" + port, "[fe80::1%" + h.nsA.Name + "]:" + port} {
		isErr(t, "Dial "+to, nstest.Err(h.a.Dial("via", to)), syscall.ENODEV)
		c, err := h.a.DialOr(t.Context(), "via", to, or.dial)
		nstest.ErrorIf(t, c != or.conn || err != nil, "DialOr %s: %v, %v", to, c, err)
	}
}
