package connmgr_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// host is connection management on one end of a pair, without AF_XDP.
type host struct {
	*connmgr.Manager
	udp *ctrlport.UDP
}

func newHost(t *testing.T, n *nstest.NS) *host {
	t.Helper()
	u := nstest.In(t, n, func() (*ctrlport.UDP, error) {
		return ctrlport.Listen(n.Name, wire.Port, func(a netip.Addr) bool { return a == n.IPv4 })
	})
	h := &host{connmgr.NewManager(u, wire.Port), u}
	t.Cleanup(func() { nstest.Check(t, h.Close()) })
	return h
}

// tell sends what is no message to a host. The socket may be full until the host's address is resolved.
func (h *host) tell(t *testing.T, to *nstest.NS) {
	t.Helper()
	await.Until(t, "the socket has room", func() bool {
		err := h.udp.Send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(to.IPv4, wire.Port))
		nstest.FatalIf(t, err != nil && !errors.Is(err, unix.EAGAIN), "%v", err)
		return err == nil
	})
}

// ipReceived returns how many IPv4 packets have come to a host, also those for which no socket had room.
func ipReceived(t *testing.T, n *nstest.NS) (packets int) {
	t.Helper()
	nstest.Must(t, n.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err == nil {
			_, values, _ := bytes.Cut(b, []byte("\nIp:"))
			_, err = fmt.Sscanf(string(values), "%d %d %d", new(int), new(int), &packets)
		}
		return err
	}))
	return packets
}

// Poll passes on one datagram at a time, and no more than there are. Serve may be faster.
func TestUDPPoll(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	nstest.ErrorIf(t, a.udp.Poll(), "a datagram although nothing was sent")
	await.Until(t, "a datagram that Poll passes on", func() bool {
		b.tell(t, an)
		return a.udp.Poll()
	})
	await.Until(t, "malformed messages", func() bool { return a.Counters().Malformed >= 1 })
}

// Whatever is sent to a socket that is not being read is read later or counted.
func TestOverrun(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	const flood = 4000 // more than fit
	resume := b.Hold() // so that the reader comes no further than the first one
	before := ipReceived(t, bn)
	for i := range flood {
		a.tell(t, bn)
		if i%256 == 255 { // while 1000 frames wait the kernel drops what comes
			await.Until(t, "the kernel has received them", func() bool { return ipReceived(t, bn) > before+i })
		}
	}
	resume()
	await.Until(t, "all that there was room for is read", func() bool {
		left := 0
		nstest.Must(t, b.udp.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }))
		return left == 0
	})
	a.tell(t, bn) // carries the count of those before it
	var n kagent.Counters
	await.Until(t, "all are accounted for", func() bool {
		n = b.Counters()
		return n.Malformed+n.Overrun == flood+1
	})
	nstest.ErrorIf(t, n.Overrun == 0, "there was room for all: %+v", n)
	nstest.Equal(t, "overruns where nothing was sent", a.Counters().Overrun, 0)
}

// reports is a Handler that waits for the report of a message that has not arrived, and counts what is passed on.
type reports struct {
	failed chan error
	passed atomic.Int32
}

func (r *reports) Receive([]byte, netip.Addr, netip.AddrPort) { r.passed.Add(1) }

func (r *reports) Undelivered(_ []byte, _ netip.AddrPort, err error) {
	r.passed.Add(1)
	select {
	case r.failed <- err:
	default:
	}
}

// Reports come also while more than half of the send buffer is in use, by messages to a host whose hardware address is being
// resolved. Each is passed on once.
func TestReportWhileFull(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	u := nstest.In(t, an, func() (*ctrlport.UDP, error) {
		return ctrlport.Listen(an.Name, wire.Port, func(netip.Addr) bool { return false })
	})
	send := func(to netip.Addr) error {
		return u.Send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(to, wire.Port))
	}
	got, ended := &reports{failed: make(chan error, 1)}, make(chan error, 1)
	go func() { ended <- u.Serve(got) }()
	var sent int32 // to the closed port
	refused := func(what string) {
		await.Until(t, what, func() bool {
			sent++
			_ = send(bn.IPv4) // an error is a report, too
			select {
			case err := <-got.failed:
				return errors.Is(err, kagent.ErrNoMatch)
			default:
				return false
			}
		})
	}
	refused("the report of a message to a closed port")
	nstest.Must(t, u.Control(func(fd uintptr) {
		const half = 64 << 10 // of what the kernel makes of the option
		nstest.Check(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, half))
		for queued := 0; queued <= half; queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) {
			_ = send(bn.IPv4.Next())
		}
	}))
	refused("another report")
	time.Sleep(50 * time.Millisecond) // one that is passed on again is so each millisecond
	if n := got.passed.Load(); n > sent {
		t.Errorf("%d reports of %d messages", n, sent)
	}
	nstest.Check(t, errors.Join(u.Close(), <-ended))
}

// Hosts that do not answer leave room in the socket for messages to others, although the kernel keeps what is sent to them for
// seconds: one host that gets many requests, and many hosts whose hardware addresses are asked for.
func TestHostsThatDoNotAnswer(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a := newHost(t, an)
	absent := bn.IPv4
	flood := func(hosts int, send func([]byte, netip.Addr, netip.AddrPort) error) {
		for range hosts {
			absent = absent.Next()
			for range 400 { // more than the kernel keeps for a host
				_ = send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(absent, wire.Port))
			}
		}
		await.Until(t, "a message to another host is sent", func() bool {
			err := a.udp.Send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(bn.IPv4, wire.Port))
			nstest.FatalIf(t, errors.Is(err, unix.EAGAIN), "%d hosts do not answer, and there is no room for a message to another one", hosts)
			return err == nil // else the error of another message
		})
	}
	flood(1, a.udp.Send)
	flood(60, a.udp.Nudge)
}
