package connmgr_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/nstest"
)

// A discriminator belongs to one user: no other user gets its requests, by a more specific host, a less
// specific one, or a Wait.
func TestDiscriminatorOfAnother(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		const mine, theirs = 1001, 0
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		anywhere := kagent.Address{Disc: echo}
		here := kagent.Address{Host: to(b, echo).Host, Disc: echo}
		refused := func(when string) {
			t.Helper()
			for _, at := range []kagent.Address{anywhere, here} {
				if l, err := b.ListenAs(theirs, at); !errors.Is(err, kagent.ErrListening) {
					t.Errorf("%s, Listen at %v: %v, %v", when, at.Host, l, err)
				}
				if in, err := b.WaitAs(ctx, theirs, at); !errors.Is(err, kagent.ErrListening) {
					t.Errorf("%s, Wait at %v: %v, %v", when, at.Host, in, err)
				}
			}
		}
		free := func(when string) {
			t.Helper()
			for _, at := range []kagent.Address{anywhere, here} {
				l, err := b.ListenAs(theirs, at)
				if err != nil {
					t.Errorf("%s: %v", when, err)
					continue
				}
				l.Close()
			}
		}
		asked := func(l interface {
			Wait(context.Context) (kagent.Incoming, error)
		}) {
			t.Helper()
			request(ctx, t, a, b)
			in, err := l.Wait(ctx)
			nstest.Must(t, err)
			_ = in.Reject(0)
		}
		for _, at := range []kagent.Address{anywhere, here} {
			l, err := b.ListenAs(mine, at)
			nstest.Must(t, err)
			refused("while another listens")
			asked(l)
			if other, err := b.ListenAs(theirs, kagent.Address{Disc: []byte("other")}); err != nil {
				t.Error(err)
			} else {
				other.Close()
			}
			l.Close()
			free("when that is closed")

			waiting, stop := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = b.WaitAs(waiting, mine, at)
			}()
			synctest.Wait()
			refused("while another waits")
			stop()
			<-ended
			refused("just after that") // a loop of Waits would wait again
			time.Sleep(100 * time.Millisecond)
			free("later")
		}
		// A request that arrives after the Wait, and has not been taken when the discriminator becomes free, is
		// not for the next user: the manager sweeps every 50 ms.
		time.Sleep(time.Second / 2)
		wait := func(user uint32, disc []byte) (kagent.Incoming, error) {
			brief, stop := context.WithTimeout(ctx, time.Millisecond)
			defer stop()
			return b.WaitAs(brief, user, kagent.Address{Disc: disc})
		}
		_, _ = wait(mine, []byte("begins to look"))
		time.Sleep(20 * time.Millisecond)
		_, _ = wait(mine, echo)
		request(ctx, t, a, b)
		time.Sleep(110 * time.Millisecond)
		if in, err := wait(theirs, echo); err == nil {
			t.Errorf("a request for another: %+v", in)
		}
	})
}

// request has a ask b for a connection.
func request(ctx context.Context, t *testing.T, a, b *kagenttest.Agent) {
	t.Helper()
	o := offer(a, t)
	go func() { _, _ = a.Request(ctx, kagent.Address{}, to(b, echo), o) }()
}

// Nor does another user get a peer's request that a user's call is to meet.
func TestPeerOfAnother(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		const mine, theirs = 1001, 1002
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		local, remote := kagent.Address{Host: to(b, echo).Host, Disc: echo}, to(a, []byte("peer"))
		ended := make(chan error, 1)
		ours, another, far := offer(b, t), offer(b, t), offer(a, t)
		go func() {
			_, _, err := b.RequestPeerAs(ctx, mine, local, remote, ours)
			ended <- err
		}()
		synctest.Wait()
		if _, _, err := b.RequestPeerAs(ctx, theirs, local, remote, another); !errors.Is(err, kagent.ErrListening) {
			t.Errorf("%v, want ErrListening", err)
		}
		go func() { _, _, _ = a.RequestPeer(ctx, remote, local, far) }()
		nstest.Check(t, <-ended)
	})
}
