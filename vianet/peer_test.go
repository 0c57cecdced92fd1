package vianet_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"viaxdp/internal/lab/await"
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
	filled
	withdraw
	room
	taken
	fin
	finack
	stop
)

// message puts one together byte by byte, as the table in the package's comment says.
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

// peer is a VI that speaks the protocol by hand, and says what it likes.
type peer struct {
	t      *testing.T
	vi     *vipl.VI
	region *vipl.Region // buffers of slot bytes, each with its descriptor in front; peers may read and write it
	next   int          // buffer for sending
}

const (
	slots = 64 // of which half are for receiving
	slot  = 4096
)

// newPeer connects a peer with the listener at addr.
func newPeer(t *testing.T, nic *vipl.NIC, addr netip.AddrPort, rdmaRead bool) *peer {
	t.Helper()
	tag, err := nic.CreatePtag()
	must(t, err)
	p := &peer{t: t}
	attr := vipl.MemAttributes{Ptag: tag, EnableRDMARead: true, EnableRDMAWrite: true}
	if p.region, err = nic.AllocMem(slots*slot, attr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.region.Deregister() })
	p.vi, err = nic.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: tag, EnableRDMARead: rdmaRead, EnableRDMAWrite: true,
	}, nil, nil)
	must(t, err)
	for i := range slots / 2 {
		must(t, p.vi.PostRecv(p.desc(slots/2+i, slot-64), p.region.Handle()))
	}
	to := vipl.NetAddress{Host: addr.Addr(), Discriminator: binary.BigEndian.AppendUint16([]byte("vianet"), addr.Port())}
	from := vipl.NetAddress{Discriminator: []byte("vianet\x00\x09")}
	must(t, errOf(p.vi.ConnectRequest(from, to, ackDelay)))
	t.Cleanup(p.end)
	return p
}

// end gives the VI back.
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

// send sends a message. What becomes of it is not looked at: the connection may be over.
func (p *peer) send(m message) {
	p.t.Helper()
	i := p.next % (slots / 2)
	p.next++
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
	if _, err := p.vi.SendWait(ackDelay); err == vipl.ErrTimeout {
		p.t.Fatal(err)
	}
}

// receive waits for a message of one of these kinds and passes over others.
func (p *peer) receive(kind byte) message {
	p.t.Helper()
	for {
		d, err := p.vi.RecvWait(ackDelay)
		if err != nil {
			p.t.Fatalf("waiting for a message of kind %d: %v", kind, err)
		}
		off := int(d.Addr() - p.region.Addr())
		m := decode(append([]byte(nil), p.region.Bytes()[off+64:][:d.Length]...))
		must(p.t, p.vi.PostRecv(p.desc(off/slot, slot-64), p.region.Handle()))
		if m.kind == kind {
			return m
		}
	}
}

// greet exchanges greetings, and says what the other side may take.
func (p *peer) greet() message {
	p.t.Helper()
	p.send(message{kind: hello, id: 1, credits: 8, length: slot - 64})
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

// isReset waits until the other side, whose connection c is, has reset it, and checks why.
func (p *peer) isReset(c *vianet.Conn, why string) {
	p.t.Helper()
	p.isOver()
	_, err := c.Write(make([]byte, 1))
	isReset(p.t, err, why)
	c.Close()
}
