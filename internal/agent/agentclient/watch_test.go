package agentclient

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// A watcher's callback delays no call to the agent, this one or the next. It gets the latest state, and then
// the agent is asked for the next change.
func TestWhoIsToldKeepsNobodyWaiting(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	first := startDaemon(t, socket, nil)
	a := startAgent(t, socket)
	told, free := make(chan int, 16), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	a.Watch(func(l kagent.Link) {
		told <- l.MTU
		<-free
	})
	wants := func(mtu int) {
		t.Helper()
		select {
		case got := <-told:
			nstest.ErrorIf(t, got != mtu, "told of change %d, want %d", got, mtu)
		case <-time.After(waitLimit):
			t.Fatalf("no watcher was notified of change %d", mtu)
		}
	}
	first.next(t, agentproto.OpWatch)
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 1}})
	wants(1)
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 2}})
	first.tell(t, &agentproto.Reply{Link: &kagent.Link{MTU: 3}})
	nstest.WantErr(t, "during a callback", nstest.Err(a.NewVI()), nil)
	first.die()
	second := startDaemon(t, socket, nil)
	nstest.WantErr(t, "the next agent, during a callback", nstest.Err(a.NewVI()), nil)
	second.next(t, agentproto.OpWatch)
	release()
	wants(3)
	second.next(t, agentproto.OpWatch)
	second.next(t, agentproto.OpWatch)
}
