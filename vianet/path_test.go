package vianet_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// onPath are two hosts in a bubble with so long a way between them. Nothing but the way takes time.
func onPath(t *testing.T, o vianet.Options, oneWay time.Duration) *hosts {
	t.Helper()
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	open := func(name string) *vipl.NIC {
		return memorynic.Open(t, wire, fabric.Agent(name), memorynic.Config{
			Queue: xdpnictest.Config{RxChunks: 2048, TxChunks: 2048}, Silence: longSilence,
		}).NIC
	}
	o.Spin = asleep.Spin
	h := over(t, open("a"), open("b"), wire, o)
	wire.SetFaults(xdpnictest.Faults{Delay: oneWay})
	return h
}

// A stream has so many bytes under way that a long way does not hold it up, whatever the sizes of Writes and Reads:
// in a round trip go most of what the VI's window takes, 364 KB.
func TestBytesInARoundTrip(t *testing.T) {
	const oneWay = 100 * time.Microsecond
	total := 8 << 20
	if testing.Short() {
		total = 4 << 20
	}
	for _, test := range []struct {
		name        string
		options     vianet.Options
		write, read int
		want        int // bytes
	}{
		{"messages", vianet.Options{}, 8 << 10, 64 << 10, 60 << 10},
		{"messages only", vianet.Options{Threshold: -1}, 32 << 10, 64 << 10, 60 << 10},
		{"the least for a ring", vianet.Options{}, 16 << 10, 64 << 10, 140 << 10},
		{"as io.Copy writes", vianet.Options{}, 32 << 10, 32 << 10, 170 << 10},
		{"short transfers, short reads", vianet.Options{}, 64 << 10, 4 << 10, 170 << 10},
		{"short transfers", vianet.Options{}, 64 << 10, 64 << 10, 170 << 10},
		{"short transfers, long reads", vianet.Options{}, 64 << 10, 1 << 20, 170 << 10},
		{"short transfers that are written", vianet.Options{NoRDMARead: true}, 64 << 10, 64 << 10, 170 << 10},
		{"transfers of half a ring", vianet.Options{}, 128 << 10, 64 << 10, 170 << 10},
		{"long transfers, short reads", vianet.Options{}, 1 << 20, 4 << 10, 150 << 10},
		{"long transfers, middle reads", vianet.Options{}, 1 << 20, 64 << 10, 150 << 10},
		{"long transfers", vianet.Options{}, 1 << 20, 1 << 20, 170 << 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := onPath(t, test.options, oneWay).pair(t)
				wrote := make(chan error, 1)
				start := time.Now()
				go func() {
					var err error
					buf := make([]byte, test.write)
					for n := 0; n < total && err == nil; n += test.write {
						_, err = a.Write(buf)
					}
					wrote <- err
				}()
				buf := make([]byte, test.read)
				for n := 0; n < total; {
					k, err := b.Read(buf)
					if err != nil {
						t.Fatal(err)
					}
					n += k
				}
				trips := float64(time.Since(start)) / float64(2*oneWay)
				if err := <-wrote; err != nil {
					t.Error(err)
				}
				if got := int(float64(total) / trips); got < test.want {
					t.Errorf("%d KiB in a round trip, want %d", got>>10, test.want>>10)
				}
				balanced(t, a, b)
				a.Close()
				if _, err := b.Read(buf); err != io.EOF {
					t.Error(err)
				}
				b.Close()
			})
		})
	}
}

// ringed is a connection whose peer was named a ring, in which that has written nothing.
func (h *hosts) ringed(t *testing.T) (p *peer, c *vianet.Conn, ring message) {
	t.Helper()
	l := h.listen(t)
	defer l.Close()
	p = h.meet(t, l, true)
	p.greet()
	c = accept(t, l)
	got := make([]byte, 10)
	for id := range uint32(2) {
		p.send(message{kind: announce, id: id + 1, length: 10, handle: p.region.Handle(), addr: p.region.Addr()})
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		if id == 1 {
			ring = p.receive(room)
		}
		p.receive(taken)
	}
	if ring.id != 0 || ring.length < 1000 {
		t.Fatalf("a ring of %+v", ring)
	}
	return p, c, ring
}

// A peer that says that it has written to a ring what it cannot have.
func TestRingLies(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	mem := message{kind: announce, id: 3, length: 10, handle: 5, addr: 4096}
	for _, test := range []struct {
		name string
		send func(size uint32) []message
		why  string
	}{
		{"more than it holds", func(n uint32) []message { return []message{{kind: filled, length: n + 1}} }, wrongMove},
		{"more than is free", func(n uint32) []message {
			return []message{{kind: filled, length: n - 5}, {kind: filled, length: 5}, {kind: filled, length: 1}}
		}, wrongMove},
		{"across its end", func(n uint32) []message {
			return []message{{kind: filled, length: n - 5}, {kind: filled, length: 6}}
		}, wrongMove},
		{"more than there ever is", func(uint32) []message { return []message{{kind: filled, length: 1<<32 - 1}} }, wrongMove},
		{"in a transfer", func(uint32) []message { return []message{mem, {kind: filled, length: 5}} }, wrongTime},
		{"after the fin", func(uint32) []message { return []message{{kind: fin}, {kind: filled, length: 5}} }, wrongTime},
		{"nothing", func(uint32) []message { return []message{{kind: filled}} }, wrongLen},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, c, ring := h.ringed(t)
			for _, m := range test.send(ring.length) {
				p.send(m)
			}
			p.isReset(c, test.why)
		})
	}
}

// Who has read from a ring polls as long as what came last would take, until something else comes.
func TestRingAhead(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c, _ := h.ringed(t)
	for _, test := range []struct {
		m    message
		want int
	}{
		{message{kind: filled, length: 5}, 5},
		{message{kind: filled, length: 9}, 9},
		{message{kind: data, length: 4, payload: []byte("four")}, 0},
	} {
		p.send(test.m)
		if _, err := io.ReadFull(c, make([]byte, test.m.length)); err != nil {
			t.Fatal(err)
		}
		if got := vianet.OnItsWay(c); got != test.want {
			t.Errorf("after %+v: %d bytes are taken to be on their way, want %d", test.m, got, test.want)
		}
	}
	c.Close()
}

// A ring that is too short for a Write is left alone.
func TestRingTooShort(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c := h.met(t, true)
	p.send(message{kind: room, length: 1000, handle: p.region.Handle(), addr: p.region.Addr()})
	p.send(message{kind: data, length: 4, payload: []byte("four")})
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil { // the ring has come, too
		t.Fatal(err)
	}
	go c.Write(make([]byte, 20_000))
	p.receive(data)
	c.Close()
}

// A filled takes a data buffer, until the program reads.
func TestRingOverrun(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c, _ := h.ringed(t)
	for range vianet.DataBuffers(c) + 1 {
		p.send(message{kind: filled, length: 1})
	}
	p.isReset(c, "more data came than there was credit for")
}

// A peer that names a ring and then another, or more room than the ring has.
func TestRoomInRingLies(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	first := message{kind: room, length: 1000, handle: 5, addr: 4096}
	for name, lie := range map[string]message{
		"more room":      {kind: room, length: 1, handle: 5, addr: 4096},
		"another place":  {kind: room, length: 1, handle: 5, addr: 4097},
		"another handle": {kind: room, length: 1, handle: 6, addr: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, true)
			p.send(first)
			p.send(lie)
			p.isReset(c, wrongMove)
		})
	}
}

// The ring fills while the program does not read: then a Write waits, its deadline says how much of it went, and
// nothing of that is lost.
func TestRingIsFull(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	const size = 100_000
	data := randomBytes(20*size, 4)
	got := make([]byte, size)
	sent := 0
	for range 3 { // the ring comes about
		wrote := goWrite(a, data[sent:sent+size])
		if _, err := io.ReadFull(b, got); err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		sent += size
	}
	read := sent
	for {
		a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := a.Write(data[sent : sent+size])
		if sent += n; err != nil {
			break
		}
	}
	if got := sent - read; got < 128<<10 || got > 256<<10 { // half of the ring at least is free
		t.Errorf("%d bytes are on their way to a program that does not read", sent-read)
	}
	a.SetWriteDeadline(time.Time{})
	rest := data[read:]
	wrote := make(chan error, 1)
	go func() {
		_, err := a.Write(data[sent : sent+size])
		sent += size
		for err == nil && sent < len(data) {
			n := min(size, len(data)-sent)
			_, err = a.Write(data[sent : sent+n])
			sent += n
		}
		wrote <- err
	}()
	all := make([]byte, len(rest))
	if _, err := io.ReadFull(b, all); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if at := firstDifference(all, rest); at < len(all) {
		t.Errorf("other bytes from %d on", at)
	}
	balanced(t, a, b)
}
