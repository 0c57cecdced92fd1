package vipl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/kagent"
	"viaxdp/secure"
)

// The way of a connection, and where it is:
//
//	connect_address.go   names of ends, what a side tells of its VI
//	connect_request.go   client:  ConnectRequest
//	connect_accept.go    server:  ConnectWait, Listen, Accept, Reject
//	connect_peer.go      both ask: ConnectPeerRequest, -Done, -Wait
//	connect.go           what all of them do: begin ... prepare, match, establish ... ended
//	secure.go            the handshake, where there is a pre-shared key
//	conn.go              the connection as the engine keeps it: newConn, install, uninstall
//	break.go             its end by an error: breakDown
//	disconnect.go        its end by the program: Disconnect

var (
	errMismatch = errors.New("the peer's VI differs")
	errBusyVI   = errors.New("another connect or disconnect of it is under way")
	errNoTime   = errors.New("timeout 0: a request takes a round trip")
)

// checkRequest looks at what a program asks to be connected with.
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
	v.state, v.busy, v.settled = ConnectPending, true, make(chan struct{})
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

// pathAgain looks where the other side is by now, if its answer took long: the agent may have found another
// NIC in the place of the one that the path leads to.
func (v *VI) pathAgain(ctx context.Context, path *kagent.Path, asked time.Time) {
	if path.Loopback || time.Since(asked) < promptly {
		return
	}
	if now, err := v.nic.agent.Path(ctx, path.Src, path.Dst); err == nil {
		path.DstMAC = now.DstMAC
	}
}

// promptly is an answer that was not waited for.
const promptly = 10 * time.Millisecond

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

// establish makes the data path ready: engine first, then the VI table, so
// that no frame is redirected that the engine does not know.
func (v *VI) establish(op string, ours, theirs kagent.Offer, path kagent.Path, s *secure.Session, first func()) (*conn, error) {
	c, err := newConn(v, ours, theirs, path, s)
	if err != nil {
		return nil, opError(op, v, ErrResource, err)
	}
	if path.Loopback && !v.port.owns(theirs.VI) {
		if c.lane, err = v.laneTo(theirs.VI); err != nil {
			return nil, opError(op, v, ErrNotReachable, err)
		}
	}
	c.established = first
	if err := v.install(op, c); err != nil {
		return nil, err
	}
	if err := v.nic.agent.Enter(v.num, ours.Key, path.Dst); err != nil {
		v.undo(c, true)
		return nil, agentError(op, v, err)
	}
	return c, nil
}

func (v *VI) install(op string, c *conn) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.gone.Load() || v.nic.closing() {
		if c.lane != nil {
			p.leaveLane(c.lane)
		}
		return closedError(op)
	}
	now := p.now()
	p.install(c, now)
	p.finish(now, false) // whoever sleeps learns of the new timer
	return nil
}

// undo takes down what establish has put up. False, unless it must: a frame of the peer has
// come, and the program has the connection, whatever became of the confirmation: the peer has it,
// and messages may be in what was posted.
func (v *VI) undo(c *conn, must bool) bool {
	p := v.port
	p.mu.Lock()
	if !must && v.conn == c && v.state != ConnectPending && !v.nic.closing() {
		p.mu.Unlock()
		return false
	}
	p.abandon(c) // no frame changes anything any more
	p.mu.Unlock()
	v.nic.agent.Remove(v.num)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.conn == c { // else the NIC was closed meanwhile
		p.uninstall(c)
	}
	return true
}

// ended ends a connect: the VI is Connected or, after a failure, Idle again, with
// its receives posted. If the connection broke meanwhile, the VI is in Error.
func (v *VI) ended(err error) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	v.busy = false
	close(v.settled)
	v.settled = nil
	switch {
	case err != nil:
		v.port.flushQueue(v, &v.send, broken{}) // what was posted since the peer's first frame
		v.state, v.cause = Idle, nil
		v.port.settleReceives(v) // which would have broken the connection
	case v.state != ConnectPending:
	case v.conn != nil && v.conn.early != nil:
		v.state, v.cause = Error, v.conn.early
		v.port.flushQueue(v, &v.recv, broken{})
		v.report(ErrorConnLost, 0, v.cause)
	default:
		v.state = Connected
	}
	if v.conn != nil { // others may have connected meanwhile, and have left less for each
		now := v.port.now()
		v.port.tellWindow(v.conn, now)
		v.port.finish(now, false)
	}
}

// within is the time that a call may take; negative: no limit.
func within(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), timeout)
}

// overtime adds to a time-out of the agent that it was the caller's time.
func overtime(ctx context.Context, err error) error {
	if errors.Is(err, kagent.ErrTimeout) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}
