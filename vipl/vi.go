package vipl

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"viaxdp/memreg"
)

// ReliabilityLevel of a VI, as a bit.
type ReliabilityLevel uint16

// The three levels, with VIPL's values.
const (
	// UnreliableDelivery: each message arrives intact, at most once, and may
	// be lost. A send is done when it was handed to the network.
	UnreliableDelivery ReliabilityLevel = 1
	// ReliableDelivery: exactly once and in order; a loss that cannot be
	// mended breaks the connection. A send is done when it was handed to the
	// network; the provider keeps a copy to repeat it. Of data in memory of
	// AllocMem that goes in frames longer than a chunk (WithMultiBuffer) there is no
	// copy: such a send is done when the peer has it.
	ReliableDelivery ReliabilityLevel = 2
	// ReliableReception: like ReliableDelivery, but a send is done when its
	// data is in the target's memory, and errors there come back in it.
	ReliableReception ReliabilityLevel = 4
)

// String names the level.
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

// State of a VI.
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

// String names the state.
func (s State) String() string {
	return [...]string{"idle", "connected", "connect pending", "error"}[s&3]
}

// ViAttributes of a VI.
type ViAttributes struct {
	Level           ReliabilityLevel
	MaxTransferSize int  // bytes of the longest message; 0: the NIC's maximum
	QoS             int  // undefined by VIA: must be 0
	EnableRdmaWrite bool // the peer may write to memory of this VI
	// EnableRdmaRead: the peer may read memory of this VI, and this VI may
	// read the peer's. Not with UnreliableDelivery.
	EnableRdmaRead bool
	// PSK: the peer must have the same, and frames are encrypted and
	// authenticated; nil: that of WithPSK, if any.
	PSK *PSK
	// Ptag that memory must carry to be used by the VI; nil: any tag of the
	// NIC handle.
	Ptag *Ptag
}

// MaxTransferSize is the length of the longest message in bytes.
const MaxTransferSize = 1 << 20

// Limits of a NIC handle.
const (
	maxVI = 4096
	maxCQ = 1024
)

// VI is a virtual interface: a send and a receive queue and, when connected, a
// peer. All methods may be called concurrently.
type VI struct {
	nic   *Nic
	port  *port
	num   uint32
	attrs ViAttributes
	tag   *memreg.Ptag // nil: any
	value any          // the program's

	// Guarded by port.mu.
	state   State
	cause   error         // why it is in Error
	gone    atomic.Bool   // destroyed
	busy    bool          // a connect or disconnect is under way
	settled chan struct{} // while a connect is under way, closed at its end; nil: there is none
	conn    *conn
	peering *peering // outcome not yet asked for
	send    workQueue
	recv    workQueue
}

var (
	errBound     = errors.New("work queues are bound to it")
	errDestroyed = errors.New("the VI is destroyed")

	errUnreliableRead = errors.New("an unreliable VI has no RDMA read")
)

// checkVi looks at attributes for a VI and fills in the default.
func (n *Nic) checkVi(op string, v *VI, a *ViAttributes) error {
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
	case a.EnableRdmaRead && a.Level == UnreliableDelivery:
		return opError(op, v, ErrInvalidRDMARead, errUnreliableRead)
	case a.Ptag != nil && a.Ptag.nic != n:
		return opError(op, v, ErrInvalidPtag, nil)
	}
	return nil
}

// CreateVi is VipCreateVi: a VI in state Idle. Each work queue is bound for
// life to a completion queue or, with nil, to none.
//
// ErrInvalidReliabilityLevel, ErrInvalidMTU, ErrInvalidQoS, ErrInvalidPtag for
// the attributes, ErrInvalidParameter for a CQ of another NIC handle,
// ErrResource past 4096 VIs.
func (n *Nic) CreateVi(a ViAttributes, sendCQ, recvCQ *CQ) (*VI, error) {
	const op = "CreateVi"
	if err := n.checkVi(op, nil, &a); err != nil {
		return nil, err
	}
	if sendCQ != nil && sendCQ.nic != n || recvCQ != nil && recvCQ.nic != n {
		return nil, opError(op, nil, ErrInvalidParameter, errors.New("completion queue of another NIC handle"))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.isClosed:
		return nil, closedError(op)
	case len(n.vis) >= maxVI:
		return nil, opError(op, nil, ErrResource, fmt.Errorf("%d VIs on this handle", len(n.vis)))
	}
	v := &VI{nic: n, port: n.port, attrs: a}
	if a.Ptag != nil {
		if !a.Ptag.tag.Acquire() {
			return nil, opError(op, nil, ErrInvalidPtag, nil)
		}
		v.tag = a.Ptag.tag
	}
	num, err := n.agent.NewVI()
	if err != nil {
		v.releaseTag()
		return nil, agentError(op, nil, err)
	}
	v.num = num
	v.send.init(v, sendCQ, false)
	v.recv.init(v, recvCQ, true)
	if err := v.enlist(); err != nil {
		n.agent.FreeVI(num)
		v.releaseTag()
		return nil, opError(op, nil, ErrInvalidParameter, err)
	}
	return v, nil
}

// enlist makes the VI one of the NIC, unless a completion queue of it is destroyed.
// The caller holds the NIC's lock.
func (v *VI) enlist() error {
	n := v.nic
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	queues := []*workQueue{&v.send, &v.recv}
	for _, q := range queues {
		if q.cq != nil && q.cq.gone.Load() {
			return errDestroyedCQ
		}
	}
	for _, q := range queues {
		if q.cq != nil {
			q.cq.bound++
		}
	}
	n.vis[v] = struct{}{}
	n.port.own[v.num] = true
	return nil
}

// SetValue keeps x with the VI, for Value: so whoever takes an entry off a completion
// queue finds what the program knows of the entry's VI. The package does not look at
// x. Call SetValue before anything is posted: it is not synchronised with Value.
func (v *VI) SetValue(x any) { v.value = x }

// Value is what SetValue has kept, or nil.
func (v *VI) Value() any { return v.value }

// Nic is the NIC handle of the VI.
func (v *VI) Nic() *Nic { return v.nic }

// SetAttributes is VipSetViAttributes: changes the attributes of an Idle VI. The data
// of receives that are posted was checked against the old ones. But a receive that
// lies in memory without the new tag completes with StatusProtectionError, and
// ErrorCompletionProtection is raised.
//
// Errors as CreateVi, and ErrInvalidState when it is not Idle or a connect is
// under way; the attributes are then as they were.
func (v *VI) SetAttributes(a ViAttributes) error {
	const op = "SetViAttributes"
	if err := v.nic.checkVi(op, v, &a); err != nil {
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

// idle says why the VI is not free for a connection or a change.
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

// Destroy is VipDestroyVi: ends the VI. ErrResource unless it is Idle with both work
// queues empty, ErrInvalidParameter the second time.
func (v *VI) Destroy() error {
	if err := v.tryDestroy(); err != nil {
		return err
	}
	v.nic.agent.FreeVI(v.num) // without a lock: a daemon's answer may be long in coming
	return nil
}

// tryDestroy is Destroy but for the number.
func (v *VI) tryDestroy() error {
	const op = "DestroyVi"
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

// destroy takes the VI out of the NIC; its number stays with the agent. Under both
// locks.
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
	delete(v.port.own, v.num)
	v.releaseTag()
}

// ViStatus is what Query tells.
type ViStatus struct {
	State                State
	Attributes           ViAttributes
	SendEmpty, RecvEmpty bool  // no descriptor on the work queue, complete or not
	Cause                error // why the VI is in Error, else nil
	Number               uint32
	Local                netip.Addr // this side of the connection; zero without one
	MaxPayload           int        // bytes of a message in one frame, 0 unless connected
}

// Query is VipQueryVi: state, attributes and emptiness of the queues.
// ErrInvalidParameter when the VI is destroyed.
func (v *VI) Query() (ViStatus, error) {
	v.port.poll()
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if v.gone.Load() {
		return ViStatus{}, opError("QueryVi", v, ErrInvalidParameter, errDestroyed)
	}
	s := ViStatus{
		State: v.state, Attributes: v.attrs, Cause: v.cause, Number: v.num,
		SendEmpty: v.send.empty(), RecvEmpty: v.recv.empty(),
	}
	if c := v.conn; c != nil {
		s.MaxPayload, s.Local = c.payload, c.source.addr
	}
	return s, nil
}
