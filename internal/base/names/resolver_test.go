package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"viaxdp/internal/lab/nstest"
)

// newResolver makes a resolver over files "names" and "hosts" with these texts.
func newResolver(t *testing.T, names, hosts string, system *net.Resolver) (r *Resolver, dir string) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		// It looks for half a second at a time.
		err := goleak.Find(leaks)
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
			err = goleak.Find(leaks)
		}
		nstest.Check(t, err)
	})
	dir = t.TempDir()
	put(t, filepath.Join(dir, "names"), names)
	put(t, filepath.Join(dir, "hosts"), hosts)
	r, err := New(Config{
		Names: File{Path: filepath.Join(dir, "names")}, Hosts: File{Path: filepath.Join(dir, "hosts")},
		System: system, Timeout: time.Minute,
	})
	nstest.Must(t, err)
	return r, dir
}

// lookup gives an answer as text: addresses, or "?" for unknown.
func lookup(t *testing.T, r *Resolver, name string) string {
	t.Helper()
	all, err := r.Lookup(t.Context(), name)
	if errors.Is(err, ErrUnknown) {
		return "?"
	}
	nstest.FatalIf(t, err != nil, "%s: %v", name, err)
	var s []string
	for _, a := range all {
		s = append(s, strings.TrimSuffix(fmt.Sprintf("%v/%s", a.Host, a.Disc), "/"))
	}
	return strings.Join(s, " ")
}

func reverse(t *testing.T, r *Resolver, host, disc string) string {
	t.Helper()
	name, err := r.Reverse(t.Context(), Address{netip.MustParseAddr(host), disc})
	if errors.Is(err, ErrUnknown) {
		return "?"
	}
	nstest.FatalIf(t, err != nil, "%s/%s: %v", host, disc, err)
	return name
}

// Package net gives IPv4 addresses in either form.
func TestAddressesOfDNS(t *testing.T) {
	var hosts []netip.Addr
	for _, s := range []string{"fd00::1", "::ffff:10.0.0.2", "10.0.0.1", "10.0.0.2", "fe80::1%lo"} {
		hosts = append(hosts, netip.MustParseAddr(s))
	}
	want := []Address{entry("10.0.0.1", "").Address, entry("10.0.0.2", "").Address, entry("fd00::1", "").Address, entry("fe80::1", "").Address}
	nstest.Same(t, "addresses", addresses(hosts), want, compareAddr)
}

const someNames = `10.0.0.1 db
10.0.0.2 db disc="two"
10.0.0.1 orders alias disc="orders"
10.0.0.3 only disc="x"
10.0.0.3 other disc="y"
fd00::1 Db
`

const someHosts = `10.0.0.1 host1
10.0.0.2 host2 db
10.0.0.3 host3
10.0.0.4 host4
`

func TestLookup(t *testing.T) {
	var dns zone
	dns.address("db.", "10.1.1.1")
	dns.address("host4.", "10.1.1.1")
	dns.address("far.example.", "10.9.0.2", "fd09::1", "10.9.0.1", "10.9.0.2")
	dns.address("six.example.", "fd09::2")
	r, _ := newResolver(t, someNames, someHosts, dns.resolver())
	for name, want := range map[string]string{
		"db":              "10.0.0.1 10.0.0.2/two fd00::1", // one source answers, in the order of the file
		"DB.":             "10.0.0.1 10.0.0.2/two fd00::1",
		"alias":           "10.0.0.1/orders",
		"host2":           "10.0.0.2",
		"host4":           "10.0.0.4", // hosts go before DNS
		"10.0.0.9":        "10.0.0.9",
		"::ffff:10.0.0.9": "10.0.0.9",
		"fe80::1%eth0":    "fe80::1",
	} {
		nstest.Equal(t, name, lookup(t, r, name), want)
	}
	if n := dns.asked.Load(); n != 0 {
		t.Errorf("DNS was asked %d times for what the files know", n)
	}
	for name, want := range map[string]string{
		"far.example.":  "10.9.0.1 10.9.0.2 fd09::1",
		"six.example.":  "fd09::2",
		"gone.example.": "?",
		"no/domain":     "?",
	} {
		nstest.Equal(t, name, lookup(t, r, name), want)
	}
	r.files[0].fresh = true // as if it were old, and not read at every lookup
	if all, err := r.Lookup(t.Context(), "db"); err != nil {
		t.Error(err)
	} else {
		all[0].Disc = "changed"
		nstest.Equal(t, "an answer is the caller's, and changing it changed the next",
			lookup(t, r, "db"), "10.0.0.1 10.0.0.2/two fd00::1")
	}
}

func TestReverse(t *testing.T) {
	var dns zone
	dns.pointer("4.0.0.10.in-addr.arpa.", "wrong.example.")
	dns.pointer("5.0.0.10.in-addr.arpa.", "far.example.")
	r, _ := newResolver(t, someNames, someHosts, dns.resolver())
	for _, c := range []struct{ host, disc, want string }{
		{"10.0.0.1", "", "db"},
		{"10.0.0.1", "orders", "orders"},
		{"10.0.0.1", "client", "db"}, // the host itself
		{"10.0.0.2", "two", "db"},
		{"10.0.0.2", "", "db"},
		{"10.0.0.2", "three", "host2"}, // not db: that is the one with another discriminator
		{"10.0.0.3", "y", "other"},
		{"10.0.0.3", "", "only"},
		{"10.0.0.3", "z", "host3"},
		{"fd00::1", "", "Db"},
		{"::ffff:10.0.0.4", "any", "host4"},
	} {
		if got := reverse(t, r, c.host, c.disc); got != c.want {
			t.Errorf("%s/%s: %s, want %s", c.host, c.disc, got, c.want)
		}
	}
	if n := dns.asked.Load(); n != 0 {
		t.Errorf("DNS was asked %d times for what the files know", n)
	}
	for _, c := range []struct{ host, disc, want string }{
		{"10.0.0.5", "any", "far.example"}, {"10.0.0.6", "", "?"}, {"fd00::6", "", "?"},
	} {
		if got := reverse(t, r, c.host, c.disc); got != c.want {
			t.Errorf("%s/%s: %s, want %s", c.host, c.disc, got, c.want)
		}
	}
	if _, err := r.Reverse(t.Context(), Address{}); err == nil {
		t.Error("no host has a name")
	}
}

// Without DNS an unknown name fails at once, and the error lists the sources.
func TestUnknown(t *testing.T) {
	r, dir := newResolver(t, someNames, someHosts, nil)
	_, err := r.Lookup(t.Context(), strings.Repeat("no-such-name", 100))
	for _, part := range []string{`"no-such-name`, filepath.Join(dir, "names"), filepath.Join(dir, "hosts"), "DNS is switched off"} {
		nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), part) || len(err.Error()) > 500,
			"%v: does not say %s, or too much", err, part)
	}
	nstest.Equal(t, "reverse", reverse(t, r, "10.0.0.5", ""), "?")
}

// A failing server is not reported as an unknown name.
func TestDNSFails(t *testing.T) {
	var dns zone
	r, _ := newResolver(t, "", "", dns.resolver())
	if _, err := r.Lookup(t.Context(), "broken.example."); err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "DNS failed") {
		t.Errorf("server failure: %v", err)
	}
	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	r, _ = newResolver(t, "", "", silent)
	r.timeout = 10 * time.Millisecond
	var wrong *net.DNSError
	if _, err := r.Lookup(t.Context(), "far.example."); !errors.As(err, &wrong) || !wrong.IsTimeout {
		t.Errorf("silent server, name: %v", err)
	}
	if _, err := r.Reverse(t.Context(), entry("10.0.0.5", "").Address); !errors.As(err, &wrong) || !wrong.IsTimeout {
		t.Errorf("silent server, address: %v", err)
	}
	r.timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Lookup(ctx, "far.example."); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("called off: %v", err)
	}
}

// A file that becomes wrong stops the lookups that come to it, and no others.
func TestFileBecomesWrong(t *testing.T) {
	r, dir := newResolver(t, someNames, someHosts, nil)
	put(t, filepath.Join(dir, "hosts"), strings.Repeat("\n", MaxLines+1))
	nstest.Equal(t, "lookup", lookup(t, r, "alias"), "10.0.0.1/orders")
	for range 2 {
		nstest.ErrSays(t, "wrong hosts file", nstest.Err(r.Lookup(t.Context(), "host1")), fmt.Sprintf("hosts:%d: ", MaxLines+1))
	}
	put(t, filepath.Join(dir, "names"), "10.0.0.1 db\n\n10.0.0.300 db\n")
	nstest.ErrSays(t, "wrong file of names", nstest.Err(r.Lookup(t.Context(), "db")), filepath.Join(dir, "names")+":3: ")
	if _, err := r.Reverse(t.Context(), entry("10.0.0.1", "").Address); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("wrong file of names, reverse: %v", err)
	}
	nstest.Equal(t, "an address needs no file", lookup(t, r, "10.0.0.1"), "10.0.0.1")
	put(t, filepath.Join(dir, "names"), "10.0.0.7 db\n")
	nstest.Equal(t, "right again", lookup(t, r, "db"), "10.0.0.7")
}

func TestNewRefuses(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	wrong := filepath.Join(t.TempDir(), "wrong")
	put(t, wrong, "oops")
	for _, c := range []Config{{Names: File{Path: missing}}, {Hosts: File{Path: missing}}} {
		if _, err := New(c); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	nstest.ErrSays(t, "wrong", nstest.Err(New(Config{Names: File{wrong, true}})), wrong+":1: ")
	r, err := New(Config{Names: File{missing, true}, Hosts: File{missing, true}})
	nstest.Must(t, err)
	nstest.Equal(t, "lookup", lookup(t, r, "db"), "?")
	put(t, missing, "10.0.0.1 db\n")
	nstest.Equal(t, "a file that comes later", lookup(t, r, "db"), "10.0.0.1")
}

// While a file changes under many readers, each sees one of its contents whole.
func TestConcurrent(t *testing.T) {
	contents := []string{"10.0.0.1 a b\n10.0.0.2 a b\n", "10.0.0.3 a b\n10.0.0.4 a b\n10.0.0.5 a b\n"}
	r, dir := newResolver(t, contents[0], "", nil)
	want := map[string]bool{"10.0.0.1 10.0.0.2": true, "10.0.0.3 10.0.0.4 10.0.0.5": true}
	var readers sync.WaitGroup
	for _, name := range []string{"a", "b", "a", "B"} {
		readers.Go(func() {
			for range 300 {
				all, err := r.Lookup(t.Context(), name)
				var hosts []string
				for _, a := range all {
					hosts = append(hosts, a.Host.String())
				}
				if got := strings.Join(hosts, " "); err != nil || !want[got] {
					t.Errorf("%s: %s, %v", name, got, err)
					return
				}
			}
		})
	}
	for i := range 100 {
		replace(t, filepath.Join(dir, "names"), contents[i%2])
	}
	readers.Wait()
	nstest.Equal(t, "a", lookup(t, r, "a"), "10.0.0.3 10.0.0.4 10.0.0.5")
}

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
