package vipl

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"viaxdp/hugepages"
	"viaxdp/internal/names"
	"viaxdp/kagent"
	"viaxdp/memreg"
	"viaxdp/secure"
	"viaxdp/wire"
)

// Nic is a NIC handle. All methods may be called concurrently.
type Nic struct {
	port  *port
	agent kagent.Agent
	arena *hugepages.Arena
	mem   *memreg.Table
	info  kagent.Info

	common Ptag // see CommonPtag

	noPacking bool
	bareData  bool
	psk       *PSK // for VIs without one
	rekey     secure.Limits

	onError atomic.Pointer[func(ErrorDescriptor)]
	errors  caller
	names   atomic.Pointer[names.Resolver] // the name service, when it runs
	closed  chan struct{}                  // closed when Close has disconnected the VIs
	shut    atomic.Bool                    // set then

	mu       sync.Mutex // guards what follows; taken before port.mu
	isClosed bool
	vis      map[*VI]struct{}
	cqs      map[*CQ]struct{}
	blocks   map[*Region]struct{} // of AllocMem
}

// isClosing says that Close has begun.
func (n *Nic) isClosing() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isClosed
}

// closing says that Close is past the point from which on nothing begins.
func (n *Nic) closing() bool { return n.shut.Load() }

// Poll makes progress, as every Done that finds nothing does. It is for the loop of
// a program that looks for the peer's RDMA writes in registered memory and not at a
// queue. Where a program neither polls nor waits, a goroutine of the library serves
// the peer as soon as the kernel wakes it. Poll never waits and may be called
// concurrently.
func (n *Nic) Poll() { n.port.poll() }

// Info says what opening got: mode, reasons, hugepages.
func (n *Nic) Info() kagent.Info { return n.info }

// NicAttributes is what Query tells: static facts, and limits of the NIC handle.
type NicAttributes struct {
	Name                   string     // of the interface
	Address                netip.Addr // of the NIC; zero when the interface has none
	ThreadSafe             bool       // always: every method may be called concurrently
	MaxDiscriminatorLen    int        // bytes
	MaxRegisterRegions     int
	MaxRegisterBytes       uint64 // of all regions together
	MaxRegisterBlockBytes  uint64 // of one region
	MaxVI                  int
	MaxDescriptorsPerQueue int // posted on one work queue
	MaxSegmentsPerDesc     int // data segments
	MaxCQ                  int
	MaxCQEntries           int // of one completion queue
	MaxTransferSize        int // bytes of a message
	NativeMTU              int // bytes of a message that fit in one frame over IPv4
	MaxPtags               int
	ReliabilityLevels      ReliabilityLevel // bit set
	RDMAReadLevels         ReliabilityLevel // bit set: levels that have RDMA read
}

// Query is VipQueryNic: facts about the NIC, and limits of the handle.
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
// region of the handle. Whoever waits gets ErrInvalidParameter. A handler that is
// being called may still run when Close returns; no other is called any more.
// Memory of AllocMem is unmapped and must not be used any more. A second Close does
// nothing.
func (n *Nic) Close() error {
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

	// A connect that does not return meanwhile fails, or connects nothing any more.
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
	p.nics = slices.DeleteFunc(p.nics, func(o *Nic) bool { return o == n })
	p.mu.Unlock()
	p.nic.Wake() // who sleeps for the port may be waiting on this handle

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
	p.leave()
	n.mem.Close()
	var errs []error
	for r := range n.blocks {
		errs = append(errs, n.arena.Free(r.buf))
	}
	clear(n.blocks)                      // a Deregister that is under way does not free them again
	errs = append(errs, n.agent.Close()) // which frees the numbers of the VIs, too
	return errors.Join(errs...)
}
