package report

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/internal/base/termsafe"
)

// WriteHistograms writes a log of HdrHistogram, format 1.3, with V2 compressed
// histograms in base64, as HistogramLogAnalyzer and others read it: an interval
// of a second for each turn. about is a comment in its head.
func WriteHistograms(w io.Writer, about string, turns ...*hdrhistogram.Histogram) error {
	if len(turns) == 0 {
		return errors.New("no histogram to write")
	}
	out := bufio.NewWriter(w)
	log := hdrhistogram.NewHistogramLogWriter(out)
	if err := errors.Join(
		log.OutputComment("["+oneLine(about)+"]"),
		log.OutputComment("[values in nanoseconds, an interval for each turn]"),
		log.OutputLogFormatVersion(),
		log.OutputStartTime(0),
		log.OutputLegend(),
	); err != nil {
		return err
	}
	for i, h := range turns {
		h = h.Clone()
		h.SetStartTimeMs(int64(i) * 1000)
		h.SetEndTimeMs(int64(i+1) * 1000)
		if err := log.OutputIntervalHistogram(h); err != nil {
			return fmt.Errorf("histogram %d: %w", i+1, err)
		}
	}
	return out.Flush()
}

// ReadHistograms reads the intervals of a log. A log without any is an error.
func ReadHistograms(r io.Reader) ([]*hdrhistogram.Histogram, error) {
	log := hdrhistogram.NewHistogramLogReader(r)
	var turns []*hdrhistogram.Histogram
	for {
		h, err := log.NextIntervalHistogram()
		switch {
		case err != nil:
			return nil, fmt.Errorf("histogram %d: %w", len(turns)+1, err)
		case h == nil && len(turns) == 0:
			return nil, errors.New("no histogram in it: not a log of HdrHistogram")
		case h == nil:
			return turns, nil
		}
		turns = append(turns, h)
	}
}

// SaveHistograms writes the histograms of a point's turns, or the one of all of
// them, to a file in dir, which it makes if need be, and notes the file's name
// in the point. group and series say where the point belongs; its X and Label
// must have been set.
func (p *Point) SaveHistograms(dir, group, series string, turns ...*hdrhistogram.Histogram) error {
	at := p.Label
	if at == "" {
		at = plain(p.X)
	}
	var log bytes.Buffer
	if err := WriteHistograms(&log, fmt.Sprintf("%s, %s, %s", group, series, at), turns...); err != nil {
		return fmt.Errorf("%s, %s, %s: %w", group, series, at, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := slug(group) + "-" + slug(series) + "-" + slug(at) + ".hdr"
	if err := os.WriteFile(filepath.Join(dir, name), log.Bytes(), 0o644); err != nil {
		return err
	}
	p.Histogram = name
	return nil
}

// LoadHistogram reads a point's histogram of all turns; dir is where the report
// lies. It is nil when none was kept.
func (p *Point) LoadHistogram(dir fs.FS) (*hdrhistogram.Histogram, error) {
	if p.Histogram == "" {
		return nil, nil
	}
	f, err := dir.Open(filepath.ToSlash(p.Histogram))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	turns, err := ReadHistograms(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Histogram, err)
	}
	all := turns[0]
	for _, t := range turns[1:] { // of the same bounds
		all.Merge(t)
	}
	return all, nil
}

var between = regexp.MustCompile(`[^a-z0-9_.]+`)

// slug is a part of a file's name: small letters, digits, dots and underscores,
// with a hyphen for everything between.
func slug(s string) string {
	return cmp.Or(strings.Trim(between.ReplaceAllString(strings.ToLower(s), "-"), "-"), "_")
}

// oneLine keeps a text of a report, which may be another user's file, on its line of a terminal.
func oneLine(s string) string { return termsafe.Printable(strings.Join(strings.Fields(s), " ")) }
