//go:build cgo

package main

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
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
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	agent := stoppedAgent{kagenttest.NewFabric(kagenttest.Faults{}).Agent("a"), make(chan struct{}), make(chan struct{})}
	host := memorynic.Open(t, wire, agent.Agent, memorynic.Config{Agent: func(*kagenttest.Agent) kagent.Agent { return agent }})
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

// refusedAgent is an agent that was restarted and has refused the listener to which the program waits.
type refusedAgent struct{ *kagenttest.Agent }

func (a refusedAgent) Listen(local kagent.Address) (kagent.Listener, error) {
	l, err := a.Agent.Listen(local)
	return refusedListener{l}, err
}

type refusedListener struct{ kagent.Listener }

func (refusedListener) Wait(context.Context) (kagent.Incoming, error) {
	return nil, kagent.ErrListening
}

// VipConnectWait goes on without a listener that the agent has lost. VipxUnlisten ends the listener by the same IPv4 address
// in either form.
func TestWaitAtLostListener(t *testing.T) {
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	agent := refusedAgent{kagenttest.NewFabric(kagenttest.Faults{}).Agent("a")}
	host := memorynic.Open(t, wire, agent.Agent, memorynic.Config{Agent: func(*kagenttest.Agent) kagent.Agent { return agent }})
	n := &nic{NIC: host.NIC, listeners: map[string]*vipl.Listener{}}
	at := vipl.NetAddress{Host: netip.MustParseAddr("::ffff:10.0.0.1"), Discriminator: []byte("lost")}
	nstest.Must(t, n.listen(at))
	_, err := n.wait(at, time.Millisecond)
	nstest.WantErr(t, "VipConnectWait", err, vipl.ErrTimeout)
	at.Host = at.Host.Unmap()
	nstest.Must(t, n.unlisten(at))
}
