package vipl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/kagent"
	"viaxdp/wire"
)

// MaxDiscriminatorLen is the length of the longest discriminator in bytes.
const MaxDiscriminatorLen = wire.CMMaxDisc

// NetAddress names an end of a connection: a host and a discriminator, which
// tells apart the ends of one host. As a local address, a zero Host stands for
// the NIC's own.
type NetAddress struct {
	Host          netip.Addr
	Discriminator []byte // at most MaxDiscriminatorLen bytes
}

func (a NetAddress) agent() kagent.Address {
	return kagent.Address{Host: a.Host, Disc: a.Discriminator}
}

func (a NetAddress) check(op string, v *VI) error {
	if len(a.Discriminator) > MaxDiscriminatorLen {
		return opError(op, v, ErrInvalidParameter,
			fmt.Errorf("discriminator of %d bytes, at most %d", len(a.Discriminator), MaxDiscriminatorLen))
	}
	return nil
}

// RemoteAttributes is what the other side tells of its VI.
type RemoteAttributes struct {
	Level           ReliabilityLevel
	MaxTransferSize int
	QoS             int
	EnableRdmaWrite bool // it takes RDMA writes
	EnableRdmaRead  bool // it serves RDMA reads
}

func remoteAttributes(o kagent.Offer) RemoteAttributes {
	return RemoteAttributes{
		Level: ReliabilityLevel(o.Level), MaxTransferSize: int(o.MaxTransfer), QoS: int(o.QoS),
		EnableRdmaWrite: o.RDMAWrite, EnableRdmaRead: o.RDMARead,
	}
}

var (
	errMismatch   = errors.New("the peer's VI differs")
	errOtherQueue = errors.New("the peer is on another queue of this interface, which hears nothing of this one: " +
		"open both handles on one queue (WithQueue)")
	errBusyVI = errors.New("another connect or disconnect of it is under way")
)

// Conn is a request for a connection that waits for an answer. All methods may
// be called concurrently.
type Conn struct {
	nic *Nic
	in  *kagent.Incoming
}

// ConnectWait is VipConnectWait: waits at most timeout (negative: for ever) for
// a request to local: to its discriminator, byte for byte, and, if it names
// one, its host. Requests that come while nobody waits on their discriminator
// are answered with ErrNoMatch at once; several goroutines may wait.
//
// ErrTimeout; ErrInvalidParameter for a discriminator that is too long and when
// the NIC is closed.
func (n *Nic) ConnectWait(local NetAddress, timeout time.Duration) (*Conn, error) {
	const op = "ConnectWait"
	if err := local.check(op, nil); err != nil {
		return nil, err
	}
	ctx, cancel := within(timeout)
	defer cancel()
	in, err := n.agent.Wait(ctx, local.agent())
	if errors.Is(err, kagent.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return nil, ErrTimeout
	}
	if err != nil {
		return nil, agentError(op, nil, err)
	}
	return &Conn{n, in}, nil
}

func within(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), timeout)
}

// Remote is the requester's address.
func (c *Conn) Remote() NetAddress {
	a := c.in.Remote()
	return NetAddress{a.Host, a.Disc}
}

// RemoteAttributes are the requester's VI's.
func (c *Conn) RemoteAttributes() RemoteAttributes { return remoteAttributes(c.in.Offer()) }

// Reject is VipConnectReject: the requester gets ErrRejected. ErrInvalidParameter
// when the request was answered before, ErrTimeout when the requester gave up.
func (c *Conn) Reject() error {
	if err := c.in.Reject(wire.CMReasonProgram); err != nil {
		return agentError("ConnectReject", nil, err)
	}
	return nil
}

// acceptTime bounds how long the requester's confirmation may take.
const acceptTime = 5 * time.Second

// Accept is VipConnectAccept: connects v, which is Idle, with the requester.
// Level, MaxTransferSize and QoS must be the requester's: otherwise it fails
// with ErrInvalidReliabilityLevel, ErrInvalidMTU or ErrInvalidQoS, the
// requester hears nothing, and another VI may be tried.
//
// ErrInvalidState when v is not Idle, ErrTimeout when the requester gave up or
// does not answer.
func (c *Conn) Accept(v *VI) error {
	const op = "ConnectAccept"
	theirs := c.in.Offer()
	if v.nic != c.nic {
		return opError(op, v, ErrInvalidParameter, errors.New("VI of another NIC handle"))
	}
	if err := v.begin(op); err != nil {
		return err
	}
	if err := v.match(op, theirs); err != nil {
		v.ended(err)
		return err
	}
	ctx, cancel := within(acceptTime)
	defer cancel()
	path, ours, err := v.prepare(ctx, op, c.in.Local().Host, c.in.Remote().Host)
	if err == nil {
		err = v.accept(ctx, op, c.in, ours, path)
	}
	v.ended(err)
	return err
}

// ConnectRequest is VipConnectRequest: connects v, which is Idle, with the VI
// that the program waiting at remote accepts with, and returns that VI's
// attributes. timeout is positive, or negative for no limit. local's host may
// be zero.
//
// ErrNoMatch: nobody waits on that discriminator. ErrRejected. ErrTimeout:
// nobody answers. ErrNotReachable: no way to the host. ErrInvalidState: v is
// not Idle. ErrInvalidParameter: timeout 0, or discriminators that are too
// long. In all of them v is as it was.
func (v *VI) ConnectRequest(local, remote NetAddress, timeout time.Duration) (RemoteAttributes, error) {
	const op = "ConnectRequest"
	if err := checkRequest(op, v, local, remote, timeout); err != nil {
		return RemoteAttributes{}, err
	}
	if err := v.begin(op); err != nil {
		return RemoteAttributes{}, err
	}
	ctx, cancel := within(timeout)
	defer cancel()
	theirs, err := v.request(ctx, op, local, remote)
	v.ended(err)
	return theirs, err
}

func (v *VI) request(ctx context.Context, op string, local, remote NetAddress) (theirs RemoteAttributes, err error) {
	path, ours, err := v.prepare(ctx, op, local.Host, remote.Host)
	if err != nil {
		return theirs, err
	}
	local.Host = path.Src
	answer, err := v.nic.agent.Request(ctx, local.agent(), remote.agent(), ours)
	if err != nil {
		return theirs, agentError(op, v, err)
	}
	return remoteAttributes(answer.Offer), v.confirm(op, answer, ours, path)
}

// checkRequest looks at what a program asks to be connected with.
func checkRequest(op string, v *VI, local, remote NetAddress, timeout time.Duration) error {
	for _, a := range []NetAddress{local, remote} {
		if err := a.check(op, v); err != nil {
			return err
		}
	}
	if timeout == 0 || !remote.Host.IsValid() {
		return opError(op, v, ErrInvalidParameter, errors.New("timeout 0 or no remote host"))
	}
	return nil
}

// prepare finds the way to the other side and makes this side's numbers. This
// and what follows leave v in Connect Pending when they fail; ended makes it
// Idle.
func (v *VI) prepare(ctx context.Context, op string, local, remote netip.Addr) (kagent.Path, kagent.Offer, error) {
	path, err := v.nic.agent.Path(ctx, local, remote)
	if err != nil {
		return path, kagent.Offer{}, agentError(op, v, err)
	}
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return path, v.offer(path.MTU, path.Dst.Is6()), nil
}

// accept connects v with the requester.
func (v *VI) accept(ctx context.Context, op string, in *kagent.Incoming, ours kagent.Offer, path kagent.Path) error {
	conn, err := v.establish(op, ours, in.Offer(), path, in.Established)
	if err != nil {
		return err
	}
	if err := in.Accept(ctx, ours); err != nil {
		v.undo(conn)
		return agentError(op, v, err)
	}
	return nil
}

// confirm connects v with the acceptor.
func (v *VI) confirm(op string, answer *kagent.Answer, ours kagent.Offer, path kagent.Path) error {
	conn, err := v.establish(op, ours, answer.Offer, path, nil)
	if err != nil {
		answer.Decline(wire.CMReasonResources)
		return err
	}
	if err := answer.Confirm(); err != nil {
		v.undo(conn)
		return agentError(op, v, err)
	}
	return nil
}

// match compares attributes. v is in Connect Pending, so that its own stay.
func (v *VI) match(op string, theirs kagent.Offer) error {
	switch {
	case theirs.Level != uint8(v.attrs.Level):
		return opError(op, v, ErrInvalidReliabilityLevel, fmt.Errorf("%w: level %v, ours %v",
			errMismatch, ReliabilityLevel(theirs.Level), v.attrs.Level))
	case int(theirs.MaxTransfer) != v.attrs.MaxTransferSize:
		return opError(op, v, ErrInvalidMTU, fmt.Errorf("%w: maximum transfer size %d, ours %d",
			errMismatch, theirs.MaxTransfer, v.attrs.MaxTransferSize))
	case int(theirs.QoS) != v.attrs.QoS:
		return opError(op, v, ErrInvalidQoS, errMismatch)
	}
	return nil
}

// begin takes an Idle VI to Connect Pending.
func (v *VI) begin(op string) error {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if err := v.idle(op); err != nil {
		return err
	}
	v.state, v.busy = ConnectPending, true
	return nil
}

// establish makes the data path ready: engine first, then the VI table, so
// that no frame is redirected that the engine does not know.
func (v *VI) establish(op string, ours, theirs kagent.Offer, path kagent.Path, first func()) (*conn, error) {
	if path.Loopback && !v.port.owns(theirs.VI) {
		return nil, opError(op, v, ErrNotReachable, errOtherQueue)
	}
	c, err := newConn(v, ours, theirs, path)
	if err != nil {
		return nil, opError(op, v, ErrResource, err)
	}
	c.established = first
	if err := v.install(op, c); err != nil {
		return nil, err
	}
	if err := v.nic.agent.Enter(v.num, ours.Key, path.Dst); err != nil {
		v.undo(c)
		return nil, agentError(op, v, err)
	}
	return c, nil
}

func (v *VI) install(op string, c *conn) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.gone.Load() || v.nic.closing() {
		return closedError(op)
	}
	now := p.now()
	p.install(c, now)
	p.finish(now, false) // whoever sleeps learns of the new timer
	return nil
}

// undo takes down what establish has put up.
func (v *VI) undo(c *conn) {
	v.nic.agent.Remove(v.num)
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if v.conn == c { // else the NIC was closed meanwhile
		v.port.uninstall(c)
	}
}

// ended ends a connect: the VI is Connected or, after a failure, Idle again. If
// the connection broke meanwhile, the VI stays in Error.
func (v *VI) ended(err error) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	v.busy = false
	switch {
	case err != nil:
		v.state, v.cause = Idle, nil
	case v.state == ConnectPending:
		v.state = Connected
	}
}

// Disconnect is VipDisconnect: ends the connection. Descriptors that are not
// complete are flushed and v becomes Idle; the peer's VI goes to Error. What
// completed sends handed to the network is delivered first, on a reliable VI,
// unless the peer does not answer for 200 ms. On an Idle VI it does nothing. A
// peer-to-peer connect that is under way ends.
//
// ErrInvalidState while another connect or disconnect is under way; ErrInvalidParameter when the VI
// is destroyed.
func (v *VI) Disconnect() error {
	const op = "Disconnect"
	v.stopPeering()
	p := v.port
	p.mu.Lock()
	switch {
	case v.gone.Load():
		p.mu.Unlock()
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.busy:
		p.mu.Unlock()
		return opError(op, v, ErrInvalidState, errBusyVI)
	case v.state == Idle:
		p.mu.Unlock()
		return nil
	}
	v.busy = true
	c := v.conn
	if c.open {
		c.hurry = true // what waits for company is on its way
		p.pump(c, p.now())
		p.flush()
		c.closing, c.answers = true, nil
		if !c.lent { // else the peer may still need the memory
			p.flushQueue(v, &v.send, broken{})
		}
		p.flushQueue(v, &v.recv, broken{})
		v.state = Idle // nothing can be posted on it that would be sent
		p.pump(c, p.now())
		p.finish(p.now(), true)
	}
	p.mu.Unlock()
	if c.closing {
		c.linger()
	}
	v.nic.agent.Remove(v.num)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uninstall(c)
	p.flushQueue(v, &v.send, broken{})
	// Receives that were posted meanwhile stay posted for the next connection.
	v.state, v.busy, v.cause = Idle, false, nil
	return nil
}

// disconnectTimeout is how long a peer may take to acknowledge a close.
const disconnectTimeout = 200 * time.Millisecond

// linger waits until the peer has taken note of the close, or has not for too
// long. An unreliable VI repeats it meanwhile.
func (c *conn) linger() {
	p := c.vi.port
	end := p.deadline(disconnectTimeout)
	if c.sender != nil {
		p.wait(closeWait{c}, end)
		return
	}
	for gap := time.Millisecond; ; gap *= 2 {
		if err := p.wait(closeWait{c}, min(end, p.deadline(gap))); err != errWaitTimeout || p.now() >= end {
			return
		}
		p.mu.Lock()
		if c.open {
			p.control(c, wire.KindClose, c.seq, 0)
			p.finish(p.now(), true)
		}
		p.mu.Unlock()
	}
}
