package agentclient

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// If an agent reads nothing for a while and more calls come than its socket holds, it gets all of them later, on the same
// connection. It would take the end of that connection for the end of the program.
func TestManyCallsBesideStoppedAgent(t *testing.T) {
	t.Parallel()
	d, a := startBoth(t, nil)
	const calls = 600 // d reads no more than it has room for
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, calls)
	for range calls {
		go func() { ended <- nstest.Err(a.Wait(ctx, kagent.Address{Disc: make([]byte, 64)})) }()
	}
	s := a.share.session
	await.Until(t, "the socket is full", func() bool {
		s.wmu.Lock()
		defer s.wmu.Unlock()
		return s.unsent != nil && len(s.unsent.rest) > 0
	})
	ids := make(map[uint64]bool)
	for range calls {
		ids[d.next(t, agentproto.OpWait).ID] = true
	}
	d.mu.Lock()
	nstest.ErrorIf(t, len(ids) != calls || len(d.conns) != 1, "%d calls of %d, on %d connections", len(ids), calls, len(d.conns))
	d.mu.Unlock()
	cancel()
	for range 2 * calls {
		select {
		case <-d.asked: // cancellations
		case err := <-ended:
			nstest.WantErr(t, "a Wait", err, context.Canceled)
		}
	}
}

// What waits for an agent that reads nothing is bounded. The connection ends when it is too much.
func TestUnsentIsBounded(t *testing.T) {
	t.Parallel()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "agent.sock"), Net: "unix"})
	nstest.Must(t, err)
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	nstest.Must(t, err)
	defer c.Close()
	var s session
	q := agentproto.Request{Op: agentproto.OpListen, Local: &kagent.Address{Disc: make([]byte, 64)}}
	for sent := 0; err == nil && sent < 4*maxUnsent; sent += len(q.Local.Disc) {
		err = s.write(c, &q)
	}
	nstest.WantErr(t, "a write", err, errFull)
	nstest.WantErr(t, "the connection", c.SetDeadline(time.Time{}), net.ErrClosed)
}
