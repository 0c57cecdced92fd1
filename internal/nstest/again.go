package nstest

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Remove takes the interface away, and with it that of the other end.
func (n *NS) Remove(t testing.TB) {
	t.Helper()
	l, err := n.netlink.LinkByIndex(n.Index)
	if err == nil {
		err = n.netlink.LinkDel(l)
	}
	if err != nil {
		t.Fatalf("remove %s: %v", n.Name, err)
	}
}

// Rejoin makes the pair of a and b anew after Remove: other interfaces of the same names and
// addresses.
func Rejoin(t testing.TB, a, b *NS, o Options) {
	t.Helper()
	join(t, a, b, 0, o)
}

// Lend gives the interface to another namespace, as to that of a container: here there is none
// any more, and the other end of the pair stays where it is. What it returns brings it back, with
// its addresses: by the number that it had, or, if that is taken meanwhile, by another one.
func (n *NS) Lend(t testing.TB) (back func(taken bool)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("lend %s: %v", n.Name, err)
		}
	}
	there, err := newNamespace()
	must(err)
	t.Cleanup(func() { there.Close() })
	nl, err := netlink.NewHandleAt(there)
	must(err)
	t.Cleanup(nl.Close)
	l, err := n.netlink.LinkByIndex(n.Index)
	must(err)
	must(n.netlink.LinkSetNsFd(l, int(there)))
	return func(taken bool) {
		t.Helper()
		if taken {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.Index = "other", n.Index
			must(n.netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "otherpeer"}))
		}
		l, err := nl.LinkByName(n.Name)
		must(err)
		must(nl.LinkSetNsFd(l, int(n.handle)))
		was := n.Index
		must(n.setUp())
		if (n.Index == was) == taken {
			t.Fatalf("%s is number %d, and was %d", n.Name, n.Index, was)
		}
	}
}
