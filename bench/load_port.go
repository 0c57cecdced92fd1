package bench

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// framedLoad is a transport of frames under load: each message is a frame.
type framedLoad struct {
	f      *framed
	queued int // frames since the last flush
}

func (l *framedLoad) begin(r loadRound) error {
	if most := l.f.payload + frameHeader; r.Bytes > most {
		return fmt.Errorf("messages of %d bytes: a frame of this interface holds %d", r.Bytes, most)
	}
	return l.f.io.round()
}

func (l *framedLoad) next() []byte { return l.f.io.next() }

func (l *framedLoad) commit(n int) error {
	if err := l.f.io.commit(n); err != nil {
		return err
	}
	l.queued++
	return nil
}

func (l *framedLoad) flush() (bool, error) {
	if l.queued == 0 {
		return true, nil
	}
	l.queued = 0
	return true, l.f.io.flush()
}

func (l *framedLoad) poll() ([]byte, error) {
	p, err := l.f.io.poll()
	if l.f.into != nil && p != nil {
		p = l.f.into[:copy(l.f.into, p)]
	}
	return p, err
}

func (l *framedLoad) window() int { return 0 }
func (l *framedLoad) lossy() bool { return true }

// tcpLoad is a TCP connection under load. Messages that are due together go
// with one system call, and come so.
type tcpLoad struct {
	t        *tcp
	bytes    int // of a message
	out      []byte
	from, to int // out[from:to] is not written yet
	in       []byte
	at, got  int // in[at:got] was read and not given yet
}

func (l *tcpLoad) begin(r loadRound) error {
	l.bytes = r.Bytes
	l.out, l.in = make([]byte, readBuffer), make([]byte, readBuffer)
	return nil
}

func (l *tcpLoad) next() []byte {
	if l.to+l.bytes > len(l.out) {
		return nil
	}
	return l.out[l.to:]
}

func (l *tcpLoad) commit(n int) error {
	l.to += n
	return nil
}

func (l *tcpLoad) flush() (bool, error) {
	for l.from < l.to {
		n, err := l.t.writeOnce(l.out[l.from:l.to])
		switch {
		case err == nil:
			l.from += n
		case err == errAgain:
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("send: %w", err)
		}
	}
	l.from, l.to = 0, 0
	return true, nil
}

func (l *tcpLoad) poll() ([]byte, error) {
	if l.got-l.at < l.bytes {
		l.got = copy(l.in, l.in[l.at:l.got])
		l.at = 0
		n, err := l.t.readOnce(l.in[l.got:])
		switch {
		case err == errAgain || errors.Is(err, unix.EINTR):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("receive: %w", err)
		case n == 0:
			return nil, fmt.Errorf("receive: %w", io.ErrUnexpectedEOF) // the peer has closed
		}
		if l.got += n; l.got < l.bytes {
			return nil, nil
		}
	}
	p := l.in[l.at : l.at+l.bytes]
	l.at += l.bytes
	return p, nil
}

func (l *tcpLoad) window() int { return 0 }
func (l *tcpLoad) lossy() bool { return false }
