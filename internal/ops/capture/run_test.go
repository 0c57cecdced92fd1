package capture

import (
	"bufio"
	"io"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// A program of another user may have as many queues as it likes: frames of others are taken as fast.
func TestManySources(t *testing.T) {
	sources := make([]Source, 1<<17)
	for i := range sources {
		sources[i] = Source{PID: 7, ID: uint32(i), Interface: "eth0"}
	}
	file, err := NewFile(io.Discard, sources, 64)
	nstest.Must(t, err)
	r := newRecording(Config{Snaplen: 64}, bufio.NewWriter(io.Discard), []Target{{Sources: sources}})
	r.file = file
	began := time.Now()
	for range 50_000 {
		r.take(7, Frame{ID: 1<<17 - 1, Time: began, Len: 3, Data: []byte("abc")})
	}
	if took := time.Since(began); r.sum.Frames != 50_000 || took > 5*time.Second {
		t.Errorf("%d frames in %v", r.sum.Frames, took)
	}
}
