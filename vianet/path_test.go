package vianet_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// onPath returns two hosts in a bubble with a path of the given delay. Nothing else takes time.
func onPath(t *testing.T, o vianet.Options, oneWay time.Duration) *hosts {
	t.Helper()
	o.Spin = asleep.Spin
	h := inMemoryBy(t, o, memorynic.Config{Queue: xdpnictest.Config{RxChunks: 2048, TxChunks: 2048}})
	h.wire.SetFaults(xdpnictest.Faults{Delay: oneWay})
	return h
}

// A stream fills most of the VI's window, 364 KB, in each round trip, for any sizes of Writes and Reads. So a long
// path does not limit it.
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
		{"messages only", vianet.Options{Threshold: -1}, 32 << 10, 64 << 10, 60 << 10},
		{"messages", vianet.Options{}, 1 << 10, 64 << 10, 12 << 10},
		{"the least for a ring", vianet.Options{}, 2 << 10, 64 << 10, 30 << 10},
		{"as long as a message may be", vianet.Options{}, 4 << 10, 64 << 10, 60 << 10},
		{"twice as long", vianet.Options{}, 8 << 10, 64 << 10, 110 << 10},
		{"four times as long", vianet.Options{}, 16 << 10, 64 << 10, 140 << 10},
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
				start := time.Now()
				wrote := background(func() (err error) {
					buf := make([]byte, test.write)
					for n := 0; n < total && err == nil; n += test.write {
						_, err = a.Write(buf)
					}
					return err
				})
				buf := make([]byte, test.read)
				for n := 0; n < total; {
					k, err := b.Read(buf)
					must(t, err)
					n += k
				}
				trips := float64(time.Since(start)) / float64(2*oneWay)
				check(t, <-wrote)
				got, ring := int(float64(total)/trips), test.write >= 2<<10 && test.options.Threshold >= 0
				nstest.ErrorIf(t, got < test.want, "%d KiB in a round trip, want %d", got>>10, test.want>>10)
				nstest.ErrorIf(t, vianet.HasRing(b) != ring && test.write <= 128<<10, "a ring: %v", !ring)
				balanced(t, a, b)
				a.Close()
				readsNothing(t, "after the last byte", b, 1, io.EOF)
				b.Close()
			})
		})
	}
}

// ringed returns a connection whose peer has been offered a ring and has written nothing to it.
func (h *hosts) ringed(t *testing.T) (p *peer, c *vianet.Conn, ring message) {
	t.Helper()
	p, c = h.met(t, true)
	got := make([]byte, 10)
	for id := range uint32(2) {
		p.send(message{kind: ask, id: id + 1, length: 10})
		done := goRead(c, len(got))
		m := p.receive(room)
		for m.id == 0 {
			ring, m = m, p.receive(room)
		}
		p.send(message{kind: filled, id: 1, length: 10, handle: m.handle, addr: m.addr})
		must(t, <-done)
	}
	if ring.length == 0 {
		ring = p.receive(room)
	}
	nstest.FatalIf(t, ring.id != 0 || ring.length < 1000, "a ring of %+v", ring)
	return p, c, ring
}

// dataBuffers is how many data messages a connection takes, with the default options.
const dataBuffers = 74/2 - 17

// A peer writes to a ring what cannot be, or more than there may be before the program reads. Where the NIC refuses a
// write, TestFilledLies has the check.
func TestRingLies(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	mem := message{kind: announce, id: 3, length: 10, handle: 5, addr: 4096}
	for _, test := range []struct {
		name string
		send func(size uint32) []message
		why  string
	}{
		{"more than it holds", func(n uint32) []message { return []message{{kind: filled, length: n + 1}} }, ""},
		{"more than is free", func(n uint32) []message {
			return []message{{kind: filled, length: n - 5}, {kind: filled, length: 5}, {kind: filled, length: 1}}
		}, wrongMove},
		{"across its end", func(n uint32) []message {
			return []message{{kind: filled, length: n - 5}, {kind: filled, length: 6}}
		}, wrongMove},
		{"twice what it holds", func(n uint32) []message { return []message{{kind: filled, length: 2 * n}} }, ""},
		{"in a transfer", func(uint32) []message { return []message{mem, {kind: filled, length: 5}} }, wrongTime},
		{"after the fin", func(uint32) []message { return []message{{kind: fin}, {kind: filled, length: 5}} }, wrongTime},
		{"nothing", func(uint32) []message { return []message{{kind: filled}} }, wrongLen},
		{"unread bytes again", func(n uint32) []message {
			return []message{{kind: filled, length: n}, {kind: filled, length: 9}}
		}, wrongMove},
		{"as to a room", func(uint32) []message { return []message{{kind: filled, id: 1, length: 5}} }, wrongMove},
		{"as to a room of a transfer to read", func(uint32) []message {
			return []message{mem, {kind: filled, id: 1, length: 5}}
		}, wrongMove},
		{"as to something else", func(uint32) []message { return []message{{kind: filled, id: 2, length: 5}} }, wrongField},
		{"with credits that it never got", func(uint32) []message {
			return []message{{kind: filled, credits: 1, length: 5}}
		}, "more buffers are given back"},
		{"more messages than there are data buffers", func(uint32) []message {
			return slices.Repeat([]message{{kind: filled, length: 1}}, dataBuffers+1)
		}, "more data came than there was credit for"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, c, ring := h.ringed(t)
			for _, m := range test.send(ring.length) {
				if m.kind == filled {
					m.handle, m.addr = ring.handle, ring.addr
				}
				p.send(m)
			}
			if test.why == "" { // the NIC breaks the connection, which the peer may learn first
				c.SetReadDeadline(time.Now().Add(testTimeout))
				_, err := c.Read(make([]byte, 1))
				isReset(t, err, "")
			}
			p.isReset(c, test.why)
		})
	}
}

// A call that has read from a ring polls for as long as the last arrival would take, until something else comes.
func TestRingAhead(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c, ring := h.ringed(t)
	for _, test := range []struct {
		m    message
		want int
	}{
		{message{kind: filled, length: 5, handle: ring.handle, addr: ring.addr}, 5},
		{message{kind: filled, length: 9, handle: ring.handle, addr: ring.addr + 5}, 9},
		{message{kind: data, length: 4, payload: []byte("four")}, 0},
	} {
		p.send(test.m)
		must(t, nstest.Err(io.ReadFull(c, make([]byte, test.m.length))))
		nstest.Equal(t, fmt.Sprintf("bytes that are taken to be on their way, after %+v", test.m), vianet.OnItsWay(c), test.want)
	}
	c.Close()
}

// A ring that is too short for a Write is not used.
func TestRingTooShort(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c := h.met(t, true)
	p.send(message{kind: room, length: 1000, handle: p.region.Handle(), addr: p.region.Addr()})
	p.send(message{kind: data, length: 4, payload: []byte("four")})
	must(t, nstest.Err(io.ReadFull(c, make([]byte, 4)))) // the ring has come, too
	go c.Write(make([]byte, 20_000))
	p.receive(data)
	c.Close()
}

// A Write to a ring is one RDMA write, or one on each side of its end, and no other message. Each takes a credit of this
// side, and its immediate data gives credits back.
func TestRingOnTheWire(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c := h.met(t, true)
	const size, each = 50_000, 20_000
	ring := p.region.Bytes()[source:][:size]
	at, back, used := 0, 0, 0
	give := func(n int) {
		p.send(message{kind: room, length: uint32(n), handle: p.region.Handle(), addr: p.region.Addr() + source})
		p.send(message{kind: data, length: 4, payload: []byte("four")})
		must(t, nstest.Err(io.ReadFull(c, make([]byte, 4)))) // so it knows of the room
	}
	write := func(pieces ...int) {
		t.Helper()
		sum := 0
		for _, n := range pieces {
			sum += n
		}
		stream := randomBytes(sum, byte(at))
		wrote := goWrite(c, stream)
		var got []byte
		for _, n := range pieces {
			m := p.receiveAny()
			nstest.FatalIf(t, m.kind != filled || m.id != 0 || int(m.length) != n, "%+v, want a write of %d bytes", m, n)
			got = append(got, ring[at:][:n]...)
			at, back, used = (at+n)%size, back+int(m.credits), used+1
		}
		must(t, <-wrote)
		nstest.ErrorIf(t, !bytes.Equal(got, stream), "other bytes from %d on", firstDifference(got, stream))
		give(sum)
	}
	give(size)
	write(each)
	write(each)
	write(10_000, 10_000)
	for range 4 {
		write(each)
	}
	nstest.Equal(t, "credits that were given back", back, 6)
	nstest.Equal(t, "credits in use", used, greetCredits)
	c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	n, err := c.Write(make([]byte, each))
	nstest.ErrorIf(t, n != 0, "%d bytes without a credit", n)
	isTimeout(t, "Write", err)
	c.SetWriteDeadline(never)
	p.send(message{kind: credit, credits: 3})
	write(10_000, 10_000)
	must(t, nstest.Err(c.Write([]byte("four")))) // from a buffer of a write, without immediate data
	m := p.receiveAny()
	nstest.ErrorIf(t, m.kind != data || string(m.payload) != "four", "%+v, want a data message", m)
	c.Close()
}

// A ring and rooms carry the same over a connection with a key, and when frames are lost.
func TestRingSealed(t *testing.T) {
	key := aKey(t)
	for _, o := range []vianet.Options{{}, {NoRDMARead: true}} {
		h := inMemoryBy(t, o, memorynic.Config{PSK: key})
		h.wire.SetFaults(lossy)
		a, b := h.pair(t)
		for i := range 30 {
			carry(t, a, b, randomBytes(100_000, byte(i)))
		}
		nstest.ErrorIf(t, h.a.Stats().Ring.Bytes < 20*100_000, "%+v", h.a.Stats())
		balanced(t, a, b)
		h.wasLossy(t)
	}
}

// The ring fills while the program does not read. Then a Write waits, reports at its deadline how much it has sent,
// and loses nothing of that.
func TestRingIsFull(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	const size = 100_000
	data := randomBytes(20*size, 4)
	got := make([]byte, size)
	sent := 0
	for range 3 { // the ring comes about
		wrote := goWrite(a, data[sent:sent+size])
		must(t, nstest.Err(io.ReadFull(b, got)))
		must(t, <-wrote)
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
	unread := sent - read // half of the ring at least was free
	nstest.ErrorIf(t, unread < 128<<10 || unread > 256<<10, "%d bytes are on their way to a program that does not read", unread)
	a.SetWriteDeadline(time.Time{})
	rest := data[read:]
	wrote := background(func() (err error) {
		for err == nil && sent < len(data) {
			n := min(size, len(data)-sent)
			_, err = a.Write(data[sent : sent+n])
			sent += n
		}
		return err
	})
	all := make([]byte, len(rest))
	must(t, nstest.Err(io.ReadFull(b, all)))
	must(t, <-wrote)
	nstest.ErrorIf(t, !bytes.Equal(all, rest), "other bytes from %d on", firstDifference(all, rest))
	balanced(t, a, b)
}

// A receiver sends a room or taken message that does not match the transfer.
func TestRoomLies(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	for name, test := range map[string]struct {
		lie func(p *peer, m message) message
		why string
	}{
		"more than was asked": {func(p *peer, m message) message {
			return message{kind: room, id: m.id, length: m.length + 1, handle: p.region.Handle(), addr: p.region.Addr()}
		}, wrongMove},
		"of another": {func(p *peer, m message) message {
			return message{kind: room, id: m.id + 1, length: m.length, handle: p.region.Handle(), addr: p.region.Addr()}
		}, wrongMove},
		"taken without a withdrawal": {func(p *peer, m message) message {
			return message{kind: taken, id: m.id}
		}, wrongMove},
		"nowhere": {func(p *peer, m message) message {
			return message{kind: room, id: m.id, length: m.length, handle: p.region.Handle() + 1, addr: p.region.Addr()}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, true)
			done := background(func() error {
				_, err := c.Write(make([]byte, 100_000))
				for err == nil { // it may be done before the peer's NIC refuses
					_, err = c.Write(make([]byte, 1))
				}
				return err
			})
			p.send(test.lie(p, p.receive(ask)))
			isReset(t, <-done, test.why)
		})
	}
}

// A room is closed before Read returns: a later write of the peer does not arrive, and ends the connection.
func TestRoomIsClosed(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	p, c := h.met(t, false)
	p.send(message{kind: ask, id: 1, length: 200_000})
	buf := make([]byte, 70_000)
	done := background(func() error {
		n, err := c.Read(buf)
		nstest.ErrorIf(t, n != len(buf), "Read gave %d bytes", n)
		return err
	})
	m := p.receive(room)
	nstest.FatalIf(t, m.length != 70_000, "a room of %d bytes", m.length)
	to := vipl.AddressSegment{Data: m.addr, Handle: m.handle}
	copy(p.region.Bytes()[64:], "honest")
	p.write(to, 10)
	copy(p.region.Bytes()[source:], "honest")
	p.send(message{kind: filled, id: 1, length: 70_000, handle: m.handle, addr: m.addr})
	must(t, <-done)
	nstest.Equal(t, "what was read", string(buf[:6]), "honest")
	copy(p.region.Bytes()[64:], "forged")
	p.write(to, 10)
	p.isOver()
	nstest.Equal(t, "what was read, after the Read", string(buf[:6]), "honest")
	_, err := c.Read(buf)
	isReset(t, err, "")
}

// If a peer reports a room as filled that it has not written, the program does not read data of another connection.
func TestRoomIsNotFilled(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	victim, c := h.pair(t)
	secret := bytes.Repeat([]byte("secret"), 20_000)
	wrote := goWrite(victim, secret)
	for range len(secret) / 1000 { // by staging buffers
		must(t, nstest.Err(io.ReadFull(c, make([]byte, 1000))))
	}
	must(t, <-wrote)
	p, c, ring := h.ringed(t)
	const n = 100_000
	p.send(message{kind: ask, id: 9, length: n})
	got := make(chan []byte, 1)
	go func() {
		b := make([]byte, n)
		for i := 0; i < n; i += 1000 {
			check(t, nstest.Err(io.ReadFull(c, b[i:][:1000])))
		}
		got <- b
	}()
	for left := n; left > 0; {
		m := p.receive(room)
		p.send(message{kind: filled, id: 1, length: m.length, handle: ring.handle, addr: ring.addr}) // not to the room
		left -= int(m.length)
	}
	nstest.ErrorIf(t, bytes.Contains(<-got, []byte("secret")), "the program has read what is another's")
}

// A peer may fill the room of a Read later than releaseTime, as long as no withdraw has asked it to stop.
func TestRoomIsFilledLate(t *testing.T) { synctest.Test(t, roomIsFilledLate) }

func roomIsFilledLate(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true, Spin: asleep.Spin})
	p, c := h.met(t, false)
	const n = 70_000
	p.send(message{kind: ask, id: 1, length: n})
	done := background(func() error {
		k, err := c.Read(make([]byte, n))
		nstest.ErrorIf(t, k != n, "Read gave %d bytes", k)
		return err
	})
	m := p.receive(room)
	time.Sleep(vianet.ReleaseTime + 500*time.Millisecond)
	p.send(message{kind: filled, id: 1, length: n, handle: m.handle, addr: m.addr})
	check(t, <-done)
}

// A peer that does not fill the room of a Read cannot hold the Read past its deadline, Close or CloseRead forever.
func TestRoomUnanswered(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(c *vianet.Conn) error
		want error
	}{
		"deadline": {func(c *vianet.Conn) error { return c.SetReadDeadline(longAgo) }, os.ErrDeadlineExceeded},
		"close":    {func(c *vianet.Conn) error { return c.Close() }, net.ErrClosed},
		"stop":     {func(c *vianet.Conn) error { return c.CloseRead() }, io.EOF},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, c := inMemory(t, vianet.Options{NoRDMARead: true, Spin: asleep.Spin}).met(t, false)
			p.send(message{kind: ask, id: 1, length: 70_000})
			done := goRead(c, 70_000)
			p.receive(room)
			check(t, test.end(c))
			nstest.WantErr(t, name, <-done, test.want)
			p.isOver()
		})
	}
}
