package mvich

import "testing"

// Whatever another rank says of its place is one that is said again the same, or an error; and
// nobody is crowded by ranks of other machines, or alone on a processor of his own.
func FuzzPlace(f *testing.F) {
	f.Add(here().String())
	f.Add("machine/3")
	f.Add("/-1")
	f.Add("a/b/0x1")
	f.Add("m/+_f")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePlace(s)
		if err != nil {
			return
		}
		again, err := parsePlace(p.String())
		if err != nil || again.machine != p.machine || again.cpus.Cmp(p.cpus) != 0 {
			t.Fatalf("%q is %v, and that is %v, %v", s, p, again, err)
		}
		own := here()
		if p.machine != own.machine && crowded(own, []place{p, p}) || crowded(p, nil) {
			t.Fatalf("%q crowds", s)
		}
	})
}
