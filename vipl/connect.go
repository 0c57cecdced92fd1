package vipl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
)

// The files of connection setup:
//
//	connect_address.go   addresses, and the attributes that a side sends of its VI
//	connect_request.go   client:  ConnectRequest
//	connect_accept.go    server:  ConnectWait, Listen, Accept, Reject
//	connect_peer.go      peer to peer: ConnectPeerRequest, -Done, -Wait
//	connect.go           common steps: begin ... prepare, match, establish ... ended
//	psk.go               the handshake with a pre-shared key
//	conn.go              the engine's state of the connection: newConn, install, uninstall
//	teardown.go          the end by an error: teardown
//	disconnect.go        the end by the program: Disconnect

var (
	errMismatch = errors.New("the attributes of the two VIs differ")
	errBusyVI   = errors.New("another connect or disconnect of this VI is under way")
	errNoTime   = errors.New("timeout 0: a connect takes at least a round trip")
)

// checkRequest checks the addresses that a program passes to a connect.
func checkRequest(op string, v *VI, local, remote NetAddress) error {
	for _, a := range []NetAddress{local, remote} {
		if err := a.check(op, v); err != nil {
			return err
		}
	}
	if !remote.Host.IsValid() {
		return opError(op, v, ErrInvalidParameter, errors.New("no remote host"))
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
	v.state, v.busy, v.lost, v.settled = ConnectPending, true, nil, make(chan struct{})
	return nil
}

// prepare finds the path to the other side and creates this side's offer. If it or a later step fails, v stays in
// Connect Pending; ended returns it to Idle.
func (v *VI) prepare(ctx context.Context, op string, local, remote netip.Addr) (kagent.Path, kagent.Offer, error) {
	path, err := v.nic.agent.Path(ctx, local, remote)
	if err != nil {
		return path, kagent.Offer{}, agentError(op, v, err)
	}
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return path, v.offer(path.MTU, path.Dst.Is6()), nil
}

// pathAgain looks the path up again if the answer took long: the agent may have found that another NIC has replaced
// the one that the path leads to.
func (v *VI) pathAgain(ctx context.Context, path *kagent.Path, asked time.Time) {
	if path.Loopback || time.Since(asked) < promptly {
		return
	}
	if now, err := v.nic.agent.Path(ctx, path.Src, path.Dst); err == nil {
		path.DstMAC = now.DstMAC
	}
}

// promptly bounds the time of an answer that came without a wait.
const promptly = 10 * time.Millisecond

// match compares attributes. v is in Connect Pending, so its own do not change.
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

// establish activates the data path: the engine first, then the VI table, so that the kernel redirects no frame
// that the engine does not know.
func (v *VI) establish(op string, ours, theirs kagent.Offer, path kagent.Path, s *secure.Session, first func()) (*conn, error) {
	c, err := newConn(v, ours, theirs, path, s)
	if err != nil {
		return nil, opError(op, v, ErrResource, err)
	}
	var link *shmLink
	if path.Loopback && !v.port.owns(theirs.VI) {
		if link, err = v.linkTo(theirs.VI); err != nil {
			if errors.Is(err, errNoLink) { // no frame comes there by the NIC either
				return nil, opError(op, v, ErrNotReachable, err)
			}
			return nil, agentError(op, v, err)
		}
	}
	if err := v.install(op, c, link, first); err != nil {
		return nil, err
	}
	if err := v.nic.agent.Enter(v.num, ours.Key, path.Dst); err != nil {
		v.undo(c, true, err)
		return nil, agentError(op, v, err)
	}
	return c, nil
}

// install activates c in the engine. link is the shared-memory link to the peer, or nil; first is called with the
// first frame that arrives.
func (v *VI) install(op string, c *conn, link *shmLink, first func()) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.gone.Load() || v.nic.closing() {
		if link != nil {
			p.leaveLink(link)
		}
		return closedError(op)
	}
	c.shm, c.established = link, first
	now := p.now()
	p.install(c, now)
	p.finish(now, false) // a sleeper must take the new timer into account
	return nil
}

// undo reverts establish after err. It returns false if it did nothing. Unless must is set, it does nothing once a
// frame of the peer has arrived: the peer then has the connection, whatever happened to the confirmation, and
// messages may already be in posted receives. If must is set and frames of the peer have been accepted, it breaks
// the connection instead of removing it, so that data of this peer is not taken for data of the next one. So it does if the
// peer has broken the connection: the receives are flushed.
func (v *VI) undo(c *conn, must bool, err error) bool {
	p := v.port
	p.mu.Lock()
	if !must && v.conn == c && v.state != ConnectPending && !v.nic.closing() {
		p.mu.Unlock()
		return false
	}
	if v.conn == c && (c.hasTaken() || v.state == Error) {
		p.sendReset(c, wire.ReasonClosed, p.now()) // the peer may have this side's frames, and with them the connection
		p.teardown(c, broken{cause: err})
		p.mu.Unlock()
		return true // the connection stays, in Error, until Disconnect
	}
	p.abandon(c) // no frame has any effect from now on
	p.mu.Unlock()
	v.nic.agent.Remove(v.num)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.conn == c { // else the NIC was closed meanwhile
		p.uninstall(c)
	}
	return true
}

// ended ends a connect. The VI becomes Connected or, after a failure, Idle again with its receives posted. If the
// connection broke in the meantime, or the peer sent something before the connect failed, the VI is in Error.
func (v *VI) ended(err error) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	v.busy = false
	close(v.settled)
	v.settled = nil
	switch {
	case err != nil && v.state == Error && v.conn != nil: // see undo
	case err != nil:
		v.port.flushQueue(v, &v.send, broken{}) // what was posted since the peer's first frame
		v.state, v.cause = Idle, nil
		v.port.settleReceives(v) // while connected they would have broken the connection
	case v.state != ConnectPending: // a frame of the peer came first
		v.port.tellGSO(v.conn)
	case v.conn != nil && v.conn.earlyErr != nil:
		v.state, v.cause, v.lost = Error, v.conn.earlyErr, v.conn.earlyErr
		v.port.flushQueue(v, &v.recv, broken{})
		v.report(ErrorConnLost, 0, v.cause)
	default:
		v.state = Connected
		v.port.tellGSO(v.conn)
	}
	if v.conn != nil { // other VIs may have connected in the meantime, which reduces each one's window
		now := v.port.now()
		v.port.tellWindow(v.conn, now)
		v.port.finish(now, false)
	}
}

// within returns a context that ends after timeout; negative: no limit.
func within(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), timeout)
}

// overtime adds ctx's error to a timeout of the agent if ctx has ended.
func overtime(ctx context.Context, err error) error {
	if errors.Is(err, kagent.ErrTimeout) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}
