package agentd

import (
	"context"
	"testing"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// ended is an exchange that records how it was ended.
type ended struct {
	kagent.Incoming
	kagent.Confirmation
	reason wire.CMReason
}

func (e *ended) Reject(reason wire.CMReason) error {
	e.reason = reason
	return nil
}

func (e *ended) Decline(reason wire.CMReason) { e.reason = reason }

// The other side of an exchange hears that a program has ended, which may come again, and not that it lacks something.
func TestReasonOfProgramsEnd(t *testing.T) {
	var in, answer, late, many ended
	c := &conn{handles: map[uint64]*handle{}}
	nstest.Must(t, c.hold(&handle{in: &in}))
	nstest.Must(t, c.hold(&handle{answer: &kagent.Answer{Confirmation: &answer}}))
	for range maxHandles - 2 {
		nstest.Must(t, c.hold(&handle{in: &ended{}}))
	}
	nstest.WantErr(t, "more than a program may have", c.hold(&handle{in: &many}), errHandles)
	nstest.Equal(t, "the reason for one too many", many.reason, wire.CMReasonResources)
	c.release()
	nstest.WantErr(t, "after the end", c.hold(&handle{in: &late}), errHandles)
	for _, e := range []*ended{&in, &answer, &late} {
		nstest.Equal(t, "the reason", e.reason, wire.CMReasonClosed)
	}
}

// ours is an exchange that the program answers, or that ends when done is closed, and a listener.
type ours struct {
	kagent.Incoming
	kagent.Confirmation
	kagent.Listener
	done chan struct{}
}

func (o *ours) Done() <-chan struct{}                                { return o.done }
func (o *ours) Err() error                                           { return kagent.ErrCancelled }
func (o *ours) Local() (a kagent.Address)                            { return a }
func (o *ours) Remote() (a kagent.Address)                           { return a }
func (o *ours) Offer() (f kagent.Offer)                              { return f }
func (o *ours) Accept(ctx context.Context, offer kagent.Offer) error { return nil }
func (o *ours) Reject(wire.CMReason) error                           { return nil }
func (o *ours) ConfirmWith([]byte) error                             { return nil }
func (o *ours) Decline(wire.CMReason)                                {}
func (o *ours) Close() error                                         { return nil }

// A program hears of the end of a request after it has got the request, also if the request ends at once.
func TestEndFollowsRequest(t *testing.T) {
	end, program := unixPair(t)
	cancelled := &ours{done: make(chan struct{})}
	close(cancelled.done)
	c := &conn{server: &Server{}, c: end, calls: make(map[uint64]context.CancelFunc), handles: make(map[uint64]*handle)}
	nstest.Must(t, c.wait(agentproto.Request{ID: 7, Op: agentproto.OpWait}, func(context.Context) (*agentproto.Reply, error) {
		defer time.Sleep(20 * time.Millisecond) // this goroutine gets no CPU
		return c.arrived(cancelled)
	}))
	nstest.Must(t, program.SetDeadline(time.Now().Add(time.Minute)))
	r := agentproto.Reader{C: program}
	first, _, err := r.ReadReply()
	nstest.Must(t, err)
	second, _, err := r.ReadReply()
	nstest.Must(t, err)
	nstest.ErrorIf(t, first.ID != 7 || first.Incoming == nil || second.Ended != first.Incoming.Handle,
		"first %+v, then %+v", first, second)
	c.work.Wait()
}

// What a program has answered, has closed or has seen end no longer counts among what it has, and nothing waits for it.
func TestHandlesAreFreed(t *testing.T) {
	sealed := kagent.Offer{Handshake: "sealed"} // or the session records its peer
	for _, test := range []struct {
		name   string
		number uint64 // of the handle
		op     agentproto.Op
	}{
		{name: "ends", number: 1},
		{"accepted", 1, agentproto.OpAccept},
		{"rejected", 1, agentproto.OpReject},
		{"confirmed", 2, agentproto.OpConfirm},
		{"declined", 2, agentproto.OpDecline},
		{"closed", 3, agentproto.OpUnlisten},
	} {
		t.Run(test.name, func(t *testing.T) {
			end, _ := unixPair(t)
			c := &conn{
				server: &Server{}, c: end, n: &session{}, calls: map[uint64]context.CancelFunc{}, handles: map[uint64]*handle{},
			}
			o := &ours{done: make(chan struct{})}
			defer close(o.done)
			nstest.Must(t, nstest.Err(c.arrived(o)))
			c.work.Go(func() { c.notifyEnd(1) })
			nstest.Must(t, nstest.Err(c.answered(&kagent.Answer{Confirmation: o}, sealed)))
			nstest.Must(t, c.hold(&handle{listener: o}))
			q := agentproto.Request{ID: 1, Op: test.op, Handle: test.number, Offer: &sealed}
			switch test.op {
			case "":
				o.done <- struct{}{}
			case agentproto.OpAccept:
				nstest.Must(t, c.accept(q))
			default:
				nstest.Must(t, c.do(q))
			}
			await.Until(t, "the handle is free", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.handles[test.number] == nil && len(c.handles) == 2
			})
			if test.number == 1 {
				c.work.Wait()
			} else {
				c.release()
			}
		})
	}
}
