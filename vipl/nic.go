package vipl

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/names"
	"viaxdp/internal/base/secure"
	"viaxdp/memreg"
	"viaxdp/xdpnic"
)

// NIC is a NIC handle. All methods may be called concurrently.
type NIC struct {
	port  *port
	agent kagent.Agent
	arena *hugepages.Arena
	mem   *memreg.Table
	info  kagent.Info

	common Ptag // see CommonPtag

	noPacking bool
	bareData  bool
	congested CongestionControl // of VIs that choose none
	psk       *PSK              // for VIs that have none of their own
	rekey     secure.Limits

	onError atomic.Pointer[func(ErrorDescriptor)]
	errors  caller
	names   atomic.Pointer[names.Resolver] // the name service; nil: it does not run
	closed  chan struct{}                  // closed by Close after it has disconnected the VIs
	shut    atomic.Bool                    // set at the same time

	mu       sync.Mutex // guards the fields below; taken before port.mu
	isClosed bool
	vis      map[*VI]struct{}
	cqs      map[*CQ]struct{}
	blocks   map[*Region]struct{} // of AllocMem
}

// isClosing reports whether Close has begun.
func (n *NIC) isClosing() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isClosed
}

// closing reports whether Close has disconnected the VIs. No operation begins after that.
func (n *NIC) closing() bool { return n.shut.Load() }

// Poll makes progress, as every Done that finds nothing does. It is for a program that polls registered memory for
// the peer's RDMA writes instead of a queue. If a program neither polls nor waits, a goroutine of the library
// serves the peer when the kernel wakes it. Poll never waits and may be called concurrently.
func (n *NIC) Poll() { n.port.poll() }

// Info is what opening got. Its fields are facts of that moment.
type Info struct {
	Interface string
	Index     int    // of the interface
	Driver    string // of the interface, or empty
	Bus       string // bus address of the NIC; empty for virtual ones
	Queue     int    // that the handle has
	Queues    int    // that AF_XDP sockets can be bound to
	MTU       int    // bytes

	Mode     xdpnic.Mode      // reached
	Attempts []xdpnic.Attempt // each mode that was tried, with the error of those refused
	Notes    []string         // what a user of this interface should know
	Steered  string           // how frames come to the handle: steered by "rules" or "rss", by a socket on "all" queues, or "" where nothing was done

	NIC    xdpnic.Info
	Arena  hugepages.Info
	MaxVIs int    // of the interface
	Port   uint16 // UDP port of connection management
	// PortOffset is added to Port in frames to the handle: a port of its own, if the NIC steers it to the queue.
	PortOffset uint8
	Agent      string // socket of the agent that opened it; empty: this process did
}

// Info returns what opening got: mode, reasons, hugepages. It may be called concurrently.
func (n *NIC) Info() Info { return Info(n.info) }

// NICAttributes are what Query returns: static facts, and limits of the NIC handle.
type NICAttributes struct {
	Name                   string     // of the interface
	Address                netip.Addr // of the NIC; zero when the interface has none
	Removed                bool       // the interface was removed
	ThreadSafe             bool       // always: every method may be called concurrently
	MaxDiscriminatorLen    int        // bytes
	MaxRegisterRegions     int
	MaxRegisterBytes       uint64 // of all regions together
	MaxRegisterBlockBytes  uint64 // of one region
	MaxVI                  int    // at most; VIs of other handles of the interface, and the agent's quota, may leave fewer
	MaxDescriptorsPerQueue int    // posted on one work queue
	MaxSegmentsPerDesc     int    // data segments
	MaxCQ                  int
	MaxCQEntries           int // of one completion queue
	MaxTransferSize        int // bytes of a message
	NativeMTU              int // bytes of a message that fit in one frame over IPv4, without a key
	MaxPtags               int
	ReliabilityLevels      ReliabilityLevel // bit set
	RDMAReadLevels         ReliabilityLevel // bit set: levels that have RDMA read
}

// Query is VipQueryNic: it returns facts about the NIC, and limits of the handle.
func (n *NIC) Query() NICAttributes {
	link := n.agent.Link()
	limits := n.mem.Limits()
	vis := maxVI
	if n.info.MaxVIs > 0 {
		vis = min(vis, n.info.MaxVIs-1) // the table has no VI 0
	}
	return NICAttributes{
		Name: link.Name, Address: link.Addr(), Removed: link.Gone || n.port.removed(), ThreadSafe: true,
		MaxDiscriminatorLen: MaxDiscriminatorLen,
		MaxRegisterRegions:  limits.MaxRegions, MaxRegisterBytes: limits.MaxBytes,
		MaxRegisterBlockBytes: limits.MaxBlockBytes,
		MaxVI:                 vis, MaxDescriptorsPerQueue: MaxDescriptorsPerQueue, MaxSegmentsPerDesc: MaxSegments,
		MaxCQ: maxCQ, MaxCQEntries: MaxCQEntries, MaxTransferSize: MaxTransferSize,
		NativeMTU: n.port.nativeMTU(link.MTU),
		MaxPtags:  limits.MaxPtags, ReliabilityLevels: UnreliableDelivery | ReliableDelivery | ReliableReception,
		RDMAReadLevels: ReliableDelivery | ReliableReception,
	}
}

// Close is VipCloseNic: it disconnects and destroys every VI, completion queue and region of the handle. Calls that
// wait return ErrInvalidParameter. A handler that has been called may still run when Close returns; no other one is
// called after that. Memory of AllocMem is unmapped and must not be used any more. A second Close does nothing.
//
// It takes as long as Disconnect of the slowest VI and, if the daemon does not answer, five seconds more.
func (n *NIC) Close() error {
	n.mu.Lock()
	if n.isClosed {
		n.mu.Unlock()
		return nil
	}
	n.isClosed = true
	defer unpublish(n)
	vis := make([]*VI, 0, len(n.vis))
	for v := range n.vis {
		vis = append(vis, v)
	}
	n.mu.Unlock()

	// A connect that has not returned within this time fails, or no longer connects anything.
	ctx, cancel := within(disconnectTimeout)
	var wait sync.WaitGroup
	for _, v := range vis {
		wait.Go(func() { v.end(ctx) })
	}
	wait.Wait()
	cancel()

	p := n.port
	p.mu.Lock()
	n.shut.Store(true)
	close(n.closed)
	p.nics = slices.DeleteFunc(p.nics, func(o *NIC) bool { return o == n })
	p.mu.Unlock()
	p.nic.Wake() // the goroutine that sleeps for the port may wait on this handle

	n.mu.Lock()
	defer n.mu.Unlock()
	p.mu.Lock()
	for v := range n.vis {
		p.cancelHandlers(&v.send)
		p.cancelHandlers(&v.recv)
		if v.conn != nil {
			p.uninstall(v.conn)
		}
		p.disown(v)
		p.flushQueue(v, &v.send, broken{})
		p.flushQueue(v, &v.recv, broken{})
		v.destroy()
	}
	for c := range n.cqs {
		c.cancelHandlers()
	}
	p.mu.Unlock()
	p.leave()
	n.mem.Close()
	var errs []error
	for r := range n.blocks {
		errs = append(errs, p.freeBlock(block{n.arena, r.buf}))
	}
	clear(n.blocks)                      // so that a concurrent Deregister does not free them again
	errs = append(errs, n.agent.Close()) // also frees the numbers of the VIs
	return errors.Join(errs...)
}
