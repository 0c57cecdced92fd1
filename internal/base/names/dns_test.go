package names

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is a DNS server in memory. A name without a record does not exist; a name that
// contains "broken" makes the server fail.
type zone struct {
	records []dnsmessage.Resource
	asked   atomic.Int64
}

func (z *zone) add(name string, body dnsmessage.ResourceBody) {
	h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET, TTL: 60}
	switch body.(type) {
	case *dnsmessage.AResource:
		h.Type = dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		h.Type = dnsmessage.TypeAAAA
	case *dnsmessage.PTRResource:
		h.Type = dnsmessage.TypePTR
	}
	z.records = append(z.records, dnsmessage.Resource{Header: h, Body: body})
}

func (z *zone) address(name string, hosts ...string) {
	for _, h := range hosts {
		if a := netip.MustParseAddr(h); a.Is4() {
			z.add(name, &dnsmessage.AResource{A: a.As4()})
		} else {
			z.add(name, &dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
}

// pointer adds the name of an address.
func (z *zone) pointer(arpa, name string) {
	z.add(arpa, &dnsmessage.PTRResource{PTR: dnsmessage.MustNewName(name)})
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

func (z *zone) answer(query []byte) []byte {
	z.asked.Add(1)
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		panic(err)
	}
	q := m.Questions[0]
	m.Response, m.Authoritative, m.RecursionAvailable, m.RCode = true, true, true, dnsmessage.RCodeNameError
	m.Additionals = nil
	for _, r := range z.records {
		if r.Header.Name != q.Name {
			continue
		}
		m.RCode = dnsmessage.RCodeSuccess
		if r.Header.Type == q.Type {
			m.Answers = append(m.Answers, r)
		}
	}
	if strings.Contains(q.Name.String(), "broken") {
		m.RCode = dnsmessage.RCodeServerFailure
	}
	reply, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return reply
}
