package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// exchange runs checked rounds of both kinds with each size.
func exchange(sizes []int, messages int) func(bool, Endpoint) error {
	return func(client bool, e Endpoint) error {
		id := uint16(0)
		for _, bytes := range sizes {
			id++
			r := Round{ID: id, Bytes: bytes, Messages: messages, Lead: 3, Check: true}
			if client {
				rtt := make([]int64, r.Messages)
				span, err := e.Ping(r, rtt)
				if err != nil {
					return fmt.Errorf("ping %d: %w", bytes, err)
				}
				if span.Wall <= 0 || slices.Min(rtt) <= 0 {
					return fmt.Errorf("ping %d: took %v, samples %v", bytes, span.Wall, rtt)
				}
			} else if err := e.Echo(r); err != nil {
				return fmt.Errorf("echo %d: %w", bytes, err)
			}
			id++
			r = Round{ID: id, Bytes: bytes, Messages: 5 * messages, Check: id%4 != 0}
			var span Span
			var err error
			if client {
				span, err = e.Send(r)
			} else {
				span, err = e.Receive(r)
			}
			if err != nil {
				return fmt.Errorf("stream %d: %w", bytes, err)
			}
			if span.Wall <= 0 {
				return fmt.Errorf("stream %d took no time", bytes)
			}
		}
		return nil
	}
}

// sizes around what a frame of MTU 1500 holds.
var testSizes = []int{1, 63, 64, 1400, 1472, 1473, 4096, 1 << 16}

// The kernel's transports carry every byte, over the loopback.
func TestKernelTransports(t *testing.T) {
	for _, name := range Names() {
		if UsesXDP(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			client, server := loopback()
			if err := connected(name, client, server, exchange(testSizes, 7)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// All transports carry every byte over a veth pair.
func TestTransportsOverVeth(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, 1500, false, "generic")
			if err := connected(name, client, server, exchange(testSizes, 7)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The same over IPv6, in native mode, and with frames as long as a chunk
// allows.
func TestTransportsOtherwise(t *testing.T) {
	for _, c := range []struct {
		title string
		mtu   int
		v6    bool
		mode  string
	}{
		{"IPv6", 1500, true, "generic"},
		{"native", 1500, false, "native"},
		{"jumbo", 9000, false, "generic"},
		{"jumbo native", 9000, false, "native"},
	} {
		for _, name := range []string{"raw-afxdp", "raw-afxdp-wait", "asavie-xdp", "vi-reliable-delivery", "udp-spin", "tcp-spin"} {
			t.Run(c.title+" "+name, func(t *testing.T) {
				client, server := pair(t, c.mtu, c.v6, c.mode)
				if err := connected(name, client, server, exchange([]int{64, 1 << 16}, 5)); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A queue is free again as soon as its endpoint is closed.
func TestReopen(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	for _, name := range []string{"raw-afxdp", "asavie-xdp", "vi-unreliable", "asavie-xdp", "raw-afxdp-wait"} {
		if err := connected(name, client, server, exchange([]int{64}, 2)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// Facts of an AF_XDP endpoint go into the report.
func TestFacts(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	for _, name := range []string{"raw-afxdp", "asavie-xdp", "vi-reliable-delivery"} {
		err := connected(name, client, server, func(_ bool, e Endpoint) error {
			f := e.Hello().Facts
			if f.Interface != "via0" || f.Mode != "generic" || f.MTU != 1500 || f.FrameBytes != 1514 || f.Memory == "" {
				return fmt.Errorf("facts: %+v", f)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	client, _ := loopback()
	if _, err := Open("carrier-pigeon", client.params, nil); err == nil || !strings.Contains(err.Error(), "raw-afxdp") {
		t.Errorf("got %v, want the names that there are", err)
	}
	client, _ = pair(t, 1500, false, "sideways")
	err := client.do(func() error {
		_, err := Open("raw-afxdp", client.params, nil)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "sideways") {
		t.Errorf("got %v, want a word about the mode", err)
	}
}
