package gso_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/base/gso"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// trimmed is a Socket whose packets have headroom from now on. The first, which go to nobody, had none.
func trimmed(t *testing.T, ns *nstest.NS) *gso.Socket {
	t.Helper()
	s := open(t, ns)
	nstest.Must(t, ns.Do(func() error {
		probe, err := bpf.AttachTrim(ns.Index, gso.Mark, gso.Headroom)
		if errors.Is(err, ebpf.ErrNotSupported) {
			nstest.Lacks(t, "%v", err)
		}
		nstest.Must(t, err)
		nstest.Must(t, probe.Close())
		s.Trim(func() (io.Closer, error) { return bpf.AttachTrim(ns.Index, gso.Mark, gso.Headroom) })
		return nil
	}))
	pieces, _ := frames(3, 1000)
	nobody := &gso.Path{Src: ns.IPv4, Dst: netip.AddrPortFrom(ns.IPv4.Next().Next(), port+1), Size: 1000}
	h := headers(t, ns, ns, nobody.Src, nobody.Dst.Addr(), nobody.Size)
	await.Until(t, "headroom", func() bool {
		nstest.Must(t, s.Send(nobody, h, pieces))
		return s.NoHeadroom() == ""
	})
	return s
}

// headers are the lower headers of a frame of n bytes.
func headers(t *testing.T, a, b *nstest.NS, src, dst netip.Addr, n int) []byte {
	t.Helper()
	link := wire.Link{Src: src, Dst: dst, Port: port}
	for ns, mac := range map[*nstest.NS]*[6]byte{a: &link.SrcMAC, b: &link.DstMAC} {
		nstest.Must(t, ns.Do(func() error {
			i, err := net.InterfaceByIndex(ns.Index)
			copy(mac[:], i.HardwareAddr)
			return err
		}))
	}
	template, err := wire.NewTemplate(link)
	nstest.Must(t, err)
	h := make([]byte, template.Len())
	template.PutHead(h, n)
	return h
}

// checkPacket verifies headers as a receiver does, the UDP checksum only if it is completed: within a host the kernel need not.
func checkPacket(t *testing.T, p []byte, completed bool) (payload []byte) {
	t.Helper()
	udp := udpOf(p)
	pseudo := []byte{0, unix.IPPROTO_UDP, byte(len(udp) >> 8), byte(len(udp))}
	if p[0]>>4 == 4 {
		length := int(binary.BigEndian.Uint16(p[2:]))
		nstest.ErrorIf(t, length != len(p) || ones(p[:20]) != 0xffff, "IPv4 header % x of %d bytes", p[:20], len(p))
		pseudo = append(pseudo, p[12:20]...)
	} else {
		nstest.Equal(t, "length of the IPv6 packet", int(binary.BigEndian.Uint16(p[4:]))+40, len(p))
		pseudo = append(pseudo, p[8:40]...)
	}
	nstest.Equal(t, "length of the UDP datagram", int(binary.BigEndian.Uint16(udp[4:])), len(udp))
	nstest.Equal(t, "source port", binary.BigEndian.Uint16(udp), uint16(port))
	if completed {
		nstest.Equal(t, "sum of the UDP datagram", ones(append(pseudo, udp...)), uint16(0xffff))
	}
	return udp[8:]
}

// ones is the ones' complement sum.
func ones(b []byte) uint16 {
	sum := 0
	for i, v := range b {
		sum += int(v) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// A packet with headroom arrives without it, whole or in frames, and each header is that of what arrives.
func TestHeadroom(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := trimmed(t, a), arrivals(t, b)
	const size = 1203 // an odd number
	for _, c := range []struct {
		name      string
		pieces    int
		without   string // feature of the sender's interface
		completed bool   // the UDP checksum
	}{
		{name: "whole", pieces: 1},
		{name: "divided", pieces: 5, without: "tx-udp-segmentation"},
		{name: "divided, checksums by software", pieces: 5, completed: true, without: "tx-checksum-ip-generic"},
	} {
		if c.without != "" {
			nstest.Must(t, a.Do(func() error {
				e, err := ethtool.NewEthtool()
				if err != nil {
					return err
				}
				defer e.Close()
				return e.Change(a.Name, map[string]bool{c.without: false})
			}))
		}
		for _, to := range [][2]netip.Addr{{a.IPv4, b.IPv4}, {a.IPv6, b.IPv6}} {
			pieces, all := frames(5, size)
			nstest.Must(t, s.Send(path(to[0], to[1], size), headers(t, a, b, to[0], to[1], size), pieces))
			var got []byte
			count := 0
			for ; len(got) < len(all); count++ {
				got = append(got, checkPacket(t, next(), c.completed)...)
			}
			nstest.ErrorIf(t, !bytes.Equal(got, all) || count != c.pieces,
				"%s, %v: %d bytes in %d datagrams", c.name, to, len(got), count)
		}
	}
}

// The longest packet arrives in one piece. One that is too long with headroom leaves without, by a UDP socket and so from
// another port; the kernel divides it.
func TestHeadroomLongest(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := trimmed(t, a), captureFrom(t, b)
	longest := 0xffff - 14 - gso.Headroom - 28
	for _, n := range []int{longest, gso.MaxBytes, longest} {
		all := bytes.Repeat([]byte{3}, n)
		nstest.Must(t, s.Send(path(a.IPv4, b.IPv4, 1472), headers(t, a, b, a.IPv4, b.IPv4, 1472), [][]byte{all}))
		got, from := next()
		whole := len(got) == n
		for len(got) < n {
			more, _ := next()
			got = append(got, more...)
		}
		headroom := n < gso.MaxBytes
		nstest.Equal(t, "reason", s.NoHeadroom() == "", headroom)
		nstest.ErrorIf(t, !bytes.Equal(got, all) || whole != headroom || (from == port) != headroom, "%d bytes: %d bytes from port %d, whole %t", n, len(got), from, whole)
	}
}

// Paths in a VLAN, whose frames leave by another interface, have no headroom.
func TestHeadroomTagged(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s, next := trimmed(t, a), captureFrom(t, b)
	pieces, all := frames(5, 1000)
	tagged := path(a.IPv4, b.IPv4, 1000)
	tagged.Tagged = true
	nstest.Must(t, s.Send(tagged, headers(t, a, b, a.IPv4, b.IPv4, 1000), pieces))
	got, from := next()
	nstest.ErrorIf(t, !bytes.Equal(got, all) || from == port, "%d bytes arrive, from port %d", len(got), from)
}

// Two Sockets of an interface have a program each. The one that goes takes only its own, and nothing is left behind.
func TestHeadroomOfTwo(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	first, second, next := trimmed(t, a), trimmed(t, a), arrivals(t, b)
	pieces, all := frames(5, 1000)
	send := func(s *gso.Socket) {
		t.Helper()
		nstest.Must(t, s.Send(path(a.IPv4, b.IPv4, 1000), headers(t, a, b, a.IPv4, b.IPv4, 1000), pieces))
		nstest.ErrorIf(t, !bytes.Equal(checkPacket(t, next(), false), all), "the packet is another one")
	}
	send(first)
	send(second)
	nstest.Must(t, first.Close())
	send(second)
	to, h := path(a.IPv4, b.IPv4, 1000), headers(t, a, b, a.IPv4, b.IPv4, 1000)
	nstest.Equal(t, "allocations of a packet", testing.AllocsPerRun(100, func() { _ = second.Send(to, h, pieces) }), 0)
}

// A Socket tells whether it is in the network namespace of another one.
func TestCheckNamespace(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	s := open(t, a)
	for _, c := range []struct {
		ns   *nstest.NS
		want error
	}{{a, nil}, {b, gso.ErrNamespace}} {
		fd := nstest.In(t, c.ns, func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
		nstest.WantErr(t, "namespace", s.CheckNamespace(fd), c.want)
		nstest.Must(t, unix.Close(fd))
	}
	nstest.WantErr(t, "no socket", s.CheckNamespace(-1), unix.EBADF)
}

// Where there can be no headroom, packets leave without, and the reason is known. Nothing stays open.
func TestNoHeadroom(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	pieces, all := frames(5, 1000)
	next := captureFrom(t, b)
	for name, c := range map[string]struct {
		trim func(s *gso.Socket)
		want string
	}{
		"never":   {func(s *gso.Socket) { s.NeverTrim("not here") }, "not here"},
		"refused": {func(s *gso.Socket) { s.Trim(func() (io.Closer, error) { return nil, errors.New("refused") }) }, "refused"},
	} {
		before := files(t)
		s := open(t, a)
		nstest.Must(t, a.Do(func() error { c.trim(s); return nil }))
		to := path(a.IPv4, b.IPv4, 1000)
		await.Until(t, name, func() bool {
			nstest.Must(t, s.Send(to, headers(t, a, b, a.IPv4, b.IPv4, 1000), pieces))
			got, from := next()
			nstest.ErrorIf(t, !bytes.Equal(got, all) || from == port, "%s: %d bytes arrive, from port %d", name, len(got), from)
			return s.NoHeadroom() == c.want
		})
		nstest.Must(t, s.Close())
		nstest.Equal(t, name+": open files", files(t), before)
	}
}

// A Socket may be closed at any time: before the first packet, and while the program is being attached. Nothing stays open, and
// no program stays attached.
func TestHeadroomClose(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	pieces, _ := frames(5, 1000)
	var closed atomic.Int32
	for _, packets := range []int{0, 1, 2} {
		before := files(t)
		s := open(t, a)
		attached := false
		nstest.Must(t, a.Do(func() error {
			s.Trim(func() (io.Closer, error) {
				attached = true
				return closer(func() error { closed.Add(1); return nil }), nil
			})
			return nil
		}))
		for range packets {
			nstest.Must(t, s.Send(path(a.IPv4, b.IPv4, 1000), headers(t, a, b, a.IPv4, b.IPv4, 1000), pieces))
		}
		was := closed.Load()
		nstest.Must(t, s.Close())
		nstest.ErrorIf(t, attached != (packets > 0) || (closed.Load() > was) != attached,
			"after %d packets: attached %t, closed %d", packets, attached, closed.Load()-was)
		nstest.Must(t, s.Close())
		nstest.Equal(t, "open files", files(t), before)
	}
}

// files returns how many files this process has open.
func files(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	nstest.Must(t, err)
	return len(list)
}

type closer func() error

func (c closer) Close() error { return c() }
