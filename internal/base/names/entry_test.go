package names

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func entry(host, disc string, names ...string) Entry {
	return Entry{Address{netip.MustParseAddr(host), disc}, names}
}

func TestParseNames(t *testing.T) {
	const text = `# the database's hosts
10.0.0.2   db
 10.0.0.2	db-orders Orders@db.example   disc="orders # 1" # quoted, a # is text
fd00::2    db#comment
::ffff:10.0.0.3 db.spare_1 disc=0x00FF10
fe80::1 link disc="é"#comment
`
	want := []Entry{
		entry("10.0.0.2", "", "db"),
		entry("10.0.0.2", "orders # 1", "db-orders", "Orders@db.example"),
		entry("fd00::2", "", "db"),
		entry("10.0.0.3", "\x00\xff\x10", "db.spare_1"),
		entry("fe80::1", "é", "link"),
	}
	for what, text := range map[string]string{
		"unix": text, "windows": strings.ReplaceAll(text, "\n", "\r\n"), "no newline at the end": strings.TrimSpace(text),
	} {
		got, err := ParseNames(text)
		nstest.ErrorIf(t, err != nil, "%s: %v", what, err)
		nstest.Same(t, what, got, want, compareAddr)
	}
	for _, empty := range []string{"", "\n\n", "  # nothing", "\t \r\n"} {
		if got, err := ParseNames(empty); len(got) != 0 || err != nil {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

// Whatever is not the format is an error that names the line and the reason.
func TestParseNamesStrict(t *testing.T) {
	long := strings.Repeat("x", 64)
	for line, reason := range map[string]string{
		"10.0.0.300 db":                       "is not an IPv4 or IPv6 address",
		"db 10.0.0.2":                         "is not an IPv4 or IPv6 address",
		"127.1 db":                            "is not an IPv4 or IPv6 address",
		"fe80::1%eth0 db":                     "has a zone",
		"0.0.0.0 db":                          "is not the address of a host",
		"255.255.255.255 db":                  "is not the address of a host",
		"::ffff:224.0.0.1 db":                 "224.0.0.1 is not the address of a host",
		"ff02::1 db":                          "is not the address of a host",
		"10.0.0.2":                            "without a name",
		"10.0.0.2 # db":                       "without a name",
		`10.0.0.2 disc="x"`:                   "without a name",
		"10.0.0.2 db 10.0.0.3":                "needs a letter",
		"10.0.0.2 db fd00::3":                 "is an address",
		"10.0.0.2 d,b":                        "is not a name",
		"10.0.0.2 dä":                         "is not a name",
		"10.0.0.2 db\x00":                     "is not a name",
		"10.0.0.2 db.":                        "begin and end it",
		"10.0.0.2 -db":                        "begin and end it",
		"10.0.0.2 disk=1":                     "is not a name",
		"10.0.0.2 " + strings.Repeat(long, 4): "name of 256 bytes, at most 253",
		"10.0.0.2 db DB":                      "already, in line 2",
		"10.0.0.9 a first":                    "already, in line 1",
		"10.0.0.2 db disc=x":                  `want disc="text" or disc=0xhex`,
		"10.0.0.2 db disc=":                   `want disc="text" or disc=0xhex`,
		`10.0.0.2 db disc=x"y"`:               `want disc="text" or disc=0xhex`,
		`10.0.0.2 db disc="x`:                 "without a closing quote",
		`10.0.0.2 db disc="`:                  "without a closing quote",
		`10.0.0.2 db disc="a"b"`:              "a blank must follow",
		`10.0.0.2 db disc="a" db2`:            "a discriminator ends the line",
		`10.0.0.2 db disc="a" disc="b"`:       "a discriminator ends the line",
		`10.0.0.2 db disc=""`:                 "leave disc= out",
		"10.0.0.2 db disc=0x":                 "leave disc= out",
		"10.0.0.2 db disc=0x123":              "two a byte",
		"10.0.0.2 db disc=0xzz":               "two a byte",
		"10.0.0.2 db disc=\"a\tb\"":           "write it in hex",
		"10.0.0.2 db disc=\"\xff\"":           "write it in hex",
		`10.0.0.2 db disc="` + long + `y"`:    "discriminator of 65 bytes, at most 64",
	} {
		got, err := ParseNames("10.0.0.9 first\n" + line + "\n10.0.0.8 third\n")
		wrong, ok := errors.AsType[*ParseError](err)
		if !ok || wrong.Line != 2 || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("%q: %v, want an error in line 2 (and not %v)", line, err, got)
		} else if !strings.Contains(err.Error(), reason) || len(err.Error()) > 200 || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%q: %v, want %q", line, err, reason)
		}
	}
	if e, err := ParseNames(`10.0.0.2 db disc="` + long + `"`); err != nil || e[0].Disc != long {
		t.Errorf("discriminator of 64 bytes: %v, %v", e, err)
	}
}

// Other programs share the hosts file, so lines that cannot be parsed are skipped.
func TestParseHosts(t *testing.T) {
	got, err := ParseHosts(`127.0.0.1	localhost localhost LOCALHOST. # mine
127.0.0.1 localhost vm
::1 localhost
fe80::2%eth0 neighbour

not an entry
10.0.0.1
10.1 old
0.0.0.0 blocked
::ffff:10.0.0.3 under_score döner`)
	nstest.Must(t, err)
	want := []Entry{
		entry("127.0.0.1", "", "localhost"), entry("127.0.0.1", "", "vm"), entry("::1", "", "localhost"),
		entry("fe80::2", "", "neighbour"), entry("0.0.0.0", "", "blocked"),
		entry("10.0.0.3", "", "under_score", "döner"),
	}
	nstest.Same(t, "entries", got, want, compareAddr)
}

func TestLimits(t *testing.T) {
	manyNames := func(lines, perLine int) string {
		var b strings.Builder
		for range lines {
			b.WriteString("10.0.0.1")
			for range perLine {
				b.WriteString(" n")
				b.WriteString(netip.AddrFrom4([4]byte{1, byte(b.Len() >> 16), byte(b.Len() >> 8), byte(b.Len())}).String())
			}
			b.WriteByte('\n')
		}
		return b.String()
	}
	for what, c := range map[string]struct{ text, reason string }{
		"bytes": {strings.Repeat("#", MaxBytes+1), "at most 8388608"},
		"line":  {"#" + strings.Repeat(" ", MaxLine), "at most 65536"},
		"lines": {strings.Repeat("\n", MaxLines+1), "more than 262144 lines"},
		"names": {manyNames(MaxNames/1000+2, 1000), "more than 262144 names"},
	} {
		for format, parse := range map[string]func(string) ([]Entry, error){"names": ParseNames, "hosts": ParseHosts} {
			if _, err := parse(c.text); err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("too many %s in %s: %v, want %q", what, format, err, c.reason)
			}
		}
	}
	for _, fits := range []string{strings.Repeat("\n", MaxLines), strings.Repeat(strings.Repeat("#", MaxLine-1)+"\n", MaxBytes/MaxLine)} {
		nstest.Check(t, nstest.Err(ParseNames(fits)))
	}
}

// entries draws a file: no address has a name twice.
func entries(t *rapid.T) []Entry {
	host := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "v4")})
		}),
		rapid.Custom(func(t *rapid.T) netip.Addr {
			b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6"))
			b[0] = 0xfd
			return netip.AddrFrom16(b)
		}))
	disc := rapid.OneOf(
		rapid.Just(""), rapid.StringN(1, 16, MaxDisc),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, MaxDisc), func(b []byte) string { return string(b) }))
	name := rapid.StringMatching(`[a-z0-9]{0,3}[A-Za-z]([-._:/@+a-z0-9]{0,8}[a-z0-9])?`).Filter(func(s string) bool { return checkName(s) == nil })
	seen := make(map[record]bool)
	var all []Entry
	for range rapid.IntRange(0, 8).Draw(t, "lines") {
		e := Entry{Address: Address{host.Draw(t, "host"), disc.Draw(t, "disc")}}
		for _, n := range rapid.SliceOfN(name, 1, 4).Draw(t, "names") {
			r := record{fold(n), e.Address}
			if !seen[r] {
				seen[r] = true
				e.Names = append(e.Names, n)
			}
		}
		if len(e.Names) > 0 {
			all = append(all, e)
		}
	}
	return all
}

func write(all []Entry) string {
	var b strings.Builder
	for _, e := range all {
		b.WriteString(e.String() + "\n")
	}
	return b.String()
}

// What String writes, ParseNames reads as the same, and the table has every
// name with all its addresses, in order.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := entries(t)
		got, err := ParseNames(write(want))
		nstest.Must(t, err)
		if d := cmp.Diff(want, got, compareAddr); d != "" {
			t.Fatalf("-want +got\n%s", d)
		}
		addresses := make(map[string][]Address)
		for _, e := range want {
			for _, n := range e.Names {
				addresses[fold(n)] = append(addresses[fold(n)], e.Address)
			}
		}
		table := newTable(got)
		if d := cmp.Diff(addresses, table.byName, compareAddr); d != "" {
			t.Fatalf("-want +got\n%s", d)
		}
		for _, e := range want {
			i := slices.IndexFunc(want, func(x Entry) bool { return x.Address == e.Address })
			if name, ok := table.name(e.Address); !ok || name != want[i].Names[0] {
				t.Fatalf("name of %v: %q, %v, want %q", e.Address, name, ok, want[i].Names[0])
			}
		}
	})
}

// Whatever ParseNames accepts has the format that it documents, and survives writing and reading.
func FuzzParseNames(f *testing.F) {
	f.Add("10.0.0.2 db alias disc=\"orders\" # x\nfd00::2 db disc=0x00ff\r\n")
	f.Add("10.0.0.2 db disc=\"\n10.0.0.2 DB db")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseNames(text)
		if err != nil {
			if wrong, ok := errors.AsType[*ParseError](err); !ok || wrong.Line < 1 || wrong.Line > strings.Count(text, "\n")+1 {
				t.Fatalf("error without a line: %v", err)
			}
			return
		}
		for _, e := range all {
			nstest.FatalIf(t, len(e.Disc) > MaxDisc || e.Host != plain(e.Host) || len(e.Names) == 0, "%+v", e)
		}
		again, err := ParseNames(write(all))
		nstest.Must(t, err)
		if d := cmp.Diff(all, again, compareAddr); d != "" {
			t.Fatalf("-read +written\n%s", d)
		}
	})
}

// A hosts file that is small enough never fails, and none of its names is
// taken for more than it is.
func FuzzParseHosts(f *testing.F) {
	f.Add("127.0.0.1 localhost # x\n::1 localhost ip6-localhost\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseHosts(text)
		if err != nil && len(text) <= MaxLine {
			t.Fatal(err)
		}
		for _, e := range all {
			nstest.FatalIf(t, len(e.Names) == 0 || e.Disc != "" || e.Host != plain(e.Host), "%+v", e)
			for _, n := range e.Names {
				nstest.FatalIf(t, n == "" || strings.ContainsAny(n, " \t\r\n#"), "name %q", n)
			}
		}
	})
}

func put(t *testing.T, path, text string) {
	t.Helper()
	nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// replace puts a file in the place of another, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	put(t, path+".new", text)
	nstest.Must(t, os.Rename(path+".new", path))
}

// loads looks a file up and gives the names of 10.0.0.1 in it.
func loads(t *testing.T, f *file) string {
	t.Helper()
	table, err := f.load()
	nstest.Must(t, err)
	name, _ := table.name(entry("10.0.0.1", "").Address)
	return name
}

func TestFileFollowsChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	put(t, path, "10.0.0.1 a\n")
	f := &file{path: path, parse: ParseNames}
	if got := loads(t, f); got != "a" {
		t.Fatalf("%q", got)
	}
	put(t, path, "10.0.0.1 b\n") // same size, and perhaps the same time
	nstest.Equal(t, "written in place", loads(t, f), "b")
	replace(t, path, "10.0.0.1 c\n")
	nstest.Equal(t, "replaced", loads(t, f), "c")

	put(t, path, "10.0.0.1 d\noops d\n")
	for range 2 { // it stays wrong
		_, err := f.load()
		if wrong, ok := errors.AsType[*ParseError](err); !ok || wrong.File != path || wrong.Line != 2 ||
			!strings.HasPrefix(err.Error(), path+":2: ") {
			t.Errorf("wrong: %v", err)
		}
	}
	os.Remove(path)
	if _, err := f.load(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("removed: %v", err)
	}
	f.optional = true
	nstest.Equal(t, "removed and optional", loads(t, f), "")
	put(t, path, "10.0.0.1 e\n")
	nstest.Equal(t, "back", loads(t, f), "e")
}

// A file that has not changed for a while is read once. A file that has just changed is read at every lookup,
// since its stamp may not reveal the next change.
func TestFileReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	for text, wrong := range map[string]bool{"10.0.0.1 a\n": false, "oops": true} {
		written := time.Now()
		put(t, path, text)
		reads := 0
		f := &file{path: path, parse: func(text string) ([]Entry, error) { reads++; return ParseNames(text) }}
		for range 3 {
			if _, err := f.load(); (err != nil) != wrong {
				t.Fatal(err)
			}
		}
		// On a busy machine it may have settled meanwhile.
		nstest.ErrorIf(t, reads != 3 && time.Since(written) < settling/2,
			"%q, just written: read %d times in 3 lookups", text, reads)
		f.fresh, reads = true, 0 // as if it were old
		for range 3 {
			if _, err := f.load(); (err != nil) != wrong {
				t.Fatal(err)
			}
		}
		nstest.ErrorIf(t, reads != 0, "%q, old: read again", text)
		replace(t, path, text) // only the inode differs
		if _, err := f.load(); (err != nil) != wrong || reads != 1 {
			t.Errorf("%q, replaced: read %d times, want 1; %v", text, reads, err)
		}
	}

	now := time.Now()
	s := stamp{change: syscall.NsecToTimespec(now.UnixNano())}
	if s.settled(now.Add(settling)) || !s.settled(now.Add(settling+time.Millisecond)) || s.settled(now.Add(-time.Hour)) {
		t.Error("a stamp settles when the time after the change is over, and not before")
	}
}

// What is no regular file is refused before it is opened: a pipe without a
// writer would hold the program.
func TestFileKinds(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	nstest.Must(t, unix.Mkfifo(pipe, 0o644))
	large := filepath.Join(dir, "large")
	put(t, large, "")
	nstest.Must(t, os.Truncate(large, MaxBytes+1))
	for path, reason := range map[string]string{
		dir: "not a regular file", pipe: "not a regular file", "/dev/zero": "not a regular file", large: "at most",
	} {
		f := &file{path: path, optional: true, parse: ParseNames}
		if _, err := f.load(); err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, reason)
		}
	}
	for _, path := range []string{"", os.DevNull} {
		f := &file{path: path, parse: ParseNames}
		nstest.Equal(t, path, loads(t, f), "")
	}
	// A size that stat does not report, as for files in /proc, is found on reading.
	nstest.Must(t, os.Truncate(large, MaxBytes))
	nstest.ErrSays(t, "zeros", nstest.Err((&file{path: large, parse: ParseNames}).load()), large+":1: line of")
}
