package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// transactions makes some of several sizes, every byte checked.
func transactions(ctx context.Context, s *Session) error {
	for _, reply := range []int{1, 4, 7, 8, 64, 1500, 1 << 16} {
		r, err := s.Transactions(ctx, reply, 3*time.Millisecond, true)
		if err != nil {
			return fmt.Errorf("replies of %d bytes: %w", reply, err)
		}
		if r.PerSecond <= 0 || r.RoundTrips.TotalCount() == 0 || r.RoundTrips.Min() <= 0 || r.CPUTx <= 0 || r.CPURx <= 0 {
			return fmt.Errorf("replies of %d bytes: %+v", reply, r)
		}
	}
	return nil
}

func TestTransactionsOverVeth(t *testing.T) {
	b := onBed(t)
	for _, name := range []string{"vi-reliable-delivery", "vi-reliable-delivery-wait", "vi-rdma-write", "tcp-spin"} {
		b.within(t, name, 1<<16, func(s *Session) error { return transactions(t.Context(), s) })
	}
}

// Impossible requests are refused before anything waits for them.
func TestTransactionsRefuse(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxBytes int
		reply    int
		want     string
	}{
		{"tcp-spin", 64, 0, "a reply of 0 bytes"},
		{"tcp-spin", 64, MaxMessage + 1, "1 to"},
		{"udp-spin", 64, 64, "makes no transactions"},
		{"tcp-spin", 4, 4, "larger than announced"}, // the request is
		{"tcp-spin", 64, 65, "larger than announced"},
	} {
		client, server, end := workers(t)
		s, err := OpenSession(t.Context(), client, server, Row{Name: c.name}, c.maxBytes, nil)
		nstest.Must(t, err)
		_, err = s.Transactions(t.Context(), c.reply, time.Millisecond, false)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %d bytes: got %v, want a word about %q", c.name, c.reply, err, c.want)
		}
		end()
	}
}

// A session's ping-pong and stream have their figures, with the requested congestion
// control. They report what was resent: on a connection without losses only spurious
// retransmissions, on a busy machine.
func TestExchange(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	ctx := context.Background()
	s, err := OpenSession(ctx, client, server, Row{Name: "tcp-spin"}, 4096, nil, func(p *Params) {
		p.Congestion, p.LongestTimeout, p.WaitLimit = "reno", time.Second, time.Minute
	})
	nstest.Must(t, err)
	ping, err := s.PingPong(ctx, 64, time.Millisecond, 50)
	if err != nil || ping.N < 50 || ping.RoundTrips.TotalCount() != ping.N || ping.RoundTrips.Min() <= 0 {
		t.Errorf("ping-pong: %+v, %v", ping, err)
	}
	stream, err := s.Stream(ctx, 4096, 5*time.Millisecond)
	if err != nil || stream.N < 1 || !(stream.MBps > 0) {
		t.Errorf("stream: %+v, %v", stream, err)
	}
	if r, err := s.Repeats(ctx); err != nil || r.Spurious > r.Resent {
		t.Errorf("repeats: %+v, %v", r, err)
	}
	if _, err := s.Stream(ctx, 0, time.Second); err == nil {
		t.Error("messages of no bytes were streamed")
	}
	nstest.Check(t, s.Close(ctx))
	if got := (Repeats{5, 3}).Since(Repeats{2, 1}); got != (Repeats{3, 2}) {
		t.Errorf("since: %+v", got)
	}
	// What does not exist is refused, and what counts nothing says so.
	s, err = OpenSession(ctx, client, server, Row{Name: "udp-spin"}, 64, nil)
	nstest.Must(t, err)
	if _, err := s.Repeats(ctx); err == nil || !strings.Contains(err.Error(), "does not count") {
		t.Errorf("repeats of UDP: %v", err)
	}
}

// A congestion control that the kernel does not have is an error that names it.
func TestUnknownCongestionControl(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	_, err := OpenSession(context.Background(), client, server, Row{Name: "tcp-spin"}, 64, nil, func(p *Params) { p.Congestion = "none-such" })
	if err == nil || !strings.Contains(err.Error(), "TCP_CONGESTION none-such") {
		t.Errorf("%v", err)
	}
}
