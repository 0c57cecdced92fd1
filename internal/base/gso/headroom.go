package gso

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
)

// Generic XDP needs a packet in one piece, with 256 free bytes in front (XDP_PACKET_HEADROOM), and copies any other packet
// (netif_receive_generic_xdp, net/core/dev.c). What a UDP socket sends has neither. A packet socket makes a packet in one piece
// if its header (virtio_net_hdr) says that all of it is headers, but no socket leaves room in front. So the packet is sent with
// Headroom extra bytes behind the Ethernet header, and a mark. A program on the interface's egress, bpf.Trim, moves the Ethernet
// header behind them:
//
//	sent:     | Ethernet | Headroom | IP, UDP | frame | frame | frame |
//	trimmed:  |    free     | Ethernet | IP, UDP | frame | frame | frame |

const (
	// Headroom is the number of extra bytes behind the Ethernet header of a packet with the mark Mark: XDP_PACKET_HEADROOM
	// (include/uapi/linux/bpf.h). Later kernels also need room for the Ethernet header, which a packet socket leaves.
	Headroom = 256
	// Mark is the mark (SO_MARK) of such a packet: "VIAH".
	Mark = 0x56494148
)

// Lengths, and fields of the headers.
const (
	etherLen = 14
	ip4Len   = 20
	ip6Len   = 40
	udpLen   = 8

	virtioLen   = 10 // struct virtio_net_hdr, include/uapi/linux/virtio_net.h
	needsCsum   = 1  // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoUDP      = 5  // VIRTIO_NET_HDR_GSO_UDP_L4
	udpChecksum = 6  // offset in the UDP header
)

// trimmed is a packet socket whose packets have Headroom.
type trimmed struct {
	fd      int
	trim    io.Closer // the program
	head    [virtioLen + etherLen + Headroom + ip6Len + udpLen]byte
	message message
}

// trimming makes a Socket's packet socket. Attaching the program takes the kernel 10 to 25 ms, and so does detaching it. So the first
// packet starts that, and those that leave meanwhile have no headroom.
type trimming struct {
	attach  func() (io.Closer, error) // nil: not wanted, or started
	netns   int                       // file descriptor of the network namespace
	started chan struct{}             // closed when attaching is over; nil: not started
	ready   atomic.Pointer[trimmed]
	reason  atomic.Pointer[string] // why packets have no headroom; nil: they have
}

// Trim lets packets of untagged paths leave by a packet socket with Headroom, from some milliseconds after the first one on.
// attach attaches what takes it out of them on the Socket's interface; it is called on a thread in the network namespace of
// the calling thread, which is that of Open, and the Socket closes what it returns. It needs CAP_NET_RAW, CAP_NET_ADMIN before
// Linux 5.17, and CAP_SYS_ADMIN if the program's threads are in other network namespaces. NoHeadroom tells of failures.
func (s *Socket) Trim(attach func() (io.Closer, error)) {
	t := &s.trimming
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.setReason(fmt.Errorf("network namespace: %w", err))
		return
	}
	t.attach, t.netns = attach, fd
	t.setReason(errors.New("no packet has left yet"))
}

// NeverTrim says why Trim is not called, for NoHeadroom.
func (s *Socket) NeverTrim(why string) { s.trimming.setReason(errors.New(why)) }

// NoHeadroom returns why packets have no headroom, or "". Any goroutine may call it.
func (s *Socket) NoHeadroom() string {
	if why := s.trimming.reason.Load(); why != nil {
		return *why
	}
	return ""
}

// fails records that a packet could not leave with headroom, works that one did. Neither allocates if nothing has changed.
func (t *trimming) fails(errno unix.Errno) {
	if t.reason.Load() == nil {
		t.setReason(fmt.Errorf("the last packet: %w", errno))
	}
}

func (t *trimming) works() {
	if t.reason.Load() != nil {
		t.reason.Store(nil)
	}
}

func (t *trimming) setReason(err error) {
	text := err.Error()
	t.reason.Store(&text)
}

// start begins to attach the program, once.
func (s *Socket) start() {
	t := &s.trimming
	attach := t.attach
	t.attach, t.started = nil, make(chan struct{})
	go func() {
		defer close(t.started)
		defer unix.Close(t.netns)
		thread.Run(func() {
			made, err := s.makeTrimmed(attach)
			if err != nil {
				t.setReason(err)
				return
			}
			t.ready.Store(made)
			t.reason.Store(nil)
		})
	}()
}

// makeTrimmed makes the packet socket, and attaches the program, in the network namespace of the Socket.
func (s *Socket) makeTrimmed(attach func() (io.Closer, error)) (made *trimmed, err error) {
	open := func() (fd int, netns uint64, err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: it receives nothing
		if err == nil {
			netns, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		}
		return fd, netns, err
	}
	fd, netns, err := open()
	if err == nil && netns != s.netns {
		_ = unix.Close(fd)
		if err = unix.Setns(s.trimming.netns, unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("gso: enter network namespace: %w", err)
		}
		fd, _, err = open()
	}
	if err != nil {
		return nil, fmt.Errorf("gso: packet socket: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err == nil {
		if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, Mark); err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: s.ifindex})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("gso: packet socket: %w", err)
	}
	trim, err := attach()
	if err != nil {
		return nil, err
	}
	return &trimmed{fd: fd, trim: trim}, nil
}

// close waits until attaching is over. It closes the socket first: what that sends later would keep its Headroom.
func (t *trimming) close() error {
	switch {
	case t.attach != nil:
		t.attach = nil
		return unix.Close(t.netns)
	case t.started == nil:
		return nil
	}
	<-t.started
	made := t.ready.Swap(nil)
	if made == nil {
		return nil
	}
	return errors.Join(unix.Close(made.fd), made.trim.Close())
}

// send sends a packet whose first frame has these lower headers. Errors as sendmsg(2).
func (t *trimmed) send(size int, headers []byte, pieces [][]byte) unix.Errno {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	ipLen := len(headers) - etherLen - udpLen
	udp := etherLen + Headroom + ipLen
	if ipLen != ip4Len && ipLen != ip6Len || udp+udpLen+n > 0xffff {
		return unix.EMSGSIZE
	}
	b := t.head[:virtioLen+udp+udpLen]
	b[0], b[1] = needsCsum, gsoUDP
	binary.NativeEndian.PutUint16(b[2:], uint16(udp+udpLen+n)) // all of it is headers: one piece
	binary.NativeEndian.PutUint16(b[4:], uint16(size))
	binary.NativeEndian.PutUint16(b[6:], uint16(udp))
	binary.NativeEndian.PutUint16(b[8:], udpChecksum)
	copy(b[virtioLen:], headers[:etherLen])
	lengthen(b[virtioLen+etherLen+Headroom:], headers[etherLen:], n)
	return t.message.send(t.fd, b, pieces)
}

// lengthen copies IP and UDP headers to b, with lengths for n bytes of payload, and with what the kernel completes to
// the UDP checksum of each frame: the sum of the pseudo-header (RFC 768, RFC 8200).
func lengthen(b, headers []byte, n int) {
	copy(b, headers)
	ip, udp := b[:len(headers)-udpLen], b[len(headers)-udpLen:len(headers)]
	addresses := ip[ip4Len-8:]
	if len(ip) == ip4Len {
		binary.BigEndian.PutUint16(ip[2:], uint16(ip4Len+udpLen+n))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
		addresses = ip[ip6Len-32:]
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], sum(addresses, uint32(unix.IPPROTO_UDP+udpLen+n)))
}

// sum is the ones' complement sum of b, an even number of bytes, and of start (RFC 1071).
func sum(b []byte, start uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		start += uint32(binary.BigEndian.Uint16(b))
	}
	start = start&0xffff + start>>16
	return uint16(start + start>>16)
}
