package fdstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// link is a connection. If it ends while it is the client's, the client reconnects.
type link struct {
	c       *net.UnixConn
	answers chan answer     // closed at the connection's end
	closed  <-chan struct{} // the client's
	ended   bool            // its reader has seen the end; guarded by Client.mu
}

// answer is a message of the descriptor store.
type answer struct {
	message
	files []int
}

// refused is the store's reason for refusing a request. The connection stays usable.
type refused string

func (r refused) Error() string { return string(r) }

// put stores an entry. No other goroutine uses the connection meanwhile.
func (l *link) put(key string, value []byte, files ...int) error {
	entries, err := l.ask(message{Op: "put", Key: key, Value: value, Ack: true}, files...)
	closeEntries(entries)
	return err
}

func (l *link) send(m message, files ...int) error {
	_ = l.c.SetWriteDeadline(time.Now().Add(answerTime))
	err := send(l.c, m, files...)
	if err != nil && !errors.Is(err, errTooLong) {
		l.end() // its reader starts another store
	}
	return err
}

// ask sends m and collects the replies before "done". No other goroutine uses the connection
// meanwhile.
func (l *link) ask(m message, files ...int) (entries []Entry, err error) {
	defer func() {
		if err != nil {
			closeEntries(entries)
			entries = nil
		}
	}()
	if err := l.send(m, files...); err != nil {
		return nil, err
	}
	over := time.NewTimer(answerTime)
	defer over.Stop()
	for {
		var a answer
		ok := false
		select {
		case a, ok = <-l.answers:
		case <-over.C:
			l.end()
			return entries, fmt.Errorf("the descriptor store at %s does not answer: %w", l.c.RemoteAddr(), os.ErrDeadlineExceeded)
		case <-l.closed:
			return entries, net.ErrClosed
		}
		switch {
		case !ok:
			return entries, errEnded
		case a.Op != "done":
			i := Entry{Key: a.Key, Value: a.Value}
			for _, fd := range a.files {
				_ = unix.SetNonblock(fd, true) // so that reading a pipe can be ended
				i.Files = append(i.Files, os.NewFile(uintptr(fd), a.Key))
			}
			entries = append(entries, i)
		default:
			fds.Close(a.files...)
			if a.Error != "" {
				return entries, refused(a.Error)
			}
			return entries, nil
		}
	}
}

// hangUp closes a connection.
func (l *link) hangUp() {
	_ = l.c.Close()
	l.drain()
}

// end ends a connection that fails, so that a late answer cannot be taken for the answer to
// another request. It reads what has arrived, which may be that another agent has replaced this
// one.
func (l *link) end() {
	if l.c.CloseRead() != nil {
		_ = l.c.Close()
	}
	l.drain()
}

// drain discards answers until the reader has ended.
func (l *link) drain() {
	for a := range l.answers {
		fds.Close(a.files...)
	}
}

// maxMessage bounds a message in bytes, maxFiles the descriptors beside it.
const (
	maxMessage = 64 << 10
	maxFiles   = 32
)

var errTooLong = errors.New("a message is too long")

// Version is the version of the messages, and of the values that agents store. A change of either raises it.
const Version = 2

// message is one datagram, either way, with descriptors beside it.
type message struct {
	Op      string // "hello" first, "put", "delete", "list"; in answers "item", "done", "replaced"
	Version int    `json:",omitempty"` // of the agent, in "hello"
	Key     string `json:",omitempty"`
	Value   []byte `json:",omitempty"`
	Ack     bool   `json:",omitempty"` // the sender waits for "done"
	Error   string `json:",omitempty"` // in "done"
}

func send(c *net.UnixConn, m message, files ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage || len(files) > maxFiles {
		return fmt.Errorf("%w: %d bytes, %d descriptors", errTooLong, len(b), len(files))
	}
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

// errCut: not all descriptors of a message have come.
var errCut = fmt.Errorf("%w: raise the limit of its process", unix.EMFILE)

// receive reads one message. The descriptors are the caller's, also after an
// error. A message with errCut is whole but for them.
func receive(c *net.UnixConn, buf []byte) (m message, files []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return m, nil, err
	}
	files = fds.Received(oob[:oobn])
	switch {
	case n == 0:
		return m, files, net.ErrClosed
	case flags&unix.MSG_TRUNC != 0:
		return m, files, errTooLong
	}
	m, err = parse(buf[:n])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errCut
	}
	return m, files, err
}

func parse(b []byte) (m message, err error) {
	err = json.Unmarshal(b, &m)
	return m, err
}

// sameUser reports whether the other end runs as root or as this process's user.
func sameUser(c *net.UnixConn) bool {
	cred, err := fds.Peer(c)
	return err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
