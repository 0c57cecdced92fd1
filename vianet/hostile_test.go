package vianet_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// The kinds of messages, as the package's comment numbers them.
const (
	hello = 1 + iota
	data
	credit
	announce
	ask
	withdraw
	room
	taken
	fin
	finack
	stop

	filled = 255 // no message: an RDMA write with immediate data
)

const version = 3 // of the session protocol

// message builds a message byte by byte, as the table in the package's comment says. If its kind is filled, it is an RDMA
// write of length bytes to handle and addr, and id is the upper half of its immediate data.
type message struct {
	kind, flags byte
	credits     uint16
	id, length  uint32
	handle      vipl.MemHandle
	addr        uint64
	payload     []byte
	garbage     []byte // sent in its place
}

func (m message) bytes() []byte {
	if m.garbage != nil {
		return m.garbage
	}
	b := []byte{m.kind, m.flags}
	b = binary.BigEndian.AppendUint16(b, m.credits)
	b = binary.BigEndian.AppendUint32(b, m.id)
	b = binary.BigEndian.AppendUint32(b, m.length)
	b = binary.BigEndian.AppendUint32(b, uint32(m.handle))
	b = binary.BigEndian.AppendUint64(b, m.addr)
	return append(b, m.payload...)
}

func decode(b []byte) message {
	return message{
		kind: b[0], flags: b[1], credits: binary.BigEndian.Uint16(b[2:]), id: binary.BigEndian.Uint32(b[4:]),
		length: binary.BigEndian.Uint32(b[8:]), handle: vipl.MemHandle(binary.BigEndian.Uint32(b[12:])),
		addr: binary.BigEndian.Uint64(b[16:]), payload: b[24:],
	}
}

// peer is a VI that speaks the protocol by hand and can violate it.
type peer struct {
	t      *testing.T
	vi     *vipl.VI
	region *vipl.Region // buffers of slot bytes, each with its descriptor in front; peers may read and write it
	next   int          // buffer for sending
}

const (
	slots  = 64 // half of them for receiving
	slot   = 4096
	source = slots * slot // offset of what filled writes
)

// newPeer connects a peer with the listener at addr.
func newPeer(t *testing.T, nic *vipl.NIC, addr netip.AddrPort, rdmaRead bool) *peer {
	t.Helper()
	p := unconnected(t, nic, rdmaRead)
	to := vipl.NetAddress{Host: addr.Addr(), Discriminator: binary.BigEndian.AppendUint16([]byte("vianet"), addr.Port())}
	from := vipl.NetAddress{Discriminator: []byte("vianet\x00\x09")}
	must(t, nstest.Err(p.vi.ConnectRequest(from, to, testTimeout)))
	return p
}

// unconnected returns a peer whose VI is Idle, with receives.
func unconnected(t *testing.T, nic *vipl.NIC, rdmaRead bool) *peer {
	t.Helper()
	tag, err := nic.CreatePtag()
	must(t, err)
	p := &peer{t: t}
	attr := vipl.MemAttributes{Ptag: tag, EnableRDMARead: true, EnableRDMAWrite: true}
	p.region, err = nic.AllocMem(source+512<<10, attr)
	nstest.Must(t, err)
	t.Cleanup(func() { p.region.Deregister() })
	p.vi, err = nic.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: tag, EnableRDMARead: rdmaRead, EnableRDMAWrite: true,
	}, nil, nil)
	must(t, err)
	for i := range slots / 2 {
		must(t, p.vi.PostRecv(p.desc(slots/2+i, slot-64), p.region.Handle()))
	}
	t.Cleanup(p.end)
	return p
}

// end releases the VI.
func (p *peer) end() {
	p.vi.Disconnect()
	for {
		if d, _ := p.vi.RecvDone(); d == nil {
			break
		}
	}
	for {
		if d, _ := p.vi.SendDone(); d == nil {
			break
		}
	}
	check(p.t, p.vi.Destroy())
}

// desc is the descriptor of buffer i for n bytes.
func (p *peer) desc(i, n int) *vipl.Descriptor {
	d, err := p.region.Descriptor(i*slot, 2)
	must(p.t, err)
	d.SetSegments(p.region.Segment(i*slot+64, n))
	return d
}

// send sends a message. It ignores the outcome, as the connection may be over.
func (p *peer) send(m message) {
	p.t.Helper()
	i := p.next % (slots / 2)
	p.next++
	if m.kind == filled {
		d := p.desc(i, 0)
		d.SetRDMAWrite(vipl.AddressSegment{Data: m.addr, Handle: m.handle}, p.region.Segment(source, int(m.length)))
		d.SetImmediate(m.id<<16 | uint32(m.credits))
		p.post(d)
		return
	}
	b := m.bytes()
	d := p.desc(i, len(b))
	copy(p.region.Bytes()[i*slot+64:], b)
	p.post(d)
}

// write writes n bytes of the buffer to the other side's memory.
func (p *peer) write(to vipl.AddressSegment, n int) {
	p.t.Helper()
	d := p.desc(p.next%(slots/2), n)
	d.SetRDMAWrite(to, p.region.Segment(64, n))
	p.next++
	p.post(d)
}

func (p *peer) post(d *vipl.Descriptor) {
	p.t.Helper()
	must(p.t, p.vi.PostSend(d, p.region.Handle()))
	if _, err := p.vi.SendWait(testTimeout); err == vipl.ErrTimeout {
		p.t.Fatal(err)
	}
}

// receive waits for a message of this kind and skips others.
func (p *peer) receive(kind byte) message {
	p.t.Helper()
	for {
		if m := p.receiveAny(); m.kind == kind {
			return m
		}
	}
}

// receiveAny waits for a message, or an RDMA write with immediate data.
func (p *peer) receiveAny() message {
	p.t.Helper()
	d, err := p.vi.RecvWait(testTimeout)
	nstest.FatalIf(p.t, err != nil, "waiting for a message: %v", err)
	off := int(d.Addr() - p.region.Addr())
	m := message{kind: filled, length: d.Length}
	imm, ok := d.Immediate()
	if d.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite {
		m.id, m.credits = imm>>16, uint16(imm)
	} else {
		m = decode(append([]byte(nil), p.region.Bytes()[off+64:][:d.Length]...))
		nstest.ErrorIf(p.t, ok, "%+v has immediate data %#x", m, imm)
	}
	must(p.t, p.vi.PostRecv(p.desc(off/slot, slot-64), p.region.Handle()))
	return m
}

const greetCredits = 8

// greet exchanges greetings, and returns the other side's.
func (p *peer) greet() message {
	p.t.Helper()
	p.send(message{kind: hello, id: version, credits: greetCredits, length: slot - 64})
	return p.receive(hello)
}

// isOver waits until the other side has ended the connection.
func (p *peer) isOver() {
	p.t.Helper()
	await.Until(p.t, "the other side ends the connection", func() bool {
		s, err := p.vi.Query()
		return err != nil || s.State == vipl.Error
	})
}

// isReset waits until the other side, whose connection is c, has reset it, and checks the reason.
func (p *peer) isReset(c *vianet.Conn, why string) {
	p.t.Helper()
	p.isOver()
	_, err := c.Write(make([]byte, 1))
	isReset(p.t, err, why)
	c.Close()
}

// meet connects a peer with a listener of h, without a greeting.
func (h *hosts) meet(t *testing.T, l *vianet.Listener, rdmaRead bool) *peer {
	t.Helper()
	h.bearBreaks()
	return newPeer(t, h.nicA, l.Addr().(vianet.Addr).AddrPort, rdmaRead)
}

// met returns a peer that has greeted, and its connection.
func (h *hosts) met(t *testing.T, rdmaRead bool) (*peer, *vianet.Conn) {
	t.Helper()
	l := h.listen(t)
	defer l.Close()
	p := h.meet(t, l, rdmaRead)
	p.greet()
	return p, accept(t, l)
}

// accept takes the connection of a peer that has greeted.
func accept(t testing.TB, l *vianet.Listener) *vianet.Conn {
	t.Helper()
	l.SetDeadline(time.Now().Add(testTimeout))
	c, err := l.Accept()
	must(t, err)
	c.SetDeadline(time.Now().Add(testTimeout))
	return c.(*vianet.Conn)
}

// isReset checks that a connection was reset, and the reason that it gives.
func isReset(t *testing.T, err error, why string) {
	t.Helper()
	nstest.ErrorIf(t, !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), why), "%v, want a reset because %q", err, why)
}

const (
	wrongTime  = "comes at the wrong time"
	wrongField = "a field of the message"
	wrongLen   = "another length"
	wrongRange = "memory that cannot be"
	wrongMove  = "another transfer"
)

// A protocol violation resets the peer's connection, with the reason, and affects nothing else.
func TestWrongMessages(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	bystander, other := h.pair(t)
	mem := message{kind: announce, id: 1, length: 10, handle: 5, addr: 4096}
	ring := message{kind: room, length: 1000, handle: 5, addr: 4096}
	change := func(m message, f func(m *message)) message { f(&m); return m }
	for _, test := range []struct {
		name string
		send []message
		why  string
	}{
		{"nothing", []message{{garbage: []byte{}}}, "too short"},
		{"half a header", []message{{garbage: make([]byte, 23)}}, "too short"},
		{"kind 0", []message{{kind: 0}}, "no known kind"},
		{"kind 12", []message{{kind: 12}}, "no known kind"},
		{"kind 13", []message{{kind: 13}}, "no known kind"},
		{"flags", []message{{kind: credit, flags: 1}}, wrongField},
		{"second hello", []message{{kind: hello, id: version, credits: 8, length: 4000}}, wrongTime},
		{"data without data", []message{{kind: data}}, wrongLen},
		{"data longer than it says", []message{{kind: data, length: 3, payload: []byte("four")}}, wrongLen},
		{"data shorter than it says", []message{{kind: data, length: 1 << 31, payload: []byte("four")}}, wrongLen},
		{"data with an address", []message{{kind: data, length: 4, addr: 1, payload: []byte("four")}}, wrongField},
		{"credit with data", []message{{kind: credit, payload: []byte("four")}}, wrongLen},
		{"credits that it never got", []message{{kind: credit, credits: 1}}, "more buffers are given back"},
		{"all the credits there are", []message{{kind: credit, credits: 65535}}, "more buffers are given back"},
		{"no memory announced", []message{change(mem, func(m *message) { m.length = 0 })}, wrongRange},
		{"handle 0", []message{change(mem, func(m *message) { m.handle = 0 })}, wrongRange},
		{"memory past the end", []message{change(mem, func(m *message) { m.addr = ^uint64(0) - 5 })}, wrongRange},
		{"two transfers", []message{mem, mem}, wrongTime},
		{"data with another wish", []message{{kind: data, id: 2, length: 4, payload: []byte("four")}}, wrongField},
		{"data in a transfer", []message{mem, {kind: data, length: 4, payload: []byte("four")}}, wrongTime},
		{"fin in a transfer", []message{mem, {kind: fin}}, wrongTime},
		{"ask in a transfer", []message{mem, {kind: ask, id: 2, length: 10}}, wrongTime},
		{"no bytes written", []message{{kind: filled}}, wrongLen},
		{"no bytes written to a room", []message{mem, {kind: filled, id: 1}}, wrongLen},
		{"immediate data with another bit", []message{{kind: filled, id: 2}}, wrongField},
		{"immediate data with the last bit", []message{{kind: filled, id: 1 << 15}}, wrongField},
		{"withdrawal of something else", []message{mem, {kind: withdraw, id: 2}}, wrongMove},
		{"second withdrawal", []message{mem, {kind: withdraw, id: 1}, {kind: withdraw, id: 1}}, wrongMove},
		{"room for nothing", []message{change(mem, func(m *message) { m.kind = room })}, wrongMove},
		{"taken from nothing", []message{{kind: taken, id: 1, length: 10}}, wrongMove},
		{"finack without a fin", []message{{kind: finack}}, wrongTime},
		{"second stop", []message{{kind: stop}, {kind: stop}}, wrongTime},
		{"stop with data", []message{{kind: stop, payload: []byte("four")}}, wrongLen},
		{"second fin", []message{{kind: fin}, {kind: fin}}, wrongTime},
		{"data after the fin", []message{{kind: fin}, {kind: data, length: 4, payload: []byte("four")}}, wrongTime},
		{"more room in a ring", []message{ring, change(ring, func(m *message) { m.length = 1 })}, wrongMove},
		{"a ring elsewhere", []message{ring, change(ring, func(m *message) { m.length, m.addr = 1, 4097 })}, wrongMove},
		{"a ring of another handle", []message{ring, change(ring, func(m *message) { m.length, m.handle = 1, 6 })}, wrongMove},
		{"longer room than a write", []message{change(ring, func(m *message) { m.length = 1<<20 + 1 })}, wrongRange},
		{"transfer after the fin", []message{{kind: fin}, mem}, wrongTime},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, c := h.met(t, true)
			for _, m := range test.send {
				p.send(m)
			}
			p.isReset(c, test.why)
		})
	}
	exchange(t, bystander, other, 100_000)
}

// A peer with a malformed hello gets no connection.
func TestWrongGreeting(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	good := message{kind: hello, id: version, credits: 8, length: 4000}
	for name, m := range map[string]message{
		"earlier version":      {kind: hello, id: version - 1, credits: 8, length: 4000},
		"later version":        {kind: hello, id: version + 1, credits: 8, length: 4000},
		"no buffers":           {kind: hello, id: version, length: 4000},
		"small buffers":        {kind: hello, id: version, credits: 8, length: 255},
		"enormous buffers":     {kind: hello, id: version, credits: 8, length: 1 << 21},
		"data first":           {kind: data, length: 4, payload: []byte("four")},
		"an answer to nothing": {kind: finack},
		"stop first":           {kind: stop},
		"a write first":        {kind: filled},
	} {
		t.Run(name, func(t *testing.T) {
			p := h.meet(t, l, true)
			p.send(m)
			p.isOver()
			l.SetDeadline(time.Now().Add(10 * time.Millisecond))
			isErr(t, "Accept", nstest.Err(l.Accept()), os.ErrDeadlineExceeded)
			p = h.meet(t, l, true)
			p.send(good)
			accept(t, l).Close()
		})
	}
}

// Data beyond the credits ends the connection; memory stays bounded.
func TestOverrun(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	p := h.meet(t, l, true)
	credits := int(p.greet().credits)
	c := accept(t, l)
	four := message{kind: data, length: 4, payload: []byte("four")}
	for range credits {
		p.send(four)
	}
	readsAll(t, io.LimitReader(c, 4), []byte("four"))
	for range 2 { // one for the message that was read
		p.send(four)
	}
	p.isOver()
	rest, err := io.ReadAll(c)
	isReset(t, err, "more data came than there was credit for")
	nstest.Equal(t, "what came before", string(rest), strings.Repeat("four", credits))
}

// A peer that announces memory that cannot be read has its connection reset, in both read paths.
func TestAnnounceOfNothing(t *testing.T) {
	for _, size := range []int{100, 100_000} {
		h := inMemory(t, vianet.Options{})
		p, c := h.met(t, true)
		p.send(message{kind: announce, id: 1, length: 1 << 30, handle: p.region.Handle() + 1, addr: p.region.Addr()})
		readsNothing(t, fmt.Sprint("Read of ", size), c, size, syscall.ECONNRESET)
	}
}

// A peer of another version is told which version this side speaks. The listener's Failed and Dial name both.
func TestOtherVersion(t *testing.T) {
	for _, v := range []uint32{version - 1, version + 1} {
		why := fmt.Sprintf("another version of the session protocol: %d, this side %d", v, version)
		h := inMemory(t, vianet.Options{})
		failed := make(chan error, 8)
		h.b = newStack(t, h.nicB, vianet.Options{Failed: func(err error) { failed <- err }})
		l := h.listen(t)
		p := h.meet(t, l, true)
		p.send(message{kind: hello, id: v, credits: 8, length: 4000})
		nstest.Equal(t, "version of the answer", p.receive(hello).id, version)
		isReset(t, <-failed, why)
		p.isOver()

		other, err := h.nicB.Listen(vipl.NetAddress{Discriminator: []byte("vianet\x00\x07")})
		must(t, err)
		to := netip.AddrPortFrom(h.nicB.Query().Address, 7).String()
		dialed := background(func() error { return nstest.Err(h.a.Dial("via", to)) })
		request, err := other.Wait(t.Context())
		must(t, err)
		p = unconnected(t, h.nicB, true)
		must(t, request.Accept(p.vi))
		p.receive(hello)
		p.send(message{kind: hello, id: v, credits: 8, length: 4000})
		isReset(t, <-dialed, why)
		must(t, other.Close())
	}
}

// A peer writes to the room of a Read, and says of it what cannot be.
func TestImmediateWrite(t *testing.T) {
	const size = 100_000
	h := inMemory(t, vianet.Options{})
	for name, test := range map[string]struct {
		lie func(m *message)
		why string
	}{
		"less than the room":          {func(m *message) { m.length-- }, wrongMove},
		"to the ring":                 {func(m *message) { m.id = 0 }, wrongTime},
		"to something else":           {func(m *message) { m.id = 2 }, wrongField},
		"credits that it never got":   {func(m *message) { m.credits = 1 }, "more buffers are given back"},
		"all the credits that it has": {func(m *message) { m.credits = 65535 }, "more buffers are given back"},
		"nothing":                     {func(m *message) { m.length = 0 }, wrongLen},
		"more than the room":          {func(m *message) { m.length++ }, ""}, // which the NIC refuses
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, false)
			p.send(message{kind: ask, id: 1, length: size})
			done := goRead(c, size)
			m := p.receive(room)
			m.kind, m.payload = filled, nil
			test.lie(&m)
			p.send(m)
			isReset(t, <-done, test.why)
		})
	}
}

// A peer names a room that it does not have: the Write whose bytes did not get there fails, not only the next one.
func TestWriteToNoRoom(t *testing.T) {
	const size = 100_000
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	h.bearBreaks()
	p, c := h.met(t, false)
	done := goWrite(c, make([]byte, size))
	m := p.receive(ask)
	p.send(message{kind: room, id: m.id, length: size, handle: p.region.Handle() + 77, addr: p.region.Addr()})
	isReset(t, <-done, "the peer broke the connection")
}

// A peer writes to a room that it was not given, or no longer has.
func TestNoRoom(t *testing.T) {
	const size = 70_000
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	for name, before := range map[string]func(p *peer, c *vianet.Conn, ring message) message{
		"outside of a transfer": func(_ *peer, _ *vianet.Conn, ring message) message { return ring },
		"before there is one": func(p *peer, c *vianet.Conn, ring message) message {
			p.send(message{kind: ask, id: 9, length: size})
			return ring
		},
		"a second time": func(p *peer, c *vianet.Conn, ring message) message {
			p.send(message{kind: ask, id: 9, length: 2 * size})
			done := goRead(c, size)
			m := p.receive(room)
			ring.length = m.length
			p.send(message{kind: filled, id: 1, length: m.length, handle: m.handle, addr: m.addr})
			must(t, <-done)
			return ring
		},
		"after its withdrawal": func(p *peer, c *vianet.Conn, ring message) message {
			p.send(message{kind: ask, id: 9, length: size})
			goRead(c, size)
			p.receive(room)
			p.send(message{kind: withdraw, id: 9})
			p.receive(taken)
			ring.length = size
			return ring
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, c, ring := h.ringed(t)
			m := before(p, c, message{length: 5, handle: ring.handle, addr: ring.addr})
			m.kind, m.id = filled, 1
			p.send(m)
			p.isReset(c, wrongMove)
		})
	}
}

// A receiver of announced memory reports more as taken than it can have.
func TestTakenLies(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	for name, lie := range map[string]func(m message) message{
		"more than there is": func(m message) message { return message{kind: taken, id: m.id, length: m.length + 1} },
		"less than all":      func(m message) message { return message{kind: taken, id: m.id, length: m.length - 1} },
		"of another":         func(m message) message { return message{kind: taken, id: m.id + 1, length: m.length} },
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, true)
			done := goWrite(c, make([]byte, 100_000))
			m := p.receive(announce)
			nstest.ErrorIf(t, m.length != 100_000, "%d bytes are announced", m.length)
			p.send(lie(m))
			isReset(t, <-done, wrongMove)
		})
	}
}

// A peer that does not release a Write's memory cannot block the Write forever.
func TestWithdrawUnanswered(t *testing.T) { synctest.Test(t, withdrawUnanswered) }

func withdrawUnanswered(t *testing.T) {
	h := inMemory(t, asleep)
	p, c := h.met(t, true)
	done := background(func() error {
		n, err := c.Write(make([]byte, 100_000))
		nstest.ErrorIf(t, n != 0, "%d bytes are said to be written", n)
		return err
	})
	p.receive(announce)
	c.SetWriteDeadline(longAgo)
	p.receive(withdraw)
	isTimeout(t, "Write", <-done)
	c.SetDeadline(never)
	_, err := c.Read(make([]byte, 1))
	isReset(t, err, "did not answer")
}

// A peer that has released the memory in time is not reset if this side reads its answer late.
func TestWithdrawAnsweredInTime(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	p, c := h.met(t, true)
	done := goWrite(c, make([]byte, 100_000))
	m := p.receive(announce)
	c.SetWriteDeadline(longAgo)
	p.receive(withdraw)
	release := vianet.Pin(c)
	p.send(message{kind: taken, id: m.id})
	time.Sleep(vianet.ReleaseTime + 100*time.Millisecond)
	release()
	isTimeout(t, "Write", <-done)
	p.send(message{kind: data, length: 4, payload: []byte("four")})
	readsAll(t, io.LimitReader(c, 4), []byte("four"))
}

// Requests of another protocol, or with a VI of another kind, are refused and do no harm.
func TestStranger(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	at := l.Addr().(vianet.Addr)
	to := vipl.NetAddress{Host: at.Addr(), Discriminator: binary.BigEndian.AppendUint16([]byte("vianet"), at.Port())}
	for disc, level := range map[string]vipl.ReliabilityLevel{
		"": vipl.ReliableDelivery, "telnet": vipl.ReliableDelivery, "vianet": vipl.ReliableDelivery,
		"vianet\x00\x01\x02": vipl.ReliableDelivery, "vianet\x00\x01": vipl.UnreliableDelivery,
	} {
		vi, err := h.nicA.CreateVI(vipl.VIAttributes{Level: level}, nil, nil)
		must(t, err)
		_, err = vi.ConnectRequest(vipl.NetAddress{Discriminator: []byte(disc)}, to, testTimeout)
		nstest.ErrorIf(t, !errors.Is(err, vipl.ErrRejected), "from %q: %v", disc, err)
	}
	a := h.dial(t, l.Addr())
	exchange(t, a, accept(t, l), 1000)
}
