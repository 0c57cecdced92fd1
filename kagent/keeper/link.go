package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/kagent"
)

// link is a connection. Its end is mended if it is the client's then.
type link struct {
	c       *net.UnixConn
	answers chan answer     // closed at the connection's end
	closed  <-chan struct{} // the client's
	ended   bool            // its reader has seen the end; guarded by Client.mu
}

// answer is a message of the keeper.
type answer struct {
	message
	fds []int
}

// put sends an item. The caller is the only one who uses the connection.
func (l *link) put(key string, i *item) error {
	return l.send(message{Op: "put", Key: key, Value: i.value}, i.fds...)
}

func (l *link) send(m message, fds ...int) error {
	_ = l.c.SetWriteDeadline(time.Now().Add(answerTime))
	err := send(l.c, m, fds...)
	if err != nil && !errors.Is(err, errTooLong) {
		l.end() // its reader mends it
	}
	return err
}

// ask sends m and collects what comes before "done". The caller is the only one who
// uses the connection.
func (l *link) ask(m message) ([]kagent.Item, error) { return l.askWithin(m, answerTime) }

func (l *link) askWithin(m message, limit time.Duration) (items []kagent.Item, err error) {
	defer func() {
		if err != nil {
			closeItems(items)
			items = nil
		}
	}()
	if err := l.send(m); err != nil {
		return nil, err
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		var a answer
		ok := false
		select {
		case a, ok = <-l.answers:
		case <-over.C:
			l.end()
			return items, fmt.Errorf("the keeper at %s does not answer: %w", l.c.RemoteAddr(), os.ErrDeadlineExceeded)
		case <-l.closed:
			return items, net.ErrClosed
		}
		switch {
		case !ok:
			return items, errNoKeeper
		case a.Op != "done":
			i := kagent.Item{Key: a.Key, Value: a.Value}
			for _, fd := range a.fds {
				_ = unix.SetNonblock(fd, true) // so that reading a pipe can be ended
				i.Files = append(i.Files, os.NewFile(uintptr(fd), a.Key))
			}
			items = append(items, i)
		default:
			closeAll(a.fds)
			if a.Error != "" {
				return items, errors.New(a.Error)
			}
			return items, nil
		}
	}
}

// hangUp closes a connection.
func (l *link) hangUp() {
	_ = l.c.Close()
	l.drain()
}

// end ends a connection that fails, so that no answer is taken for another's. What
// the keeper has said until now is read: it may be that another agent has it.
func (l *link) end() {
	if l.c.CloseRead() != nil {
		_ = l.c.Close()
	}
	l.drain()
}

// drain takes what nobody waits for, until the reader is done.
func (l *link) drain() {
	for a := range l.answers {
		closeAll(a.fds)
	}
}
