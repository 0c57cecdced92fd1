//go:build cgo

package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// stoppedAgent is an agent that answers nothing about listeners until it is told to, as a daemon that is stopped.
type stoppedAgent struct {
	*kagenttest.Agent
	asked, answer chan struct{}
}

func (a stoppedAgent) wait() {
	a.asked <- struct{}{}
	<-a.answer
}

func (a stoppedAgent) Listen(local kagent.Address) (kagent.Listener, error) {
	a.wait()
	l, err := a.Agent.Listen(local)
	return stoppedListener{l, a}, err
}

type stoppedListener struct {
	kagent.Listener
	agent stoppedAgent
}

func (l stoppedListener) Close() error {
	l.agent.wait()
	return l.Listener.Close()
}

// Other threads register memory while VipxListen and VipxUnlisten wait for the agent.
func TestListenDelaysNoOthers(t *testing.T) {
	cable := xdpnictest.NewWire()
	t.Cleanup(cable.Close)
	agent := stoppedAgent{kagenttest.NewFabric(kagenttest.Faults{}).Agent("a"), make(chan struct{}), make(chan struct{})}
	host := memorynic.Open(t, cable, agent.Agent, memorynic.Config{Agent: func(*kagenttest.Agent) kagent.Agent { return agent }})
	n := &nic{NIC: host.NIC, regions: map[vipl.MemHandle]*vipl.Region{}, listeners: map[string]*vipl.Listener{}}
	r, err := n.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: n.CommonPtag()})
	nstest.Must(t, err)
	at := vipl.NetAddress{Discriminator: []byte("stopped")}
	for i, call := range []func(vipl.NetAddress) error{n.listen, n.unlisten} {
		ended, kept := make(chan error, 1), make(chan struct{})
		go func() { ended <- call(at) }()
		<-agent.asked
		go func() {
			n.keep(r)
			close(kept)
		}()
		select {
		case <-kept:
		case <-time.After(10 * time.Second):
			t.Errorf("call %d: a registration waits for the agent", i)
		}
		agent.answer <- struct{}{}
		nstest.Must(t, <-ended)
		<-kept
	}
}

// waitAgent is an agent at whose listeners Wait is wait.
type waitAgent struct {
	*kagenttest.Agent
	wait func() (kagent.Incoming, error)
}

func (a *waitAgent) Listen(local kagent.Address) (kagent.Listener, error) {
	l, err := a.Agent.Listen(local)
	return waitListener{l, a}, err
}

type waitListener struct {
	kagent.Listener
	agent *waitAgent
}

func (l waitListener) Wait(context.Context) (kagent.Incoming, error) { return l.agent.wait() }

func openWaiting(t *testing.T) (*waitAgent, *nic) {
	t.Helper()
	cable := xdpnictest.NewWire()
	t.Cleanup(cable.Close)
	agent := &waitAgent{Agent: kagenttest.NewFabric(kagenttest.Faults{}).Agent("a")}
	host := memorynic.Open(t, cable, agent.Agent, memorynic.Config{Agent: func(*kagenttest.Agent) kagent.Agent { return agent }})
	return agent, &nic{NIC: host.NIC, listeners: map[string]*vipl.Listener{}}
}

// VipConnectWait goes on without a listener that a restarted agent has refused. VipxUnlisten ends the listener by the same IPv4
// address in either form.
func TestWaitAtLostListener(t *testing.T) {
	agent, n := openWaiting(t)
	agent.wait = func() (kagent.Incoming, error) { return nil, kagent.ErrListening }
	at := vipl.NetAddress{Host: netip.MustParseAddr("::ffff:10.0.0.1"), Discriminator: []byte("lost")}
	nstest.Must(t, n.listen(at))
	_, err := n.connectWait(at, time.Millisecond, false)
	nstest.WantErr(t, "VipConnectWait", err, vipl.ErrTimeout)
	at.Host = at.Host.Unmap()
	nstest.Must(t, n.unlisten(at))
}

// longIncoming is a request whose discriminator is too long for the program.
type longIncoming struct {
	kagent.Incoming
	onReject func()
}

func (longIncoming) Remote() kagent.Address { return kagent.Address{Disc: []byte("too long")} }

func (in longIncoming) Reject(wire.CMReason) error {
	in.onReject()
	return nil
}

// VipxUnlisten ends a VipConnectWait that is just rejecting a request.
func TestUnlistenWhileRejecting(t *testing.T) {
	agent, n := openWaiting(t)
	at := vipl.NetAddress{Discriminator: []byte("x")}
	agent.wait = func() (kagent.Incoming, error) {
		agent.wait = func() (kagent.Incoming, error) { return nil, kagent.ErrClosed }
		return longIncoming{onReject: func() { nstest.Check(t, n.unlisten(at)) }}, nil
	}
	nstest.Must(t, n.listen(at))
	_, err := n.connectWait(at, time.Millisecond, true)
	nstest.WantErr(t, "VipConnectWait", err, vipl.ErrInvalidState)
}
