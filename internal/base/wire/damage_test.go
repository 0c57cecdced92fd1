package wire

import (
	"bytes"
	"errors"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// lower is the length of the headers in front of the UDP header.
func lower(t *testing.T, l Link) int {
	t.Helper()
	template, err := NewTemplate(l)
	must(t, err)
	return template.Len() - udpLen
}

func read(frame []byte) (p Packet, err error) {
	if err = p.Decode(frame); err == nil {
		err = p.Verify()
	}
	return p, err
}

// A frame that was cut anywhere is an error.
func TestTruncatedFrames(t *testing.T) {
	for _, g := range goldens() {
		frame := build(t, g)
		for n := range frame {
			_, err := read(bytes.Clone(frame[:n]))
			nstest.ErrorIf(t, err == nil, "%s: %d of %d bytes are taken for a frame", g.name, n, len(frame))
		}
	}
}

// One flipped bit is detected at any position, except in fields of the lower headers that do not affect the
// frame's content (addresses, ports, time to live ...). The VIA header and the payload are then unchanged.
func TestFlippedBits(t *testing.T) {
	for _, g := range goldens() {
		frame, front := build(t, g), lower(t, g.link)
		for bit := range len(frame) * 8 {
			at := bit / 8
			frame[at] ^= 1 << (bit % 8)
			p, err := read(frame)
			length := at >= front+4 && at < front+6
			nstest.ErrorIf(t, err == nil && (at >= front+udpLen || length),
				"%s: bit %d of byte %d (front %d) changed unseen", g.name, bit%8, at, front)
			nstest.ErrorIf(t, err == nil && (p.Header != g.header || !bytes.Equal(p.Payload, g.payload)),
				"%s: bit %d of byte %d changed the content", g.name, bit%8, at)
			frame[at] ^= 1 << (bit % 8)
		}
	}
}

// Each way of not being a frame of ours has its error.
func TestRefusals(t *testing.T) {
	v4, v6 := goldens()[0], goldens()[1]
	const ip, via = ethLen, ethLen + ip4Len + udpLen
	for name, c := range map[string]struct {
		of     golden
		change func(b []byte) []byte
		want   error
	}{
		"nothing":          {v4, func([]byte) []byte { return nil }, ErrShort},
		"header cut":       {v4, func(b []byte) []byte { return b[:via+HeaderLen-1] }, ErrShort},
		"IPv6 header cut":  {v6, func(b []byte) []byte { return b[:ethLen+ip6Len+udpLen+HeaderLen-1] }, ErrShort},
		"ARP":              {v4, put(12, 8, 6), ErrProtocol},
		"two VLAN tags":    {v4, func(b []byte) []byte { return tag(tag(b)) }, ErrProtocol},
		"IPv4 options":     {v4, put(ip, 0x46), ErrProtocol},
		"IPv6 in IPv4":     {v4, put(ip, 0x60), ErrProtocol},
		"TCP":              {v4, put(ip+9, 6), ErrProtocol},
		"first fragment":   {v4, put(ip+6, 0x20), ErrProtocol},
		"later fragment":   {v4, put(ip+6, 0, 1), ErrProtocol},
		"IPv4 in IPv6":     {v6, put(ip, 0x45), ErrProtocol},
		"IPv6 extension":   {v6, put(ip+6, 44), ErrProtocol},
		"mapped source":    {v6, put(ip+8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1), ErrProtocol},
		"UDP length short": {v4, put(via-4, 0, udpLen+HeaderLen-1), ErrLength},
		"UDP length long":  {v4, put(via-4, 0xff, 0xff), ErrLength},
		"other version":    {v4, put(via, 0xa4), ErrVersion},
		"no magic":         {v4, put(via, 0x51), ErrVersion},
		"kind 0":           {v4, put(via+1, 0), ErrKind},
		"kind 11":          {v4, put(via+1, 11), ErrKind},
		"management":       {v4, put(via+1, 0x81), ErrKind},
		"unknown flag":     {v4, put(via+2, 0x80), ErrKind},
		"length field":     {v4, put(via+26, 0, 1), ErrLength},
		"checksum":         {v4, put(via+44, 0, 0, 0, 0), ErrChecksum},
		"payload":          {v4, put(via+HeaderLen, 'H'), ErrChecksum},
	} {
		if _, err := read(c.change(build(t, c.of))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for name, change := range map[string]func([]byte) []byte{
		"one VLAN tag":     tag,
		"802.1ad tag":      func(b []byte) []byte { b = tag(b); b[12], b[13] = 0x88, 0xa8; return b },
		"no fragmenting":   put(ip+6, 0x40),
		"may be fragments": put(ip+6, 0),
		"padding":          func(b []byte) []byte { return append(b, 0, 0, 0) },
	} {
		if _, err := read(change(build(t, v4))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func put(at int, with ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[at:], with)
		return b
	}
}

// tag puts a VLAN tag in front of what follows the addresses.
func tag(b []byte) []byte {
	return append(append(bytes.Clone(b[:12]), 0x81, 0, 0, 7), b[12:]...)
}

// FuzzDecode reads anything without harm, and what it takes for a frame it
// writes again to the same bytes.
func FuzzDecode(f *testing.F) {
	for _, g := range goldens() {
		frame := build(f, g)
		f.Add(frame)
		f.Add(frame[:len(frame)-1])
		f.Add(append(bytes.Clone(frame), 0, 0))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		frame := bytes.Clone(data)
		p, err := read(frame)
		nstest.FatalIf(t, !bytes.Equal(frame, data), "reading changed the frame")
		if p.udp == nil || p.Kind == KindSealed || errors.Is(err, ErrKind) || errors.Is(err, ErrVersion) || errors.Is(err, ErrLength) {
			return
		}
		nstest.FatalIf(t, len(p.Payload) != int(p.Length) || len(p.udp) != HeaderLen+len(p.Payload),
			"payload of %d bytes, length field %d, datagram %d", len(p.Payload), p.Length, len(p.udp))
		again := bytes.Clone(p.udp)
		p.Header.Put(again)
		PutChecksum(again)
		same := bytes.Equal(again, p.udp)
		nstest.FatalIf(t, same != (err == nil), "%v, but written again it is the same: %v", err, same)
		if p.Kind == KindAck {
			for i := range min(len(p.Payload)/RangeLen, MaxAckRanges) {
				GetRange(p.Payload, i)
			}
		}
	})
}
