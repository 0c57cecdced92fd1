package mpirun

import (
	"bytes"
	"io"
	"sync"
)

// lines lets ranks share a writer: what it gets are whole lines, but for those that are longer than longest.
type lines struct {
	turn *sync.Mutex // held while w writes
	w    io.Writer
}

// longest is how many bytes of a line are kept back until its end comes.
const longest = 64 << 10

func newLines(w io.Writer, turn *sync.Mutex) *lines {
	if w == nil {
		return nil
	}
	return &lines{turn: turn, w: w}
}

// of is the writer for one of those who share it, whose lines begin with prefix. One goroutine uses it, as that of
// exec.Cmd.
func (l *lines) of(prefix string) io.Writer { return &line{to: l, prefix: prefix} }

type line struct {
	to     *lines
	prefix string
	begun  []byte // without its end
}

// Write passes whole lines on.
func (l *line) Write(b []byte) (int, error) {
	n := len(b)
	var out []byte
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		l.begun, b = append(l.begun, part...), rest
		if !ended && len(l.begun) < longest {
			break
		}
		out = append(append(append(out, l.prefix...), l.begun...), '\n')
		l.begun = l.begun[:0]
	}
	return n, l.to.write(out)
}

// end passes on what has no end of line.
func (l *line) end() error {
	if len(l.begun) == 0 {
		return nil
	}
	_, err := l.Write([]byte("\n"))
	return err
}

func (l *lines) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	_, err := l.w.Write(b)
	return err
}
