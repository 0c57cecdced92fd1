package vipl_test

import (
	"errors"
	"slices"
	"time"

	"viaxdp/vipl"
)

// The operations of random programs that make and end connections.

// connectSome connects two Idle VIs, of one NIC or of both.
func (m *model) connectSome() {
	v := m.anyVI(isIdle)
	if v.state != vipl.Idle {
		m.settle()
		m.note("%v asks for a connection", v)
		_, err := v.real.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: v.nic.host.Query().Address}, time.Second)
		m.returns("connect of a VI that is not idle", err, vipl.ErrInvalidState)
		return
	}
	others := m.allVIs(func(p *refVI) bool {
		return p != v && p.state == vipl.Idle && (p.nic != v.nic || m.randomSource("local", 3) == 2)
	})
	if len(others) > 0 {
		m.connect(v, others[m.randomSource("peer", len(others))], m.randomSource("way", 8))
	}
}

// connect connects v with p. It makes p's attributes match beforehand or, in one of the ways, after a first
// attempt.
func (m *model) connect(v, p *refVI, way int) {
	m.note("%v and %v connect, way %d", v, p, way)
	disc := vipl.NetAddress{Discriminator: []byte("model")}
	at := func(v *refVI) vipl.NetAddress {
		return vipl.NetAddress{Host: v.nic.host.Query().Address, Discriminator: disc.Discriminator}
	}
	var mismatch error
	switch {
	case p.level != v.level:
		mismatch = vipl.ErrInvalidReliabilityLevel
	case p.most != v.most:
		mismatch = vipl.ErrInvalidMTU
	}
	if mismatch != nil && (way < 4 || way == 7) {
		m.adopt(p, v)
		mismatch = nil
	}
	if (way == 4 || way == 5) && v.nic != p.nic {
		m.noError("ConnectPeerRequest", v.real.ConnectPeerRequest(disc, at(p), modelLimit))
		m.noError("ConnectPeerRequest", p.real.ConnectPeerRequest(disc, at(v), modelLimit))
		for _, x := range [][2]*refVI{{v, p}, {p, v}} {
			remote, err := x[0].peerOutcome(m, way)
			if mismatch != nil {
				m.returns("peer-to-peer connect with other attributes", err, mismatch)
				continue
			}
			m.noError("peer-to-peer connect", err)
			m.checkRemote(remote, x[1])
		}
		if mismatch == nil {
			v.connect(p)
		}
		return
	}
	var remote vipl.RemoteAttributes
	var err error
	requested := make(chan struct{})
	go func() {
		defer close(requested)
		for { // the other side may not wait yet
			if remote, err = v.real.ConnectRequest(vipl.NetAddress{}, at(p), modelLimit); !errors.Is(err, vipl.ErrNoMatch) {
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	c, waitErr := p.nic.host.ConnectWait(disc, modelLimit)
	m.noError("ConnectWait", waitErr)
	m.checkRemote(c.RemoteAttributes(), v)
	if way == 7 {
		m.noError("Reject", c.Reject())
		<-requested
		m.returns("connect that is rejected", err, vipl.ErrRejected)
		return
	}
	if mismatch != nil {
		m.returns("accept with other attributes", c.Accept(p.real), mismatch)
		m.adopt(p, v)
	}
	m.noError("Accept", c.Accept(p.real))
	<-requested
	m.noError("ConnectRequest", err)
	m.checkRemote(remote, p)
	v.connect(p)
}

// peerOutcome waits for the outcome of a peer-to-peer connect, or polls.
func (v *refVI) peerOutcome(m *model, way int) (r vipl.RemoteAttributes, err error) {
	if way == 4 {
		return v.real.ConnectPeerWait()
	}
	m.until(func() string {
		if r, err = v.real.ConnectPeerDone(); err == vipl.ErrNotDone {
			return "a peer-to-peer connect has no outcome"
		}
		return ""
	})
	return r, err
}

// adopt gives p the attributes in which the two sides must agree.
func (m *model) adopt(p, v *refVI) {
	p.level, p.most = v.level, v.most
	p.read = p.reliable() && m.randomSource("no RDMA read", 8) != 7
	m.noError("SetAttributes", p.real.SetAttributes(p.attributes()))
}

// checkRemote checks the attributes that one side gets of the other.
func (m *model) checkRemote(got vipl.RemoteAttributes, v *refVI) {
	m.t.Helper()
	want := vipl.RemoteAttributes{Level: v.level, MaxTransferSize: v.most, EnableRDMAWrite: v.write, EnableRDMARead: v.read}
	if got != want {
		m.differ("attributes of %v are %+v, want %+v", v, got, want)
	}
}

func (m *model) disconnectSome() {
	m.disconnect(m.anyVI(func(v *refVI) bool {
		return v.state == vipl.Error || v.state == vipl.Connected && m.randomSource("connected", 4) == 3 ||
			v.state == vipl.Idle && m.randomSource("idle", 8) == 7
	}))
}

// disconnect ends a connection, with messages on the way where these arrive for
// certain.
func (m *model) disconnect(v *refVI) {
	isRead := func(d *refDesc) bool { return d.op == vipl.StatusOpRDMARead }
	if v.level == vipl.ReliableReception || m.faults || m.frames > 60 || slices.ContainsFunc(v.flight, isRead) ||
		v.peer != nil && len(v.peer.flight) > 0 {
		m.settle()
	}
	m.note("%v disconnects", v)
	var err error
	m.meanwhile(func() { err = v.real.Disconnect() })
	m.noError("Disconnect", err)
	v.disconnect()
	m.settle()
}
