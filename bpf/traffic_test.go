package bpf

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// waitLimit bounds waits for required events; nothing is measured by it.
const waitLimit = 30 * time.Second

// receiver opens an AF_XDP socket on queue 0 of the interface, ready to receive.
func receiver(t *testing.T, ns *nstest.NS) *xdpnic.Queue {
	t.Helper()
	var socket *xdpnic.Queue
	within(t, ns, func() (err error) {
		socket, err = xdpnic.Open(xdpnic.Config{Ifindex: ns.Index, RxChunks: 64, TxChunks: 64})
		return err
	})
	t.Cleanup(func() { socket.Close() })
	return socket
}

// receive returns the next frame.
func receive(t *testing.T, socket *xdpnic.Queue) []byte {
	t.Helper()
	frames := make([]xdpnic.Frame, 1)
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		if socket.Receive(frames) == 0 {
			time.Sleep(100 * time.Microsecond) // the kernel delivers in its own time
			continue
		}
		b := bytes.Clone(frames[0].Data)
		socket.Recycle(frames[0].Addr)
		socket.Refill()
		return b
	}
	t.Fatal("no frame came")
	return nil
}

// udp opens a UDP socket on the port in the namespace, with a peer or without.
func udp(t *testing.T, ns *nstest.NS, local, remote netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	within(t, ns, func() (err error) {
		if remote.IsValid() {
			conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
		} else {
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
		}
		return err
	})
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(waitLimit))
	return conn
}

// On a link: data frames reach the AF_XDP socket, connection management reaches the kernel's socket on the same
// port, and neighbour discovery and everything else are not affected; in both modes, by IPv4 and IPv6.
func TestTraffic(t *testing.T) {
	const vi, key = 0x0007_0011, 0x1122334455667788
	for _, mode := range modes {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(mode.String()+"/"+family, func(t *testing.T) {
				a, b := nstest.Pair(t, nstest.Options{})
				from, to := netip.AddrPortFrom(a.IPv4, DefaultPort), netip.AddrPortFrom(b.IPv4, DefaultPort)
				if family == "IPv6" {
					from, to = netip.AddrPortFrom(a.IPv6, DefaultPort), netip.AddrPortFrom(b.IPv6, DefaultPort)
				}
				d := load(t, Config{})
				socket := receiver(t, b)
				nstest.Must(t, d.Register(9, socket.FD()))
				nstest.Must(t, d.EnterVI(vi, VIEntry{Slot: 9, Key: key, Peer: from.Addr()}))
				within(t, b, func() error { return d.Attach(b.Index, mode) })

				// The bytes behind the UDP header, from the test's frames.
				datagram := func(f frame) []byte { return append(f.bytes()[42:], "payload"...) }
				data := datagram(frame{vi: vi, key: key})
				stranger := datagram(frame{vi: vi, key: key + 1})
				control := datagram(frame{kind: kindControl})

				kernel := udp(t, b, to, netip.AddrPort{})
				sender := udp(t, a, from, to)
				for _, p := range [][]byte{stranger, data, control} {
					if _, err := sender.Write(p); err != nil {
						t.Fatal(err)
					}
				}
				if got := receive(t, socket); !bytes.HasSuffix(got, data) {
					t.Errorf("AF_XDP socket: % x\nwant at its end % x", got, data)
				}
				got := make([]byte, 256)
				n, err := kernel.Read(got)
				if err != nil || !bytes.Equal(got[:n], control) {
					t.Errorf("UDP socket: % x, %v; want % x", got[:n], err, control)
				}
				want := Counters{Redirected: 1, Control: 1, Key: 1}
				nstest.Equal(t, "counters", counters(t, d), want)
			})
		}
	}
}

// In a test run the context sets the queue. On an interface with several queues, a frame must be on the queue
// of its VI's socket, or on one of its VI's sockets.
func TestQueueOfContext(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{Queues: 4})
	d := loadTestDemux(t)
	nstest.Must(t, d.Register(slotSocket+2, rawSocket(t)))
	for queue, want := range map[uint32]map[uint32]string{
		0: {viIPv4: "redirected", viQueue1: "queue", viQueues: "redirected"},
		1: {viIPv4: "queue", viQueue1: "redirected", viQueues: "no_socket"},
		2: {viQueues: "redirected"},
		3: {viQueues: "queue"},
	} {
		for vi, counter := range want {
			b := frame{vi: vi, key: key4}.bytes()
			within(t, a, func() error {
				_, moved, err := runOn(d, b, uint32(a.Index), queue)
				nstest.ErrorIf(t, moved != counter,
					"VI %#x on queue %d: counter %q, want %q", vi, queue, moved, counter)
				return err
			})
		}
	}
}
