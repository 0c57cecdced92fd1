package vipltest

import (
	"bytes"
	"errors"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// Rules of group peer-to-peer about requests that fail, and about what a connection is good for.

func peerMismatch(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	local, remote := crosswise(t.A, t.B)
	with := func(x vipl.NetAddress, d []byte) vipl.NetAddress {
		return vipl.NetAddress{Host: x.Host, Discriminator: d}
	}
	longer := append(bytes.Clone(local.Discriminator), 0)
	type pair struct{ local, remote vipl.NetAddress }
	asks := []struct {
		nic *vipl.Nic
		pair
	}{
		{t.A, pair{local, remote}},
		{t.B, pair{remote, with(local, disc())}},                                          // wants another one
		{t.B, pair{with(remote, disc()), local}},                                          // is another one
		{t.B, pair{remote, with(local, longer)}},                                          // a zero byte more
		{t.B, pair{with(remote, local.Discriminator), with(local, remote.Discriminator)}}, // not crossed
		{t.B, pair{remote, with(local, local.Discriminator[:3])}},                         // a prefix
		{t.A, pair{local, with(local, remote.Discriminator)}},                             // another host
	}
	var vis []*vipl.VI
	for _, x := range asks {
		v := t.vi(x.nic, a)
		t.must(v.ConnectPeerRequest(x.local, x.remote, 3*moment))
		vis = append(vis, v)
	}
	for i, v := range vis {
		if _, err := v.ConnectPeerWait(); !errors.Is(err, vipl.ErrTimeout) {
			t.Errorf("request %d: %v, want %v", i, err, vipl.ErrTimeout)
		}
		t.state(v, vipl.Idle)
	}
}

func peerNobody(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	for range 2 {
		t.must(va.ConnectPeerRequest(local, remote, moment))
		_, err := va.ConnectPeerWait()
		t.wantErr("wait", err, vipl.ErrTimeout)
		t.state(va, vipl.Idle)
	}
	// The one that comes too late does not find it either.
	t.must(vb.ConnectPeerRequest(remote, local, moment))
	_, err := vb.ConnectPeerWait()
	t.wantErr("wait of the late one", err, vipl.ErrTimeout)
	t.state(vb, vipl.Idle)

	t.must(va.ConnectPeerRequest(local, remote, patience))
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	t.met(va, vb)
}

// peerDiffer has two VIs that differ ask for each other, and then two that do not.
func (t *T) peerDiffer(a, b vipl.ViAttributes, want error) {
	t.Helper()
	for _, first := range []string{"A", "B"} {
		va, vb := t.vi(t.A, a), t.vi(t.B, b)
		if first == "B" {
			va, vb = vb, va
		}
		local, remote := crosswise(va.Nic(), vb.Nic())
		t.must(va.ConnectPeerRequest(local, remote, patience))
		t.must(vb.ConnectPeerRequest(remote, local, patience))
		for name, v := range map[string]*vipl.VI{"the first": va, "the second": vb} {
			_, err := v.ConnectPeerWait()
			t.wantErr(name+" ("+first+" asks first)", err, want)
			t.state(v, vipl.Idle)
		}
		t.must(va.SetAttributes(a))
		t.must(vb.SetAttributes(a))
		t.must(vb.ConnectPeerRequest(remote, local, patience))
		t.must(va.ConnectPeerRequest(local, remote, patience))
		t.met(va, vb)
	}
}

func peerServer(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	local, remote := crosswise(t.A, t.B)
	va := t.vi(t.A, a)
	waits := starts(func() error {
		_, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: remote.Discriminator}, 3*moment)
		return err
	})
	t.must(va.ConnectPeerRequest(local, remote, 3*moment))
	_, err := va.ConnectPeerWait()
	if !errors.Is(err, vipl.ErrTimeout) && !errors.Is(err, vipl.ErrNoMatch) {
		t.Errorf("a peer request to a server: %v", err)
	}
	t.wantErr("a wait for a peer request", <-waits, vipl.ErrTimeout)

	local, remote = crosswise(t.A, t.B)
	vb := t.vi(t.B, a)
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	_, err = va.ConnectRequest(local, remote, patience)
	t.wantErr("a client's request to a peer", err, vipl.ErrNoMatch)
	t.state(vb, vipl.ConnectPending)
	t.must(va.ConnectPeerRequest(local, remote, patience))
	t.met(va, vb)
}

func peerUnreachable(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	to := vipl.NetAddress{Host: netip.MustParseAddr("192.0.2.1"), Discriminator: disc()}
	t.must(v.ConnectPeerRequest(vipl.NetAddress{Discriminator: disc()}, to, patience))
	_, err := v.ConnectPeerWait()
	t.wantErr("wait", err, vipl.ErrNotReachable)
	t.state(v, vipl.Idle)
}

func peerWrong(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	local, remote := crosswise(t.A, t.B)
	long := make([]byte, t.A.Query().MaxDiscriminatorLen+1)
	t.wantErr("time-out 0", v.ConnectPeerRequest(local, remote, 0), vipl.ErrInvalidParameter)
	t.wantErr("no remote host", v.ConnectPeerRequest(local, vipl.NetAddress{Discriminator: disc()}, patience), vipl.ErrInvalidParameter)
	remote.Discriminator = long
	t.wantErr("long discriminator", v.ConnectPeerRequest(local, remote, patience), vipl.ErrInvalidParameter)
	local, remote = crosswise(t.A, t.B)
	local.Discriminator = long
	t.wantErr("long local discriminator", v.ConnectPeerRequest(local, remote, patience), vipl.ErrInvalidParameter)
	t.state(v, vipl.Idle)
	_, err := v.ConnectPeerDone()
	t.wantErr("done", err, vipl.ErrInvalidState)
}

func peerState(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	local, remote := crosswise(t.A, t.B)
	refused := func(v *vipl.VI, in vipl.State) {
		t.Helper()
		t.state(v, in)
		t.wantErr(in.String(), v.ConnectPeerRequest(local, remote, patience), vipl.ErrInvalidState)
		t.state(v, in)
	}
	refused(va, vipl.Connected)
	t.must(vb.Disconnect())
	refused(va, vipl.Error)
	t.must(va.Disconnect())
	t.must(va.ConnectPeerRequest(local, remote, patience))
	refused(va, vipl.ConnectPending)
	_, err := va.ConnectRequest(local, remote, patience)
	t.wantErr("client's request", err, vipl.ErrInvalidState)
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	t.met(va, vb)
}

func peerWhilePending(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 1, 64)
	t.must(va.ConnectPeerRequest(local, remote, patience))
	x.recv(va, 0, 64)
	x.send(va, 1, 64)
	t.sent(va, vipl.StatusFlushed)
	t.nothingReceived(va)
	t.wantErr("destroy", va.Destroy(), vipl.ErrResource)
	t.wantErr("set attributes", va.SetAttributes(a), vipl.ErrInvalidState)
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	t.met(va, vb)
	y.send(vb, 0, 64)
	if t.received(va, 0) != x.desc[0] {
		t.Error("another descriptor")
	}
}

func peerDisconnect(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	t.must(va.ConnectPeerRequest(local, remote, -1))
	t.promptly("disconnect", func() { t.wantErr("disconnect", va.Disconnect(), nil) })
	t.state(va, vipl.Idle)
	_, err := va.ConnectPeerDone()
	t.wantErr("done", err, vipl.ErrInvalidState)
	t.must(vb.ConnectPeerRequest(remote, local, moment))
	_, err = vb.ConnectPeerWait()
	t.wantErr("the other side", err, vipl.ErrTimeout)
	t.join(va, vb)
}

func peerTraffic(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.peerPair(vipl.ViAttributes{Level: level, EnableRdmaWrite: true})
		x, y := t.block(t.A, 2, 5000), t.block(t.B, 2, 5000)
		for k, way := range []struct {
			from, to *vipl.VI
			out, in  *block
		}{{va, vb, x, y}, {vb, va, y, x}} {
			way.in.recv(way.to, 1, 64)
			fill(way.out.buf(0), k)
			way.out.writeImmediate(way.from, 0, 5000, way.in.remote(1), 9)
			t.received(way.to, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
			t.holds("written", way.in.buf(1), k)
			t.sent(way.from, vipl.StatusOpRDMAWrite)
			way.in.recv(way.to, 1, 5000)
			fill(way.out.buf(0), k+5)
			way.out.send(way.from, 0, 5000)
			t.received(way.to, 0)
			t.holds("message", way.in.buf(1), k+5)
			t.sent(way.from, 0)
		}
		y.recv(vb, 0, 64)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		t.received(vb, vipl.StatusFlushed)
		t.asyncErrors(vb, vipl.ErrorConnLost)
	})
}

func peerLocal(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v, w := t.vi(t.A, a), t.vi(t.A, a)
	local, remote := crosswise(t.A, t.A)
	t.must(v.ConnectPeerRequest(local, remote, patience))
	t.must(w.ConnectPeerRequest(remote, local, patience))
	t.met(v, w)
	x := t.block(t.A, 2, 64)
	x.recv(w, 1, 64)
	fill(x.buf(0), 1)
	x.send(v, 0, 64)
	t.received(w, 0)
	t.holds("message", x.buf(1), 1)
	t.sent(v, 0)

	// Of two that ask for the same address from it, each finds the other and
	// none finds itself.
	v, w = t.vi(t.A, a), t.vi(t.A, a)
	t.must(v.ConnectPeerRequest(local, local, patience))
	t.stays(v, vipl.ConnectPending)
	t.must(w.ConnectPeerRequest(local, local, patience))
	t.met(v, w)
}

func peerClose(t *T) {
	a, b := t.openPair()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	local, remote := crosswise(a, b)
	waits := make([]<-chan error, 2)
	for i, timeout := range []time.Duration{-1, patience} {
		v := t.vi(a, at)
		local.Discriminator = disc()
		t.must(v.ConnectPeerRequest(local, remote, timeout))
		waits[i] = starts(func() error { _, err := v.ConnectPeerWait(); return err })
	}
	time.Sleep(moment)
	t.promptly("CloseNic", func() { t.wantErr("close", a.Close(), nil) })
	for _, w := range waits {
		t.promptly("ConnectPeerWait", func() {
			if err := <-w; err == nil {
				t.Error("the wait succeeded")
			}
		})
	}
}
