package bench

import (
	"strings"
	"testing"
	"time"
)

func TestDisturbances(t *testing.T) {
	quiet := Span{Wall: time.Second, CPU: time.Second}
	with := func(waited, stolen time.Duration) Span {
		s := quiet
		s.Waited, s.Stolen = waited, stolen
		return s
	}
	for _, c := range []struct {
		title          string
		client, server Span
		polls          bool
		want           string
	}{
		{"quiet", quiet, quiet, true, ""},
		{"a little", with(10*time.Millisecond, 0), with(90*time.Millisecond, 0), true, ""},
		{"once in a short one", Span{Wall: time.Millisecond, Waited: 90 * time.Microsecond}, Span{}, true, ""},
		{"client", with(130*time.Millisecond, 0), quiet, true, "client"},
		{"server", quiet, with(130*time.Millisecond, 0), true, "server"},
		{"one that sleeps", with(300*time.Millisecond, 0), quiet, false, ""},
		{"steal", with(0, 30*time.Second), quiet, false, "hypervisor"},
		{"a tick of it", with(0, userTick), quiet, true, ""},
	} {
		got := strings.Join(disturbances(c.client, c.server, c.polls), "; ")
		if (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.title, got)
		}
	}
}

// A span holds what happened in it.
func TestStopwatch(t *testing.T) {
	clock := startStopwatch()
	for since := time.Now(); time.Since(since) < 20*time.Millisecond; {
	}
	s := clock.span()
	if s.Wall < 20*time.Millisecond || s.CPU <= 0 || s.Waited < 0 || s.Stolen < 0 {
		t.Errorf("20 ms at work: %+v", s)
	}
	sum := s
	sum.add(s)
	if sum.Wall != 2*s.Wall || sum.CPU != 2*s.CPU || sum.Waited != 2*s.Waited || sum.Stolen != 2*s.Stolen {
		t.Errorf("twice %+v is %+v", s, sum)
	}
}
