package support

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"path"
	"time"
)

// maxFile is the most of one file, in bytes; the rest is cut off and said so.
const maxFile = 4 << 20

// Archive writes a report. It has one owner.
type Archive struct {
	zip  *gzip.Writer
	tar  *tar.Writer
	mask *Mask
	at   time.Time
	err  error // the first one: nothing is written behind it
}

// New begins a report, which is complete after Close. Everything in it goes
// through mask.
func New(w io.Writer, mask *Mask, at time.Time) *Archive {
	zip := gzip.NewWriter(w)
	return &Archive{zip: zip, tar: tar.NewWriter(zip), mask: mask, at: at}
}

// Add writes a file. Errors come with Close.
func (a *Archive) Add(name, text string) {
	if a.err != nil {
		return
	}
	if len(text) > maxFile {
		text = text[:maxFile] + "\n(cut off here)\n"
	}
	text = a.mask.Apply(text)
	a.err = a.tar.WriteHeader(&tar.Header{
		Name: path.Join("via-xdp-report", a.mask.Apply(name)), Mode: 0o644, Size: int64(len(text)), ModTime: a.at, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = io.WriteString(a.tar, text)
	}
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
