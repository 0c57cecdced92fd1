package connmgr_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// flooder sends requests of many strangers to one host, through the kernel.
type flooder struct {
	t    *testing.T
	fds  []int
	to   unix.SockaddrInet4
	next uint64 // exchange
}

func newFlooder(t *testing.T, from *nstest.NS, to netip.Addr) *flooder {
	t.Helper()
	f := &flooder{t: t, to: unix.SockaddrInet4{Port: wire.Port, Addr: to.As4()}}
	link, err := from.Netlink().LinkByIndex(from.Index)
	nstest.Must(t, err)
	for i := range byte(16) {
		ip := [4]byte{10, 99, 0, 100 + i}
		addr, err := netlink.ParseAddr(fmt.Sprintf("%v/24", netip.AddrFrom4(ip)))
		nstest.Must(t, err)
		nstest.Must(t, from.Netlink().AddrAdd(link, addr))
		nstest.Must(t, from.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			f.fds = append(f.fds, fd)
			return unix.Bind(fd, &unix.SockaddrInet4{Port: wire.Port + 1, Addr: ip})
		}))
	}
	t.Cleanup(func() {
		for _, fd := range f.fds {
			unix.Close(fd)
		}
	})
	return f
}

// datagram returns a new request to a discriminator.
func (f *flooder) datagram(disc []byte) []byte {
	f.next++
	msg := wire.CM{Type: wire.CMRequest, ID: f.next, VI: 1, Key: f.next, Level: 2, From: []byte("flood"), To: disc}
	b, err := msg.Append(nil)
	if err != nil {
		panic(err)
	}
	return b
}

func (f *flooder) send(b []byte) error {
	return unix.Sendto(f.fds[int(f.next)%len(f.fds)], b, 0, &f.to)
}

// waits reports whether unread data is on the socket.
func (h *host) waits() (is bool) {
	_ = h.udp.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		is = err == nil && n > 0
	})
	return is
}

// Requests of strangers that keep the agent's socket busy exceed no bound, and a client connects all the same,
// whether the server waits or the discriminator is flooded, too. They are sent as fast as they are read:
// datagrams that the kernel drops for lack of room are repeated, and the time of a connect would otherwise be
// random.
func TestConnectFloodOverUDP(t *testing.T) {
	const (
		connects = 5
		atLeast  = 16_000 // requests: more than may be remembered
		batch    = 128    // requests that the socket has room for
	)
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	served, shut := []byte("served"), []byte("nobody takes")
	l, err := b.Listen(kagent.Address{Disc: served})
	nstest.Must(t, err)
	deaf, err := b.Listen(kagent.Address{Disc: shut})
	nstest.Must(t, err)
	defer deaf.Close()
	f := newFlooder(t, an, bn.IPv4)
	var over atomic.Bool
	var sent, most, waiting atomic.Int64
	flooded := make(chan error, 1)
	go func() {
		for !over.Load() {
			for k := range batch {
				disc := [][]byte{served, shut, []byte("no door"), binary.BigEndian.AppendUint64(nil, f.next)}[k%4]
				if err := f.send(f.datagram(disc)); err != nil {
					flooded <- err
					return
				}
			}
			sent.Add(batch)
			for b.waits() && !over.Load() {
				time.Sleep(50 * time.Microsecond) // until it was read: the reader needs the processor
			}
			most.Store(max(most.Load(), int64(b.Remembered())))
			waiting.Store(max(waiting.Load(), int64(b.Pending(0))))
		}
		flooded <- nil
	}()
	done := make(chan struct{})
	bo, ao := testOffer(2), testOffer(1)
	go func() { // the server: knows its client by its address
		defer close(done)
		for {
			in, err := l.Wait(within(5 * time.Minute))
			if err != nil {
				return
			}
			if in.Remote().Host == an.IPv4 {
				go in.Accept(within(time.Minute), bo)
			} else {
				in.Reject(wire.CMReasonProgram)
			}
		}
	}()
	await.Until(t, "too many requests", func() bool { return b.Counters().Retries > 0 || len(flooded) > 0 })
	connected := 0
	for connected < connects && len(flooded) == 0 {
		at := sent.Load()
		ans, err := a.Request(within(time.Minute), kagent.Address{}, kagent.Address{Host: bn.IPv4, Disc: served}, ao)
		if err == nil {
			err = ans.Confirm()
		}
		nstest.Must(t, err)
		connected++
		await.Until(t, "the flood goes on", func() bool { return sent.Load() > at || len(flooded) > 0 })
	}
	await.Until(t, "a flood", func() bool { return sent.Load() >= atLeast || len(flooded) > 0 })
	over.Store(true)
	nstest.Must(t, <-flooded)
	await.Until(t, "all that was sent is read", func() bool { return !b.waits() })
	n := b.Counters()
	t.Logf("%d connections beside %d requests; %+v; %d things were remembered", connected, sent.Load(), n, most.Load())
	nstest.ErrorIf(t, n.NoMatch < atLeast/4 || n.Malformed > 0 || n.Refused > 0, "%+v", n) // half of them were for a discriminator without a Wait
	// Finished exchanges and those that are kept out, each in two lists; two listeners, two calls, and what has been asked.
	if most.Load() > 2*connmgr.MaxFinished+2*connmgr.MaxPending+64 {
		t.Errorf("%d things were remembered", most.Load())
	}
	if waiting.Load() > 2*connmgr.MaxBacklog+connects+1 { // at both doors, with those that the server has
		t.Errorf("%d requests were waiting", waiting.Load())
	}
	l.Close()
	<-done
}
