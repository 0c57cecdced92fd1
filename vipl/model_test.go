package vipl_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Random programs of both sides have the outcome that the rules require: the same completions in the same
// order, the same bytes, the same asynchronous errors. The rules are in model_rules_test.go.

// modelNet is a net with the given number of chunks: many if nothing limits unreliable VIs, few if windows are
// to be full. Long frames have up to four chunks.
func modelNet(t testing.TB, chunks int, long bool) *memoryNet {
	// Silence reveals an end of which no frame has arrived, well within modelPatience.
	c := memoryConfig{arena: 8 << 20, silence: 4 * time.Second}
	c.queue.RxChunks, c.queue.TxChunks = chunks, 64
	if long {
		c.mtu, c.queue.MultiBuffer = 6000, true
	}
	return newMemoryNet(t, c)
}

// TestModel is short, and shrinks: a failure shows the least program. The NICs
// outlive the programs, but for one that failed.
func TestModel(t *testing.T) {
	var n *memoryNet
	ackDelay := modelLimit
	rapid.Check(t, func(r *rapid.T) {
		if n == nil {
			n = modelNet(t, 1024, false)
		}
		m := newModel(r, n, levels, seededSource(uint64(rapid.Uint16().Draw(r, "start"))))
		m.ackDelay = ackDelay
		defer func() {
			if m.differs {
				n, ackDelay = nil, 300*time.Millisecond // to shrink takes many failures
			}
		}()
		defer func() {
			if !m.differs {
				m.close() // also when the program ended before its time
			}
		}()
		// One number an operation: to shrink is to leave operations out.
		for _, seed := range rapid.SliceOfN(rapid.Uint16(), 1, 60).Draw(r, "program") {
			m.randomSource = seededSource(uint64(seed))
			m.operation()
		}
		m.settle()
	})
}

func seededSource(seed uint64) randomSource {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(_ string, n int) int { return rng.IntN(n) }
}

// sequenceSteps is how long the VIs and the memory of a program live.
const sequenceSteps = 500

// runModel runs programs, one behind the other, on long-lived NICs. VIA_SEED
// repeats a run, as far as timing allows.
func runModel(t *testing.T, which []vipl.ReliabilityLevel, faults xdpnictest.Faults, long bool, steps int) {
	seed := testsize.Seed(t)
	chunks := 1024
	if faults.Loss > 0 {
		chunks = 64
	}
	n := modelNet(t, chunks, long)
	faults.Seed = seed
	n.wire.SetFaults(faults)
	roll := seededSource(seed)
	start, done, sequences := time.Now(), 0, 0
	for done < steps {
		m := newModel(t, n, which, roll)
		m.faults = faults.Loss > 0
		for m.steps < sequenceSteps {
			m.operation()
		}
		m.close()
		done += m.steps
		sequences++
	}
	a, b := n.a.Counters(), n.b.Counters()
	t.Logf("frames sent again: %d; lent: %d", a.Resent+b.Resent, a.ByReference+b.ByReference)
	errorIf(t, long && done > 2000 && a.ByReference+b.ByReference == 0, "no frame was long")
	t.Logf("%d steps in %d programs, %.0f steps a second", done, sequences, float64(done)/time.Since(start).Seconds())
}

// modelSteps is the number of steps of a long run: VIA_STEPS, or few.
func modelSteps(t *testing.T) int {
	return testsize.Number(t, "VIA_STEPS", 20_000, 20_000)
}

// TestModelLong runs VIA_STEPS steps.
func TestModelLong(t *testing.T) { runModel(t, levels, xdpnictest.Faults{}, false, modelSteps(t)) }

// TestModelLongFrames runs fewer on queues that take frames of several chunks.
func TestModelLongFrames(t *testing.T) {
	runModel(t, levels, xdpnictest.Faults{}, true, modelSteps(t)/4)
}

// TestModelLongFaults runs fewer on a bad wire, which reliable VIs do not let
// the program see.
func TestModelLongFaults(t *testing.T) {
	bad := xdpnictest.Faults{Loss: 0.02, Dup: 0.05, Reorder: 0.05, Corrupt: 0.01}
	runModel(t, reliableLevels, bad, false, modelSteps(t)/50)
	runModel(t, reliableLevels, bad, true, modelSteps(t)/50)
}

// The model as text, for reports of a difference.

func (v *refVI) String() string {
	return fmt.Sprintf("%s%d(%v, %v)", v.nic.name, slices.Index(v.nic.vis, v), v.level, v.state)
}

func (n *refNIC) tell(list []refError) (s []string) {
	for _, e := range list {
		s = append(s, fmt.Sprintf("%v: %v (%p)", n.find(e.vi), e.code, e.desc))
	}
	return s
}

func (q *refQueue) String() string {
	if q.isRecv {
		return q.vi.String() + ".recv"
	}
	return q.vi.String() + ".send"
}

func (r *refRegion) String() string {
	if i := slices.Index(r.nic.data, r); i >= 0 {
		return fmt.Sprintf("%s.mem%d", r.nic.name, i)
	}
	return r.nic.name + ".home"
}

func (s refSegment) String() string {
	if s.region == nil {
		return fmt.Sprintf("nothing+%d:%d", s.off, s.n)
	}
	return fmt.Sprintf("%v+%d:%d", s.region, s.off, s.n)
}

var opNames = map[vipl.Status]string{
	vipl.StatusOpSend: "send", vipl.StatusOpReceive: "receive", vipl.StatusOpRDMAWrite: "write",
	vipl.StatusOpRDMARead: "read", vipl.StatusOpRemoteRDMAWrite: "receive(remote write)",
}

func (d *refDesc) String() string {
	s := fmt.Sprintf("%s of %d", opNames[d.op], d.size())
	if len(d.segs) > 6 {
		s += fmt.Sprintf(" in %d segments", len(d.segs))
	} else {
		s += fmt.Sprintf(" %v", d.segs)
	}
	if d.op == vipl.StatusOpRDMAWrite || d.op == vipl.StatusOpRDMARead {
		s += fmt.Sprintf(" at %v", d.remote)
	}
	if d.hasImm {
		s += " with immediate data"
	}
	if d.fence {
		s += ", fenced"
	}
	if d.format != 0 || d.sum || len(d.flaws) > 0 {
		s += fmt.Sprintf(", wrong: format %d, sum %v, %v", d.format, d.sum, hex(d.flaws))
	}
	return s
}

func hex(list []vipl.Status) (s []string) {
	for _, x := range list {
		s = append(s, fmt.Sprintf("%#x", uint32(x)))
	}
	return s
}

// The operations of random programs that take completions.

// takeSome takes completions off a queue, in one of the ways that it has.
func (m *model) takeSome() {
	v := m.anyVI(func(v *refVI) bool { return v.send.done+v.recv.done > 0 })
	q := &v.send
	if v.send.done == 0 || v.recv.done > 0 && m.randomSource("queue", 2) == 1 {
		q = &v.recv
	}
	if q.done == 0 {
		return
	}
	m.collect(q) // what handlers got comes first
	count, how := 1+m.randomSource("count", q.done), m.randomSource("how", 4)
	if how == 1 && count > 1 && m.randomSource("wait often", 4) != 3 {
		how = 0 // a sleeping wait for each costs time
	}
	m.note("take %d from %v, way %d", count, q, how)
	for range count {
		m.steps++
		if q.cq != nil && how < 3 {
			m.takeFromCQ(q.cq, how)
		} else {
			m.takeFrom(q, how)
		}
	}
	m.collect(q)
}

// takes are the ways in which the library gives the queue's completions.
func (q *refQueue) takes() (
	done func() (*vipl.Descriptor, error), wait func(time.Duration) (*vipl.Descriptor, error),
	notify func(func(*vipl.VI, *vipl.Descriptor)) error,
) {
	v := q.vi.real
	if q.isRecv {
		return v.RecvDone, v.RecvWait, v.RecvNotify
	}
	return v.SendDone, v.SendWait, v.SendNotify
}

func (m *model) takeFrom(q *refQueue, how int) {
	done, wait, notify := q.takes()
	var d *vipl.Descriptor
	var err error
	switch how {
	case 0, 3: // also without the CQ, in which an entry stays
		m.until(func() string {
			if d, err = done(); err == vipl.ErrNotDone {
				return "a descriptor is not done"
			}
			return ""
		})
	case 1:
		m.meanwhile(func() { d, err = wait(modelLimit) })
	default:
		m.handle(q, notify)
		return
	}
	m.check(q, d, err)
}

func (m *model) takeFromCQ(c *refCQ, how int) {
	m.collectCQ(c)
	if len(c.entries) == 0 {
		return
	}
	var v *vipl.VI
	var recv bool
	var err error
	switch how {
	case 0:
		m.until(func() string {
			if v, recv, err = c.real.Done(); err == vipl.ErrNotDone {
				return "a CQ has no entry"
			}
			return ""
		})
	case 1:
		m.meanwhile(func() { v, recv, err = c.real.Wait(modelLimit) })
	default:
		m.armCQ(c)
		m.collectCQ(c)
		return
	}
	m.noError("take from CQ", err)
	m.takeEntry(c, v, recv)
}

func (m *model) armCQ(c *refCQ) {
	c.set++
	number := c.set
	m.noError("CQ.Notify", c.real.Notify(func(v *vipl.VI, recv bool) { c.calls.add(call{v, recv, nil, number}) }))
	c.armed++
}

// arm sets handlers, some of them for completions that are still to come.
func (m *model) arm() {
	v := m.anyVI(isConnected)
	q := &v.send
	if m.randomSource("queue", 2) == 1 {
		q = &v.recv
	}
	_, _, notify := q.takes()
	m.note("handler for %v", q)
	if q.cq != nil {
		m.returns("handler of a queue that is bound to a CQ", notify(func(*vipl.VI, *vipl.Descriptor) {}), vipl.ErrInvalidParameter)
		if q.cq.armed < 4 {
			m.armCQ(q.cq)
		}
		return
	}
	if q.armed > 4 {
		return
	}
	m.handle(q, notify)
}

// handle sets a handler for a work queue without a CQ.
func (m *model) handle(q *refQueue, notify func(func(*vipl.VI, *vipl.Descriptor)) error) {
	q.set++
	number := q.set
	m.noError("Notify", notify(func(v *vipl.VI, d *vipl.Descriptor) { q.calls.add(call{v, q.isRecv, d, number}) }))
	if q.done > 0 {
		q.handed = append(q.handed, q.pop())
		return
	}
	q.armed++
}
