package agentd_test

import (
	"testing"
	"time"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
)

// An agent that lacks the descriptors to take over what programs have does not start, and leaves all of it to one that has them.
func TestTakeOverWithFewDescriptors(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	var tokens [][]byte
	for range 2 { // the second one shares the queue of the first one
		reply, files, err := g.raw(t).hello().exchange(openOf(agentproto.Open{Queue: -1}))
		nstest.Must(t, err)
		defer fds.CloseFiles(files...)
		tokens = append(tokens, reply.Opened.Token)
	}
	g.kill()
	refusals := 0
	for g.cfg.Files = 30; !served(g); g.cfg.Files++ {
		refusals += g.log.count("raise the limit of open files")
		nstest.FatalIf(t, g.cfg.Files > 200, "it does not start with %d descriptors", g.cfg.Files)
	}
	nstest.ErrorIf(t, refusals == 0, "no agent says which limit is to be raised")
	g.cfg.Files = 0
	g.start()
	for _, token := range tokens {
		nstest.WantErr(t, "program comes back", nstest.Err(g.raw(t).hello().ask(resumeOf(token))), nil)
	}
}

// served starts the agent, and reports whether it serves, or ends by itself. Then it is gone.
func served(a *agent) (serves bool) {
	a.launch()
	ended := make(chan struct{})
	go func() {
		_ = a.cmd.Wait()
		close(ended)
	}()
	for pid := a.cmd.Process.Pid; !serves; {
		p, err := agentclient.Probe(a.socket)
		serves = err == nil && p == pid
		select {
		case <-ended:
			a.cmd = nil
			return false
		case <-time.After(time.Millisecond):
		}
	}
	_ = a.cmd.Process.Kill()
	<-ended
	a.cmd = nil
	return true
}
