package agentd

import (
	"testing"

	"viaxdp/internal/agent/kagent"
)

// Only root may change the indirection table; other steering is as requested.
func TestSteeringOfUsers(t *testing.T) {
	for _, c := range []struct {
		want kagent.Steering
		uid  uint32
		got  kagent.Steering
	}{
		{kagent.SteerByRules, 7, kagent.SteerByRules}, {kagent.SteerOff, 7, kagent.SteerOff},
		{kagent.SteerByRSS, 7, kagent.SteerByRules}, {kagent.SteerByRSS, 0, kagent.SteerByRSS},
		{kagent.SteerOff, 0, kagent.SteerOff},
	} {
		if got := steering(c.want, c.uid); got != c.got {
			t.Errorf("user %d wants %v and gets %v, want %v", c.uid, c.want, got, c.got)
		}
	}
}
