package support

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mask replaces addresses and names by meaningless ones, always the same one for the same
// input. The zero Mask knows no names; it recognizes addresses by their form.
type Mask struct {
	// Names to hide, such as the host's. Each becomes "host-1" and so on wherever it occurs as
	// a word. Names shorter than three letters stay, because they occur in every text.
	Names []string

	given map[string]string
	count map[string]int
}

var (
	macForm = regexp.MustCompile(`(?i)\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19}\b`)
	ip4Form = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b`)
	// Anything with at least two colons; netip decides whether it is an address. An IPv4 address
	// may precede it, as on the kernel's command line (ip=10.0.0.2::10.0.0.1), or a word, whose last letters may be hexadecimal
	// digits (source:2001:db8::1).
	ip6Form = regexp.MustCompile(`(?i)(\b\d{1,3}(?:\.\d{1,3}){3}|\b\w*[g-z_]\w*|[0-9a-f]*):[0-9a-f:]*:[0-9a-f:.]*`)
	hexForm = regexp.MustCompile(`(?i)^[0-9a-f]*$`)
	// Interfaces that are called by their hardware address (systemd.net-naming-scheme(7)).
	nameForm = regexp.MustCompile(`\b(enx|wlx|wwx)([0-9a-f]{12})\b`)
	uuidForm = regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
)

// Apply masks a text.
func (m *Mask) Apply(s string) string {
	s = uuidForm.ReplaceAllStringFunc(s, func(x string) string { return m.name("uuid", strings.ToLower(x)) })
	s = macForm.ReplaceAllStringFunc(s, func(x string) string {
		if strings.Trim(x, "0:-") == "" {
			return x // none
		}
		return m.name("mac", strings.ToLower(strings.ReplaceAll(x, "-", ":")))
	})
	s = nameForm.ReplaceAllStringFunc(s, func(x string) string {
		var mac []string
		for b := range slices.Chunk([]byte(x[3:]), 2) {
			mac = append(mac, string(b))
		}
		return x[:3] + "-" + m.name("mac", strings.Join(mac, ":"))
	})
	s = ip6Form.ReplaceAllStringFunc(s, func(x string) string { // may end as one of IPv4
		of, _, _ := strings.Cut(x, ":")
		if hexForm.MatchString(of) {
			if masked := m.address(x); masked != x {
				return masked
			}
		}
		// What is before the first colon is a word, also if it has only hexadecimal digits (dead:2001:db8:1:2:3:4:5:6).
		return of + m.address(x[len(of):])
	})
	s = ip4Form.ReplaceAllStringFunc(s, m.address)
	for _, n := range m.Names {
		if len(n) < 3 {
			continue
		}
		if !utf8.ValidString(n) { // the kernel takes any bytes for a host's name, regexp does not
			s = strings.ReplaceAll(s, n, m.name("host", n))
			continue
		}
		word := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(n) + `\b`)
		s = word.ReplaceAllStringFunc(s, func(x string) string { return m.name("host", strings.ToLower(x)) })
	}
	return s
}

// address masks an IPv4 or IPv6 address, also with a colon before it, or a colon or dot after it.
// Addresses that every host has stay, and so does text that only looks like an address.
func (m *Mask) address(x string) string {
	for _, from := range []int{0, 1} {
		for to := len(x); from < to && to > len(x)-3 && strings.Trim(x[:from]+x[to:], ":.") == ""; to-- {
			a, err := netip.ParseAddr(x[from:to])
			switch {
			case err != nil:
			case behindColons(x[from:to]):
				return x // masked as one of IPv4
			case a.IsUnspecified() || a.IsLoopback():
				return x
			default:
				return x[:from] + m.name("ip", a.String()) + x[to:]
			}
		}
	}
	return x
}

// behindColons reports whether x is an IPv4 address after two colons, as a gateway on the
// kernel's command line, rather than an IPv6 address that ends like one.
func behindColons(x string) bool {
	of, ok := strings.CutPrefix(x, "::")
	a, err := netip.ParseAddr(of)
	return ok && err == nil && a.Is4()
}

// name returns the name that replaces a value.
func (m *Mask) name(kind, value string) string {
	key := kind + " " + value
	if n, ok := m.given[key]; ok {
		return n
	}
	if m.given == nil {
		m.given, m.count = make(map[string]string), make(map[string]int)
	}
	m.count[kind]++
	n := fmt.Sprintf("%s-%d", kind, m.count[kind])
	m.given[key] = n
	return n
}
