package names

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
)

// zone is a DNS server in memory: resource data by "name. type". A name of
// which it has nothing is unknown to it; the address of a name with "broken" in
// it makes it fail.
type zone struct {
	data  map[string][][]byte
	asked atomic.Int64
}

const (
	typeA    = 1
	typePTR  = 12
	typeAAAA = 28
)

func (z *zone) add(name string, kind int, data []byte) {
	if z.data == nil {
		z.data = make(map[string][][]byte)
	}
	key := fmt.Sprintf("%s %d", name, kind)
	z.data[key] = append(z.data[key], data)
}

func (z *zone) address(name string, hosts ...string) {
	for _, h := range hosts {
		a := netip.MustParseAddr(h)
		kind := typeA
		if a.Is6() {
			kind = typeAAAA
		}
		z.add(name, kind, a.AsSlice())
	}
}

// resolver is package net's own, as the provider uses it, with this server.
func (z *zone) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go z.serve(server)
		return client, nil
	}}
}

// serve answers as over TCP: each message after its length.
func (z *zone) serve(conn net.Conn) {
	defer conn.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply := z.answer(query)
		binary.BigEndian.PutUint16(length[:], uint16(len(reply)))
		if _, err := conn.Write(append(length[:], reply...)); err != nil {
			return
		}
	}
}

// answer is RFC 1035, 4.1.
func (z *zone) answer(query []byte) []byte {
	z.asked.Add(1)
	var name strings.Builder
	at := 12
	for n := int(query[at]); n > 0; n = int(query[at]) {
		name.Write(query[at+1 : at+1+n])
		name.WriteByte('.')
		at += 1 + n
	}
	at++
	kind := binary.BigEndian.Uint16(query[at:])
	at += 4
	known := false
	for key := range z.data {
		known = known || strings.HasPrefix(key, name.String()+" ")
	}
	flags := uint16(0x8580) // answer, authoritative, recursion asked for and available
	switch {
	case strings.Contains(name.String(), "broken"):
		flags |= 2
	case !known:
		flags |= 3
	}
	data := z.data[fmt.Sprintf("%s %d", name.String(), kind)]
	reply := append([]byte(nil), query[:at]...)
	binary.BigEndian.PutUint16(reply[2:], flags)
	binary.BigEndian.PutUint16(reply[4:], 1)
	binary.BigEndian.PutUint16(reply[6:], uint16(len(data)))
	clear(reply[8:12])
	for _, d := range data {
		reply = append(reply, 0xc0, 12) // the name of the question
		reply = binary.BigEndian.AppendUint16(reply, kind)
		reply = append(reply, 0, 1, 0, 0, 0, 60) // Internet, a minute
		reply = binary.BigEndian.AppendUint16(reply, uint16(len(d)))
		reply = append(reply, d...)
	}
	return reply
}

// domain is a name as it stands in a message.
func domain(name string) []byte {
	var b []byte
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}
