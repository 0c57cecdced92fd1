package device

import (
	"errors"
	"net/netip"
	"os"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
)

// Handout is a queue on its way to another process.
type Handout struct {
	Socket *os.File // the AF_XDP socket
	Memory *os.File // memfd of the registered memory
	Queue  kagent.QueueMessage
	Info   kagent.InfoMessage
}

// Close closes the files.
func (h *Handout) Close() {
	_ = h.Socket.Close()
	_ = h.Memory.Close()
}

var errNotShared = errors.New("the queue is shared in this process, handed out, or its memory cannot be mapped by others")

// HandOut gives queue and memory away, to be passed to Config.Holder: this process keeps
// no descriptor of the queue, so that the holder's death frees it, and maps the
// memory no more (see TakeMemory). The agent's other methods go on as before. Where
// there is an FDStore it keeps the lease with tag, and alive, the reading end of a pipe
// whose other end the holder gets.
func (l *Local) HandOut(tag []byte, alive int) (*Handout, error) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	s := l.lease
	if s.queue == nil || s.refs > 1 || s.arena.FD() < 0 {
		return nil, l.fail("hand out", netip.Addr{}, errNotShared)
	}
	q, err := s.queue.Handout()
	if err != nil {
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	h := &Handout{Queue: kagent.NewQueueMessage(q), Info: s.info.Message()}
	if h.Socket, err = fds.DupFile(s.queue.FD(), "xdp"); err != nil {
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if h.Memory, err = fds.DupFile(s.arena.FD(), "umem"); err != nil {
		_ = h.Socket.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if s.memory, err = fds.DupFile(s.arena.FD(), "umem"); err != nil {
		h.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if err := errors.Join(s.keep(tag, alive), s.queue.Close(), s.arena.Close()); err != nil {
		h.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	s.queue, s.arena = nil, nil
	return h, nil
}

// TakeMemory gives the memory of a queue that was handed out, once; it is the
// caller's then. nil: there is none. Who has it can have its pages freed, although
// the holder goes on having its own descriptor: see FreeMemory.
func (l *Local) TakeMemory() *os.File {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	f := l.lease.memory
	l.lease.memory = nil
	return f
}
