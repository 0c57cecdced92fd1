package proxy

import "testing"

// Whatever is given as an address is one that reads as itself, or an error.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"tcp:127.0.0.1:80", "via::80", "via:[fd77::1]:80", "localhost:http", "tcp:via:1", "via:tcp:1", "[:]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		if a.Network != "tcp" && a.Network != "via" {
			t.Fatalf("%q is of the network %q", s, a.Network)
		}
		if b, err := ParseAddress(a.String()); a != b || err != nil {
			t.Fatalf("%q is %q, which is %+v, %v", s, a, b, err)
		}
	})
}
