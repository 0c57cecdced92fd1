package vipltest

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"viaxdp/vipl"
)

var nameRules = []Rule{
	{
		ID:   "name-service/runs-from-init-to-shutdown",
		Text: "Lookups before VipNSInit and after VipNSShutdown return ERROR_NAMESERVICE; it can be started again.",
		run:  namesRun,
	},
	{
		ID:   "name-service/init-with-defaults",
		Text: "VipNSInit without a configuration starts the name service with defaults.",
		run:  namesDefaults,
	},
	{
		ID:     "name-service/init-with-a-missing-file",
		Text:   "What VipNSInit takes is the provider's; when it cannot start it returns ERROR_NAMESERVICE.",
		Choice: "a file of names with discriminators, a hosts file, and DNS; a file that is named must exist",
		run:    namesMissing,
	},
	{
		ID:   "name-service/address-by-name",
		Text: "VipNSGetHostByName gives the address of a name.",
		run:  namesByName,
	},
	{
		ID:   "name-service/index-gives-further-addresses",
		Text: "Index gives the further addresses of a name; past the last one it is an error.",
		run:  namesIndex,
	},
	{
		ID:     "name-service/name-with-discriminator",
		Text:   "Whether a name stands for a discriminator, too, is the provider's.",
		Choice: "in the file of names it may: the name alone says where to connect to",
		run:    namesDiscriminator,
	},
	{
		ID:   "name-service/name-by-address",
		Text: "VipNSGetHostByAddr gives the name of an address.",
		run:  namesByAddr,
	},
	{
		ID:   "name-service/unknown-is-an-error",
		Text: "A name or an address that nobody knows is ERROR_NAMESERVICE.",
		run:  namesUnknown,
	},
	{
		ID:   "name-service/wrong-parameters-are-refused",
		Text: "No name, or an address without a host, is INVALID_PARAMETER.",
		run:  namesWrong,
	},
	{
		ID:     "name-service/case-does-not-matter",
		Text:   "Upper and lower case of names is the provider's.",
		Choice: "they are the same",
		run: func(t *T) {
			t.names("10.9.8.7 Server")
			t.found(t.A, "sERVER", 0, "10.9.8.7", "")
		},
	},
	{
		ID:     "name-service/address-as-name",
		Text:   "Whether an address as text is a name is the provider's.",
		Choice: "it is its own address",
		run: func(t *T) {
			t.names("")
			t.found(t.A, "10.1.2.3", 0, "10.1.2.3", "")
			t.found(t.A, "fd00::9", 0, "fd00::9", "")
		},
	},
	{
		ID:   "name-service/is-each-handles-own",
		Text: "Each NIC handle has a name service of its own.",
		run:  namesHandles,
	},
	{
		ID:   "name-service/from-any-thread",
		Text: "Lookups go on from many threads while the name service is started anew.",
		run:  namesThreads,
	},
	{
		ID:   "name-service/nothing-works-after-close",
		Text: "Every operation of the name service and of discovery on a closed NIC returns INVALID_PARAMETER.",
		run:  namesClosed,
	},
	{
		ID:     "name-service/discovery-finds-the-neighbours",
		Text:   "VipQuerySystemManagementInfo lists the addresses that can be reached and how many hops away they are.",
		Choice: "the NIC itself, 0 hops away, and the hosts on its link, 1 hop away",
		run:    discoverNeighbours,
	},
}

// namesFile writes a file of names or hosts.
func (t *T) namesFile(lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "names")
	t.must(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// names starts A's name service with these lines as the file of names, and with
// nothing else.
func (t *T) names(lines ...string) {
	t.Helper()
	t.nsInit(t.A, vipl.NSConfig{Names: t.namesFile(lines...), Hosts: os.DevNull, NoDNS: true})
}

// nsInit starts a name service until the end of the rule.
func (t *T) nsInit(n *vipl.Nic, c vipl.NSConfig) {
	t.Helper()
	t.must(n.NSInit(c))
	t.Cleanup(func() { n.NSShutdown() })
}

// found checks what a name stands for.
func (t *T) found(n *vipl.Nic, name string, index int, host, disc string) {
	t.Helper()
	a, err := n.NSGetHostByName(name, index)
	if err != nil || a.Host != netip.MustParseAddr(host) || string(a.Discriminator) != disc {
		t.Errorf("%s, index %d: %v %q, %v; want %v %q", name, index, a.Host, a.Discriminator, err, host, disc)
	}
}

func (t *T) notFound(n *vipl.Nic, name string, index int, want error) {
	t.Helper()
	_, err := n.NSGetHostByName(name, index)
	t.wantErr(fmt.Sprintf("%q, index %d", name, index), err, want)
}

func namesRun(t *T) {
	address := vipl.NetAddress{Host: netip.MustParseAddr("10.9.8.7")}
	stopped := func() {
		t.Helper()
		t.notFound(t.A, "server", 0, vipl.ErrNameService)
		_, err := t.A.NSGetHostByAddr(address)
		t.wantErr("by address", err, vipl.ErrNameService)
	}
	stopped()
	for range 2 {
		t.names("10.9.8.7 server")
		t.found(t.A, "server", 0, "10.9.8.7", "")
		t.must(t.A.NSShutdown())
		stopped()
	}
	if err := t.A.NSShutdown(); err == nil {
		t.Error("a name service that does not run was stopped")
	}
}

func namesDefaults(t *T) {
	t.nsInit(t.A, vipl.NSConfig{NoDNS: true})
	t.nsInit(t.B, vipl.NSConfig{})
	t.found(t.A, "10.1.2.3", 0, "10.1.2.3", "")
	t.found(t.B, "10.1.2.3", 0, "10.1.2.3", "")
}

func namesMissing(t *T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []vipl.NSConfig{
		{Names: missing, Hosts: os.DevNull, NoDNS: true},
		{Names: os.DevNull, Hosts: missing, NoDNS: true},
		{Names: t.namesFile("10.9.8.7.6 server"), Hosts: os.DevNull, NoDNS: true},
	} {
		t.wantErr("init", t.A.NSInit(c), vipl.ErrNameService)
	}
	t.notFound(t.A, "server", 0, vipl.ErrNameService)
}

func namesByName(t *T) {
	t.nsInit(t.A, vipl.NSConfig{
		Names: t.namesFile("10.9.8.7 server alias", "fd00::5 six"),
		Hosts: t.namesFile("10.9.8.6 other", "10.9.8.5 server"),
		NoDNS: true,
	})
	t.found(t.A, "server", 0, "10.9.8.7", "")
	t.found(t.A, "alias", 0, "10.9.8.7", "")
	t.found(t.A, "six", 0, "fd00::5", "")
	t.found(t.A, "other", 0, "10.9.8.6", "")
}

func namesIndex(t *T) {
	t.names("10.0.0.3 server", "10.0.0.1 server", "fd00::2 server", "10.0.0.9 other")
	for i, host := range []string{"10.0.0.3", "10.0.0.1", "fd00::2"} {
		t.found(t.A, "server", i, host, "")
	}
	t.notFound(t.A, "server", 3, vipl.ErrNameService)
	t.notFound(t.A, "other", 1, vipl.ErrNameService)
	t.notFound(t.A, "server", -1, vipl.ErrInvalidParameter)
}

// namesDiscriminator connects by a name alone.
func namesDiscriminator(t *T) {
	d := disc()
	t.names(fmt.Sprintf("%v shop disc=%q", t.B.Query().Address, d), "10.0.0.9 raw disc=0x00ff10")
	t.found(t.A, "raw", 0, "10.0.0.9", "\x00\xff\x10")

	to, err := t.A.NSGetHostByName("shop", 0)
	t.must(err)
	if !bytes.Equal(to.Discriminator, d) {
		t.Fatalf("discriminator %q, want %q", to.Discriminator, d)
	}
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	accepted := starts(func() error {
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		if err != nil {
			return err
		}
		return c.Accept(vb)
	})
	t.must(t.request(va, to))
	t.must(<-accepted)
}

func namesByAddr(t *T) {
	t.nsInit(t.A, vipl.NSConfig{
		Names: t.namesFile("10.0.0.2 db db.example", `10.0.0.2 orders disc="orders"`, "fd00::5 six"),
		Hosts: t.namesFile("10.0.0.6 other"),
		NoDNS: true,
	})
	for _, c := range []struct{ host, disc, want string }{
		{"10.0.0.2", "", "db"},
		{"10.0.0.2", "orders", "orders"},
		{"10.0.0.2", "elsewhere", "db"},
		{"fd00::5", "", "six"},
		{"10.0.0.6", "", "other"},
	} {
		name, err := t.A.NSGetHostByAddr(vipl.NetAddress{Host: netip.MustParseAddr(c.host), Discriminator: []byte(c.disc)})
		if err != nil || name != c.want {
			t.Errorf("%s %q: %q, %v; want %q", c.host, c.disc, name, err, c.want)
		}
	}
}

func namesUnknown(t *T) {
	t.names("10.0.0.2 db")
	t.notFound(t.A, "nobody", 0, vipl.ErrNameService)
	t.notFound(t.A, "d", 0, vipl.ErrNameService)
	t.notFound(t.A, "db.", 1, vipl.ErrNameService)
	_, err := t.A.NSGetHostByAddr(vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.3")})
	t.wantErr("address", err, vipl.ErrNameService)
}

func namesWrong(t *T) {
	t.names("10.0.0.2 db")
	t.notFound(t.A, "", 0, vipl.ErrInvalidParameter)
	_, err := t.A.NSGetHostByAddr(vipl.NetAddress{Discriminator: disc()})
	t.wantErr("no host", err, vipl.ErrInvalidParameter)
	_, err = t.A.NSGetHostByAddr(vipl.NetAddress{
		Host: netip.MustParseAddr("10.0.0.2"), Discriminator: make([]byte, t.A.Query().MaxDiscriminatorLen+1),
	})
	t.wantErr("long discriminator", err, vipl.ErrInvalidParameter)
}

func namesHandles(t *T) {
	t.names("10.0.0.2 db")
	t.notFound(t.B, "db", 0, vipl.ErrNameService) // does not run
	t.nsInit(t.B, vipl.NSConfig{Names: t.namesFile("10.0.0.3 db"), Hosts: os.DevNull, NoDNS: true})
	t.found(t.A, "db", 0, "10.0.0.2", "")
	t.found(t.B, "db", 0, "10.0.0.3", "")
	t.must(t.A.NSShutdown())
	t.found(t.B, "db", 0, "10.0.0.3", "")
}

func namesThreads(t *T) {
	c := vipl.NSConfig{Names: t.namesFile("10.0.0.2 db"), Hosts: os.DevNull, NoDNS: true}
	t.nsInit(t.A, c)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for range 50 {
				t.found(t.A, "db", 0, "10.0.0.2", "")
			}
		})
	}
	for range 20 {
		t.wantErr("init", t.A.NSInit(c), nil)
	}
	group.Wait()
}

func namesClosed(t *T) {
	a, _ := t.openPair()
	c := vipl.NSConfig{Names: t.namesFile("10.0.0.2 db"), Hosts: os.DevNull, NoDNS: true}
	t.must(a.NSInit(c))
	t.must(a.Close())
	t.notFound(a, "db", 0, vipl.ErrInvalidParameter)
	_, err := a.NSGetHostByAddr(vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.2")})
	t.wantErr("by address", err, vipl.ErrInvalidParameter)
	t.wantErr("init", a.NSInit(c), vipl.ErrInvalidParameter)
	t.wantErr("shutdown", a.NSShutdown(), vipl.ErrInvalidParameter)
	_, err = a.Discover()
	t.wantErr("discover", err, vipl.ErrInvalidParameter)
}

// discoverNeighbours asks from both sides. An answer may be lost: it asks again
// then.
func discoverNeighbours(t *T) {
	own, other := t.A.Query().Address, t.B.Query().Address
	for end := time.Now().Add(patience); ; {
		list, err := t.A.Discover()
		t.must(err)
		if !slices.Contains(list, vipl.Neighbor{Address: own}) {
			t.Fatalf("the NIC itself is not in %v", list)
		}
		for _, n := range list {
			if n.Hops < 0 || !n.Address.IsValid() {
				t.Errorf("%+v", n)
			}
		}
		if slices.Contains(list, vipl.Neighbor{Address: other, Hops: 1}) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the neighbour %v is not in %v", other, list)
		}
	}
}
