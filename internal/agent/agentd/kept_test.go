package agentd_test

import (
	"fmt"
	"os"
	"testing"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// A program hangs up and keeps what it has of a queue that others share. Its user is charged for it by each later agent, and for
// the queue and its memory when the last of the others has gone, also if the interface is removed.
func TestQuotaOfKeptPartAfterRestart(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprintf("interface removed: %v", removed), func(t *testing.T) {
			t.Parallel()
			g := oneAgent(t, nstest.Options{}, agentConfig{Processes: 3})
			var programs [3]*raw
			var files [3][]*os.File
			for i := range programs {
				programs[i] = g.raw(t).hello()
				files[i] = programs[i].files(openOf(agentproto.Open{Queue: kagent.AnyQueue}))
				defer fds.CloseFiles(files[i]...)
			}
			all := g.status(t).Users[0]
			stays := files[1]
			nstest.Must(t, programs[1].c.Close())
			await.Until(t, "its session is over", func() bool { return g.log.count("queue closed") == 1 })
			check := func(when string, processes, least, most int) {
				t.Helper()
				st := g.status(t)
				nstest.FatalIf(t, len(st.Users) != 1, "%s: users %+v", when, st.Users)
				if u := st.Users[0]; u.Processes != processes || u.Queues != 1 || u.PinnedBytes < least || u.PinnedBytes > most {
					t.Errorf("%s: user %+v, want %d processes, one queue, and %d to %d bytes", when, u, processes, least, most)
				}
				nstest.ErrorIf(t, blocks(t, stays[1]) == 0, "%s: the memory is gone while the socket is there", when)
			}
			check("before", 3, all.PinnedBytes, all.PinnedBytes)
			g.kill()
			if removed {
				g.ns.Remove(t)
			}
			for range 2 {
				g.start()
				check("the next agent", 3, all.PinnedBytes, all.PinnedBytes)
				g.kill()
			}
			g.start()
			for left, i := range []int{2, 0} {
				fds.CloseFiles(files[i]...)
				processes := 2 - left
				await.Until(t, "another one is gone", func() bool { return g.status(t).Users[0].Processes <= processes })
				check("another one is gone", processes, 8<<20, all.PinnedBytes-1)
				g.restart()
				check("the agent after that", processes, 8<<20, all.PinnedBytes-1)
			}
			g.releases(t, stays)
		})
	}
}
