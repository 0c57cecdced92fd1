package testbed

import (
	"encoding/json"
	"math"
	"testing"
)

// Whatever the state file says, Down removes no namespace but the bed's own, takes no pages that Up cannot have
// added, and what is accepted is written down and read again the same.
func FuzzState(f *testing.F) {
	n := DefaultNamed()
	up := state{
		Complete:   true,
		Namespaces: []namespaceState{{"via0", 4026532001}, {"via1", 4026532002}},
		Ends:       []End{{Name: "via0", Index: 2, MAC: "02:00:00:00:00:01", IPv4: XDPNet4, IPv6: XDPNet6, MTU: 1500}, {Name: "via1"}},
		Hugepages:  64,
	}
	grows := up
	grows.Complete, grows.Hugepages, grows.Growing = false, 0, &growing{Before: 8, Surplus: 2, Pages: 64}
	for _, st := range []state{{}, up, grows, {Namespaces: up.Namespaces[:1]}, {Namespaces: []namespaceState{{Name: "via0"}}}} {
		b, err := json.Marshal(st)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"namespaces":[{"name":"../via0"}]}`))
	f.Add([]byte(`{"namespaces":[{"name":"via1","inode":1},{"name":"via0","inode":2}],"hugepages":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := n.parse(b)
		if err != nil {
			if st.exists() || st.Hugepages != 0 || st.Growing != nil {
				t.Fatalf("%q is refused, and is %+v: %v", b, st, err)
			}
			return
		}
		for i, ns := range st.Namespaces {
			if i > 1 || ns.Name != [2]string{"via0", "via1"}[i] {
				t.Fatalf("%q would be removed", ns.Name)
			}
		}
		for i, end := range st.Ends {
			if i > 1 || end.Name != st.Namespaces[i].Name {
				t.Fatalf("%+v would be an interface of the bed", end)
			}
		}
		if st.Complete && !st.exists() {
			t.Fatal("a bed is up that has no namespaces")
		}
		most := st.Hugepages
		if g := st.Growing; g != nil {
			if most > 0 || g.Before < 0 || g.Surplus < 0 {
				t.Fatalf("%d pages, and %+v", most, *g)
			}
			most = g.Pages + g.Surplus
		}
		if most < 0 || most > math.MaxInt32 || most > 0 && len(st.Namespaces) == 0 {
			t.Fatalf("%d pages would leave the pool for %d ends", most, len(st.Ends))
		}
		again, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		back, err := n.parse(again)
		if err != nil {
			t.Fatalf("%s is not read again: %v", again, err)
		}
		if twice, err := json.Marshal(back); err != nil || string(twice) != string(again) {
			t.Fatalf("%s is read again as %s, %v", again, twice, err)
		}
	})
}
