package names

import (
	"fmt"
	"net/netip"
	"strings"
)

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
