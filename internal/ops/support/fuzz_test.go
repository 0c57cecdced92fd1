package support

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whatever a text holds, no address that stands by itself comes through, and the same text is
// masked the same.
func FuzzMask(f *testing.F) {
	f.Add("eth0 52:54:00:ab:CD:ef 10.77.0.1:4793 10.77.0.2 [2001:db8::1]:80", "db7")
	f.Add("::ffff:10.9.8.7 fe80::1%eth0 127.0.0.1 ::1", "ip")
	f.Add("0f0e0d0c-1111-2222-3333-444455556666 52-54-00-00-00-01", "host-1")
	f.Add("1:2:3:4:5:6:7:8:: 1::", "")
	f.Add("::a:::1.2.3.4 1::2:10.0.0.1.", "a::b")
	f.Add("::127.0.0.1", "")
	f.Add("::0:127.0.0.1 ::1:2:10.0.0.1", "")
	word := regexp.MustCompile(`[\pL\pN_:.]+`)
	given := regexp.MustCompile(`(?:uuid|mac|ip|host)-\d+`) // the digits and what follows may look like an address
	f.Fuzz(func(t *testing.T, text, name string) {
		m := &Mask{Names: []string{name}}
		masked := m.Apply(text)
		left := word.FindAllString(given.ReplaceAllString(masked, "_"), -1)
		for _, w := range word.FindAllString(text, -1) {
			a, err := netip.ParseAddr(w)
			own, _ := netip.ParseAddr(strings.TrimPrefix(w, "::")) // one of IPv4 behind colons is masked as such
			address := err == nil && !a.IsUnspecified() && !a.IsLoopback() && !own.IsLoopback()
			mac := macForm.FindString(w) == w && strings.Trim(w, "0:") != ""
			if (address || mac) && slices.Contains(left, w) {
				t.Errorf("%q: %q comes through in %q", text, w, masked)
			}
		}
		if again := m.Apply(text); again != masked {
			t.Errorf("%q is %q, and then %q", text, masked, again)
		}
	})
}
