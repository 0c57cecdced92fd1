package agentd

import (
	"fmt"
	"testing"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
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
		nstest.Equal(t, fmt.Sprintf("what user %d gets for %v", c.uid, c.want), steering(c.want, c.uid), c.got)
	}
}
