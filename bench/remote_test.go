package bench

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A client that is started beside its server, as in the README, waits until the server
// listens. If the server never comes, the client returns an error; it does not retry after
// other errors.
func TestServerComesLate(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
	other := errors.New("no such host")
	for _, c := range []struct {
		after time.Duration // that refuse
		then  error
		want  error
		until time.Duration
	}{
		{0, nil, nil, 0}, {0, other, other, 0},
		{refusedFor / 2, nil, nil, refusedFor / 2}, {refusedFor / 2, other, other, refusedFor / 2},
		{time.Hour, nil, unix.ECONNREFUSED, refusedFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			_, err := reach(t.Context(), func(context.Context) (net.Conn, error) {
				if time.Since(begin) < c.after {
					return nil, refused
				}
				return nil, c.then
			})
			if took := time.Since(begin); !errors.Is(err, c.want) || took < c.until || took >= c.until+2*refusedPause {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := reach(ctx, func(context.Context) (net.Conn, error) {
			cancel()
			return nil, refused
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: %v", err)
		}
	})
}
