package vipl_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"viaxdp/kagent"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vipl"
)

// fickle is an agent that has news of the interface ahead of each answer, and does
// not answer before they are taken: as a daemon may.
type fickle struct {
	*kagenttest.Agent
	t testing.TB

	mu    sync.Mutex
	asked map[string]int
}

func (a *fickle) news(call string) {
	a.mu.Lock()
	a.asked[call]++
	a.mu.Unlock()
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		a.Change(func(*kagent.Link) {})
	}()
	select {
	case <-taken:
	case <-time.After(patience):
		a.t.Errorf("%s waits for its answer, and the news before it for %s", call, call)
	}
}

func (a *fickle) NewVI() (uint32, error) {
	a.news("NewVI")
	return a.Agent.NewVI()
}

func (a *fickle) FreeVI(num uint32) {
	a.news("FreeVI")
	a.Agent.FreeVI(num)
}

func (a *fickle) Enter(num uint32, key uint64, peer netip.Addr) error {
	a.news("Enter")
	return a.Agent.Enter(num, key, peer)
}

func (a *fickle) Remove(num uint32) error {
	a.news("Remove")
	return a.Agent.Remove(num)
}

func (a *fickle) Close() error {
	a.news("Close")
	return a.Agent.Close()
}

// Whatever a program asks of its agent, the engine goes on meanwhile.
func TestNewsAheadOfTheAnswer(t *testing.T) {
	a := &fickle{t: t, asked: map[string]int{}}
	n := newMemoryNet(t, memoryConfig{agent: func(inner *kagenttest.Agent) kagent.Agent {
		a.Agent = inner
		return a
	}})
	va, _ := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
	if err := va.Disconnect(); err != nil {
		t.Error(err)
	}
	if err := va.Destroy(); err != nil {
		t.Error(err)
	}
	cq, err := n.a.CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	if err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	_, err = n.a.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, cq, nil)
	wantError(t, "a VI on a queue that is destroyed", err, vipl.ErrInvalidParameter)
	connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery) // for Close
	if err := n.a.Nic.Close(); err != nil {
		t.Error(err)
	}
	for call, least := range map[string]int{"NewVI": 3, "FreeVI": 2, "Enter": 2, "Remove": 2, "Close": 1} {
		if a.asked[call] < least {
			t.Errorf("%d times %s, want %d", a.asked[call], call, least)
		}
	}
}
