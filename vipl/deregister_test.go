package vipl_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
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

// Memory that a frame names stays registered while the frame is on the ring or the peer lacks it: Deregister
// reports that it is in use, the memory is not reused, and what arrives is what was sent. When the send is
// done, Deregister succeeds, whether the peer has the message or the connection has ended.
func TestDeregisterMemoryByReference(t *testing.T) {
	for _, where := range []byRefWhere{
		{
			"on the ring",
			func(n *memoryNet) { n.a.queue.SetLies(xdpnictest.Lies{Stall: 1}) },
			func(n *memoryNet) { n.a.queue.SetLies(xdpnictest.Lies{}) },
			func(n *memoryNet) bool { return n.a.queue.Pending() > 0 },
		},
		{
			"lost",
			func(n *memoryNet) { n.b.queue.Cut(true) },
			func(n *memoryNet) { n.b.queue.Cut(false) },
			func(n *memoryNet) bool { return n.a.queue.Pending() == 0 },
		},
	} {
		for _, write := range []bool{false, true} {
			for _, ends := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,write=%v,ends=%v", where.name, write, ends), func(t *testing.T) {
					eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
						synctest.Test(t, func(t *testing.T) { deregisterByReference(t, level, where, write, ends) })
					})
				})
			}
		}
	}
}

// byRefWhere is how to keep a frame there.
type byRefWhere struct {
	name              string
	coalesce, release func(n *memoryNet)
	held              func(n *memoryNet) bool
}

// deregisterByReference does it with a send, or a write; ends: the peer ends the connection before it has the message.
func deregisterByReference(t *testing.T, level vipl.ReliabilityLevel, where byRefWhere, write, ends bool) {
	const size = 32 << 10
	c := longFrames
	c.bubble, c.arena, c.silence = true, 4<<20, time.Second // silence time, by which a may detect the end
	n, va, vb, xa, xb := rdmaPair(t, c, level)
	var o others
	o.watch(n.a)
	tag := mustTag(t, n.a.NIC)
	before := books(n.a.arena)
	data, err := n.a.AllocMem(size, vipl.MemAttributes{Ptag: tag})
	must(t, err)
	busy := func(when string) {
		t.Helper()
		wantError(t, when, data.Deregister(), vipl.ErrResource)
		wantError(t, when, tag.Destroy(), vipl.ErrResource)
	}
	postRecv(t, vb, xb, 0, size)
	where.coalesce(n)
	fillPattern(data.Bytes(), 1)
	xa.desc[0].SetSegments(data.Segment(0, size))
	if write {
		xa.desc[0].SetRDMAWrite(xb.remote(0), data.Segment(0, size))
	}
	postDesc(t, va, xa, 0)
	fatalIf(t, n.a.Counters().ByReference == 0 || !where.held(n), "nothing lent is %s: %+v", where.name, n.a.Counters())
	busy("lent")
	k := o.take(t, n.a.NIC, tag, size, data.Bytes())
	errorIf(t, k > 0 || len(o.regions) == 0, "of %d blocks %d are the lent one", len(o.regions), k)
	busy("lent, and nothing else is free")
	if ends {
		must(t, vb.Disconnect())
	}
	where.release(n)
	want := vipl.Status(0)
	if write {
		want = vipl.StatusOpRDMAWrite
	}
	d, err := va.SendWait(ackDelay)
	fatalIf(t, d != xa.desc[0] || !ends && (err != nil || d.Status() != want|vipl.StatusDone), "%v, %v", d, err)
	if !ends {
		checkPattern(t, xb.buf[0][:size], 1)
	}
	wantError(t, "done", data.Deregister(), nil)
	o.give(t)
	noError(t, tag.Destroy())
	equal(t, "blocks and bytes of the arena", books(n.a.arena), before)
	synctest.Wait()
	errorIf(t, o.used, "other memory was sent")
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
	cq := createCQ(t, n.a.NIC, 8)
	must(t, cq.Destroy())
	wantError(t, "a VI on a queue that is destroyed", errOf(n.a.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, cq, nil)), vipl.ErrInvalidParameter)
	connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery) // for Close
	noError(t, n.a.NIC.Close())
	for call, least := range map[string]int{"NewVI": 3, "FreeVI": 2, "Enter": 2, "Remove": 2, "Close": 1} {
		errorIf(t, a.asked[call] < least, "%d times %s, want %d", a.asked[call], call, least)
	}
}

// slow is an agent that answers a request for a VI number when the test lets it.
type slow struct {
	*kagenttest.Agent
	asked, answer chan struct{}
	freed         atomic.Int32
}

func (a *slow) NewVI() (uint32, error) {
	a.asked <- struct{}{}
	<-a.answer
	return a.Agent.NewVI()
}

func (a *slow) FreeVI(num uint32) {
	a.freed.Add(1)
	a.Agent.FreeVI(num)
}

// While CreateVI waits for its agent, other calls of the handle do not. A VI whose completion queue is destroyed meanwhile is
// not made.
func TestCreateVIBesideSlowAgent(t *testing.T) {
	a := &slow{asked: make(chan struct{}), answer: make(chan struct{})}
	n := newMemoryNet(t, memoryConfig{agent: func(inner *kagenttest.Agent) kagent.Agent {
		a.Agent = inner
		return a
	}})
	cq := createCQ(t, n.a.NIC, 8)
	for _, c := range []*vipl.CQ{nil, cq} {
		made := starts(func() error { return errOf(n.a.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, c, nil)) })
		<-a.asked
		others := starts(func() error {
			other, err := n.a.CreateCQ(8)
			if err == nil {
				err = other.Destroy()
			}
			if err == nil && c != nil {
				err = c.Destroy()
			}
			return err
		})
		select {
		case err := <-others:
			noError(t, err)
		case <-time.After(ackDelay):
			t.Error("other calls wait for the agent's answer, too")
		}
		a.answer <- struct{}{}
		if err := <-made; c == nil {
			noError(t, err)
		} else {
			wantError(t, "a VI whose queue was destroyed meanwhile", err, vipl.ErrInvalidParameter)
		}
	}
	errorIf(t, a.freed.Load() != 1, "%d numbers freed, want that of the VI that was not made", a.freed.Load())
}
