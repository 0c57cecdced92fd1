package vipl_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/hugepages"
	"viaxdp/kagent"
	"viaxdp/kagent/kagenttest"
	"viaxdp/secure"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

var levels = []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception}

var reliableLevels = levels[1:]

// eachLevel runs f as a subtest for each of the levels.
func eachLevel(t *testing.T, which []vipl.ReliabilityLevel, f func(t *testing.T, level vipl.ReliabilityLevel)) {
	for _, level := range which {
		t.Run(level.String(), func(t *testing.T) { f(t, level) })
	}
}

// memoryHost is a NIC over a queue in memory.
type memoryHost struct {
	*vipl.Nic
	queue *xdpnictest.Queue
	errs  *errorLog
	agent *kagenttest.Agent
	arena *hugepages.Arena
}

// memoryNet is two of them and what joins them.
type memoryNet struct {
	wire   *xdpnictest.Wire
	fabric *kagenttest.Fabric
	a, b   *memoryHost
	stuck  bool // a call has panicked, or waits for ever, with the lock of an engine
}

// memoryConfig says how to build a memoryNet; zero fields mean defaults.
type memoryConfig struct {
	queue   xdpnictest.Config
	silence time.Duration // zero: so long that a machine that others share does not end connections
	mtu     int

	noPacking, bareData bool
	noRest              bool
	arena               int                               // bytes beside the chunks
	bubble              bool                              // in a testing/synctest bubble, which finds leaks by itself
	leaky               bool                              // completions are lost, and so chunks
	port                func(*xdpnictest.Queue) vipl.Port // makes of b's queue what b is opened on
	psk                 *vipl.PSK
	rekey               secure.Limits
	agent               func(*kagenttest.Agent) kagent.Agent // makes of a's agent what a is opened with
	zeroCopy            bool                                 // what opening got
	gate                bool                                 // the demux program lets everything in: what the engine sees must still be checked
}

// newMemoryNet opens a NIC at both ends of a wire in memory. At the end of the
// test no chunk may be missing or have been used wrongly, and no goroutine be
// left.
func newMemoryNet(t testing.TB, c memoryConfig) *memoryNet {
	t.Helper()
	n := &memoryNet{wire: xdpnictest.NewWire(), fabric: kagenttest.NewFabric(kagenttest.Faults{})}
	if !c.bubble {
		leaks := goleak.IgnoreCurrent()
		t.Cleanup(func() {
			if n.stuck {
				return
			}
			var err error
			if !comes(func() bool { err = goleak.Find(leaks); return err == nil }) { // some are about to end
				t.Error(err)
			}
		})
	}
	t.Cleanup(n.wire.Close)
	n.a, n.b = n.open(t, "a", c), n.open(t, "b", c)
	return n
}

func (n *memoryNet) open(t testing.TB, name string, c memoryConfig) *memoryHost {
	t.Helper()
	pool := c.queue.PoolBytes()
	arena, err := hugepages.New(hugepages.Config{
		Size: pool + max(c.arena, 4<<20), Reserve: pool, Policy: hugepages.Avoid,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &memoryHost{agent: n.fabric.Agent(name), arena: arena}
	if c.mtu != 0 {
		h.agent.SetMTU(c.mtu)
	}
	if c.silence == 0 {
		c.silence = time.Minute
	}
	c.queue.Memory, c.queue.Admit, c.queue.MAC = arena.Bytes(), h.agent.Admit, h.agent.Link().MAC
	if c.gate {
		c.queue.Admit = nil
	}
	if h.queue, err = n.wire.Queue(c.queue); err != nil {
		t.Fatal(err)
	}
	var port vipl.Port = h.queue
	if c.port != nil && name == "b" {
		port = c.port(h.queue)
	}
	var agent kagent.Agent = h.agent
	if c.agent != nil && name == "a" {
		agent = c.agent(h.agent)
	}
	if h.Nic, err = vipl.Open(vipl.Provider{
		Port: port, Agent: agent, Arena: arena, Silence: c.silence, Info: kagent.Info{NIC: xdpnic.Info{ZeroCopy: c.zeroCopy}},
		NoPacking: c.noPacking, BareData: c.bareData, NoRest: c.noRest, PSK: c.psk, Rekey: c.rekey,
	}); err != nil {
		t.Fatal(err)
	}
	h.errs = watchErrors(h.Nic)
	t.Cleanup(func() {
		if n.stuck = n.stuck || !comes(h.Unlocked); n.stuck { // Close would wait, too, and the panic not be told
			t.Errorf("host %s: a call does not give the engine's lock back", name)
			return
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		comes(func() bool { // late completions, and what a stalled doorbell left
			h.queue.Flush()
			return c.leaky || h.queue.Owners().InFlight == 0
		})
		if err := h.queue.Audit(); err != nil {
			t.Errorf("host %s: %v", name, err)
		}
		o := h.queue.Owners()
		if c.leaky {
			o.InFlight = 0
		}
		if o.Held+o.Leased+o.InFlight+o.Recycled > 0 {
			t.Errorf("host %s: chunks are missing: %+v", name, o)
		}
		if err := h.queue.Close(); err != nil {
			t.Error(err)
		}
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// connected opens a net and a pair of VIs on it.
func connected(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	n = newMemoryNet(t, c)
	va, vb = connect(t, n.a.Nic, n.b.Nic, level)
	return n, va, vb
}

func postSend(t testing.TB, v *vipl.VI, x *box, i, n int) {
	t.Helper()
	x.prepare(i, n)
	if err := v.PostSend(x.desc[i], x.region.Handle()); err != nil {
		t.Fatal(err)
	}
}

func postRecv(t testing.TB, v *vipl.VI, x *box, i, n int) {
	t.Helper()
	x.prepare(i, n)
	if err := v.PostRecv(x.desc[i], x.region.Handle()); err != nil {
		t.Fatal(err)
	}
}

// prepare makes descriptor i one of the first n bytes of its buffer, without
// immediate data.
func (x *box) prepare(i, n int) {
	s := x.segs[i]
	s.Length = uint32(n)
	x.desc[i].Control = 0
	x.desc[i].SetSegments(s)
}

const patience = 20 * time.Second

// comes waits until ok, and says whether it came to that.
func comes(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// sent and received wait for the next descriptor and check its status.
func sent(t testing.TB, v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.SendWait(patience)
	return checkDone(t, "send", d, err, want)
}

func received(t testing.TB, v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.RecvWait(patience)
	return checkDone(t, "receive", d, err, want|vipl.StatusOpReceive)
}

func checkDone(t testing.TB, what string, d *vipl.Descriptor, err error, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	if d == nil {
		t.Fatalf("%s: %v", what, err)
	}
	if s := d.Status(); s != want|vipl.StatusDone {
		t.Errorf("%s: status %#x (%v), want %#x", what, uint32(s), s, uint32(want|vipl.StatusDone))
	}
	if failed := want.Failed(); failed != (err == vipl.ErrDescriptor) || !failed && err != nil {
		t.Errorf("%s: error %v with status %v", what, err, want)
	}
	return d
}

// stateIs checks a VI's state, after the other side has had time to tell.
func stateIs(t testing.TB, v *vipl.VI, want vipl.State) vipl.ViStatus {
	t.Helper()
	var s vipl.ViStatus
	if !comes(func() bool {
		var err error
		if s, err = v.Query(); err != nil {
			t.Fatal(err)
		}
		return s.State == want
	}) {
		t.Fatalf("the VI is %v, want %v", s.State, want)
	}
	return s
}

// fill writes a pattern that tells message k.
func fillPattern(b []byte, k int) {
	for i := range b {
		b[i] = byte(i*7 + k*31 + i>>8)
	}
}

func checkPattern(t testing.TB, b []byte, k int) {
	t.Helper()
	for i := range b {
		if want := byte(i*7 + k*31 + i>>8); b[i] != want {
			t.Fatalf("message %d: byte %d of %d is %#x, want %#x", k, i, len(b), b[i], want)
		}
	}
}

// errorLog gathers the asynchronous errors of a NIC handle.
type errorLog struct {
	mu   sync.Mutex
	list []vipl.ErrorDescriptor
}

func watchErrors(n *vipl.Nic) *errorLog {
	l := &errorLog{}
	n.ErrorCallback(func(e vipl.ErrorDescriptor) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.list = append(l.list, e)
	})
	return l
}

func (l *errorLog) codes() (codes []vipl.ErrorCode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.list {
		codes = append(codes, e.Code)
	}
	return codes
}

// are checks that exactly these errors come, in this order, and forgets them.
func (l *errorLog) are(t testing.TB, want ...vipl.ErrorCode) []vipl.ErrorDescriptor {
	t.Helper()
	comes(func() bool { return len(l.codes()) >= len(want) }) // handlers run on a goroutine of their own
	if got := l.codes(); !slices.Equal(got, want) {
		t.Errorf("asynchronous errors %v, want %v", got, want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}
