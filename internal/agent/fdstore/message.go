package fdstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// maxMessage bounds a message in bytes, maxFiles the descriptors beside it.
const (
	maxMessage = 64 << 10
	maxFiles   = 16
)

var errTooLong = errors.New("a message is too long")

// message is one datagram, either way, with descriptors beside it.
type message struct {
	Op    string // "put", "delete", "list"; in answers "item", "done", "replaced"
	Key   string `json:",omitempty"`
	Value []byte `json:",omitempty"`
	Ack   bool   `json:",omitempty"` // the sender waits for "done"
	Error string `json:",omitempty"` // in "done"
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

// sameUser tells whether the other end is root, or the user of this process.
func sameUser(c *net.UnixConn) bool {
	var cred *unix.Ucred
	err := fds.With(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
