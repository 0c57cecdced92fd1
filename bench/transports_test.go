package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
)

// exchange runs checked rounds of both kinds with each size.
func exchange(sizes []int, messages int) func(bool, endpoint) error {
	return func(client bool, e endpoint) error {
		id := uint16(0)
		for _, bytes := range sizes {
			id++
			r := Round{ID: id, Bytes: bytes, Messages: messages, Lead: 3, Check: true}
			if client {
				rtt := make([]int64, r.Messages)
				span := e.Ping(r, rtt)
				if span.Wall <= 0 || slices.Min(rtt) <= 0 {
					return fmt.Errorf("ping %d: took %v, samples %v", bytes, span.Wall, rtt)
				}
			} else {
				e.Echo(r)
			}
			id++
			r = Round{ID: id, Bytes: bytes, Messages: 5 * messages, Check: id%4 != 0}
			round := e.Send
			if !client {
				round = e.Receive
			}
			if span := round(r); span.Wall <= 0 {
				return fmt.Errorf("stream %d took no time", bytes)
			}
		}
		return nil
	}
}

// All transports carry every byte over a veth pair; and some over IPv6, in native mode, and with frames as long as a
// chunk allows.
func TestTransports(t *testing.T) {
	few := append([]string{
		"raw-afxdp", "raw-afxdp-wait", "vi-reliable-delivery", "vi-rdma-write", "vi-rdma-read", "udp-spin", "tcp-spin",
	}, asavieNames...)
	layers := slices.Concat(few, Layers()) // memory of the arena is written there, and not read
	for _, c := range []struct {
		title string
		mtu   int
		v6    bool
		mode  string
		names []string
		sizes []int
	}{
		// Sizes around what a frame of MTU 1500 holds.
		{"generic", 1500, false, "generic", slices.Concat(Names(), Layers()), []int{1, 63, 64, 1400, 1472, 1473, 4096, 1 << 16}},
		{"IPv6", 1500, true, "generic", few, []int{64, 1 << 16}},
		{"native", 1500, false, "native", few, []int{64, 1 << 16}},
		{"jumbo", 9000, false, "generic", layers, []int{64, 1 << 16}},
		{"jumbo native", 9000, false, "native", layers, []int{64, 1 << 16}},
	} {
		for _, name := range c.names {
			t.Run(c.title+" "+name, func(t *testing.T) {
				client, server := pair(t, c.mtu, c.v6, c.mode)
				nstest.Must(t, connected(name, client, server, exchange(c.sizes, 7)))
			})
		}
	}
}

// In zero-copy mode no frame of ours takes several chunks. One of another program does not count.
func TestLongFrameOfOthers(t *testing.T) {
	client, server := pair(t, 9000, false, "generic")
	nstest.Must(t, connected("raw-afxdp", client, server, func(client bool, e endpoint) error {
		raw := e.(*framed).io.(*rawXDP)
		if !client {
			for _, n := range []int{8000, 64} {
				raw.next()
				raw.commit(n)
				raw.flush()
			}
			return nil
		}
		raw.long = nil // as in zero-copy mode
		for _, want := range []int{0, 64} {
			var p []byte
			for end := time.Now().Add(waitLimit); p == nil && time.Now().Before(end); {
				p = raw.poll()
			}
			if p == nil || len(p) != want {
				return fmt.Errorf("content of %d bytes, want %d", len(p), want)
			}
		}
		return nil
	}))
}

// asavieNames is asavie-xdp where it is built in.
var asavieNames = func() []string {
	if len(asavieTransports) == 0 {
		return nil
	}
	return []string{"asavie-xdp"}
}()

// A queue is free again as soon as its endpoint is closed.
func TestReopen(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	others := slices.Concat([]string{"raw-afxdp"}, asavieNames, []string{"vi-unreliable"}, asavieNames, []string{"raw-afxdp-wait"})
	for _, name := range others {
		if err := connected(name, client, server, exchange([]int{64}, 2)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// A VI whose peer does nothing ends its wait on request, long before its time limit.
func TestStopped(t *testing.T) {
	for _, name := range Names() {
		if !strings.HasPrefix(name, "vi-") {
			continue
		}
		client, server := pair(t, 1500, false, "generic")
		over := make(chan struct{})
		err := connected(name, client, server, func(client bool, e endpoint) error {
			if client {
				<-over
				return nil
			}
			defer close(over)
			server.stop()
			if err := fail.Try(func() { e.Echo(Round{ID: 1, Bytes: 64, Messages: 1}) }); !errors.Is(err, ErrStopped) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
		nstest.WantErr(t, name, err, nil)
	}
}

func TestOpenRefuses(t *testing.T) {
	nstest.ErrSays(t, "an unknown name", nstest.Err(openEndpoint(t.Context(), "carrier-pigeon", Params{})), "raw-afxdp")
	client, _ := pair(t, 1500, false, "sideways")
	err := client.do(func() error { return nstest.Err(openEndpoint(client.ctx, "raw-afxdp", client.params)) })
	nstest.ErrSays(t, "an unknown mode", err, "sideways")
}

// unfilled has one side check bytes that the other side has not filled in, and expects an
// error.
func unfilled(t *testing.T, name string, stream, clientChecks bool) {
	t.Helper()
	client, server := pair(t, 1500, false, "generic")
	err := connected(name, client, server, func(isClient bool, e endpoint) (err error) {
		r := Round{ID: 1, Bytes: 3000, Messages: 5, Check: isClient == clientChecks}
		err = fail.Try(func() {
			switch {
			case isClient && stream:
				e.Send(r)
			case isClient:
				e.Ping(r, make([]int64, r.Messages))
			case stream:
				e.Receive(r)
			default:
				e.Echo(r)
			}
		})
		client.stop() // one has failed, or both are done
		server.stop()
		return err
	})
	nstest.ErrSays(t, fmt.Sprintf("%s, stream %v", name, stream), err, "message 0: byte 0 is 0x00, not 0x")
}

// --check verifies what RDMA has moved.
func TestRDMAChecked(t *testing.T) {
	unfilled(t, "vi-rdma-write", true, false) // the server has been written
	unfilled(t, "vi-rdma-read", true, false)  // the server reads
	unfilled(t, "vi-rdma-read", false, true)  // the client reads
}

// Rounds larger than announced are refused before memory is touched.
func TestRDMARefuses(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	for _, name := range []string{"vi-rdma-write", "vi-rdma-read"} {
		err := connected(name, client, server, func(client bool, e endpoint) error {
			r := Round{ID: 1, Bytes: 1<<16 + 1, Messages: 1, Check: true}
			calls := map[string]func() error{
				"ping":    func() error { return fail.Try(func() { e.Ping(r, make([]int64, 1)) }) },
				"echo":    func() error { return fail.Try(func() { e.Echo(r) }) },
				"send":    func() error { return fail.Try(func() { e.Send(r) }) },
				"receive": func() error { return fail.Try(func() { e.Receive(r) }) },
			}
			for what, call := range calls {
				if err := call(); err == nil || !strings.Contains(err.Error(), "larger than announced") {
					return fmt.Errorf("%s of %d bytes: got %v", what, r.Bytes, err)
				}
			}
			return nil
		})
		nstest.WantErr(t, name, err, nil)
	}
}

func hello(mac, addr string) Hello {
	m, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	return Hello{MAC: m, Addr: netip.MustParseAddr(addr)}
}

func TestHeadersRefuse(t *testing.T) {
	v4, v6 := hello("02:00:00:00:00:01", "10.0.0.1"), hello("02:00:00:00:00:02", "fd00::1")
	nstest.ErrorIf(t, nstest.Err(newHeaders(v4, v6)) == nil, "IPv4 to IPv6")
	nstest.ErrorIf(t, nstest.Err(newHeaders(v4, Hello{Addr: v4.Addr})) == nil, "no MAC address")
}

// A frame with a false length yields no byte beyond its end.
func TestUDPContentOfBadFrames(t *testing.T) {
	frame := make([]byte, 60)
	for _, length := range []uint16{0, 7, 8, 26, 27, 65535} {
		binary.BigEndian.PutUint16(frame[42-4:], length)
		if got := len(udpContent(frame, 42)); got > 18 {
			t.Errorf("length %d: %d bytes", length, got)
		}
	}
	nstest.Equal(t, "bytes of a short frame", len(udpContent(frame[:20], 42)), 0)
}
