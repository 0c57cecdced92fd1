package vipltest

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"time"

	"viaxdp/vipl"
)

var peerRules = []Rule{
	rule("peer-to-peer/both-ask-and-are-connected", "Two VIs for which VipConnectPeerRequest was called crosswise are connected, whoever asks first.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		for _, first := range []string{"A", "B"} {
			va, vb := t.idle(level)
			if first == "B" {
				va, vb = vb, va
			}
			local, remote := crosswise(va.NIC(), vb.NIC())
			t.must(va.ConnectPeerRequest(local, remote, ackDelay))
			time.Sleep(2 * time.Millisecond)
			t.must(vb.ConnectPeerRequest(vipl.NetAddress{Discriminator: remote.Discriminator}, local, ackDelay))
			t.met(va, vb)
		}
	})),
	rule("peer-to-peer/request-returns-at-once", "VipConnectPeerRequest returns at once; the VI is in Connect Pending, and VipConnectPeerDone returns NOT_DONE until there is an outcome.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.promptly("ConnectPeerRequest", func() { t.wantErr("request", va.ConnectPeerRequest(local, remote, ackDelay), nil) })
		t.stays(va, vipl.ConnectPending)
		t.wantErr("done", errOf(va.ConnectPeerDone()), vipl.ErrNotDone)
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		for _, v := range []*vipl.VI{va, vb} {
			t.until("an outcome", func() bool {
				_, err := v.ConnectPeerDone()
				if err != nil {
					t.wantErr("done", err, vipl.ErrNotDone)
				}
				return err == nil
			})
			t.state(v, vipl.Connected)
		}
	}),
	rule("peer-to-peer/wait-blocks-until-the-outcome", "VipConnectPeerWait returns with the outcome.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.must(va.ConnectPeerRequest(local, remote, ackDelay))
		result := starts(func() error { return errOf(va.ConnectPeerWait()) })
		time.Sleep(moment)
		select {
		case err := <-result:
			t.Errorf("the wait returned %v when nobody had asked", err)
		default:
		}
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		t.wantErr("wait", <-result, nil)
		t.wantErr("wait of the other", errOf(vb.ConnectPeerWait()), nil)
	}),
	choice("peer-to-peer/outcome-is-told-once", "VipConnectPeerDone and VipConnectPeerWait without a request under way are an error.", "INVALID_STATE; an outcome is told once", func(t *T) {
		none := func(v *vipl.VI) {
			t.Helper()
			t.wantErr("done", errOf(v.ConnectPeerDone()), vipl.ErrInvalidState)
			t.wantErr("wait", errOf(v.ConnectPeerWait()), vipl.ErrInvalidState)
		}
		none(t.vi(t.A, at(vipl.ReliableDelivery)))
		va, vb := t.peerPair(at(vipl.ReliableDelivery))
		none(va)
		none(vb)
		va, _ = t.pair(vipl.ReliableDelivery) // client and server
		none(va)
	}),
	rule("peer-to-peer/each-learns-the-others-attributes", "Both sides learn the attributes of the remote VI with the outcome.", func(t *T) {
		for i, level := range reliableLevels {
			mine := vipl.VIAttributes{Level: level, MaxTransferSize: 1000 + i, EnableRDMAWrite: i == 0, EnableRDMARead: i == 1}
			theirs := mine
			theirs.EnableRDMAWrite, theirs.EnableRDMARead = mine.EnableRDMARead, mine.EnableRDMAWrite
			va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
			local, remote := crosswise(t.A, t.B)
			t.must(va.ConnectPeerRequest(local, remote, ackDelay))
			t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
			for _, c := range []struct {
				v    *vipl.VI
				want vipl.RemoteAttributes
			}{{va, remoteOf(theirs)}, {vb, remoteOf(mine)}} {
				got, err := c.v.ConnectPeerWait()
				t.errorIf(err != nil || got != c.want, "%+v, %v; want %+v", got, err, c.want)
			}
		}
	}),
	rule("peer-to-peer/both-at-once", "Both sides may ask at the same moment.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		for range 20 {
			local, remote := crosswise(t.A, t.B)
			var group sync.WaitGroup
			group.Go(func() { t.wantErr("request", va.ConnectPeerRequest(local, remote, ackDelay), nil) })
			group.Go(func() { t.wantErr("request", vb.ConnectPeerRequest(remote, local, ackDelay), nil) })
			group.Wait()
			t.met(va, vb)
			t.must(va.Disconnect())
			t.state(vb, vipl.Error)
			t.must(vb.Disconnect())
		}
	}),
	rule("peer-to-peer/many-pairs-at-once", "Many pairs connect at once; each finds the VI that its discriminators say.", func(t *T) {
		const count = 20
		a := at(vipl.ReliableReception)
		x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
		var as, bs []*vipl.VI
		var locals, remotes []vipl.NetAddress
		for range count {
			local, remote := crosswise(t.A, t.B)
			as, bs = append(as, t.vi(t.A, a)), append(bs, t.vi(t.B, a))
			locals, remotes = append(locals, local), append(remotes, remote)
		}
		for i := range count {
			t.must(as[i].ConnectPeerRequest(locals[i], remotes[i], ackDelay))
			k := count - 1 - i
			t.must(bs[k].ConnectPeerRequest(remotes[k], locals[k], ackDelay))
		}
		for i := range count {
			t.met(as[i], bs[i])
			y.recv(bs[i], i, 64)
			x.sendMessage(as[i], i, 64, i)
		}
		for i := range count {
			t.receivedMessage(bs[i], y.buf(i), i)
			t.sent(as[i], 0)
		}
	}),
	choice("peer-to-peer/several-with-the-same-pair", "Several VIs may ask with the same pair of addresses.", "each is connected with one of the other side's", func(t *T) {
		const count = 4
		a := at(vipl.ReliableReception)
		local, remote := crosswise(t.A, t.B)
		x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
		var as, bs []*vipl.VI
		for i := range count {
			as, bs = append(as, t.vi(t.A, a)), append(bs, t.vi(t.B, a))
			y.recv(bs[i], i, 64)
			t.must(as[i].ConnectPeerRequest(local, remote, ackDelay))
		}
		for _, v := range bs {
			t.must(v.ConnectPeerRequest(remote, local, ackDelay))
		}
		seen := make(map[byte]bool)
		for i := range count {
			t.met(as[i], bs[i])
		}
		for i := range count {
			x.sendMessage(as[i], i, 64, i)
			t.sent(as[i], 0)
		}
		for i := range count {
			t.received(bs[i], 0)
			seen[y.buf(i)[0]] = true
		}
		equal(t, "VIs with a message", len(seen), count)
	}),
	rule("peer-to-peer/pairs-match-crosswise", "Requests whose (local, remote) pairs do not match crosswise do not meet: TIMEOUT, and both VIs are Idle.", func(t *T) {
		a := at(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		with := func(x vipl.NetAddress, d []byte) vipl.NetAddress {
			return vipl.NetAddress{Host: x.Host, Discriminator: d}
		}
		longer := append(bytes.Clone(local.Discriminator), 0)
		type pair struct{ local, remote vipl.NetAddress }
		asks := []struct {
			nic *vipl.NIC
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
			_, err := v.ConnectPeerWait()
			t.errorIf(!errors.Is(err, vipl.ErrTimeout), "request %d: %v, want %v", i, err, vipl.ErrTimeout)
			t.state(v, vipl.Idle)
		}
	}),
	rule("peer-to-peer/nobody-asks", "When the other side does not ask in time the outcome is TIMEOUT, and the VI is Idle and may ask again.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		for range 2 {
			t.must(va.ConnectPeerRequest(local, remote, moment))
			t.wantErr("wait", errOf(va.ConnectPeerWait()), vipl.ErrTimeout)
			t.state(va, vipl.Idle)
		}
		// The one that comes too late does not find it either.
		t.must(vb.ConnectPeerRequest(remote, local, moment))
		t.wantErr("wait of the late one", errOf(vb.ConnectPeerWait()), vipl.ErrTimeout)
		t.state(vb, vipl.Idle)

		t.meet(va, vb, local, remote)
	}),
	rule("peer-to-peer/level-must-be-the-same", "VIs of different reliability levels do not connect: both sides get INVALID_RELIABILITY_LEVEL and are Idle.", func(t *T) {
		t.peerDiffer(at(vipl.ReliableDelivery), at(vipl.ReliableReception),
			vipl.ErrInvalidReliabilityLevel)
	}),
	rule("peer-to-peer/transfer-size-must-be-the-same", "VIs of different MaxTransferSize do not connect: both sides get INVALID_MTU and are Idle.", func(t *T) {
		t.peerDiffer(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000},
			vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1001}, vipl.ErrInvalidMTU)
	}),
	rule("peer-to-peer/no-mixture-with-client-server", "A peer request does not meet a VipConnectWait, nor a VipConnectRequest a peer request.", func(t *T) {
		a := at(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		va := t.vi(t.A, a)
		waits := starts(func() error {
			return errOf(t.B.ConnectWait(vipl.NetAddress{Discriminator: remote.Discriminator}, 3*moment))
		})
		t.must(va.ConnectPeerRequest(local, remote, 3*moment))
		_, err := va.ConnectPeerWait()
		t.errorIf(!errors.Is(err, vipl.ErrTimeout) && !errors.Is(err, vipl.ErrNoMatch), "a peer request to a server: %v", err)
		t.wantErr("a wait for a peer request", <-waits, vipl.ErrTimeout)

		local, remote = crosswise(t.A, t.B)
		vb := t.vi(t.B, a)
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		t.wantErr("a client's request to a peer", errOf(va.ConnectRequest(local, remote, ackDelay)), vipl.ErrNoMatch)
		t.state(vb, vipl.ConnectPending)
		t.must(va.ConnectPeerRequest(local, remote, ackDelay))
		t.met(va, vb)
	}),
	rule("peer-to-peer/not-reachable", "The outcome of a peer request to a host to which there is no way is NOT_REACHABLE.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		to := vipl.NetAddress{Host: netip.MustParseAddr("192.0.2.1"), Discriminator: disc()}
		t.must(v.ConnectPeerRequest(named(disc()), to, ackDelay))
		t.wantErr("wait", errOf(v.ConnectPeerWait()), vipl.ErrNotReachable)
		t.state(v, vipl.Idle)
	}),
	rule("peer-to-peer/wrong-parameters-are-refused", "Time-out 0, no remote host or a discriminator that is too long is INVALID_PARAMETER.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		local, remote := crosswise(t.A, t.B)
		long := make([]byte, t.A.Query().MaxDiscriminatorLen+1)
		t.wantErr("time-out 0", v.ConnectPeerRequest(local, remote, 0), vipl.ErrInvalidParameter)
		t.wantErr("no remote host", v.ConnectPeerRequest(local, named(disc()), ackDelay), vipl.ErrInvalidParameter)
		remote.Discriminator = long
		t.wantErr("long discriminator", v.ConnectPeerRequest(local, remote, ackDelay), vipl.ErrInvalidParameter)
		local, remote = crosswise(t.A, t.B)
		local.Discriminator = long
		t.wantErr("long local discriminator", v.ConnectPeerRequest(local, remote, ackDelay), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
		t.wantErr("done", errOf(v.ConnectPeerDone()), vipl.ErrInvalidState)
	}),
	rule("peer-to-peer/only-when-idle", "VipConnectPeerRequest on a VI that is not Idle returns INVALID_STATE.", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		refused := func(v *vipl.VI, in vipl.State) {
			t.Helper()
			t.state(v, in)
			t.wantErr(in.String(), v.ConnectPeerRequest(local, remote, ackDelay), vipl.ErrInvalidState)
			t.state(v, in)
		}
		refused(va, vipl.Connected)
		t.must(vb.Disconnect())
		refused(va, vipl.Error)
		t.must(va.Disconnect())
		t.must(va.ConnectPeerRequest(local, remote, ackDelay))
		refused(va, vipl.ConnectPending)
		t.wantErr("client's request", errOf(va.ConnectRequest(local, remote, ackDelay)), vipl.ErrInvalidState)
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		t.met(va, vb)
	}),
	rule("peer-to-peer/pending-as-with-client-server", "While a peer request is under way receives stay posted, sends complete in error, attributes stay and the VI cannot be destroyed.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		x, y := t.block(t.A, 2, 64), t.block(t.B, 1, 64)
		t.must(va.ConnectPeerRequest(local, remote, ackDelay))
		x.recv(va, 0, 64)
		x.send(va, 1, 64)
		t.sent(va, vipl.StatusFlushed)
		t.nothingReceived(va)
		t.wantErr("destroy", va.Destroy(), vipl.ErrResource)
		t.wantErr("set attributes", va.SetAttributes(at(vipl.ReliableDelivery)), vipl.ErrInvalidState)
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		t.met(va, vb)
		y.send(vb, 0, 64)
		t.same(t.received(va, 0), x.desc[0])
	}),
	choice("peer-to-peer/disconnect-ends-the-request", "What VipDisconnect does while a peer request is under way is the provider's.", "it ends the request: the VI is Idle, and there is no outcome", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.must(va.ConnectPeerRequest(local, remote, -1))
		t.promptly("disconnect", func() { t.wantErr("disconnect", va.Disconnect(), nil) })
		t.state(va, vipl.Idle)
		t.wantErr("done", errOf(va.ConnectPeerDone()), vipl.ErrInvalidState)
		t.must(vb.ConnectPeerRequest(remote, local, moment))
		t.wantErr("the other side", errOf(vb.ConnectPeerWait()), vipl.ErrTimeout)
		t.join(va, vb)
	}),
	rule("peer-to-peer/connection-is-like-any-other", "Messages, RDMA, disconnect and asynchronous errors are as on any other connection.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.peerPair(vipl.VIAttributes{Level: level, EnableRDMAWrite: true})
		x, y := t.block(t.A, 2, 5000), t.block(t.B, 2, 5000)
		for k, way := range []struct {
			from, to *vipl.VI
			out, in  *block
		}{{va, vb, x, y}, {vb, va, y, x}} {
			way.in.recv(way.to, 1, 64)
			fill(way.out.buf(0), k)
			way.out.writeImmediate(way.from, 0, 5000, way.in.remote(1), 9)
			t.received(way.to, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
			t.coalesces("written", way.in.buf(1), k)
			t.sent(way.from, vipl.StatusOpRDMAWrite)
			way.in.recv(way.to, 1, 5000)
			way.out.sendMessage(way.from, 0, 5000, k+5)
			t.receivedMessage(way.to, way.in.buf(1), k+5)
			t.sent(way.from, 0)
		}
		y.recv(vb, 0, 64)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		t.received(vb, vipl.StatusFlushed)
		t.asyncErrors(vb, vipl.ErrorConnLost)
	})),
	rule("peer-to-peer/local", "Two VIs of one NIC connect peer-to-peer, too.", func(t *T) {
		a := at(vipl.ReliableDelivery)
		v, w := t.vi(t.A, a), t.vi(t.A, a)
		local, remote := crosswise(t.A, t.A)
		t.meet(v, w, local, remote)
		x := t.block(t.A, 2, 64)
		x.recv(w, 1, 64)
		x.sendMessage(v, 0, 64, 1)
		t.receivedMessage(w, x.buf(1), 1)
		t.sent(v, 0)

		// Of two that ask for the same address from it, each finds the other and
		// none finds itself.
		v, w = t.vi(t.A, a), t.vi(t.A, a)
		t.must(v.ConnectPeerRequest(local, local, ackDelay))
		t.stays(v, vipl.ConnectPending)
		t.must(w.ConnectPeerRequest(local, local, ackDelay))
		t.met(v, w)
	}),
	rule("peer-to-peer/close-ends-the-request", "VipCloseNic ends a peer request, and VipConnectPeerWait returns with an error.", func(t *T) {
		a, b := t.openPair()
		at := at(vipl.ReliableDelivery)
		local, remote := crosswise(a, b)
		waits := make([]<-chan error, 2)
		for i, timeout := range []time.Duration{-1, ackDelay} {
			v := t.vi(a, at)
			local.Discriminator = disc()
			t.must(v.ConnectPeerRequest(local, remote, timeout))
			waits[i] = starts(func() error { return errOf(v.ConnectPeerWait()) })
		}
		time.Sleep(moment)
		t.promptly("CloseNIC", func() { t.wantErr("close", a.Close(), nil) })
		for _, w := range waits {
			t.promptly("ConnectPeerWait", func() {
				t.errorIf(<-w == nil, "the wait succeeded")
			})
		}
	}),
}

// crosswise are the addresses of a peer-to-peer connection of two NICs, as seen
// from the first.
func crosswise(a, b *vipl.NIC) (local, remote vipl.NetAddress) {
	return on(a, disc()), on(b, disc())
}

// met waits for the outcome at both VIs, which must be a connection.
func (t *T) met(va, vb *vipl.VI) {
	t.Helper()
	for _, v := range []*vipl.VI{va, vb} {
		if _, err := v.ConnectPeerWait(); err != nil {
			t.Fatal(err)
		}
		t.state(v, vipl.Connected)
	}
}

// meet has two VIs ask for each other, the first one first, and waits for the outcome.
func (t *T) meet(va, vb *vipl.VI, local, remote vipl.NetAddress) {
	t.Helper()
	t.must(va.ConnectPeerRequest(local, remote, ackDelay))
	t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
	t.met(va, vb)
}

// peerPair makes two VIs that ask for each other.
func (t *T) peerPair(a vipl.VIAttributes) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	t.meet(va, vb, local, remote)
	return va, vb
}

// peerDiffer has two VIs that differ ask for each other, and then two that do not.
func (t *T) peerDiffer(a, b vipl.VIAttributes, want error) {
	t.Helper()
	for _, first := range []string{"A", "B"} {
		va, vb := t.vi(t.A, a), t.vi(t.B, b)
		if first == "B" {
			va, vb = vb, va
		}
		local, remote := crosswise(va.NIC(), vb.NIC())
		t.must(va.ConnectPeerRequest(local, remote, ackDelay))
		t.must(vb.ConnectPeerRequest(remote, local, ackDelay))
		for name, v := range map[string]*vipl.VI{"the first": va, "the second": vb} {
			t.wantErr(name+" ("+first+" asks first)", errOf(v.ConnectPeerWait()), want)
			t.state(v, vipl.Idle)
		}
		t.must(va.SetAttributes(a))
		t.must(vb.SetAttributes(a))
		t.meet(vb, va, remote, local)
	}
}
