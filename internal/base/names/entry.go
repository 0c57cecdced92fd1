package names

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes of the parts of an entry, in bytes.
const (
	MaxDisc = 64  // longest discriminator
	MaxName = 253 // longest name, as in DNS (RFC 1035, 2.3.4, without the last dot)
)

// Address is the value of a name: a host and a discriminator, which may be empty. The host is never IPv4 in IPv6
// and has no zone.
type Address struct {
	Host netip.Addr
	Disc string // at most MaxDisc bytes, of any value
}

// Entry is a line of a file: an address and its names. A lookup of the address returns the first name.
type Entry struct {
	Address
	Names []string
}

// String writes the entry as a line of a file of names, without the newline.
// ParseNames reads it as the same entry.
func (e Entry) String() string {
	line := e.Host.String() + " " + strings.Join(e.Names, " ")
	switch {
	case e.Disc == "":
		return line
	case isText(e.Disc):
		return line + ` disc="` + e.Disc + `"`
	}
	return line + " disc=0x" + hex.EncodeToString([]byte(e.Disc))
}

// parseEntry parses a line of a file of names. For a line without an entry it returns an entry without names.
func parseEntry(line string) (Entry, error) {
	var e Entry
	first, rest, err := cutField(line)
	if first == "" || err != nil {
		return e, err
	}
	if e.Host, err = parseHost(first); err != nil {
		return e, err
	}
	for {
		field, after, err := cutField(rest)
		switch {
		case err != nil:
			return e, err
		case field == "" && len(e.Names) == 0:
			return e, errors.New("an address without a name: want address name [alias...] [disc=...]")
		case field == "":
			return e, nil
		case e.Disc != "":
			return e, fmt.Errorf("%s after disc=: a discriminator ends the line", quote(field))
		}
		if disc, ok := strings.CutPrefix(field, "disc="); !ok {
			err = checkName(field)
			e.Names = append(e.Names, field)
		} else {
			e.Disc, err = parseDisc(disc)
		}
		if err != nil {
			return e, err
		}
		rest = after
	}
}

// blanks separate fields; a newline ends a line with or without a return.
const blanks = " \t\r\n"

// cutField cuts the first field off a line. The field is empty at the end of the line or at a comment. Blanks and #
// in quotes belong to the field.
func cutField(s string) (field, rest string, err error) {
	const quoted = `disc="`
	s = strings.TrimLeft(s, blanks)
	if text, ok := strings.CutPrefix(s, quoted); ok {
		n := strings.IndexByte(text, '"')
		if n < 0 {
			return "", "", errors.New(`disc=" without a closing quote`)
		}
		n += len(quoted) + 1
		if n < len(s) && !strings.Contains(blanks+"#", s[n:n+1]) {
			return "", "", errors.New(`text after the closing quote of disc="": a blank must follow (write a quote as 0x22, in hex)`)
		}
		return s[:n], s[n:], nil
	}
	if n := strings.IndexAny(s, blanks+"#"); n >= 0 {
		return s[:n], s[n:], nil
	}
	return s, "", nil
}

// parseHost reads the address of a host in a file of names.
func parseHost(s string) (netip.Addr, error) {
	host, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return host, fmt.Errorf("%s is not an IPv4 or IPv6 address", quote(s))
	case host.Zone() != "":
		return host, fmt.Errorf("%s has a zone: leave it out, the NIC is the interface", quote(s))
	}
	host = host.Unmap()
	if host.IsUnspecified() || host.IsMulticast() || host == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return host, fmt.Errorf("%v is not the address of a host", host)
	}
	return host, nil
}

// checkName refuses a name that no program could look up, or that is probably a mistake.
func checkName(s string) error {
	const others = "-._:/@+"
	letter := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	plain := func(c rune) bool { return letter(c) || c >= '0' && c <= '9' }
	foreign := func(c rune) bool { return !plain(c) && !strings.ContainsRune(others, c) }
	switch {
	case len(s) > MaxName:
		return fmt.Errorf("%s: name of %d bytes, at most %d", quote(s), len(s), MaxName)
	case strings.ContainsFunc(s, foreign):
		return fmt.Errorf("%s is not a name: use letters, digits and %s", quote(s), others)
	case !plain(rune(s[0])) || !plain(rune(s[len(s)-1])):
		return fmt.Errorf("%s is not a name: begin and end it with a letter or digit", quote(s))
	case !strings.ContainsFunc(s, letter):
		return fmt.Errorf("%s is not a name: it needs a letter", quote(s))
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return fmt.Errorf("%s is an address: one line has one address, then names", quote(s))
	}
	return nil
}

// parseDisc parses the text after disc=.
func parseDisc(s string) (string, error) {
	var disc string
	if digits, ok := strings.CutPrefix(s, "0x"); ok {
		b, err := hex.DecodeString(digits)
		if err != nil {
			return "", fmt.Errorf("disc=%s: after 0x come hex digits, two a byte", quote(s))
		}
		disc = string(b)
	} else if len(s) < 2 || s[0] != '"' {
		return "", fmt.Errorf(`disc=%s: want disc="text" or disc=0xhex`, quote(s))
	} else if disc = s[1 : len(s)-1]; !isText(disc) {
		return "", fmt.Errorf("disc=%s: not printable UTF-8, write it in hex", quote(s))
	}
	if disc == "" {
		return "", errors.New("an empty discriminator: leave disc= out")
	}
	if len(disc) > MaxDisc {
		return "", fmt.Errorf("discriminator of %d bytes, at most %d", len(disc), MaxDisc)
	}
	return disc, nil
}

// isText reports whether a discriminator can be written between quotes.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return c == '"' || !unicode.IsPrint(c) })
}

// quote quotes text of a file or a query, and truncates it.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

// fold returns a name in the form in which names are compared: case is ignored, and so is a trailing dot, the root
// of DNS.
func fold(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// plain returns the form in which addresses are stored and compared.
func plain(host netip.Addr) netip.Addr { return host.Unmap().WithZone("") }

// Limits of a file. Exceeding one is an error, so that a wrong or hostile file costs little memory and time. A list
// of 200,000 blocked hosts fits.
const (
	MaxBytes = 8 << 20
	MaxLine  = 64 << 10 // bytes of one line
	MaxLines = 1 << 18
	MaxNames = 1 << 18 // aliases included
)

// ParseError is an error in a file, and its position.
type ParseError struct {
	File string // "" if the text was not from a file
	Line int    // from 1
	Err  error
}

// Error begins with file:line, like compilers' messages.
func (e *ParseError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("line %d: %v", e.Line, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// ParseNames reads the text of a file of names, a line at a time:
//
//	address name [alias...] [disc="text"|disc=0xhex]   # comment
//
// A name in several lines has several addresses, in the order of the lines. It is an error to repeat a name with
// the same address and discriminator, and to violate the format in any other way. Errors are *ParseError.
func ParseNames(text string) ([]Entry, error) {
	return parse(text, func(l *lines, line string) (Entry, error) {
		e, err := parseEntry(line)
		if err != nil {
			return Entry{}, err
		}
		for _, name := range e.Names {
			if at := l.note(name, e.Address); at != 0 {
				return Entry{}, fmt.Errorf("%s has this address and discriminator already, in line %d", quote(name), at)
			}
		}
		return e, nil
	})
}

// ParseHosts reads the text of a hosts file, see hosts(5). It skips lines that are no entries, as the C library
// does, and repetitions. Only exceeding a limit is an error, a *ParseError. Zones of addresses are dropped.
func ParseHosts(text string) ([]Entry, error) {
	return parse(text, func(l *lines, line string) (Entry, error) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return Entry{}, nil
		}
		host, err := netip.ParseAddr(fields[0])
		if err != nil {
			return Entry{}, nil
		}
		e := Entry{Address: Address{Host: plain(host)}}
		for _, name := range fields[1:] {
			if l.note(name, e.Address) == 0 {
				e.Names = append(e.Names, name)
			}
		}
		return e, nil
	})
}

// lines is the state of reading a file.
type lines struct {
	number int            // of the line at hand
	seen   map[record]int // in which line
}

// record is an entry that a file may have only once.
type record struct {
	name string
	at   Address
}

// note records that a name has an address. It returns the line of an earlier such record, or 0.
func (l *lines) note(name string, at Address) int {
	r := record{fold(name), at}
	before := l.seen[r]
	if before == 0 {
		l.seen[r] = l.number
	}
	return before
}

// check enforces the limits. A line of allowed length cannot exceed MaxNames by much.
func (l *lines) check(line string) error {
	switch {
	case len(line) > MaxLine:
		return fmt.Errorf("line of %d bytes, at most %d: write more lines", len(line), MaxLine)
	case l.number > MaxLines:
		return fmt.Errorf("more than %d lines: have fewer hosts in it", MaxLines)
	case len(l.seen) > MaxNames:
		return fmt.Errorf("more than %d names: have fewer hosts in it", MaxNames)
	}
	return nil
}

func parse(text string, entry func(l *lines, line string) (Entry, error)) ([]Entry, error) {
	l := lines{seen: make(map[record]int)}
	if len(text) > MaxBytes {
		return nil, tooLarge(int64(len(text)))
	}
	var all []Entry
	for line := range strings.Lines(text) {
		l.number++
		var e Entry
		err := l.check(line)
		if err == nil {
			e, err = entry(&l, line)
		}
		if err != nil {
			return nil, &ParseError{Line: l.number, Err: err}
		}
		if len(e.Names) > 0 {
			all = append(all, e)
		}
	}
	return all, nil
}

func tooLarge(bytes int64) error {
	return fmt.Errorf("%d bytes, at most %d: have fewer hosts in it", bytes, MaxBytes)
}
