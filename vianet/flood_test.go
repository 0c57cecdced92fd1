package vianet_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// spoofer sends requests with forged source addresses, all of 11.0.0.0/8.
type spoofer struct {
	fd   int
	to   netip.Addr
	disc []byte
	n    uint32
}

func newSpoofer(t *testing.T, from, to *nstest.NS, disc []byte) *spoofer {
	t.Helper()
	s := &spoofer{to: to.IPv4, disc: disc}
	if err := from.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	// Replies to the forged sources go to the flooder's host, which drops them.
	_, victims, _ := net.ParseCIDR("11.0.0.0/8")
	must(t, to.Netlink().RouteAdd(&netlink.Route{LinkIndex: to.Index, Dst: victims, Gw: from.IPv4.AsSlice()}))
	return s
}

// send sends one more request, from one more address.
func (s *spoofer) send() error {
	s.n++
	msg := wire.CM{
		Type: wire.CMRequest, ID: uint64(s.n), VI: 1, Key: uint64(s.n), Window: 64, MaxPayload: 1472, Level: uint8(vipl.ReliableDelivery),
		MaxTransfer: vipl.MaxTransferSize, From: vianet.Discriminator(1234), To: s.disc,
	}
	const ip, udp = 20, 8
	b, err := msg.Append(make([]byte, ip+udp))
	if err != nil {
		return err
	}
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP // the kernel fills in length and checksum
	binary.BigEndian.PutUint32(b[12:], 11<<24|s.n)
	to := s.to.As4()
	copy(b[16:], to[:])
	binary.BigEndian.PutUint16(b[ip:], wire.Port)
	binary.BigEndian.PutUint16(b[ip+2:], wire.Port)
	binary.BigEndian.PutUint16(b[ip+4:], uint16(len(b)-ip))
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrInet4{Addr: to})
}

// Requests with forged sources never answer, and alone would fill the backlog. Beside them no dial is refused.
// (kagent.TestDialsBesideFlood checks how long one takes.)
func TestDialBesideFlood(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	nicA, nicB := vethNics(t, na, nb)
	a, b := newStack(t, nicA, vianet.Options{}), newStack(t, nicB, vianet.Options{})
	l, err := b.Listen("via", net.JoinHostPort(nb.IPv4.String(), "80"))
	must(t, err)
	accepted := make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			c, err := l.Accept()
			if err != nil {
				accepted <- n
				return
			}
			c.Close()
		}
	}()
	s := newSpoofer(t, na, nb, vianet.Discriminator(80))
	var over atomic.Bool
	var sent atomic.Int64
	flooded := make(chan error, 1)
	go func() { // 10,000 a second, as far as the machine has time
		for !over.Load() {
			for range 10 {
				if err := s.send(); err != nil {
					flooded <- err
					return
				}
				sent.Add(1)
			}
			time.Sleep(time.Millisecond)
		}
		flooded <- nil
	}()
	await.Until(t, "more requests than there are places", func() bool { return sent.Load() > 1000 || len(flooded) > 0 })
	const dials = 200
	for range dials {
		at := sent.Load()
		c, err := a.Dial("via", l.Addr().String())
		must(t, err)
		c.Close()
		await.Until(t, "the flood goes on", func() bool { return sent.Load() > at || len(flooded) > 0 })
	}
	over.Store(true)
	must(t, <-flooded)
	if n := b.Stats().Refused; n > 32 { // that came in before cookies were asked for
		t.Errorf("%d requests were refused", n)
	}
	l.Close()
	if n := <-accepted; n != dials {
		t.Errorf("%d of %d dials were accepted", n, dials)
	}
	t.Logf("%d dials beside %d requests", dials, sent.Load())
}
