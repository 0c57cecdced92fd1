package vipl

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/names"
	"viaxdp/kagent"
	"viaxdp/memreg"
	"viaxdp/wire"
	"viaxdp/xdpnic"
)

// DefaultSilence is the time without a word after which a peer is taken for
// dead. Idle connections exchange a probe four times in it.
const DefaultSilence = 1600 * time.Millisecond

// DefaultRxChunks is the number of chunks for frames that arrive: a message of
// MaxTransferSize at MTU 1500 is 737 frames, which an unreliable VI sends with
// nothing to hold them back, perhaps to a program that is asleep.
const DefaultRxChunks = 1024

// Option changes how OpenNic opens.
type Option func(*options)

type options struct {
	agent   kagent.Config
	silence time.Duration
}

// WithQueue takes a certain queue of the interface; without it the first free.
func WithQueue(queue int) Option { return func(o *options) { o.agent.Queue = queue } }

// WithMode asks for a data path, the fastest known for the driver without it.
// With require, OpenNic fails rather than take a lesser one.
func WithMode(mode xdpnic.Mode, require bool) Option {
	return func(o *options) { o.agent.Mode, o.agent.RequireMode = mode, require }
}

// WithArena sets the bytes of memory that AllocMem allocates from, frames'
// chunks included; kagent.DefaultArena without it.
func WithArena(bytes int) Option { return func(o *options) { o.agent.ArenaBytes = bytes } }

// WithHugepages sets how much hugepages matter; the best that there is without
// it.
func WithHugepages(p hugepages.Policy) Option { return func(o *options) { o.agent.Hugepages = p } }

// WithChunks sets the number of chunks for frames to receive and to send;
// DefaultRxChunks and xdpnic.DefaultChunks without it, or where one is 0.
func WithChunks(rx, tx int) Option {
	return func(o *options) { o.agent.RxChunks, o.agent.TxChunks = cmp.Or(rx, DefaultRxChunks), tx }
}

// WithSilence sets the time after which a silent peer is taken for dead, at
// least 10 ms; DefaultSilence without it. Both sides should agree.
func WithSilence(d time.Duration) Option { return func(o *options) { o.silence = d } }

// Provider is what a NIC handle stands on. OpenNic makes one over AF_XDP;
// tests put one in memory together.
type Provider struct {
	Port    Port
	Agent   kagent.Agent
	Arena   *hugepages.Arena
	Info    kagent.Info   // for people; may be zero
	Silence time.Duration // 0: DefaultSilence
}

// Nic is a NIC handle. All methods may be called concurrently.
type Nic struct {
	port  *port
	agent kagent.Agent
	arena *hugepages.Arena
	mem   *memreg.Table
	info  kagent.Info

	onError atomic.Pointer[func(ErrorDescriptor)]
	errors  caller
	names   atomic.Pointer[names.Resolver] // the name service, when it runs
	closed  chan struct{}                  // closed when Close has disconnected the VIs

	mu       sync.Mutex // guards what follows; taken before port.mu
	isClosed bool
	vis      map[*VI]struct{}
	cqs      map[*CQ]struct{}
	blocks   map[*Region]struct{} // of AllocMem
}

// OpenNic is VipOpenNic: opens an interface, by its name in the calling
// thread's network namespace, as a VI NIC.
//
// It needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root). Errors say what is
// missing and what helps; kagent.Unavailable tells those that mean that this
// machine cannot run it.
func OpenNic(device string, opts ...Option) (*Nic, error) {
	o := options{agent: kagent.Config{Interface: device, Queue: kagent.AnyQueue, RxChunks: DefaultRxChunks}}
	for _, f := range opts {
		f(&o)
	}
	local, err := kagent.Open(o.agent)
	if err != nil {
		return nil, opError("OpenNic", nil, ErrResource, err)
	}
	n, err := Open(Provider{
		Port: local.Queue(), Agent: local, Arena: local.Arena(), Info: local.Info(), Silence: o.silence,
	})
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return n, nil
}

// Open makes a NIC handle over p, which then belongs to it.
func Open(p Provider) (*Nic, error) {
	if p.Silence == 0 {
		p.Silence = DefaultSilence
	}
	if p.Silence < 10*time.Millisecond {
		return nil, opError("OpenNic", nil, ErrInvalidParameter, fmt.Errorf("silence of %v: at least 10ms", p.Silence))
	}
	mem, err := memreg.NewTable(p.Arena.Bytes(), memreg.Limits{})
	if err != nil {
		return nil, opError("OpenNic", nil, ErrResource, err)
	}
	n := &Nic{
		port: newPort(p.Port, p.Arena.Bytes(), p.Silence), agent: p.Agent, arena: p.Arena, mem: mem, info: p.Info,
		closed: make(chan struct{}),
		vis:    make(map[*VI]struct{}), cqs: make(map[*CQ]struct{}), blocks: make(map[*Region]struct{}),
	}
	n.ErrorCallback(nil)
	return n, nil
}

// closing says that Close is past the point from which on nothing begins.
func (n *Nic) closing() bool {
	select {
	case <-n.closed:
		return true
	default:
		return false
	}
}

// Poll makes progress, as every Done that finds nothing does. A program that
// looks at registered memory for the peer's RDMA writes, and not at a queue,
// calls it in its loop; without it, and without any call that polls or waits,
// a goroutine of the library serves the peer as soon as the kernel wakes it. It
// never waits and may be called concurrently.
func (n *Nic) Poll() { n.port.poll() }

// Info says what opening got: mode, reasons, hugepages.
func (n *Nic) Info() kagent.Info { return n.info }

// NicAttributes is what Query tells: static facts and limits.
type NicAttributes struct {
	Name                   string
	Address                netip.Addr // of the NIC; zero when the interface has none
	ThreadSafe             bool
	MaxDiscriminatorLen    int
	MaxRegisterRegions     int
	MaxRegisterBytes       uint64
	MaxRegisterBlockBytes  uint64
	MaxVI                  int
	MaxDescriptorsPerQueue int
	MaxSegmentsPerDesc     int
	MaxCQ                  int
	MaxCQEntries           int
	MaxTransferSize        int
	NativeMTU              int // bytes of a message that fit in one frame over IPv4
	MaxPtags               int
	ReliabilityLevels      ReliabilityLevel // bit set
	RDMAReadLevels         ReliabilityLevel // bit set: levels that have RDMA read
}

// Query is VipQueryNic.
func (n *Nic) Query() NicAttributes {
	link := n.agent.Link()
	limits := n.mem.Limits()
	tx, rx := n.port.nic.FrameCap()
	return NicAttributes{
		Name: link.Name, Address: link.Addr(), ThreadSafe: true,
		MaxDiscriminatorLen: MaxDiscriminatorLen,
		MaxRegisterRegions:  limits.MaxRegions, MaxRegisterBytes: limits.MaxBytes,
		MaxRegisterBlockBytes: limits.MaxBlockBytes,
		MaxVI:                 maxVI, MaxDescriptorsPerQueue: MaxDescriptorsPerQueue, MaxSegmentsPerDesc: MaxSegments,
		MaxCQ: maxCQ, MaxCQEntries: MaxCQEntries, MaxTransferSize: MaxTransferSize,
		NativeMTU: wire.PayloadRoom(min(link.MTU, tx-14, rx-18), false, 0),
		MaxPtags:  limits.MaxPtags, ReliabilityLevels: UnreliableDelivery | ReliableDelivery | ReliableReception,
		RDMAReadLevels: ReliableDelivery | ReliableReception,
	}
}

// Close is VipCloseNic: disconnects and destroys every VI, completion queue and
// region of the handle. Whoever waits gets ErrInvalidParameter. Memory of
// AllocMem is unmapped: it must not be used any more. A second Close does
// nothing.
func (n *Nic) Close() error {
	n.mu.Lock()
	if n.isClosed {
		n.mu.Unlock()
		return nil
	}
	n.isClosed = true
	vis := make([]*VI, 0, len(n.vis))
	for v := range n.vis {
		vis = append(vis, v)
	}
	n.mu.Unlock()

	var wait sync.WaitGroup
	for _, v := range vis {
		wait.Go(func() { v.Disconnect() })
	}
	wait.Wait()

	p := n.port
	p.mu.Lock()
	close(n.closed)
	close(p.closed)
	p.mu.Unlock()
	p.nic.Wake()
	p.stopped.Wait()
	// Whoever was asleep in the port has left when the token can be had.
	p.sleeping <- struct{}{}

	n.mu.Lock()
	defer n.mu.Unlock()
	p.mu.Lock()
	for v := range n.vis {
		p.cancelHandlers(&v.send)
		p.cancelHandlers(&v.recv)
		p.flushQueue(v, &v.send, broken{})
		p.flushQueue(v, &v.recv, broken{})
		if v.conn != nil {
			p.uninstall(v.conn)
		}
		v.destroy()
	}
	for c := range n.cqs {
		c.cancelHandlers()
	}
	p.mu.Unlock()
	n.mem.Close()
	var errs []error
	for r := range n.blocks {
		errs = append(errs, n.arena.Free(r.buf))
	}
	errs = append(errs, n.agent.Close())
	return errors.Join(errs...)
}
