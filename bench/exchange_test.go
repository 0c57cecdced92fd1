package bench

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A session's ping-pong and stream have their figures, with the congestion control
// that was asked for, and tell what was sent again: on a connection that
// loses nothing only what is spurious, where the machine is busy.
func TestExchange(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	ctx := context.Background()
	s, err := OpenSession(ctx, client, server, "tcp-spin", 4096, nil, func(p *Params) {
		p.Congestion, p.LongestTimeout, p.Patience = "reno", time.Second, time.Minute
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := (Repeats{5, 3}).Since(Repeats{2, 1}); got != (Repeats{3, 2}) {
		t.Errorf("since: %+v", got)
	}
	// What does not exist is refused, and what counts nothing says so.
	s, err = OpenSession(ctx, client, server, "udp-spin", 64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Repeats(ctx); err == nil || !strings.Contains(err.Error(), "does not count") {
		t.Errorf("repeats of UDP: %v", err)
	}
}

// A congestion control that the kernel does not have is an error that names it.
func TestUnknownCongestionControl(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	_, err := OpenSession(context.Background(), client, server, "tcp-spin", 64, nil, func(p *Params) { p.Congestion = "none-such" })
	if err == nil || !strings.Contains(err.Error(), "TCP_CONGESTION none-such") {
		t.Errorf("%v", err)
	}
}
