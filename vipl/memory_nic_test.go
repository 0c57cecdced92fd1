package vipl_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
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

// eachLevelInBubble is eachLevel in bubbles of virtual time.
func eachLevelInBubble(t *testing.T, which []vipl.ReliabilityLevel, f func(t *testing.T, level vipl.ReliabilityLevel)) {
	eachLevel(t, which, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) { f(t, level) })
	})
}

// inBubble runs f as a subtest in a bubble of virtual time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// over has b opened on p, in which queue is the queue.
func over(p vipl.Port, queue **xdpnictest.Queue) func(*xdpnictest.Queue) vipl.Port {
	return func(q *xdpnictest.Queue) vipl.Port {
		*queue = q
		return p
	}
}

// memoryHost is a NIC over a queue in memory.
type memoryHost struct {
	*vipl.NIC
	queue *xdpnictest.Queue
	errs  *errorLog
	agent *kagenttest.Agent
	arena *hugepages.Arena
}

// memoryNet is two of them and what joins them.
type memoryNet struct {
	before uint64 // messages that had reached b before a test counts them
	wire   *xdpnictest.Wire
	fabric *kagenttest.Fabric
	a, b   *memoryHost
	stuck  bool // a call has panicked, or waits for ever, with the lock of an engine
}

// memoryConfig configures a memoryNet; zero fields mean defaults.
type memoryConfig struct {
	queue   xdpnictest.Config
	silence time.Duration // zero: so long that a machine that others share does not end connections
	mtu     int

	noPacking, bareData bool
	noPollPause         bool
	arena               int                               // bytes beside the chunks
	bubble              bool                              // in a testing/synctest bubble, which finds leaks by itself
	leaky               bool                              // completions are lost, and so chunks
	port                func(*xdpnictest.Queue) vipl.Port // makes of b's queue what b is opened on
	psk                 *vipl.PSK
	rekey               secure.Limits
	agent               func(*kagenttest.Agent) kagent.Agent // makes of a's agent what a is opened with
	zeroCopy            bool                                 // what opening got
	gsoFails            func() error                         // what sending a GSO packet returns; nil: nothing fails
	portOffset          uint8                                // what opening b got
	gso                 string                               // GSO packets: "" none, "whole", or "divided" on the wire
	maxVIs              int                                  // of the interface's VI table; 0: not told
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
	must(t, err)
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
	h.queue, err = n.wire.Queue(c.queue)
	must(t, err)
	var port vipl.Port = h.queue
	if c.port != nil && name == "b" {
		port = c.port(h.queue)
	}
	info := kagent.Info{NIC: xdpnic.Info{ZeroCopy: c.zeroCopy}, MaxVIs: c.maxVIs}
	if name == "b" {
		info.PortOffset = c.portOffset
	}
	var agent kagent.Agent = h.agent
	if c.agent != nil && name == "a" {
		agent = c.agent(h.agent)
	}
	if h.NIC, err = vipl.Open(vipl.Provider{
		Port: port, GSO: h.gso(c), Agent: agent, Arena: arena, Silence: c.silence, Info: info,
		NoPacking: c.noPacking, BareData: c.bareData, NoPollPause: c.noPollPause, PSK: c.psk, Rekey: c.rekey,
	}); err != nil {
		t.Fatal(err)
	}
	h.errs = watchErrors(h.NIC)
	t.Cleanup(func() {
		if n.stuck = n.stuck || !comes(h.Unlocked); n.stuck { // Close would block, too, and hide the panic
			t.Errorf("host %s: a call does not give the engine's lock back", name)
			return
		}
		noError(t, h.Close())
		comes(func() bool { // late completions, and what a stalled doorbell left
			h.queue.Flush()
			return c.leaky || h.queue.Owners().InFlight == 0
		})
		err := h.queue.Audit()
		errorIf(t, err != nil, "host %s: %v", name, err)
		o := h.queue.Owners()
		if c.leaky {
			o.InFlight = 0
		}
		errorIf(t, o.Held+o.Leased+o.InFlight+o.Recycled > 0, "host %s: chunks are missing: %+v", name, o)
		noError(t, h.queue.Close())
		noError(t, arena.Close())
	})
	return h
}

// attacker joins a queue to the wire that no host has, to send any frames from.
func (n *memoryNet) attacker(t testing.TB, c xdpnictest.Config) *xdpnictest.Queue {
	t.Helper()
	c.MAC = [6]byte{2, 0xbb}
	q, err := n.wire.Queue(c)
	must(t, err)
	t.Cleanup(func() { q.Close() })
	return q
}

// linkTo returns what is below the frames from one host to another.
func linkTo(from, to *memoryHost) wire.Link {
	return wire.Link{SrcMAC: from.agent.Link().MAC, DstMAC: to.agent.Link().MAC, Src: from.agent.Addr(), Dst: to.agent.Addr()}
}

// templateTo returns the lower headers of these frames.
func templateTo(t testing.TB, from, to *memoryHost) wire.Template {
	t.Helper()
	template, err := wire.NewTemplate(linkTo(from, to))
	must(t, err)
	return template
}

// gso returns what the host sends GSO packets by.
func (h *memoryHost) gso(c memoryConfig) provider.GSO {
	if c.gso == "" {
		return nil
	}
	g := memorynic.GSO(h.queue, h.agent)
	g.Divide, g.Fail = c.gso == "divided", c.gsoFails
	return g
}

// gsoQueue has chunks for GSO packets, and gsoDeepQueue for as many as a window takes.
var (
	gsoQueue     = xdpnictest.Config{MultiBuffer: true, ChunkSize: 4096, RxChunks: 128, TxChunks: 128}
	gsoDeepQueue = xdpnictest.Config{MultiBuffer: true, ChunkSize: 4096, RxChunks: 512, TxChunks: 256}
)

// gsoFrames is a net whose hosts send and receive GSO packets.
var gsoFrames = memoryConfig{gso: "whole", queue: gsoQueue, arena: 8 << 20}

// connected opens a net and a pair of VIs on it.
func connected(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	n = newMemoryNet(t, c)
	va, vb = connect(t, n.a.NIC, n.b.NIC, level)
	return n, va, vb
}

// unconnected opens a net and a VI on each of its hosts.
func unconnected(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	n = newMemoryNet(t, c)
	return n, newVI(t, n.a.NIC, level), newVI(t, n.b.NIC, level)
}

// connectedBoxes is connected, with a box of buffers at each end.
func connectedBoxes(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel, countA, countB, size int) (
	n *memoryNet, va, vb *vipl.VI, xa, xb *box,
) {
	t.Helper()
	n, va, vb = connected(t, c, level)
	return n, va, vb, newBox(t, n.a.NIC, countA, size), newBox(t, n.b.NIC, countB, size)
}

// postMessage posts a send of n bytes of message k from buffer i, and receivedMessage
// waits for a receive with that in it.
func postMessage(t testing.TB, v *vipl.VI, x *box, i, n, k int) {
	t.Helper()
	fillPattern(x.buf[i][:n], k)
	postSend(t, v, x, i, n)
}

func receivedMessage(t testing.TB, v *vipl.VI, b []byte, k int) {
	t.Helper()
	received(t, v, 0)
	checkPattern(t, b, k)
}

// postRecvs posts the first count receives of n bytes.
func postRecvs(t testing.TB, v *vipl.VI, x *box, count, n int) {
	t.Helper()
	for i := range count {
		postRecv(t, v, x, i, n)
	}
}

func postSend(t testing.TB, v *vipl.VI, x *box, i, n int) {
	t.Helper()
	x.prepare(i, n)
	must(t, v.PostSend(x.desc[i], x.region.Handle()))
}

func postRecv(t testing.TB, v *vipl.VI, x *box, i, n int) {
	t.Helper()
	x.prepare(i, n)
	must(t, v.PostRecv(x.desc[i], x.region.Handle()))
}

// prepare makes descriptor i one of the first n bytes of its buffer, without
// immediate data.
func (x *box) prepare(i, n int) {
	s := x.segs[i]
	s.Length = uint32(n)
	x.desc[i].Control = 0
	x.desc[i].SetSegments(s)
}

const ackDelay = 20 * time.Second

// sent and received wait for the next descriptor and check its status.
func sent(t testing.TB, v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.SendWait(ackDelay)
	return checkDone(t, "send", d, err, want)
}

func received(t testing.TB, v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.RecvWait(ackDelay)
	return checkDone(t, "receive", d, err, want|vipl.StatusOpReceive)
}

func recvDone(t testing.TB, v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.RecvDone()
	return checkDone(t, "receive", d, err, want)
}

// nothingDone checks that SendDone or RecvDone gives this error and no descriptor.
func nothingDone(t testing.TB, done func() (*vipl.Descriptor, error), want error) {
	t.Helper()
	d, err := done()
	fatalIf(t, d != nil || err != want, "%v, %v; want %v", d, err, want)
}

// statesAre waits until VIs are in a state.
func statesAre(t testing.TB, want vipl.State, vis ...*vipl.VI) {
	t.Helper()
	for _, v := range vis {
		stateIs(t, v, want)
	}
}

// disconnect disconnects VIs, one after the other.
func disconnect(t testing.TB, vis ...*vipl.VI) {
	t.Helper()
	for _, v := range vis {
		must(t, v.Disconnect())
	}
}

var must, noError, wantError, comes = nstest.Must, nstest.Check, nstest.WantErr, await.Comes

// fatalIf, errorIf and equal are nstest's. In their own words go vet checks the arguments.
func fatalIf(t testing.TB, wrong bool, format string, args ...any) {
	if wrong {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

func errorIf(t testing.TB, wrong bool, format string, args ...any) {
	if wrong {
		t.Helper()
		t.Errorf(format, args...)
	}
}

func equal[V comparable](t testing.TB, what string, got, want V) {
	if got != want {
		t.Helper()
		nstest.Equal(t, what, got, want)
	}
}

// errOf is the error of a call that returns a result with it, and errOf2 that of one with two.
func errOf[V any](_ V, err error) error { return err }

func errOf2[V, W any](_ V, _ W, err error) error { return err }

func checkDone(t testing.TB, what string, d *vipl.Descriptor, err error, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	fatalIf(t, d == nil, "%s: %v", what, err)
	equal(t, "status", d.Status(), want|vipl.StatusDone)
	failed := want.Failed()
	errorIf(t, failed != (err == vipl.ErrDescriptor) || !failed && err != nil, "%s: error %v with status %v", what, err, want)
	return d
}

// stateIs checks a VI's state, after frames of the other side have had time to arrive.
func stateIs(t testing.TB, v *vipl.VI, want vipl.State) vipl.VIInfo {
	t.Helper()
	var s vipl.VIInfo
	if !comes(func() bool {
		var err error
		s, err = v.Query()
		must(t, err)
		return s.State == want
	}) {
		t.Fatalf("the VI is %v, want %v", s.State, want)
	}
	return s
}

// fillPattern writes a pattern that identifies message k.
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

func watchErrors(n *vipl.NIC) *errorLog {
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
	got := l.codes()
	errorIf(t, !slices.Equal(got, want), "asynchronous errors %v, want %v", got, want)
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}
