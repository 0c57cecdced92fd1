package vipl

import (
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/programs"
	"viaxdp/internal/rundir"
)

// published are the handles of this process that others may ask about.
var published struct {
	sync.Mutex
	nics []*Nic
}

// answering is who answers, while there are any. VIA_RUNTIME_DIR=none: nobody.
// Its mutex comes before that of published, which whoever answers takes.
var answering struct {
	sync.Mutex
	server *programs.Server
	socket atomic.Pointer[string] // its path; without the mutex
}

// publish makes a handle known. A process that cannot say that it runs does
// without: it is for people who look on.
func publish(n *Nic) {
	answering.Lock()
	defer answering.Unlock()
	published.Lock()
	published.nics = append(published.nics, n)
	published.Unlock()
	if answering.server != nil || os.Getenv("VIA_RUNTIME_DIR") == "none" {
		return
	}
	if dir, err := rundir.Programs(); err == nil {
		if s, err := programs.Serve(dir, public{}); err == nil {
			answering.server = s
			path := s.Path()
			answering.socket.Store(&path)
		}
	}
}

// Unpublish removes the socket on which this process answers questions about its
// NICs: for a program that is about to exit with handles open. It waits for nobody,
// and may be called concurrently.
func Unpublish() {
	if path := answering.socket.Swap(nil); path != nil {
		_ = os.Remove(*path) // one that stays is a stale one
	}
}

// unpublish ends that, and with the last handle the answers.
func unpublish(n *Nic) {
	answering.Lock()
	defer answering.Unlock()
	published.Lock()
	if i := slices.Index(published.nics, n); i >= 0 {
		published.nics = slices.Delete(published.nics, i, i+1)
	}
	last := len(published.nics) == 0
	published.Unlock()
	if last && answering.server != nil {
		answering.socket.Store(nil)
		answering.server.Close() // a socket that cannot be removed is a stale one
		answering.server = nil
	}
}

// public is this process to those who ask.
type public struct{}

func (public) nics() []*Nic {
	published.Lock()
	defer published.Unlock()
	return slices.Clone(published.nics)
}

// Status is a ProgramStatus.
func (a public) Status() any {
	s := ProgramStatus{Time: time.Now(), Nics: []NicStatus{}}
	for _, n := range a.nics() {
		s.Nics = append(s.Nics, n.Status())
	}
	return s
}

// Capture captures of every queue.
func (a public) Capture(w io.Writer, snaplen int, done <-chan struct{}) error {
	var one []*Nic // a handle of each queue
	for _, n := range a.nics() {
		if !slices.ContainsFunc(one, func(m *Nic) bool { return m.port == n.port }) {
			one = append(one, n)
		}
	}
	locked := &lockedWriter{w: w}
	var wait sync.WaitGroup
	for _, n := range one {
		wait.Go(func() { n.Capture(locked, snaplen, done) })
	}
	wait.Wait()
	return nil
}

// lockedWriter keeps the records of several writers apart: behind one that was not
// written as a whole there comes nothing.
type lockedWriter struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (l *lockedWriter) Write(b []byte) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		n, l.err = l.w.Write(b)
	}
	return n, l.err
}
