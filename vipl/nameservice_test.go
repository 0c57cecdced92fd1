package vipl_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/vipl"
)

// nsFiles writes a file of names and a hosts file, and gives a configuration
// with them and without DNS.
func nsFiles(t *testing.T, names, hosts string) vipl.NSConfig {
	t.Helper()
	c := vipl.NSConfig{Names: filepath.Join(t.TempDir(), "names"), Hosts: filepath.Join(t.TempDir(), "hosts"), NoDNS: true}
	for path, text := range map[string]string{c.Names: names, c.Hosts: hosts} {
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return c
}

func nsInit(t *testing.T, n *vipl.NIC, c vipl.NSConfig) {
	t.Helper()
	must(t, n.NSInit(c))
}

func netAddress(host, disc string) vipl.NetAddress {
	a := vipl.NetAddress{Host: netip.MustParseAddr(host)}
	if disc != "" {
		a.Discriminator = []byte(disc)
	}
	return a
}

func byName(t *testing.T, n *vipl.NIC, name string, index int, want vipl.NetAddress) {
	t.Helper()
	got, err := n.NSGetHostByName(name, index)
	if err != nil {
		t.Errorf("%s, index %d: %v", name, index, err)
	} else if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("%s, index %d: -want +got\n%s", name, index, d)
	}
}

func byAddr(t *testing.T, n *vipl.NIC, a vipl.NetAddress, want string) {
	t.Helper()
	got, err := n.NSGetHostByAddr(a)
	errorIf(t, err != nil || got != want, "%v %q: %q, %v, want %q", a.Host, a.Discriminator, got, err, want)
}

// IPv4 in IPv6, discriminators of every length that there is, and indices far beyond.
func TestNameService(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.NIC
	long := strings.Repeat("d", vipl.MaxDiscriminatorLen)
	nsInit(t, n, nsFiles(t, "10.0.0.1 db\nfd00::1 db disc=\"orders\"\n10.0.0.2 long disc=\""+long+"\"\n", "10.0.0.3 db other\n"))
	byName(t, n, "DB", 1, netAddress("fd00::1", "orders"))
	byName(t, n, "long", 0, netAddress("10.0.0.2", long))
	byName(t, n, "::ffff:10.0.0.77", 0, netAddress("10.0.0.77", ""))
	byAddr(t, n, netAddress("fd00::1", ""), "db")
	byAddr(t, n, netAddress("10.0.0.2", long), "long")
	byAddr(t, n, netAddress("::ffff:10.0.0.3", "any"), "db")
	wantError(t, "an index too many", errOf(n.NSGetHostByName("db", 2)), vipl.ErrNameService)
	wantError(t, "an index of a literal", errOf(n.NSGetHostByName("10.0.0.77", 1)), vipl.ErrNameService)
	wantError(t, "a huge index", errOf(n.NSGetHostByName("nobody", 1<<40)), vipl.ErrNameService)
	wantError(t, "another discriminator", errOf(n.NSGetHostByAddr(netAddress("fd00::1", "invoices"))), vipl.ErrNameService)
	wantError(t, "no address", errOf(n.NSGetHostByAddr(vipl.NetAddress{})), vipl.ErrInvalidParameter)
}

func TestNameServiceStates(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.NIC
	notRunning := func(when string) {
		t.Helper()
		_, err := n.NSGetHostByName("db", 0)
		wantError(t, when+": by name", err, vipl.ErrNameService)
		errorIf(t, err == nil || !strings.Contains(err.Error(), "NSInit"), "%s: %v: does not say what to call", when, err)
		wantError(t, when+": by literal", errOf(n.NSGetHostByName("10.0.0.1", 0)), vipl.ErrNameService)
		wantError(t, when+": by address", errOf(n.NSGetHostByAddr(netAddress("10.0.0.1", ""))), vipl.ErrNameService)
		wantError(t, when+": shutdown", n.NSShutdown(), vipl.ErrInvalidParameter)
	}
	notRunning("before NSInit")

	first, second := nsFiles(t, "10.0.0.1 db\n", ""), nsFiles(t, "10.0.0.2 db\n", "")
	nsInit(t, n, first)
	nsInit(t, n, second)
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))

	// A configuration that is no good changes nothing.
	for what, c := range map[string]vipl.NSConfig{
		"no names":    {Names: first.Names + ".missing", Hosts: first.Hosts, NoDNS: true},
		"no hosts":    {Names: first.Names, Hosts: first.Hosts + ".missing", NoDNS: true},
		"a directory": {Names: filepath.Dir(first.Names), Hosts: first.Hosts, NoDNS: true},
		"wrong":       nsFiles(t, "10.0.0.1 db\n10.0.0.1 db\n", ""),
	} {
		err := n.NSInit(c)
		wantError(t, what, err, vipl.ErrNameService)
		equal(t, "a file that is not there", strings.HasPrefix(what, "no "), errors.Is(err, fs.ErrNotExist))
	}
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))

	must(t, os.WriteFile(second.Names, []byte("10.0.0.3 db\n"), 0o644))
	byName(t, n, "db", 0, netAddress("10.0.0.3", ""))
	must(t, os.WriteFile(second.Names, []byte("10.0.0.3 db\noops\n"), 0o644))
	_, err := n.NSGetHostByName("db", 0)
	wantError(t, "file became wrong", err, vipl.ErrNameService)
	errorIf(t, err == nil || !strings.Contains(err.Error(), second.Names+":2: "), "%v: does not say where", err)

	must(t, n.NSShutdown())
	notRunning("after NSShutdown")
	nsInit(t, n, first)
	byName(t, n, "db", 0, netAddress("10.0.0.1", ""))

	must(t, n.Close())
	_, byNameErr := n.NSGetHostByName("db", 0)
	_, byAddrErr := n.NSGetHostByAddr(netAddress("10.0.0.1", ""))
	for what, err := range map[string]error{
		"init": n.NSInit(first), "shutdown": n.NSShutdown(), "by name": byNameErr, "by address": byAddrErr,
	} {
		wantError(t, what+" on a closed NIC", err, vipl.ErrInvalidParameter)
		wantError(t, what+" on a closed NIC", err, fs.ErrClosed)
	}
}

// Without a file in the configuration, the environment names it.
func TestNameServiceEnvironment(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.NIC
	c := nsFiles(t, "10.0.0.1 db\n", "")
	t.Setenv("VIA_NAMES", c.Names)
	nsInit(t, n, vipl.NSConfig{Hosts: os.DevNull, NoDNS: true})
	byName(t, n, "db", 0, netAddress("10.0.0.1", ""))
	nsInit(t, n, vipl.NSConfig{Names: nsFiles(t, "10.0.0.2 db\n", "").Names, Hosts: os.DevNull, NoDNS: true})
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))
	nsInit(t, n, vipl.NSConfig{Names: os.DevNull, Hosts: os.DevNull, NoDNS: true})
	a, err := n.NSGetHostByName("db", 0)
	errorIf(t, !errors.Is(err, vipl.ErrNameService), "nothing to look in, and found %v, %v", a, err)
	t.Setenv("VIA_NAMES", c.Names+".missing")
	wantError(t, "file of the environment is missing", n.NSInit(vipl.NSConfig{NoDNS: true}), vipl.ErrNameService)
}

// Close ends lookups that wait for DNS.
func TestNameServiceCloseEndsLookups(t *testing.T) {
	m := newMemoryNet(t, memoryConfig{})
	n := m.a.NIC
	m.sharing(t, m.a) // a handle that goes on with the queue
	asked := make(chan struct{}, 100)
	var timedOut atomic.Bool // package net gave up by itself, after seconds
	err := n.SetSystemResolver(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked <- struct{}{}
		<-ctx.Done()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			timedOut.Store(true)
		}
		return nil, ctx.Err()
	}})
	must(t, err)
	results := make(chan error, 2)
	go func() { _, err := n.NSGetHostByName("far.example.", 0); results <- err }()
	<-asked
	go func() { _, err := n.NSGetHostByAddr(netAddress("10.9.9.9", "")); results <- err }()
	<-asked
	must(t, n.Close())
	for range 2 {
		err := <-results
		wantError(t, "lookup", err, vipl.ErrInvalidParameter)
		wantError(t, "lookup", err, fs.ErrClosed)
	}
	errorIf(t, timedOut.Load(), "Close did not end the lookups")
	wantError(t, "NSInit", n.NSInit(vipl.NSConfig{Names: "/dev/null", Hosts: "/dev/null", NoDNS: true}), fs.ErrClosed)
	wantError(t, "NSShutdown", n.NSShutdown(), fs.ErrClosed)
}
