package agentd

import (
	"testing"

	"viaxdp/internal/agent/kagent"
)

// The indirection table is root's to change; all else is done as it is wanted.
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
