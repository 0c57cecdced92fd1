package vipl

import (
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/rundir"
)

// published are the handles of this process that can be queried.
var published struct {
	sync.Mutex
	nics []*NIC
}

// answering is the server that answers queries, while handles are published. VIA_RUNTIME_DIR=none: there is none.
// Its mutex is taken before that of published, which a query takes.
var answering struct {
	sync.Mutex
	server *programs.Server
	socket atomic.Pointer[string] // path of the socket; read without the mutex
}

// publish makes a handle visible to queries. It returns why the process cannot serve its socket; it can go on without, since
// queries are for display only.
func publish(n *NIC) error {
	answering.Lock()
	defer answering.Unlock()
	published.Lock()
	published.nics = append(published.nics, n)
	published.Unlock()
	if answering.server != nil || os.Getenv("VIA_RUNTIME_DIR") == "none" {
		return nil
	}
	dir, err := rundir.Programs()
	if err != nil {
		return err
	}
	s, err := programs.Serve(dir, public{})
	if err != nil {
		return err
	}
	answering.server = s
	path := s.Path()
	answering.socket.Store(&path)
	return nil
}

// Unpublish removes the socket on which this process answers queries about its NICs. It is for a program that is
// about to exit with open handles. It does not wait, and may be called concurrently.
func Unpublish() {
	if path := answering.socket.Swap(nil); path != nil {
		_ = os.Remove(*path) // if it remains, it is treated as stale
	}
}

// unpublish hides a handle from queries, and stops the server after the last.
func unpublish(n *NIC) {
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
		answering.server.Close() // a socket that cannot be removed is treated as stale
		answering.server = nil
	}
}

// public answers queries about this process.
type public struct{}

func (public) nics() []*NIC {
	published.Lock()
	defer published.Unlock()
	return slices.Clone(published.nics)
}

// Status returns a ProgramStatus.
func (a public) Status() any {
	s := ProgramStatus{Time: time.Now(), Nics: []NICStatus{}}
	for _, n := range a.nics() {
		s.Nics = append(s.Nics, n.Status())
	}
	return s
}

// Capture captures the frames of every queue.
func (a public) Capture(w io.Writer, snaplen int, done <-chan struct{}) error {
	var one []*NIC // one handle of each queue
	for _, n := range a.nics() {
		if !slices.ContainsFunc(one, func(m *NIC) bool { return m.port == n.port }) {
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

// lockedWriter serializes the records of several writers. After a record that was not written completely, nothing
// more is written.
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
