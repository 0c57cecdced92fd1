package vipltest

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"viaxdp/vipl"
)

// Rules of group client-server about the answer to a request, and about many of them.

func connectTimeout(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	d := disc()
	type waited struct {
		c   *vipl.Conn
		err error
	}
	got := make(chan waited, 1)
	go func() {
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		got <- waited{c, err}
	}()
	var c *vipl.Conn
	for c == nil {
		_, err := va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: d}, 200*time.Millisecond)
		if !errors.Is(err, vipl.ErrNoMatch) { // else nobody waits yet
			t.wantErr("request", err, vipl.ErrTimeout)
		}
		t.state(va, vipl.Idle)
		select {
		case w := <-got:
			t.must(w.err)
			c = w.c
		default: // a wait that sees the request only when it is over goes on
		}
	}
	t.wantErr("accept of a request that is over", c.Accept(vb), vipl.ErrTimeout)
	t.state(vb, vipl.Idle)
	t.join(va, vb)
}

func connectUnreachable(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	for _, host := range []string{"192.0.2.1", "2001:db8::1"} { // for documentation: never anybody's
		_, err := v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: netip.MustParseAddr(host), Discriminator: disc()}, patience)
		t.wantErr(host, err, vipl.ErrNotReachable)
		t.state(v, vipl.Idle)
	}
	t.join(v, t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery}))
}

func connectReject(t *T) {
	for _, level := range allLevels {
		va := t.vi(t.A, vipl.ViAttributes{Level: level})
		for range 3 {
			c, result := t.askedOf(va, t.B)
			t.must(c.Reject())
			t.wantErr("request", <-result, vipl.ErrRejected)
			t.state(va, vipl.Idle)
		}
		t.join(va, t.vi(t.B, vipl.ViAttributes{Level: level}))
	}
}

func connectAnswered(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	c, result := t.askedOf(t.vi(t.A, a), t.B)
	t.must(c.Accept(t.vi(t.B, a)))
	t.must(<-result)
	other := t.vi(t.B, a)
	t.wantErr("accept after accept", c.Accept(other), vipl.ErrInvalidParameter)
	t.wantErr("reject after accept", c.Reject(), vipl.ErrInvalidParameter)
	t.state(other, vipl.Idle)

	c, result = t.askedOf(t.vi(t.A, a), t.B)
	t.must(c.Reject())
	t.wantErr("request", <-result, vipl.ErrRejected)
	t.wantErr("accept after reject", c.Accept(other), vipl.ErrInvalidParameter)
	t.wantErr("reject after reject", c.Reject(), vipl.ErrInvalidParameter)
	t.state(other, vipl.Idle)
}

func connectState(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	refused := func(v *vipl.VI, in vipl.State) {
		t.Helper()
		t.state(v, in)
		_, err := v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()}, patience)
		t.wantErr(in.String(), err, vipl.ErrInvalidState)
		t.state(v, in)
	}
	c, result := t.askedOf(va, t.B)
	refused(va, vipl.ConnectPending)
	t.must(c.Accept(vb))
	t.must(<-result)
	refused(va, vipl.Connected)
	refused(vb, vipl.Connected)
	t.must(va.Disconnect())
	refused(vb, vipl.Error)
}

func connectAcceptState(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	connected, lost := t.vi(t.B, a), t.vi(t.B, a)
	t.join(t.vi(t.A, a), connected)
	peer := t.vi(t.A, a)
	t.join(peer, lost)
	t.must(peer.Disconnect())
	t.state(lost, vipl.Error)
	pending := t.vi(t.B, a)
	other, ended := t.askedOf(pending, t.A)

	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	c, result := t.askedOf(va, t.B)
	for _, v := range []*vipl.VI{connected, lost, pending} {
		before, err := v.Query()
		t.must(err)
		t.wantErr(before.State.String(), c.Accept(v), vipl.ErrInvalidState)
		if after, err := v.Query(); err != nil || after.State != before.State {
			t.Errorf("the VI was %v and is %v", before.State, after.State)
		}
	}
	t.state(va, vipl.ConnectPending)
	t.must(c.Accept(vb))
	t.must(<-result)
	t.must(other.Reject())
	t.wantErr("the other request", <-ended, vipl.ErrRejected)
}

// mismatch has a request of a VI with theirs accepted by one with ours, which
// fails, and then by one that fits.
func (t *T) mismatch(theirs, ours vipl.ViAttributes, want error) {
	t.Helper()
	va, wrong := t.vi(t.A, theirs), t.vi(t.B, ours)
	c, result := t.askedOf(va, t.B)
	t.wantErr("accept", c.Accept(wrong), want)
	t.state(wrong, vipl.Idle)
	t.stays(va, vipl.ConnectPending) // it hears nothing
	t.wantErr("accept again", c.Accept(wrong), want)
	t.must(wrong.SetAttributes(theirs))
	t.must(c.Accept(wrong))
	t.must(<-result)
	t.state(va, vipl.Connected)
}

func connectEnables(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery, EnableRdmaWrite: true, Ptag: t.tag(t.A)}
	b := vipl.ViAttributes{Level: vipl.ReliableDelivery, EnableRdmaRead: true}
	t.pairOf(a, b)
}

func connectLong(t *T) {
	long := vipl.NetAddress{Host: t.B.Query().Address, Discriminator: make([]byte, t.B.Query().MaxDiscriminatorLen+1)}
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	_, err := t.B.ConnectWait(long, time.Millisecond)
	t.wantErr("wait", err, vipl.ErrInvalidParameter)
	_, err = v.ConnectRequest(vipl.NetAddress{}, long, patience)
	t.wantErr("request to it", err, vipl.ErrInvalidParameter)
	_, err = v.ConnectRequest(vipl.NetAddress{Discriminator: long.Discriminator},
		vipl.NetAddress{Host: long.Host, Discriminator: disc()}, patience)
	t.wantErr("request from it", err, vipl.ErrInvalidParameter)
	t.state(v, vipl.Idle)
}

// connectMany connects many pairs at once, and sends each client's number over
// its connection: no two are mixed up.
func connectMany(t *T, discOf func(i int) []byte) {
	const count = 24
	host := t.B.Query().Address
	a := vipl.ViAttributes{Level: vipl.ReliableReception}
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	clients, servers := make([]*vipl.VI, count), make([]*vipl.VI, count)
	for i := range count {
		clients[i], servers[i] = t.vi(t.A, a), t.vi(t.B, a)
		y.recv(servers[i], i, 64)
	}
	numbers := make([]byte, count) // which client the server's connection is of
	var group sync.WaitGroup
	for i := range count {
		d := discOf(i)
		group.Go(func() {
			c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
			if err == nil {
				numbers[i] = c.Remote().Discriminator[0]
				err = c.Accept(servers[i])
			}
			if err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
		group.Go(func() {
			_, err := t.requestFrom(clients[i], vipl.NetAddress{Discriminator: []byte{byte(i)}},
				vipl.NetAddress{Host: host, Discriminator: d})
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	for i, v := range clients {
		fill(x.buf(i), i)
		x.send(v, i, 64)
		t.sent(v, 0)
	}
	seen := make(map[byte]bool)
	for i, v := range servers {
		t.received(v, 0)
		t.holds("message", y.buf(i), int(numbers[i]))
		seen[numbers[i]] = true
	}
	if len(seen) != count {
		t.Errorf("%d clients of %d", len(seen), count)
	}
}

func connectSends(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a := vipl.ViAttributes{Level: level}
		va, vb := t.vi(t.A, a), t.vi(t.B, a)
		x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		x.recv(va, 0, 64)
		y.recv(vb, 0, 64)
		fill(x.buf(1), 1)
		fill(y.buf(1), 2)
		c, result := t.askedOf(va, t.B)
		t.must(c.Accept(vb))
		y.send(vb, 1, 64)
		t.must(<-result)
		x.send(va, 1, 64)
		t.received(va, 0)
		t.received(vb, 0)
		t.holds("the server's message", x.buf(0), 2)
		t.holds("the client's message", y.buf(0), 1)
		t.sent(va, 0)
		t.sent(vb, 0)
	})
}

func connectLeaves(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	x.recv(v, 0, 64)
	t.noMatch("request", v, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()})
	c, result := t.askedOf(v, t.B)
	t.must(c.Reject())
	t.wantErr("request", <-result, vipl.ErrRejected)
	if d, err := v.RecvDone(); d != nil || err != vipl.ErrNotDone {
		t.Errorf("the receive is done: %v", err)
	}
	peer := t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	t.join(v, peer)
	fill(y.buf(0), 4)
	y.send(peer, 0, 64)
	t.received(v, 0)
	t.holds("message", x.buf(0), 4)
}
