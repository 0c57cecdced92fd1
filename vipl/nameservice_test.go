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

// Errors say what to call, and why nothing works any more. A configuration that is no good changes nothing.
func TestNameServiceStates(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.NIC
	err := errOf(n.NSGetHostByName("10.0.0.1", 0))
	wantError(t, "before NSInit", err, vipl.ErrNameService)
	errorIf(t, !strings.Contains(err.Error(), "NSInit"), "%v: does not say what to call", err)
	wantError(t, "shutdown before NSInit", n.NSShutdown(), vipl.ErrInvalidParameter)

	first, second := nsFiles(t, "10.0.0.1 db\n", ""), nsFiles(t, "10.0.0.2 db\n", "")
	nsInit(t, n, first)
	nsInit(t, n, second)
	missing := vipl.NSConfig{Names: first.Names + ".missing", Hosts: first.Hosts, NoDNS: true}
	wantError(t, "no names", n.NSInit(missing), fs.ErrNotExist)
	wantError(t, "wrong names", n.NSInit(nsFiles(t, "10.0.0.1 db\n10.0.0.1 db\n", "")), vipl.ErrNameService)
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))

	must(t, os.WriteFile(second.Names, []byte("10.0.0.3 db\noops\n"), 0o644))
	err = errOf(n.NSGetHostByName("db", 0))
	wantError(t, "file became wrong", err, vipl.ErrNameService)
	errorIf(t, !strings.Contains(err.Error(), second.Names+":2: "), "%v: does not say where", err)

	must(t, n.Close())
	for what, err := range map[string]error{
		"init": n.NSInit(first), "shutdown": n.NSShutdown(), "by name": errOf(n.NSGetHostByName("db", 0)),
		"by address": errOf(n.NSGetHostByAddr(netAddress("10.0.0.1", ""))),
	} {
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
	byName := starts(func() error { return errOf(n.NSGetHostByName("far.example.", 0)) })
	<-asked
	byAddress := starts(func() error { return errOf(n.NSGetHostByAddr(netAddress("10.9.9.9", ""))) })
	<-asked
	must(t, n.Close())
	for _, err := range []error{<-byName, <-byAddress} {
		wantError(t, "lookup", err, vipl.ErrInvalidParameter)
		wantError(t, "lookup", err, fs.ErrClosed)
	}
	errorIf(t, timedOut.Load(), "Close did not end the lookups")
	wantError(t, "NSInit", n.NSInit(vipl.NSConfig{Names: "/dev/null", Hosts: "/dev/null", NoDNS: true}), fs.ErrClosed)
	wantError(t, "NSShutdown", n.NSShutdown(), fs.ErrClosed)
}
