package route

import (
	"testing"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// The interface is read once until something changes, and a change is seen by the first get after it.
func TestLinkCache(t *testing.T) {
	n, _ := nstest.Pair(t, nstest.Options{})
	nl := n.Netlink()
	var c linkCache
	nstest.Must(t, n.Do(c.subscribe))
	r := New(nl, n.Name, n.Index, 0)
	reads := 0
	get := func() kagent.Link {
		t.Helper()
		l, err := c.get(func() (kagent.Link, error) {
			reads++
			return r.read(0)
		})
		nstest.Must(t, err)
		return l
	}
	settled := func() kagent.Link { // notices of the pair's own set-up may still come
		for {
			before := reads
			if l := get(); reads == before {
				return l
			}
		}
	}
	if l := settled(); l.Name != n.Name || !l.Has(n.IPv4) {
		t.Errorf("found %+v", l)
	}
	link, err := nl.LinkByIndex(n.Index)
	nstest.Must(t, err)
	addr, err := netlink.ParseAddr("192.0.2.77/32")
	nstest.Must(t, err)
	for _, change := range []struct {
		name string
		do   func() error
		seen func(kagent.Link) bool
	}{
		{"an address is added", func() error { return nl.AddrAdd(link, addr) }, func(l kagent.Link) bool { return len(l.IPv4) == 2 }},
		{"it is removed", func() error { return nl.AddrDel(link, addr) }, func(l kagent.Link) bool { return len(l.IPv4) == 1 }},
		{"the MTU changes", func() error { return nl.LinkSetMTU(link, 1400) }, func(l kagent.Link) bool { return l.MTU == 1400 }},
		{"it goes down", func() error { return nl.LinkSetDown(link) }, func(l kagent.Link) bool { return !l.Up }},
	} {
		nstest.Must(t, change.do())
		if l := get(); !change.seen(l) {
			t.Errorf("%s, and the next get says %+v", change.name, l)
		}
		settled()
	}
	c.close()
	before := reads
	get()
	if get(); reads != before+2 {
		t.Errorf("%d reads without a subscription, want 2", reads-before)
	}
	c.close()
}
