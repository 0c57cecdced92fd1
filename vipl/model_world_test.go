package vipl_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"viaxdp/vipl"
)

// What joins the reference model and the library: posting to both, taking
// completions from both, and comparing.

// model is a pair of NICs, and the same in the reference model.
type model struct {
	t            failer
	randomSource randomSource
	net          *memoryNet
	nics         [2]*refNIC
	levels       []vipl.ReliabilityLevel // of VIs
	faults       bool                    // the wire has some
	ackDelay     time.Duration           // time limit for what the model expects of the library
	differs      bool                    // a difference was found

	flight  int // counts settlings
	frames  int // sent since the last one
	touched []access
	steps   int
	trail   []string // the last operations, for people
}

// failer is a testing.T or a rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, a ...any)
}

// randomSource makes the random choices: 0 to n-1, the simplest first.
type randomSource func(what string, n int) int

// callLog gathers what handlers get.
type callLog struct {
	mu   sync.Mutex
	list []call
}

// call is one call of a handler.
type call struct {
	vi     *vipl.VI
	isRecv bool
	desc   *vipl.Descriptor // nil: a CQ's
	number int              // of the handler
}

func (l *callLog) add(c call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, c)
}

func (l *callLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// take empties the log.
func (l *callLog) take() (list []call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, l.list = l.list, nil
	return list
}

// takeCalls takes n calls of handlers, which come in the order in which the handlers were set.
func (m *model) takeCalls(h *handlers, n int, of string) []call {
	m.t.Helper()
	m.until(func() string {
		if h.calls.len() < n {
			return of + ": a handler is not called"
		}
		return ""
	})
	calls := h.calls.take()
	if len(calls) != n {
		m.differ("%s: %d calls of handlers, want %d", of, len(calls), n)
	}
	for _, c := range calls {
		if h.called++; c.number != h.called {
			m.differ("%s: handler %d is called, want %d", of, c.number, h.called)
		}
	}
	return calls
}

const trailLength = 60

// note logs an operation, for reports of a difference.
func (m *model) note(format string, a ...any) {
	m.steps++
	if len(m.trail) == trailLength {
		m.trail = m.trail[1:]
	}
	m.trail = append(m.trail, fmt.Sprintf("%d: ", m.steps)+fmt.Sprintf(format, a...))
}

// differ ends the test: the library is not as the model.
func (m *model) differ(format string, a ...any) {
	m.t.Helper()
	m.differs = true
	m.t.Fatalf("%s\nthe last operations:\n%s", fmt.Sprintf(format, a...), strings.Join(m.trail, "\n"))
}

func (m *model) noError(what string, err error) {
	m.t.Helper()
	if err != nil {
		m.differ("%s: %v", what, err)
	}
}

const modelLimit = ackDelay

// until makes progress on both NICs until ok returns "", or fails after too long.
func (m *model) until(ok func() string) {
	m.t.Helper()
	var end time.Time
	for i := 1; ; i++ {
		what := ok()
		if what == "" {
			return
		}
		m.poll()
		if i%64 == 0 {
			runtime.Gosched()
			if end.IsZero() {
				end = time.Now().Add(m.ackDelay)
			} else if time.Now().After(end) {
				m.differ("%s", what)
			}
		}
	}
}

func (m *model) poll() {
	m.net.a.Poll()
	m.net.b.Poll()
}

// meanwhile runs f, which blocks, and makes progress on both NICs until it
// returns.
func (m *model) meanwhile(f func()) {
	m.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	m.until(func() string {
		select {
		case <-done:
			return ""
		default:
			return "a call that blocks does not return"
		}
	})
}

// access is memory that something under way reads or writes.
type access struct {
	region *refRegion
	lo, hi int
	write  bool
	by     *refVI // the sender, nil: the program
	far    bool   // at the other end of it
	read   bool   // by an RDMA read, which is done later than what is sent after it
}

// after reports whether b, whose sender comes after that of a, is certain to be done after a.
func (b access) after(a access, fenced bool) bool {
	switch {
	case a.by != b.by:
		return false
	case a.read && !b.read:
		return fenced
	}
	return !a.far || b.far || !a.write || b.write // what arrives may be late for what is sent
}

type accesses []access

// add notes an access. Pieces of one region become one.
func (l *accesses) add(s refSegment, x access) {
	if s.region == nil || s.n == 0 {
		return
	}
	x.region, x.lo, x.hi = s.region, s.off, s.off+s.n
	for i := range *l {
		if a := &(*l)[i]; a.region == x.region && a.write == x.write && a.far == x.far {
			a.lo, a.hi = min(a.lo, x.lo), max(a.hi, x.hi)
			return
		}
	}
	*l = append(*l, x)
}

// accessesOf are those of a descriptor that is about to be posted.
func accessesOf(v *refVI, d *refDesc) (l accesses) {
	if v.state != vipl.Connected || len(v.wrongs(d)) > 0 {
		return nil
	}
	reads := d.op == vipl.StatusOpRDMARead
	for _, s := range d.segs {
		l.add(s, access{write: reads, by: v, read: reads})
	}
	if head := v.peer.recv.head(); d.op == vipl.StatusOpSend && head != nil {
		for _, s := range head.segs {
			l.add(s, access{write: true, by: v, far: true})
		}
	}
	if d.op != vipl.StatusOpSend {
		target := d.remote
		target.n = d.size()
		l.add(target, access{write: !reads, by: v, far: true, read: reads})
	}
	return l
}

// clash reports whether the outcome would depend on the order of execution.
func (m *model) clash(l accesses, fence bool) bool {
	for _, a := range m.touched {
		for _, b := range l {
			if a.region == b.region && a.lo < b.hi && b.lo < a.hi && (a.write || b.write) &&
				!b.after(a, fence) {
				return true
			}
		}
	}
	return false
}

// mostFrames may be under way: unreliable VIs have nothing that holds them back.
const mostFrames = 150

// postSend posts to both.
func (m *model) postSend(v *refVI, d *refDesc) {
	l := accessesOf(v, d)
	if m.clash(l, d.fence) || m.frames > mostFrames {
		m.settle()
	}
	m.note("%v posts %v", v, d)
	m.encode(d)
	m.noError("PostSend", v.real.PostSend(d.real, d.home.real.Handle()))
	v.postSend(d)
	m.touched = append(m.touched, l...)
	m.frames += 1 + d.size()/1000
}

// postRecv posts to both.
func (m *model) postRecv(v *refVI, d *refDesc) {
	m.note("%v posts %v", v, d)
	m.encode(d)
	m.noError("PostRecv", v.real.PostRecv(d.real, d.home.real.Handle()))
	v.postRecv(d)
}

// settle waits until everything under way is over, and compares: completions,
// handlers called, asynchronous errors, states, memory.
func (m *model) settle() {
	m.t.Helper()
	m.until(m.unsettled)
	for _, n := range m.nics {
		m.checkErrors(n)
		for _, v := range n.vis {
			m.collect(&v.send)
			m.collect(&v.recv)
			v.flight, v.ending = v.flight[:0], none
		}
		for _, c := range n.cqs {
			m.collectCQ(c)
		}
	}
	m.flight++
	m.frames, m.touched = 0, m.touched[:0]
}

// unsettled returns a difference from the model, or "".
func (m *model) unsettled() string {
	for _, n := range m.nics {
		for _, v := range n.vis {
			for _, q := range []*refQueue{&v.send, &v.recv} {
				if q.done > 0 && q.items[q.done-1].real.Status()&vipl.StatusDone == 0 {
					return fmt.Sprintf("%v: %d descriptors are not all complete: %v", q, q.done, q.items[q.done-1])
				}
				if q.calls.len() < len(q.handed) {
					return "a handler of a queue is not called"
				}
			}
		}
		for _, c := range n.cqs {
			if c.calls.len() < min(c.armed, len(c.entries)) {
				return "a handler of a CQ is not called"
			}
		}
		if len(n.host.errs.codes()) < len(n.errors) {
			return fmt.Sprintf("asynchronous errors are missing: %v, want %v", n.host.errs.codes(), n.tell(n.errors))
		}
		if w := n.host.Counters().Writes; w != n.writes {
			return fmt.Sprintf("%s: %d RDMA writes are placed, want %d", n.name, w, n.writes)
		}
	}
	for _, n := range m.nics {
		for _, v := range n.vis {
			if s, err := v.real.Query(); err != nil || s.State != v.state {
				return fmt.Sprintf("%v: state %v %v", v, s.State, err)
			}
			for _, d := range v.flight {
				v.unknownRead(d)
			}
		}
	}
	for _, n := range m.nics {
		for _, r := range n.data {
			if i := r.compare(); i >= 0 {
				return fmt.Sprintf("%v: byte %d is %#x, want %#x", r, i, r.real.Bytes()[i], r.bytes[i])
			}
		}
	}
	return ""
}

// unknownRead records what a flushed RDMA read may have left at its destination.
func (v *refVI) unknownRead(d *refDesc) {
	if d.before != nil && d.real.Status()&vipl.StatusFlushed != 0 {
		d.each(d.before, (*refRegion).unknownOutcome)
		d.before = nil
	}
}

// compare returns the first byte that differs from the model, or -1. Uncertain bytes are known afterwards.
func (r *refRegion) compare() int {
	real := r.real.Bytes()
	if bytes.Equal(real, r.bytes) {
		r.unsure = nil
		return -1
	}
	for i := range real {
		if real[i] != r.bytes[i] && !slices.ContainsFunc(r.unsure, func(a alternative) bool {
			return i >= a.off && i < a.off+len(a.bytes) && real[i] == a.bytes[i-a.off]
		}) {
			return i
		}
	}
	copy(r.bytes, real)
	r.unsure = nil
	return -1
}

// checkErrors compares the asynchronous errors, VI by VI.
func (m *model) checkErrors(n *refNIC) {
	m.t.Helper()
	n.host.errs.mu.Lock()
	var list []refError
	for _, e := range n.host.errs.list {
		list = append(list, refError{e.VI, e.Code, e.Descriptor})
	}
	n.host.errs.list = nil
	n.host.errs.mu.Unlock()
	want := slices.Clone(n.errors)
	bad := len(list) != len(want)
	for _, e := range list {
		i := slices.IndexFunc(want, func(x refError) bool { return x.vi == e.vi })
		bad = bad || i < 0 || want[i] != e
		if bad {
			break
		}
		want = slices.Delete(want, i, i+1)
	}
	if bad {
		m.differ("%s: asynchronous errors %v, want %v", n.name, n.tell(list), n.tell(n.errors))
	}
	n.errors = nil
}

// check compares a completion that was taken from q with the model's next.
func (m *model) check(q *refQueue, real *vipl.Descriptor, err error) {
	m.t.Helper()
	if q.done == 0 {
		m.differ("%v: %v %v, but nothing is complete", q, real, err)
	}
	m.checkDone(q, q.pop(), real, err)
}

func (m *model) checkDone(q *refQueue, d *refDesc, real *vipl.Descriptor, err error) {
	m.t.Helper()
	if real != d.real {
		m.differ("%v: another descriptor (%v) instead of %v: %v", q, real, d, err)
	}
	s := real.Status()
	got := s &^ (vipl.StatusDone | vipl.StatusOpMask)
	if s&vipl.StatusDone == 0 || s&vipl.StatusOpMask != d.op || !slices.Contains(d.status, got) {
		m.differ("%v: %v has status %#x (%v), want operation %#x and one of %v", q, d, uint32(s), s, uint32(d.op), hex(d.status))
	}
	if s.Failed() != (err == vipl.ErrDescriptor) || !s.Failed() && err != nil {
		m.differ("%v: %v has status %v with error %v", q, d, s, err)
	}
	n := int(real.Length)
	if q.isRecv && (n != d.length && (n > d.length || !d.partly) || real.ImmediateData != d.arrived) {
		m.differ("%v: %v has length %d and immediate data %#x, want %d and %#x", q, d, n, real.ImmediateData, d.length, d.arrived)
	}
	if !q.isRecv && d.op != vipl.StatusOpRDMARead {
		if q.flushed == d.life && got == 0 {
			m.differ("%v: %v is done, but one before it was flushed", q, d)
		}
		if got&vipl.StatusFlushed != 0 {
			q.flushed = d.life
		}
	}
	d.home.slots = append(d.home.slots, real)
}

// collect checks what the handlers of a work queue got.
func (m *model) collect(q *refQueue) {
	m.t.Helper()
	if len(q.handed) == 0 {
		return
	}
	calls := m.takeCalls(&q.handlers, len(q.handed), q.String())
	for i, d := range q.handed {
		var err error
		if c := calls[i].desc; c != nil && c.Status().Failed() {
			err = vipl.ErrDescriptor
		}
		if calls[i].vi != q.vi.real {
			m.differ("%v: a handler is called for %v", q, q.vi.nic.find(calls[i].vi))
		}
		m.checkDone(q, d, calls[i].desc, err)
	}
	q.handed = nil
}

// collectCQ checks what the handlers of a CQ got, and takes the completions.
func (m *model) collectCQ(c *refCQ) {
	m.t.Helper()
	n := min(c.armed, len(c.entries))
	if n == 0 {
		return
	}
	c.armed -= n
	for _, e := range m.takeCalls(&c.handlers, n, "a CQ") {
		m.takeEntry(c, e.vi, e.isRecv)
	}
}

// takeEntry checks an entry that came off a CQ, and takes its completion, unless
// that was taken before without the CQ.
func (m *model) takeEntry(c *refCQ, v *vipl.VI, recv bool) {
	m.t.Helper()
	if !c.remove(v, recv) {
		m.differ("an entry of a CQ for %v, receive %v, is not the next", c.nic.find(v), recv)
	}
	q := &c.nic.find(v).send
	if recv {
		q = &c.nic.find(v).recv
	}
	done, _, _ := q.takes()
	told := 0 // completions whose entries the CQ still has
	for _, e := range c.entries {
		if e.vi == v && e.isRecv == recv {
			told++
		}
	}
	if d, err := done(); d != nil || told < q.done {
		m.check(q, d, err)
	}
}

func (n *refNIC) find(v *vipl.VI) *refVI {
	for _, x := range n.vis {
		if x.real == v {
			return x
		}
	}
	return nil
}
