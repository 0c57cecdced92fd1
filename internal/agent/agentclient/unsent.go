package agentclient

import (
	"errors"
	"net"
	"os"
	"time"

	"viaxdp/internal/agent/agentproto"
)

// maxUnsent bounds what waits for an agent that reads nothing, in bytes.
const maxUnsent = 1 << 20

var errFull = errors.New("the agent has read nothing for long")

// unsent is what an agent has not taken of a connection's messages. The connection stays: if this side closed it, the agent,
// which may only be stopped, would take the program for dead. Guarded by session.wmu.
type unsent struct {
	c    *net.UnixConn
	rest []byte
}

// writeLocked is write. Caller holds s.wmu.
func (s *session) writeLocked(c *net.UnixConn, q *agentproto.Request) error {
	b, err := agentproto.Encode(q, agentproto.MaxRequest)
	if err != nil {
		return err
	}
	if c == nil {
		return net.ErrClosed
	}
	n := 0
	if u := s.unsent; u == nil || u.c != c {
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		if n, err = write(c, b); errors.Is(err, os.ErrDeadlineExceeded) {
			s.unsent, err = &unsent{c: c, rest: b[n:]}, nil
			go s.sendRest(s.unsent)
		}
	} else if u.rest = append(u.rest, b...); len(u.rest) > maxUnsent {
		err = errFull
	}
	if err != nil {
		_ = c.Close() // part of a message may have been sent; the reader detects the end
	}
	return err
}

// sendRest sends what is unsent, until nothing is or the connection ends.
func (s *session) sendRest(u *unsent) {
	_ = u.c.SetWriteDeadline(time.Time{})
	for err := error(nil); ; {
		s.wmu.Lock()
		b := u.rest
		u.rest = nil
		if over := err != nil || len(b) == 0; over {
			if s.unsent == u {
				s.unsent = nil
			}
			s.wmu.Unlock()
			return
		}
		s.wmu.Unlock()
		_, err = write(u.c, b)
	}
}
