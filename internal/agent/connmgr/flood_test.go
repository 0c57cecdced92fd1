package connmgr_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
)

// Requests from any number of addresses, at full speed, exceed no bound, and a client connects all the same:
// with a server that waits, and for a discriminator on which requests wait.
func TestConnectFlood(t *testing.T) {
	net := kagenttest.NewFabric(kagenttest.Faults{})
	a, b := net.Agent("a"), net.Agent("b")
	defer b.Close()
	defer a.Close()
	l, err := b.Listen(kagent.Address{Disc: echo})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := b.Listen(kagent.Address{Disc: []byte("nobody takes")}); err != nil {
		t.Fatal(err)
	}

	const floods = 20_000
	rng := rand.New(rand.NewPCG(1, 2))
	stranger := func() netip.AddrPort {
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], 11<<24|rng.Uint32N(1<<24))
		return netip.AddrPortFrom(netip.AddrFrom4(ip), wire.Port)
	}
	request := func(disc []byte) []byte {
		msg := wire.CM{Type: wire.CMRequest, ID: 1 + rng.Uint64N(1<<62), VI: 1, Key: rng.Uint64(), Level: 2, From: []byte("flood"), To: disc}
		datagram, err := msg.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		return datagram
	}
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for range floods {
			b.Receive(request(echo), b.Addr(), stranger())
			b.Receive(request([]byte("nobody takes")), b.Addr(), stranger())
			b.Receive(request([]byte("no door")), b.Addr(), stranger())
			bad := request(echo)
			bad[rng.IntN(len(bad))] ^= 1 << rng.IntN(8)
			b.Receive(bad, b.Addr(), stranger())
		}
	}()
	served := make(chan struct{})
	bo, ao := offer(b, t), offer(a, t)
	go func() { // the server: knows its client by its address
		defer close(served)
		for {
			in, err := l.Wait(within(time.Minute))
			if err != nil {
				return
			}
			if in.Remote().Host == a.Addr() {
				go in.Accept(within(10*time.Second), bo)
			} else {
				in.Reject(wire.CMReasonProgram)
			}
		}
	}()
	connects, over := 0, false
	for !over || connects == 0 {
		select {
		case <-flooded:
			over = true
		default:
		}
		ans, err := a.Request(within(10*time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
		if err == nil {
			err = ans.Confirm()
		}
		if err != nil {
			t.Fatal(err)
		}
		connects++
	}
	n, kept := b.Counters(), b.Remembered()
	t.Logf("%d connections beside %d requests of strangers; %+v; %d things are remembered", connects, 3*floods, n, kept)
	if n.Malformed != floods || n.NoMatch != floods || n.Retries == 0 || n.Refused > 0 {
		t.Errorf("%+v", n)
	}
	// The client's finished exchanges and those that are kept out, each in two lists; 32 of strangers,
	// which wait, or have ended.
	if kept > 2*min(connects, 4096)+2*4096+2*32+16 {
		t.Errorf("%d things are remembered", kept)
	}
	l.Close()
	<-served
}
