package report

import (
	"bytes"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Whatever a log holds, reading it ends, with histograms or an error.
func FuzzReadHistograms(f *testing.F) {
	h := hdrhistogram.New(1, int64(time.Second), 3)
	for i := range int64(50) {
		_ = h.RecordValue(i * i * 1000)
	}
	var log bytes.Buffer
	if err := WriteHistograms(&log, "x", h, h); err != nil {
		f.Fatal(err)
	}
	f.Add(log.Bytes())
	f.Add([]byte("#[x]\n"))
	f.Add([]byte("0.0,1.0,2.0,AAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		turns, err := ReadHistograms(bytes.NewReader(b))
		if err == nil && len(turns) == 0 {
			t.Error("no histogram, and no error")
		}
	})
}
