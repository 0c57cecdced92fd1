package vipl

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"viaxdp/memreg"
)

// ReliabilityLevel is the reliability level of a VI, as a bit.
type ReliabilityLevel uint16

// The three levels, with VIPL's values.
const (
	// UnreliableDelivery: each message arrives intact and at most once, or is lost. A send is done when it has been
	// passed to the network.
	UnreliableDelivery ReliabilityLevel = 1
	// ReliableDelivery: exactly once and in order. A loss that retransmission does not repair breaks the connection.
	// A send is done when it has been passed to the network; the provider keeps a copy for retransmission. There is
	// no copy of data in memory of AllocMem that is sent in frames longer than a chunk (WithMultiBuffer): such a
	// send is done when the peer has acknowledged it. MemAttributes.CopySends avoids that.
	ReliableDelivery ReliabilityLevel = 2
	// ReliableReception: like ReliableDelivery, but a send is done when its data is in the target's memory. Errors
	// at the target appear in its status.
	ReliableReception ReliabilityLevel = 4
)

// String returns the level's name.
func (l ReliabilityLevel) String() string {
	switch l {
	case UnreliableDelivery:
		return "unreliable"
	case ReliableDelivery:
		return "reliable-delivery"
	case ReliableReception:
		return "reliable-reception"
	}
	return fmt.Sprintf("level(%d)", uint16(l))
}

// State is the state of a VI.
type State int

// The four states, with VIPL's values.
//
//	      Request, Accept               done
//	Idle ----------------> Pending --------------> Connected
//	 ^  ^                     |                        | peer gone, error
//	 |  +--- refused, late ---+                        v
//	 +------------------ Disconnect ---------------- Error
const (
	Idle           State = 0
	Connected      State = 1
	ConnectPending State = 2
	Error          State = 3
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"idle", "connected", "connect pending", "error"}[s&3]
}

// VIAttributes are the attributes of a VI.
type VIAttributes struct {
	Level           ReliabilityLevel
	MaxTransferSize int  // bytes of the longest message; 0: the NIC's maximum
	QoS             int  // undefined by VIA: must be 0
	EnableRDMAWrite bool // the peer may write to memory of this VI
	// EnableRDMARead: the peer may read memory of this VI, and this VI may read the peer's. It is not available with
	// UnreliableDelivery.
	EnableRDMARead bool
	// Congestion is how a reliable VI shares the network; the zero value needs no choice.
	Congestion CongestionControl
	// PSK: the peer must have the same key, and frames are encrypted and authenticated. nil: the key of WithPSK, if
	// there is one.
	PSK *PSK
	// Ptag: memory must carry this tag to be used by the VI. nil: any tag of the NIC handle.
	Ptag *Ptag
}

// MaxTransferSize is the length of the longest message in bytes.
const MaxTransferSize = 1 << 20

// Limits of a NIC handle.
const (
	maxVI = 16384
	maxCQ = 1024
)

// VI is a virtual interface: a send and a receive queue and, when connected, a
// peer. All methods may be called concurrently.
type VI struct {
	nic   *NIC
	port  *port
	num   uint32
	attrs VIAttributes
	tag   *memreg.Ptag // nil: any
	value any          // set by the program, see SetValue

	// Guarded by port.mu.
	state   State
	cause   error         // why it is in Error
	lost    error         // why its last connection broke; reset by the next connect
	gone    atomic.Bool   // destroyed
	busy    bool          // a connect or disconnect is under way
	settled chan struct{} // closed when the connect that is under way ends; nil: there is none
	conn    *conn
	peering *peering // outcome not yet fetched
	send    workQueue
	recv    workQueue
	swept   signal // raised when the NIC has read memory of a send, see flushWait
}

var (
	errBound     = errors.New("work queues are bound to it")
	errDestroyed = errors.New("the VI is destroyed")

	errUnreliableRead = errors.New("an unreliable VI has no RDMA read")
)

// checkVI checks attributes for a VI and fills in the default.
func (n *NIC) checkVI(op string, v *VI, a *VIAttributes) error {
	if a.MaxTransferSize == 0 {
		a.MaxTransferSize = MaxTransferSize
	}
	switch {
	case a.Level != UnreliableDelivery && a.Level != ReliableDelivery && a.Level != ReliableReception:
		return opError(op, v, ErrInvalidReliabilityLevel, nil)
	case a.MaxTransferSize < 0 || a.MaxTransferSize > MaxTransferSize:
		return opError(op, v, ErrInvalidMTU, fmt.Errorf("%d bytes, at most %d", a.MaxTransferSize, MaxTransferSize))
	case a.QoS != 0:
		return opError(op, v, ErrInvalidQoS, nil)
	case !a.Congestion.valid():
		return opError(op, v, ErrInvalidParameter, fmt.Errorf("%v", a.Congestion))
	case a.EnableRDMARead && a.Level == UnreliableDelivery:
		return opError(op, v, ErrInvalidRDMARead, errUnreliableRead)
	case a.Ptag != nil && a.Ptag.nic != n:
		return opError(op, v, ErrInvalidPtag, nil)
	}
	return nil
}

// CreateVI is VipCreateVi: it creates a VI in state Idle. Each work queue is bound for life to a completion queue
// or, with nil, to none.
//
// Errors: ErrInvalidReliabilityLevel, ErrInvalidMTU, ErrInvalidQoS, ErrInvalidRDMARead and ErrInvalidPtag for the
// attributes, ErrInvalidParameter for a CQ of another NIC handle or an unknown congestion control. ErrResource for more than
// 16384 VIs, and for more than the interface's VI table or the agent's quota admits. ErrTimeout if the daemon does not answer
// within 10 seconds (20 if it is stopped); other control operations of the handle wait meanwhile.
func (n *NIC) CreateVI(a VIAttributes, sendCQ, recvCQ *CQ) (*VI, error) {
	const op = "CreateVI"
	if err := n.checkVI(op, nil, &a); err != nil {
		return nil, err
	}
	if sendCQ != nil && sendCQ.nic != n || recvCQ != nil && recvCQ.nic != n {
		return nil, opError(op, nil, ErrInvalidParameter, errors.New("completion queue of another NIC handle"))
	}
	v := &VI{nic: n, port: n.port, attrs: a}
	if a.Ptag != nil {
		if !a.Ptag.tag.Acquire() {
			return nil, opError(op, nil, ErrInvalidPtag, nil)
		}
		v.tag = a.Ptag.tag
	}
	var err error
	if v.num, err = n.newNumber(op); err != nil {
		v.releaseTag()
		return nil, err
	}
	v.send.init(v, sendCQ, false)
	v.recv.init(v, recvCQ, true)
	v.swept.init()
	if err := v.enlist(op); err != nil {
		n.agent.FreeVI(v.num)
		v.releaseTag()
		return nil, err
	}
	return v, nil
}

// newNumber asks the agent for a VI number. It holds no lock meanwhile, since a daemon's answer may take long.
func (n *NIC) newNumber(op string) (num uint32, err error) {
	n.mu.Lock()
	err = n.checkRoom(op)
	n.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if num, err = n.agent.NewVI(); err != nil {
		return 0, agentError(op, nil, err)
	}
	return num, nil
}

// checkRoom fails if the handle is closed or can have no further VI. The caller holds the NIC's lock.
func (n *NIC) checkRoom(op string) error {
	switch {
	case n.isClosed:
		return closedError(op)
	case len(n.vis) >= maxVI:
		return opError(op, nil, ErrResource, fmt.Errorf("%d VIs on this handle", len(n.vis)))
	}
	return nil
}

// enlist adds the VI to the NIC, unless that was closed or a completion queue destroyed meanwhile.
func (v *VI) enlist(op string) error {
	n := v.nic
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkRoom(op); err != nil {
		return err
	}
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	queues := []*workQueue{&v.send, &v.recv}
	for _, q := range queues {
		if q.cq != nil && q.cq.gone.Load() {
			return opError(op, nil, ErrInvalidParameter, errDestroyedCQ)
		}
	}
	for _, q := range queues {
		if q.cq != nil {
			q.cq.bound++
		}
	}
	n.vis[v] = struct{}{}
	n.port.vis.enlist(v.num)
	return nil
}

// SetValue stores x with the VI, for Value. A program that takes an entry off a completion queue so finds its own
// data for the entry's VI. The package does not use x. Call SetValue before anything is posted: it is not
// synchronized with Value.
func (v *VI) SetValue(x any) { v.value = x }

// Value returns what SetValue has stored, or nil.
func (v *VI) Value() any { return v.value }

// NIC returns the VI's NIC handle.
func (v *VI) NIC() *NIC { return v.nic }

// SetAttributes is VipSetViAttributes: it changes the attributes of an Idle VI. The data segments of posted
// receives were checked against the old attributes. A posted receive that lies in memory without the new tag
// completes with StatusProtectionError, and ErrorCompletionProtection is reported.
//
// Errors: as CreateVI, and ErrInvalidState if the VI is not Idle or a connect is under way. After an error the
// attributes are unchanged.
func (v *VI) SetAttributes(a VIAttributes) error {
	const op = "SetVIAttributes"
	if err := v.nic.checkVI(op, v, &a); err != nil {
		return err
	}
	var tag *memreg.Ptag
	if a.Ptag != nil {
		if tag = a.Ptag.tag; !tag.Acquire() {
			return opError(op, v, ErrInvalidPtag, nil)
		}
	}
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if err := v.idle(op); err != nil {
		if tag != nil {
			tag.Release()
		}
		return err
	}
	v.releaseTag()
	v.attrs, v.tag = a, tag
	return nil
}

// idle returns an error if the VI is not free for a connection or a change.
func (v *VI) idle(op string) error {
	switch {
	case v.gone.Load():
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.nic.closing():
		return closedError(op)
	case v.busy:
		return opError(op, v, ErrInvalidState, errBusyVI)
	case v.state != Idle:
		return opError(op, v, ErrInvalidState, fmt.Errorf("it is %v", v.state))
	}
	return nil
}

func (v *VI) releaseTag() {
	if v.tag != nil {
		v.tag.Release()
	}
}

// Destroy is VipDestroyVi: it destroys the VI. ErrResource unless the VI is Idle with both work queues empty,
// ErrInvalidParameter the second time.
func (v *VI) Destroy() error {
	if err := v.tryDestroy(); err != nil {
		return err
	}
	v.nic.agent.FreeVI(v.num) // without a lock, since a daemon's answer may take long
	return nil
}

// tryDestroy is Destroy without freeing the VI's number.
func (v *VI) tryDestroy() error {
	const op = "DestroyVI"
	v.nic.mu.Lock()
	defer v.nic.mu.Unlock()
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	switch {
	case v.gone.Load():
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.state != Idle || v.busy:
		return opError(op, v, ErrResource, fmt.Errorf("state %v: disconnect it first", v.state))
	case !v.send.empty() || !v.recv.empty():
		return opError(op, v, ErrResource, errors.New("descriptors are on its work queues: dequeue them first"))
	}
	v.destroy()
	return nil
}

// destroy removes the VI from the NIC; its number stays with the agent. Under both locks.
func (v *VI) destroy() {
	v.gone.Store(true)
	for _, q := range []*workQueue{&v.send, &v.recv} {
		v.port.cancelHandlers(q)
		v.port.raise(&q.signal)
		if q.cq != nil {
			q.cq.bound--
			q.cq.forget(v)
		}
	}
	delete(v.nic.vis, v)
	v.port.vis.delist(v.num)
	v.releaseTag()
}

// VIInfo is what Query returns.
type VIInfo struct {
	State                State
	Attributes           VIAttributes
	SendEmpty, RecvEmpty bool  // the work queue has no descriptor, complete or not
	Cause                error // why the VI is in Error, else nil
	Lost                 error // why its last connection broke, also after Disconnect, until the next connect; nil: it did not break
	Number               uint32
	Local                netip.Addr // local address of the connection; zero if there is none
	MaxPayload           int        // bytes of a message in one frame; 0 without a connection
	MaxPacket            int        // bytes of a message in the longest GSO packet; 0: each frame leaves by itself
}

// Query is VipQueryVi: it returns state, attributes and whether the queues are empty. ErrInvalidParameter if the VI
// is destroyed.
func (v *VI) Query() (VIInfo, error) {
	v.port.poll()
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if v.gone.Load() {
		return VIInfo{}, opError("QueryVI", v, ErrInvalidParameter, errDestroyed)
	}
	s := VIInfo{
		State: v.state, Attributes: v.attrs, Cause: v.cause, Lost: v.lost, Number: v.num,
		SendEmpty: v.send.empty(), RecvEmpty: v.recv.empty(),
	}
	if c := v.conn; c != nil {
		s.MaxPayload, s.MaxPacket, s.Local = c.payload, v.port.longestPacket(c), c.source.addr
	}
	return s, nil
}
