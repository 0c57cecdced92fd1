package vipl_test

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// others is the rest of an arena, which the program uses for other data: no frame may have any of it.
type others struct {
	regions []*vipl.Region
	used    bool // bytes of other memory have left, or arrived; under the wire's lock
}

const foreign = "memory of somebody else"

// watch checks every frame that h sends.
func (o *others) watch(h *memoryHost) {
	h.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		o.used = o.used || bytes.Contains(frame, []byte(foreign))
		return false
	}})
}

// take allocates all of the arena in pieces of size, and fills it. It counts those that overlap mine.
func (o *others) take(t *testing.T, n *vipl.NIC, tag *vipl.Ptag, size int, mine []byte) (overlap int) {
	t.Helper()
	for {
		r, err := n.AllocMem(size, vipl.MemAttributes{Ptag: tag})
		if err != nil {
			return overlap
		}
		copy(r.Bytes(), bytes.Repeat([]byte(foreign), size/len(foreign)))
		if &r.Bytes()[0] == &mine[0] {
			overlap++
		}
		o.regions = append(o.regions, r)
	}
}

func (o *others) give(t *testing.T) {
	t.Helper()
	for _, r := range o.regions {
		noError(t, r.Deregister())
	}
	o.regions = nil
}

// books returns what an arena has allocated.
func books(a *hugepages.Arena) [2]int {
	s := a.Stats()
	return [2]int{s.Blocks, s.Free}
}

// Memory that a peer reads is in no descriptor of its program, which may deregister it at any time: not a byte more
// is read, the memory's next contents are not visible, and the read ends like one of memory that is not open.
func TestDeregisterWhileThePeerReads(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := longFrames
		c.bubble, c.queue.RxChunks = true, 64 // so that the reader's window closes in the middle
		n, va, vb, xa, _ := rdmaPair(t, c, level)
		var o others
		o.watch(n.b)
		tag := mustTag(t, n.b.NIC)
		before := books(n.b.arena)
		data, err := n.b.AllocMem(boxSize, vipl.MemAttributes{Ptag: tag, EnableRDMARead: true})
		must(t, err)
		fillPattern(data.Bytes(), 1)
		n.a.queue.SetFaults(xdpnictest.Faults{Delay: 10 * time.Millisecond}) // and stays closed for a while
		xa.desc[0].SetRDMARead(data.Remote(0), segment(xa, 0, boxSize))
		postDesc(t, va, xa, 0)
		time.Sleep(11 * time.Millisecond) // the request is there, and a part of the answer under way
		mine := data.Bytes()
		if s := n.b.Counters(); s.Reads > 0 || n.b.queue.Stats().TxFrames == 0 {
			t.Fatalf("the answer is not under way: %+v", s)
		}
		must(t, data.Deregister())
		equal(t, "blocks and bytes of the arena", books(n.b.arena), before)
		errorIf(t, o.take(t, n.b.NIC, tag, boxSize, mine) != 1, "the memory was not reused")
		sent(t, va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError)
		statesAre(t, vipl.Error, va, vb)
		n.b.errs.are(t, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)
		if s := n.b.Counters(); s.RDMARefused != 1 || s.Reads != 0 {
			t.Errorf("%+v", s)
		}
		synctest.Wait()
		errorIf(t, o.used || bytes.Contains(xa.buf[0], []byte(foreign)), "the peer got other memory")
		o.give(t)
		equal(t, "blocks and bytes of the arena", books(n.b.arena), before)
	})
}

// fickle is an agent that reports a change of the interface before each answer, and does not answer before the
// report is taken, as a daemon may do.
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
	case <-time.After(ackDelay):
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

// The engine continues during any call of the program to its agent.
func TestNewsAheadOfTheAnswer(t *testing.T) {
	a := &fickle{t: t, asked: map[string]int{}}
	n := newMemoryNet(t, memoryConfig{agent: func(inner *kagenttest.Agent) kagent.Agent {
		a.Agent = inner
		return a
	}})
	va, _ := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	noError(t, va.Disconnect())
	noError(t, va.Destroy())
	cq, err := n.a.CreateCQ(8)
	must(t, err)
	must(t, cq.Destroy())
	wantError(t, "a VI on a queue that is destroyed", errOf(n.a.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, cq, nil)), vipl.ErrInvalidParameter)
	connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery) // for Close
	noError(t, n.a.NIC.Close())
	for call, least := range map[string]int{"NewVI": 3, "FreeVI": 2, "Enter": 2, "Remove": 2, "Close": 1} {
		errorIf(t, a.asked[call] < least, "%d times %s, want %d", a.asked[call], call, least)
	}
}
