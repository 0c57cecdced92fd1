package connmgr_test

import (
	"context"
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
				nstest.WantErr(t, when+", Listen at "+at.Host.String(), nstest.Err(b.For(theirs).Listen(at)), kagent.ErrListening)
				nstest.WantErr(t, when+", Wait at "+at.Host.String(), nstest.Err(b.For(theirs).Wait(ctx, at)), kagent.ErrListening)
			}
		}
		free := func(when string) {
			t.Helper()
			for _, at := range []kagent.Address{anywhere, here} {
				l, err := b.For(theirs).Listen(at)
				nstest.FatalIf(t, err != nil, "%s: %v", when, err)
				l.Close()
			}
		}
		request := func() {
			o := offer(a, t)
			go func() { _, _ = a.Request(ctx, kagent.Address{}, to(b, echo), o) }()
		}
		for _, at := range []kagent.Address{anywhere, here} {
			l, err := b.For(mine).Listen(at)
			nstest.Must(t, err)
			refused("while another listens")
			request()
			in, err := l.Wait(ctx)
			nstest.Must(t, err)
			_ = in.Reject(0)
			other, err := b.For(theirs).Listen(kagent.Address{Disc: []byte("other")})
			nstest.Must(t, err)
			other.Close()
			l.Close()
			free("when that is closed")

			waiting, stop := context.WithCancel(ctx)
			ended := background(func() error { return nstest.Err(b.For(mine).Wait(waiting, at)) })
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
			return b.For(user).Wait(brief, kagent.Address{Disc: disc})
		}
		_, _ = wait(mine, []byte("begins to look"))
		time.Sleep(20 * time.Millisecond)
		_, _ = wait(mine, echo)
		request()
		time.Sleep(110 * time.Millisecond)
		if in, err := wait(theirs, echo); err == nil {
			t.Errorf("a request for another: %+v", in)
		}
	})
}

// Nor does another user get a peer's request that a user's call is to meet.
func TestPeerOfAnother(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		const mine, theirs = 1001, 1002
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		local, remote := kagent.Address{Host: to(b, echo).Host, Disc: echo}, to(a, []byte("peer"))
		ours, another, far := offer(b, t), offer(b, t), offer(a, t)
		ended := background(func() error {
			_, _, err := b.For(mine).RequestPeer(ctx, local, remote, ours)
			return err
		})
		synctest.Wait()
		_, _, err := b.For(theirs).RequestPeer(ctx, local, remote, another)
		nstest.WantErr(t, "another user's call", err, kagent.ErrListening)
		go func() { _, _, _ = a.RequestPeer(ctx, remote, local, far) }()
		nstest.Check(t, <-ended)
	})
}
