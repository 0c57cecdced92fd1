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
	"sync"
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
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func nsInit(t *testing.T, n *vipl.Nic, c vipl.NSConfig) {
	t.Helper()
	if err := n.NSInit(c); err != nil {
		t.Fatal(err)
	}
}

func netAddress(host, disc string) vipl.NetAddress {
	a := vipl.NetAddress{Host: netip.MustParseAddr(host)}
	if disc != "" {
		a.Discriminator = []byte(disc)
	}
	return a
}

func byName(t *testing.T, n *vipl.Nic, name string, index int, want vipl.NetAddress) {
	t.Helper()
	got, err := n.NSGetHostByName(name, index)
	if err != nil {
		t.Errorf("%s, index %d: %v", name, index, err)
	} else if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("%s, index %d: -want +got\n%s", name, index, d)
	}
}

func byAddr(t *testing.T, n *vipl.Nic, a vipl.NetAddress, want string) {
	t.Helper()
	if got, err := n.NSGetHostByAddr(a); err != nil || got != want {
		t.Errorf("%v %q: %q, %v, want %q", a.Host, a.Discriminator, got, err, want)
	}
}

func TestNameService(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.Nic
	long := strings.Repeat("d", vipl.MaxDiscriminatorLen)
	nsInit(t, n, nsFiles(t, `10.0.0.1 db
fd00::1 db disc="orders"
10.0.0.2 long disc="`+long+`"
`, "10.0.0.3 db other\n"))

	byName(t, n, "db", 0, netAddress("10.0.0.1", ""))
	byName(t, n, "DB", 1, netAddress("fd00::1", "orders"))
	byName(t, n, "long", 0, netAddress("10.0.0.2", long))
	byName(t, n, "other", 0, netAddress("10.0.0.3", ""))
	byName(t, n, "10.0.0.77", 0, netAddress("10.0.0.77", ""))
	byName(t, n, "::ffff:10.0.0.77", 0, netAddress("10.0.0.77", ""))
	byAddr(t, n, netAddress("10.0.0.1", "client"), "db")
	byAddr(t, n, netAddress("fd00::1", "orders"), "db")
	byAddr(t, n, netAddress("fd00::1", ""), "db")
	byAddr(t, n, netAddress("10.0.0.2", long), "long")
	byAddr(t, n, netAddress("::ffff:10.0.0.3", "any"), "db")

	for _, c := range []struct {
		name  string
		index int
		want  error
	}{
		{"db", 2, vipl.ErrNameService},
		{"10.0.0.77", 1, vipl.ErrNameService},
		{"nobody", 0, vipl.ErrNameService},
		{"nobody", 1 << 40, vipl.ErrNameService},
		{"", 0, vipl.ErrInvalidParameter},
		{"db", -1, vipl.ErrInvalidParameter},
	} {
		_, err := n.NSGetHostByName(c.name, c.index)
		wantError(t, c.name, err, c.want)
	}
	for _, c := range []struct {
		a    vipl.NetAddress
		want error
	}{
		{netAddress("10.0.0.4", ""), vipl.ErrNameService},
		{netAddress("fd00::1", "invoices"), vipl.ErrNameService},
		{vipl.NetAddress{}, vipl.ErrInvalidParameter},
		{netAddress("10.0.0.1", long+"d"), vipl.ErrInvalidParameter},
	} {
		_, err := n.NSGetHostByAddr(c.a)
		wantError(t, c.a.Host.String(), err, c.want)
	}
}

// A name is all that a program needs to connect.
func TestConnectByName(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	nsInit(t, n.a.Nic, nsFiles(t, n.b.Query().Address.String()+` orders disc=0x6f00ff`+"\n", ""))
	to, err := n.a.NSGetHostByName("orders", 0)
	if err != nil {
		t.Fatal(err)
	}
	vb := newVI(t, n.b.Nic, vipl.ReliableDelivery)
	accepted := make(chan error, 1)
	go func() {
		c, err := n.b.ConnectWait(netAddress(n.b.Query().Address.String(), "o\x00\xff"), patience)
		if err == nil {
			err = c.Accept(vb)
		}
		accepted <- err
	}()
	if _, err := request(newVI(t, n.a.Nic, vipl.ReliableDelivery), to); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

func TestNameServiceStates(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.Nic
	notRunning := func(when string) {
		t.Helper()
		_, err := n.NSGetHostByName("db", 0)
		wantError(t, when+": by name", err, vipl.ErrNameService)
		if err == nil || !strings.Contains(err.Error(), "NSInit") {
			t.Errorf("%s: %v: does not say what to call", when, err)
		}
		_, err = n.NSGetHostByName("10.0.0.1", 0)
		wantError(t, when+": by literal", err, vipl.ErrNameService)
		_, err = n.NSGetHostByAddr(netAddress("10.0.0.1", ""))
		wantError(t, when+": by address", err, vipl.ErrNameService)
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
		if missing := strings.HasPrefix(what, "no "); missing != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))

	if err := os.WriteFile(second.Names, []byte("10.0.0.3 db\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	byName(t, n, "db", 0, netAddress("10.0.0.3", ""))
	if err := os.WriteFile(second.Names, []byte("10.0.0.3 db\noops\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := n.NSGetHostByName("db", 0)
	wantError(t, "file became wrong", err, vipl.ErrNameService)
	if err == nil || !strings.Contains(err.Error(), second.Names+":2: ") {
		t.Errorf("%v: does not say where", err)
	}

	if err := n.NSShutdown(); err != nil {
		t.Fatal(err)
	}
	notRunning("after NSShutdown")
	nsInit(t, n, first)
	byName(t, n, "db", 0, netAddress("10.0.0.1", ""))

	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
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
	n := newMemoryNet(t, memoryConfig{}).a.Nic
	c := nsFiles(t, "10.0.0.1 db\n", "")
	t.Setenv("VIA_NAMES", c.Names)
	nsInit(t, n, vipl.NSConfig{Hosts: os.DevNull, NoDNS: true})
	byName(t, n, "db", 0, netAddress("10.0.0.1", ""))
	nsInit(t, n, vipl.NSConfig{Names: nsFiles(t, "10.0.0.2 db\n", "").Names, Hosts: os.DevNull, NoDNS: true})
	byName(t, n, "db", 0, netAddress("10.0.0.2", ""))
	nsInit(t, n, vipl.NSConfig{Names: os.DevNull, Hosts: os.DevNull, NoDNS: true})
	if a, err := n.NSGetHostByName("db", 0); !errors.Is(err, vipl.ErrNameService) {
		t.Errorf("nothing to look in, and found %v, %v", a, err)
	}
	t.Setenv("VIA_NAMES", c.Names+".missing")
	wantError(t, "file of the environment is missing", n.NSInit(vipl.NSConfig{NoDNS: true}), vipl.ErrNameService)
}

// Lookups go on while the service is started anew and stopped, and while the
// NIC closes: they find, or say why not.
func TestNameServiceConcurrent(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{}).a.Nic
	c := nsFiles(t, "10.0.0.1 db\n", "10.0.0.1 host\n")
	nsInit(t, n, c)
	var all sync.WaitGroup
	check := func(err error) {
		if err != nil && !errors.Is(err, vipl.ErrNameService) && !errors.Is(err, vipl.ErrInvalidParameter) {
			t.Error(err)
		}
	}
	for range 4 {
		all.Go(func() {
			for range 200 {
				a, err := n.NSGetHostByName("db", 0)
				check(err)
				if err == nil && a.Host != netip.MustParseAddr("10.0.0.1") {
					t.Errorf("db: %v", a)
				}
				_, err = n.NSGetHostByAddr(a)
				check(err)
			}
		})
	}
	all.Go(func() {
		for range 50 {
			check(n.NSInit(c))
			check(n.NSShutdown())
			check(n.NSInit(c))
		}
		check(n.Close())
	})
	all.Wait()
}

// Close ends lookups that wait for DNS.
func TestNameServiceCloseEndsLookups(t *testing.T) {
	m := newMemoryNet(t, memoryConfig{})
	n := m.a.Nic
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
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	go func() { _, err := n.NSGetHostByName("far.example.", 0); results <- err }()
	<-asked
	go func() { _, err := n.NSGetHostByAddr(netAddress("10.9.9.9", "")); results <- err }()
	<-asked
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := <-results
		wantError(t, "lookup", err, vipl.ErrInvalidParameter)
		wantError(t, "lookup", err, fs.ErrClosed)
	}
	if timedOut.Load() {
		t.Error("Close did not end the lookups")
	}
	wantError(t, "NSInit", n.NSInit(vipl.NSConfig{Names: "/dev/null", Hosts: "/dev/null", NoDNS: true}), fs.ErrClosed)
	wantError(t, "NSShutdown", n.NSShutdown(), fs.ErrClosed)
}
