package vipltest

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"viaxdp/vipl"
)

var nameRules = []Rule{
	rule("name-service/runs-from-init-to-shutdown", "Lookups before VipNSInit and after VipNSShutdown return ERROR_NAMESERVICE; it can be started again.", func(t *T) {
		address := vipl.NetAddress{Host: netip.MustParseAddr("10.9.8.7")}
		stopped := func() {
			t.notFound(t.A, "server", 0, vipl.ErrNameService)
			t.wantErr("by address", errOf(t.A.NSGetHostByAddr(address)), vipl.ErrNameService)
		}
		stopped()
		for range 2 {
			t.names("10.9.8.7 server")
			t.found(t.A, "server", 0, "10.9.8.7", "")
			t.must(t.A.NSShutdown())
			stopped()
		}
		t.errorIf(t.A.NSShutdown() == nil, "a name service that does not run was stopped")
	}),
	rule("name-service/init-with-defaults", "VipNSInit without a configuration starts the name service with defaults.", func(t *T) {
		t.nsInit(t.A, vipl.NSConfig{NoDNS: true})
		t.nsInit(t.B, vipl.NSConfig{})
		t.found(t.A, "10.1.2.3", 0, "10.1.2.3", "")
		t.found(t.B, "10.1.2.3", 0, "10.1.2.3", "")
	}),
	choice("name-service/init-with-a-missing-file", "What VipNSInit takes is the provider's; when it cannot start it returns ERROR_NAMESERVICE.", "a file of names with discriminators, a hosts file, and DNS; a file that is named must exist", func(t *T) {
		missing := filepath.Join(t.TempDir(), "missing")
		for _, c := range []vipl.NSConfig{
			{Names: missing, Hosts: os.DevNull, NoDNS: true},
			{Names: os.DevNull, Hosts: missing, NoDNS: true},
			{Names: t.namesFile("10.9.8.7.6 server"), Hosts: os.DevNull, NoDNS: true},
		} {
			t.wantErr("init", t.A.NSInit(c), vipl.ErrNameService)
		}
		t.notFound(t.A, "server", 0, vipl.ErrNameService)
	}),
	rule("name-service/address-by-name", "VipNSGetHostByName gives the address of a name.", func(t *T) {
		t.nsInit(t.A, vipl.NSConfig{
			Names: t.namesFile("10.9.8.7 server alias", "fd00::5 six"),
			Hosts: t.namesFile("10.9.8.6 other", "10.9.8.5 server"),
			NoDNS: true,
		})
		t.found(t.A, "server", 0, "10.9.8.7", "")
		t.found(t.A, "alias", 0, "10.9.8.7", "")
		t.found(t.A, "six", 0, "fd00::5", "")
		t.found(t.A, "other", 0, "10.9.8.6", "")
	}),
	rule("name-service/index-gives-further-addresses", "Index gives the further addresses of a name; past the last one it is an error.", func(t *T) {
		t.names("10.0.0.3 server", "10.0.0.1 server", "fd00::2 server", "10.0.0.9 other")
		for i, host := range []string{"10.0.0.3", "10.0.0.1", "fd00::2"} {
			t.found(t.A, "server", i, host, "")
		}
		t.notFound(t.A, "server", 3, vipl.ErrNameService)
		t.notFound(t.A, "other", 1, vipl.ErrNameService)
		t.notFound(t.A, "server", -1, vipl.ErrInvalidParameter)
	}),
	choice("name-service/name-with-discriminator", "Whether a name stands for a discriminator, too, is the provider's.", "in the file of names it may: the name alone says where to connect to", func(t *T) {
		d := disc()
		t.names(fmt.Sprintf("%v shop disc=%q", t.B.Query().Address, d), "10.0.0.9 raw disc=0x00ff10")
		t.found(t.A, "raw", 0, "10.0.0.9", "\x00\xff\x10")

		to, err := t.A.NSGetHostByName("shop", 0)
		t.must(err)
		if !bytes.Equal(to.Discriminator, d) {
			t.Fatalf("discriminator %q, want %q", to.Discriminator, d)
		}
		va, vb := t.idle(vipl.ReliableDelivery)
		t.joinAt(va, vb, named(d), to)
	}),
	rule("name-service/name-by-address", "VipNSGetHostByAddr gives the name of an address.", func(t *T) {
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
			t.errorIf(err != nil || name != c.want, "%s %q: %q, %v; want %q", c.host, c.disc, name, err, c.want)
		}
	}),
	rule("name-service/unknown-is-an-error", "A name or an address that nobody knows is ERROR_NAMESERVICE.", func(t *T) {
		t.names("10.0.0.2 db")
		t.notFound(t.A, "nobody", 0, vipl.ErrNameService)
		t.notFound(t.A, "d", 0, vipl.ErrNameService)
		t.notFound(t.A, "db.", 1, vipl.ErrNameService)
		t.wantErr("address", errOf(t.A.NSGetHostByAddr(vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.3")})), vipl.ErrNameService)
	}),
	rule("name-service/wrong-parameters-are-refused", "No name, or an address without a host, is INVALID_PARAMETER.", func(t *T) {
		t.names("10.0.0.2 db")
		t.notFound(t.A, "", 0, vipl.ErrInvalidParameter)
		t.wantErr("no host", errOf(t.A.NSGetHostByAddr(named(disc()))), vipl.ErrInvalidParameter)
		long := vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.2"), Discriminator: make([]byte, t.A.Query().MaxDiscriminatorLen+1)}
		t.wantErr("long discriminator", errOf(t.A.NSGetHostByAddr(long)), vipl.ErrInvalidParameter)
	}),
	choice("name-service/case-does-not-matter", "Upper and lower case of names is the provider's.", "they are the same", func(t *T) {
		t.names("10.9.8.7 Server")
		t.found(t.A, "sERVER", 0, "10.9.8.7", "")
	}),
	choice("name-service/address-as-name", "Whether an address as text is a name is the provider's.", "it is its own address", func(t *T) {
		t.names("")
		t.found(t.A, "10.1.2.3", 0, "10.1.2.3", "")
		t.found(t.A, "fd00::9", 0, "fd00::9", "")
	}),
	rule("name-service/is-each-handles-own", "Each NIC handle has a name service of its own.", func(t *T) {
		t.names("10.0.0.2 db")
		t.notFound(t.B, "db", 0, vipl.ErrNameService) // does not run
		t.nsInit(t.B, vipl.NSConfig{Names: t.namesFile("10.0.0.3 db"), Hosts: os.DevNull, NoDNS: true})
		t.found(t.A, "db", 0, "10.0.0.2", "")
		t.found(t.B, "db", 0, "10.0.0.3", "")
		t.must(t.A.NSShutdown())
		t.found(t.B, "db", 0, "10.0.0.3", "")
	}),
	rule("name-service/from-any-thread", "Lookups go on from many threads while the name service is started anew.", func(t *T) {
		c := vipl.NSConfig{Names: t.namesFile("10.0.0.2 db"), Hosts: os.DevNull, NoDNS: true}
		t.nsInit(t.A, c)
		together(4, func(i int) {
			for range 50 {
				if i > 0 {
					t.found(t.A, "db", 0, "10.0.0.2", "")
				} else {
					t.wantErr("init", t.A.NSInit(c), nil)
				}
			}
		})
	}),
	rule("name-service/nothing-works-after-close", "Every operation of the name service and of discovery on a closed NIC returns INVALID_PARAMETER.", func(t *T) {
		t.openPair()
		a := t.A
		c := vipl.NSConfig{Names: t.namesFile("10.0.0.2 db"), Hosts: os.DevNull, NoDNS: true}
		t.must(a.NSInit(c))
		t.must(a.Close())
		t.notFound(a, "db", 0, vipl.ErrInvalidParameter)
		t.wantErr("by address", errOf(a.NSGetHostByAddr(vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.2")})), vipl.ErrInvalidParameter)
		t.wantErr("init", a.NSInit(c), vipl.ErrInvalidParameter)
		t.wantErr("shutdown", a.NSShutdown(), vipl.ErrInvalidParameter)
		t.wantErr("discover", errOf(a.Discover()), vipl.ErrInvalidParameter)
	}),
	// Both sides ask. They ask again, since an answer may be lost.
	choice("name-service/discovery-finds-the-neighbours", "VipQuerySystemManagementInfo lists the addresses that can be reached and how many hops away they are.", "the NIC itself, 0 hops away, and the hosts on its link, 1 hop away", func(t *T) {
		own, other := t.A.Query().Address, t.B.Query().Address
		for end := time.Now().Add(limit); ; {
			list, err := t.A.Discover()
			t.must(err)
			if !slices.Contains(list, vipl.Neighbor{Address: own}) {
				t.Fatalf("the NIC itself is not in %v", list)
			}
			for _, n := range list {
				t.errorIf(n.Hops < 0 || !n.Address.IsValid(), "%+v", n)
			}
			if slices.Contains(list, vipl.Neighbor{Address: other, Hops: 1}) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the neighbour %v is not in %v", other, list)
			}
		}
	}),
}

// namesFile writes a file of names or hosts.
func (t *T) namesFile(lines ...string) string {
	path := filepath.Join(t.TempDir(), "names")
	t.must(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// names starts A's name service with these lines as the file of names, and no other source.
func (t *T) names(lines ...string) {
	t.nsInit(t.A, vipl.NSConfig{Names: t.namesFile(lines...), Hosts: os.DevNull, NoDNS: true})
}

// nsInit starts a name service until the end of the rule.
func (t *T) nsInit(n *vipl.NIC, c vipl.NSConfig) {
	t.must(n.NSInit(c))
	t.Cleanup(func() { n.NSShutdown() })
}

// found checks the address of a name.
func (t *T) found(n *vipl.NIC, name string, index int, host, disc string) {
	a, err := n.NSGetHostByName(name, index)
	t.errorIf(err != nil || a.Host != netip.MustParseAddr(host) || string(a.Discriminator) != disc, "%s, index %d: %v %q, %v; want %v %q", name, index, a.Host, a.Discriminator, err, host, disc)
}

func (t *T) notFound(n *vipl.NIC, name string, index int, want error) {
	t.wantErr(fmt.Sprintf("%q, index %d", name, index), errOf(n.NSGetHostByName(name, index)), want)
}
