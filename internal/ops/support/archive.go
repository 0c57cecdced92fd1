package support

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode"
)

// MaxFile is the most of one file, in bytes; the rest is cut off and said so.
const MaxFile = 4 << 20

// Archive writes a report. It has one owner.
type Archive struct {
	zip  *gzip.Writer
	tar  *tar.Writer
	mask *Mask
	at   time.Time
	used map[string]bool // names
	err  error           // the first one: nothing is written behind it
}

// New begins a report, which is complete after Close. Everything in it goes
// through mask.
func New(w io.Writer, mask *Mask, at time.Time) *Archive {
	zip := gzip.NewWriter(w)
	return &Archive{zip: zip, tar: tar.NewWriter(zip), mask: mask, at: at, used: make(map[string]bool)}
}

// Add writes a file. One whose name is there already gets a number before it. Errors come
// with Close.
func (a *Archive) Add(name, text string) {
	if a.err != nil {
		return
	}
	text = a.mask.Apply(cut(text))
	a.err = a.tar.WriteHeader(&tar.Header{
		Name: path.Join("via-xdp-report", a.unused(a.mask.Apply(name))), Mode: 0o644, Size: int64(len(text)), ModTime: a.at, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = io.WriteString(a.tar, text)
	}
}

// unused is a name that no other file has.
func (a *Archive) unused(name string) string {
	dir, base := path.Split(name)
	for i := 2; a.used[name]; i++ {
		name = fmt.Sprintf("%s%d-%s", dir, i, base)
	}
	a.used[name] = true
	return name
}

// longestWord is longer than any address or host's name.
const longestWord = 256

// cut ends a text that is too long between two words: a mask does not know half an address.
func cut(text string) string {
	if len(text) <= MaxFile {
		return text
	}
	end := MaxFile
	if i := strings.LastIndexFunc(text[end-longestWord:end], func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`"',;=()[]{}<>/`, r)
	}); i >= 0 {
		end += i + 1 - longestWord
	}
	return text[:end] + "\n(cut off here)\n"
}

// Close ends the report.
func (a *Archive) Close() error {
	for _, end := range []func() error{a.tar.Close, a.zip.Close} {
		if err := end(); a.err == nil {
			a.err = err
		}
	}
	return a.err
}
