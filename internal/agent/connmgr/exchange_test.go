package connmgr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// asked is a program's request for a connection with agent4.
type asked struct {
	msg   wire.CM // as it was sent
	ended <-chan error
	ans   *kagent.Answer // valid when it has ended
}

// asks begins a request.
func asks(t *testing.T, m connmgr.Client, s *sink) *asked {
	t.Helper()
	s.take()
	r := new(asked)
	r.ended = background(func() (err error) {
		r.ans, err = m.Request(within(time.Minute), kagent.Address{Host: here4, Disc: client},
			kagent.Address{Host: there4, Disc: echo}, kagent.Offer{VI: 1, Key: 7, Level: 1})
		return err
	})
	synctest.Wait()
	r.msg = s.one(t)
	return r
}

// requested is a request that the other side has accepted with the key 9. It returns that Accept, too.
func requested(t *testing.T, m connmgr.Client, s *sink) (r *asked, accept []byte) {
	t.Helper()
	r = asks(t, m, s)
	accept = bytesOf(t, wire.CM{Type: wire.CMAccept, ID: r.msg.ID, VI: 1, Key: 9, Level: 1, From: echo, To: client})
	m.Receive(accept, here4, agent4)
	nstest.Must(t, <-r.ended)
	return r, accept
}

// A report that a message did not arrive ends the request that it quotes, if the message was sent to that host.
func TestUndelivered(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		r := asks(t, m, s)
		sent, other := bytesOf(t, r.msg), r.msg
		other.ID++
		m.Undelivered(sent, spoofed(1), kagent.ErrNoMatch)
		m.Undelivered(bytesOf(t, other), agent4, kagent.ErrNoMatch)
		m.Undelivered(sent[:4], agent4, kagent.ErrNoMatch)
		synctest.Wait()
		nstest.ErrorIf(t, len(r.ended) > 0, "the report of another message, or of another host, ends the request")
		m.Undelivered(sent, agent4, kagent.ErrNoMatch)
		nstest.WantErr(t, "after the report", <-r.ended, kagent.ErrNoMatch)
	})
}

// A Request that its Cancel has overtaken does not come in.
func TestCancelOvertakes(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		l := listens(t, m)
		m.Receive(bytesOf(t, wire.CM{Type: wire.CMCancel, ID: 5}), here4, agent4)
		for range 2 {
			m.Receive(bytesOf(t, requestOf(5, echo)), here4, agent4)
		}
		in := takes(t, m, l, 6, agent4)
		in.Reject(wire.CMReasonProgram)
		nstest.Equal(t, "the exchange of the answer", s.one(t).ID, 6)
		nstest.WantErr(t, "another request", nstest.Err(l.Wait(within(time.Second))), kagent.ErrTimeout)
	})
}

// An answer that the program neither confirms nor declines is declined for it after ten seconds.
func TestUnclaimedAnswer(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		r, _ := requested(t, m, s)
		time.Sleep(9 * time.Second) // virtual: of the ten that an answer is kept
		for _, said := range s.said(t) {
			nstest.ErrorIf(t, said.Type == wire.CMCancel, "declined early")
		}
		time.Sleep(2 * time.Second)
		cancels := 0
		for _, said := range s.said(t) {
			if said.Type == wire.CMCancel && said.ID == r.msg.ID && said.Reason == wire.CMReasonTimeout {
				cancels++
			}
		}
		nstest.Equal(t, "cancels", cancels, 1)
		nstest.WantErr(t, "confirm", r.ans.Confirm(), kagent.ErrTimeout)
	})
}

// accepted has a program accept a stranger's request, and give up after a time.
func accepted(t *testing.T, m connmgr.Client, l kagent.Listener, id uint64, gives time.Duration) {
	t.Helper()
	in := takes(t, m, l, id, spoofed(uint32(id)))
	ctx, cancel := context.WithTimeout(t.Context(), gives)
	defer cancel()
	err := in.Accept(ctx, kagent.Offer{VI: 2, Key: 9, Level: 2})
	nstest.ErrorIf(t, !errors.Is(err, kagent.ErrTimeout), "Accept: %v", err)
}

// A requester that confirms when the program has given up is told so.
func TestConfirmedTooLate(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		l := listens(t, m)
		accepted(t, m, l, 5, 50*time.Millisecond)
		s.take()
		m.Receive(bytesOf(t, wire.CM{Type: wire.CMConfirm, ID: 5, Cookie: 9}), here4, spoofed(5))
		if a := s.one(t); a.Type != wire.CMReject || a.ID != 5 {
			t.Errorf("the answer is %+v", a)
		}
	})
}

// A Retry is answered at once by the Request with its cookie, and a copy of the Retry by nothing.
func TestCopyOfRetry(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		retry := bytesOf(t, wire.CM{Type: wire.CMRetry, ID: asks(t, m, s).msg.ID, Cookie: 8})
		m.Receive(retry, here4, agent4)
		if a := s.one(t); a.Type != wire.CMRequest || a.Cookie != 8 {
			t.Errorf("the answer is %+v", a)
		}
		m.Receive(retry, here4, agent4)
		nstest.Equal(t, "messages after the copy", len(s.take()), 0)
	})
}

// When a program gives up an address that has been silent for long enough, others have to prove theirs first.
func TestCookiesAfterSilence(t *testing.T) {
	for gives, want := range map[time.Duration]wire.CMType{50 * time.Millisecond: 0, 300 * time.Millisecond: wire.CMRetry} {
		alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
			l := listens(t, m)
			accepted(t, m, l, 5, gives)
			s.take()
			m.Receive(bytesOf(t, requestOf(6, echo)), here4, agent4)
			nstest.Equal(t, fmt.Sprintf("the answer to the next request, given up after %v", gives), s.last(t).Type, want)
		})
	}
}

// Where all requests have been taken and not answered, the next one of the same user is refused, unless a program waits
// for it.
func TestAllTaken(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		f := &flood{t: t, m: m, s: s}
		l := f.listen(7, "door")
		var first kagent.Incoming
		for range 1024 {
			f.ask(1, "door")
			if in := f.take(l); first == nil {
				first = in
			}
		}
		if a := f.ask(1, "door"); a.Type != wire.CMReject || m.Pending(7) != 1024 || first.Err() != nil {
			t.Errorf("one more is answered by %v, %d are pending, the first: %v", a.Type, m.Pending(7), first.Err())
		}
	})
}

// Copies of a refused Request are refused alike as long as they keep coming, and not as new ones.
func TestRefusedAgain(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		for copies := 1; copies <= 5; copies++ {
			m.Receive(bytesOf(t, requestOf(5, echo)), here4, agent4)
			if a := s.one(t); a.Type != wire.CMNoMatch || m.Counters().NoMatch != 1 {
				t.Errorf("copy %d is answered by %v, counted %d times", copies, a.Type, m.Counters().NoMatch)
			}
			time.Sleep(1500 * time.Millisecond) // virtual: a requester's pause
		}
	})
}

// An Accept that did not arrive ends the exchange if the requester's agent is gone. A host that is not reached may be back.
func TestUndeliveredAccept(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		in := takes(t, m, listens(t, m), 5, agent4)
		ended := background(func() error { return in.Accept(within(time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2}) })
		synctest.Wait()
		sent := s.take()
		nstest.FatalIf(t, len(sent) != 1, "%d messages", len(sent))
		m.Undelivered(sent[0].b, agent4, kagent.ErrUnreachable)
		m.Undelivered(sent[0].b, spoofed(1), kagent.ErrNoMatch)
		synctest.Wait()
		nstest.ErrorIf(t, len(ended) > 0, "an unreachable host, or another one, ends the exchange")
		m.Undelivered(sent[0].b, agent4, kagent.ErrNoMatch)
		nstest.WantErr(t, "without an agent", <-ended, kagent.ErrVanished)
	})
}
