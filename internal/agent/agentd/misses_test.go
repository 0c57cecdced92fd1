package agentd

import (
	"fmt"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// A user may miss maxMisses times, and once more after each missAgain, independently of other users. If there are
// more users than entries, the others share one ration.
func TestMisses(t *testing.T) {
	var m misses
	now := time.Now()
	use := func(user uint32) (n int) {
		for ; m.left(user, now); n++ {
			if m.add(user, now); n > 10*maxMisses {
				t.Fatalf("user %d may miss without end", user)
			}
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, maxMisses}, {0, 0}, {missAgain - 1, 0}, {1, 1}, {5*missAgain + missAgain/2, 5}, {missAgain / 2, 1}, {time.Hour, maxMisses}} {
		now = now.Add(step.after)
		nstest.Equal(t, fmt.Sprintf("how often a user may miss, %v later", step.after), use(7), step.want)
	}
	nstest.Equal(t, "how often another user may miss", use(8), maxMisses)
	// Concurrent requests.
	now = now.Add(time.Hour)
	for range maxMisses + 10 {
		m.add(9, now)
	}
	if now = now.Add(10 * missAgain); use(9) != 0 {
		t.Error("misses beyond the ration are for nothing")
	}

	for user := uint32(100); user < 100+maxMissers; user++ {
		m.add(user, now)
	}
	others := 0
	for user := uint32(1e6); user < 1e6+100; user++ {
		others += use(user)
	}
	if len(m.until) > maxMissers || others < maxMisses-10 || others > maxMisses {
		t.Errorf("%d users are remembered, want %d; the others may miss %d times together, want about %d", len(m.until), maxMissers, others, maxMisses)
	}
	if now = now.Add(time.Hour); use(2e6) != maxMisses || len(m.until) > maxMissers {
		t.Errorf("%d users are remembered, want %d; or a new one has no ration of its own", len(m.until), maxMissers)
	}
}
