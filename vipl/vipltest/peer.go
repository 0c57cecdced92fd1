package vipltest

import (
	"bytes"
	"errors"
	"net/netip"
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
			t.must(va.ConnectPeerRequest(local, remote, limit))
			time.Sleep(2 * time.Millisecond)
			t.must(vb.ConnectPeerRequest(named(remote.Discriminator), local, limit))
			t.met(va, vb)
		}
	})),
	rule("peer-to-peer/request-returns-at-once", "VipConnectPeerRequest returns at once; the VI is in Connect Pending, and VipConnectPeerDone returns NOT_DONE until there is an outcome.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.promptly("ConnectPeerRequest", func() { t.wantErr("request", va.ConnectPeerRequest(local, remote, limit), nil) })
		t.stays(va, vipl.ConnectPending)
		t.wantErr("done", errOf(va.ConnectPeerDone()), vipl.ErrNotDone)
		t.must(vb.ConnectPeerRequest(remote, local, limit))
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
		t.must(va.ConnectPeerRequest(local, remote, limit))
		result := starts(func() error { return errOf(va.ConnectPeerWait()) })
		time.Sleep(moment)
		t.errorIf(len(result) > 0, "the wait returned without a request")
		t.must(vb.ConnectPeerRequest(remote, local, limit))
		t.wantErr("wait", <-result, nil)
		t.wantErr("wait of the other", errOf(vb.ConnectPeerWait()), nil)
	}),
	choice("peer-to-peer/outcome-is-told-once", "VipConnectPeerDone and VipConnectPeerWait without a request under way are an error.", "INVALID_STATE; an outcome is told once", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		client, server := t.pair(vipl.ReliableDelivery)
		met, peer := t.idle(vipl.ReliableDelivery)
		t.meet(met, peer)
		for _, v := range []*vipl.VI{va, vb, client, server, met, peer} {
			t.wantErr("done", errOf(v.ConnectPeerDone()), vipl.ErrInvalidState)
			t.wantErr("wait", errOf(v.ConnectPeerWait()), vipl.ErrInvalidState)
		}
	}),
	rule("peer-to-peer/each-learns-the-others-attributes", "Both sides learn the attributes of the remote VI with the outcome.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		mine, theirs := t.unlike(level)
		va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
		t.ask(va, vb)
		for v, want := range map[*vipl.VI]vipl.VIAttributes{va: theirs, vb: mine} {
			got, err := v.ConnectPeerWait()
			t.must(err)
			equal(t, "attributes of the peer", got, attributesOf(want))
		}
	})),
	rule("peer-to-peer/both-at-once", "Both sides may ask at the same moment.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		for range 20 {
			local, remote := crosswise(t.A, t.B)
			first := starts(func() error { return va.ConnectPeerRequest(local, remote, limit) })
			t.wantErr("request", vb.ConnectPeerRequest(remote, local, limit), nil)
			t.wantErr("request", <-first, nil)
			t.met(va, vb)
			t.drops(va, vb)
			t.must(vb.Disconnect())
		}
	}),
	rule("peer-to-peer/many-pairs-at-once", "Many pairs connect at once; each finds the VI that its discriminators say.", func(t *T) {
		as, bs := t.idleEnds(20)
		locals, remotes := make([]vipl.NetAddress, len(as)), make([]vipl.NetAddress, len(as))
		for i := range as {
			locals[i], remotes[i] = crosswise(t.A, t.B)
		}
		for i := range as {
			k := len(as) - 1 - i
			t.must(as[i].v.ConnectPeerRequest(locals[i], remotes[i], limit))
			t.must(bs[k].v.ConnectPeerRequest(remotes[k], locals[k], limit))
		}
		for i, a := range as {
			t.met(a.v, bs[i].v)
			a.message(bs[i], 64, i)
		}
	}),
	choice("peer-to-peer/several-with-the-same-pair", "Several VIs may ask with the same pair of addresses.", "each is connected with one of the other side's", func(t *T) {
		as, bs := t.idleEnds(4)
		local, remote := crosswise(t.A, t.B)
		for _, a := range as {
			t.must(a.v.ConnectPeerRequest(local, remote, limit))
		}
		for _, b := range bs {
			b.recv(0, 64)
			t.must(b.v.ConnectPeerRequest(remote, local, limit))
		}
		seen := make(map[byte]bool)
		for i, a := range as {
			t.met(a.v, bs[i].v)
			a.sendMessage(0, 64, i)
			a.sent()
		}
		for _, b := range bs {
			b.received()
			seen[b.buf(0)[0]] = true
		}
		equal(t, "VIs with a message", len(seen), len(bs))
	}),
	rule("peer-to-peer/pairs-match-crosswise", "Requests whose (local, remote) pairs do not match crosswise do not meet: TIMEOUT, and both VIs are Idle.", func(t *T) {
		local, remote := crosswise(t.A, t.B)
		with := func(x vipl.NetAddress, d []byte) vipl.NetAddress {
			return vipl.NetAddress{Host: x.Host, Discriminator: d}
		}
		longer := append(bytes.Clone(local.Discriminator), 0)
		asks := []struct {
			nic           *vipl.NIC
			local, remote vipl.NetAddress
		}{
			{t.A, local, remote},
			{t.B, remote, with(local, disc())}, // wants another one
			{t.B, with(remote, disc()), local}, // is another one
			{t.B, remote, with(local, longer)}, // a zero byte more
			{t.B, with(remote, local.Discriminator), with(local, remote.Discriminator)}, // not crossed
			{t.B, remote, with(local, local.Discriminator[:3])},                         // a prefix
			{t.A, local, with(local, remote.Discriminator)},                             // another host
		}
		var vis []*vipl.VI
		for _, x := range asks {
			v := t.vi(x.nic, at(vipl.ReliableDelivery))
			t.must(v.ConnectPeerRequest(x.local, x.remote, 3*moment))
			vis = append(vis, v)
		}
		for _, v := range vis {
			t.timesOut(v)
		}
	}),
	rule("peer-to-peer/nobody-asks", "When the other side does not ask in time the outcome is TIMEOUT, and the VI is Idle and may ask again.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		for range 2 {
			t.must(va.ConnectPeerRequest(local, remote, moment))
			t.timesOut(va)
		}
		// A request that comes too late does not find it either.
		t.must(vb.ConnectPeerRequest(remote, local, moment))
		t.timesOut(vb)

		t.must(va.ConnectPeerRequest(local, remote, limit))
		t.must(vb.ConnectPeerRequest(remote, local, limit))
		t.met(va, vb)
	}),
	rule("peer-to-peer/level-must-be-the-same", "VIs of different reliability levels do not connect: both sides get INVALID_RELIABILITY_LEVEL and are Idle.", func(t *T) {
		t.peerDiffer(at(vipl.ReliableDelivery), at(vipl.ReliableReception), vipl.ErrInvalidReliabilityLevel)
	}),
	rule("peer-to-peer/transfer-size-must-be-the-same", "VIs of different MaxTransferSize do not connect: both sides get INVALID_MTU and are Idle.", func(t *T) {
		t.peerDiffer(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000},
			vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1001}, vipl.ErrInvalidMTU)
	}),
	rule("peer-to-peer/no-mixture-with-client-server", "A peer request does not meet a VipConnectWait, nor a VipConnectRequest a peer request.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		waits := starts(func() error { return errOf(t.B.ConnectWait(named(remote.Discriminator), 3*moment)) })
		t.must(va.ConnectPeerRequest(local, remote, 3*moment))
		_, err := va.ConnectPeerWait()
		t.errorIf(!errors.Is(err, vipl.ErrTimeout) && !errors.Is(err, vipl.ErrNoMatch), "a peer request to a server: %v", err)
		t.wantErr("a wait for a peer request", <-waits, vipl.ErrTimeout)

		local, remote = crosswise(t.A, t.B)
		t.must(vb.ConnectPeerRequest(remote, local, limit))
		t.wantErr("a client's request to a peer", errOf(va.ConnectRequest(local, remote, limit)), vipl.ErrNoMatch)
		t.state(vb, vipl.ConnectPending)
		t.must(va.ConnectPeerRequest(local, remote, limit))
		t.met(va, vb)
	}),
	rule("peer-to-peer/not-reachable", "The outcome of a peer request to a host to which there is no way is NOT_REACHABLE.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		to := vipl.NetAddress{Host: netip.MustParseAddr("192.0.2.1"), Discriminator: disc()}
		t.must(v.ConnectPeerRequest(named(disc()), to, limit))
		t.wantErr("wait", errOf(v.ConnectPeerWait()), vipl.ErrNotReachable)
		t.state(v, vipl.Idle)
	}),
	rule("peer-to-peer/wrong-parameters-are-refused", "Time-out 0, no remote host or a discriminator that is too long is INVALID_PARAMETER.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		local, remote := crosswise(t.A, t.B)
		long := make([]byte, t.A.Query().MaxDiscriminatorLen+1)
		t.wantErr("time-out 0", v.ConnectPeerRequest(local, remote, 0), vipl.ErrInvalidParameter)
		t.wantErr("no remote host", v.ConnectPeerRequest(local, named(disc()), limit), vipl.ErrInvalidParameter)
		t.wantErr("long discriminator", v.ConnectPeerRequest(local, on(t.B, long), limit), vipl.ErrInvalidParameter)
		t.wantErr("long local discriminator", v.ConnectPeerRequest(on(t.A, long), remote, limit), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
		t.wantErr("done", errOf(v.ConnectPeerDone()), vipl.ErrInvalidState)
	}),
	rule("peer-to-peer/only-when-idle", "VipConnectPeerRequest on a VI that is not Idle returns INVALID_STATE.", func(t *T) {
		t.onlyWhenIdle(func(v *vipl.VI) error { return v.ConnectPeerRequest(on(v.NIC(), disc()), on(t.B, disc()), limit) })
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.must(va.ConnectPeerRequest(local, remote, limit))
		t.wantErr("a second request", va.ConnectPeerRequest(local, remote, limit), vipl.ErrInvalidState)
		t.wantErr("client's request", errOf(va.ConnectRequest(local, remote, limit)), vipl.ErrInvalidState)
		t.state(va, vipl.ConnectPending)
		t.must(vb.ConnectPeerRequest(remote, local, limit))
		t.met(va, vb)
	}),
	rule("peer-to-peer/pending-as-with-client-server", "While a peer request is under way receives stay posted, sends complete in error, attributes stay and the VI cannot be destroyed.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		a, b := t.block(t.A, 2, 64).on(va), t.block(t.B, 1, 64).on(vb)
		t.must(va.ConnectPeerRequest(local, remote, limit))
		a.recv(0, 64)
		a.send(1, 64)
		a.sent(vipl.StatusFlushed)
		t.nothingReceived(va)
		t.wantErr("destroy", va.Destroy(), vipl.ErrResource)
		t.wantErr("set attributes", va.SetAttributes(at(vipl.ReliableDelivery)), vipl.ErrInvalidState)
		t.must(vb.ConnectPeerRequest(remote, local, limit))
		t.met(va, vb)
		b.carries(a, 64, 1)
	}),
	choice("peer-to-peer/disconnect-ends-the-request", "What VipDisconnect does while a peer request is under way is the provider's.", "it ends the request: the VI is Idle, and there is no outcome", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local, remote := crosswise(t.A, t.B)
		t.must(va.ConnectPeerRequest(local, remote, -1))
		t.promptly("disconnect", func() { t.wantErr("disconnect", va.Disconnect(), nil) })
		t.state(va, vipl.Idle)
		t.wantErr("done", errOf(va.ConnectPeerDone()), vipl.ErrInvalidState)
		t.must(vb.ConnectPeerRequest(remote, local, moment))
		t.timesOut(vb)
		t.join(va, vb)
	}),
	rule("peer-to-peer/connection-is-like-any-other", "Messages, RDMA, disconnect and asynchronous errors are as on any other connection.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.vi(t.A, open(level)), t.vi(t.B, open(level))
		t.meet(va, vb)
		a, b := t.block(t.A, 2, 5000).on(va), t.block(t.B, 2, 5000).on(vb)
		for k, way := range [][2]*end{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			to.recv(1, 64)
			fill(from.buf(0), k)
			from.writeImmediate(0, 5000, to.remote(1), 9)
			to.toldOfWrite(1, 5000, 9)
			t.holds("written", to.buf(1), k)
			from.sent(vipl.StatusOpRDMAWrite)
			from.message(to, 5000, k+5)
		}
		b.recv(0, 64)
		t.drops(va, vb)
		b.received(vipl.StatusFlushed)
		t.asyncErrors(vb, vipl.ErrorConnLost)
	})),
	rule("peer-to-peer/local", "Two VIs of one NIC connect peer-to-peer, too.", local(func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		t.meet(va, vb)
		t.block(t.A, 1, 64).on(va).message(t.block(t.A, 1, 64).on(vb), 64, 1)

		// If two VIs request the same address from that address, each finds the other and neither finds itself.
		va, vb = t.idle(vipl.ReliableDelivery)
		same := on(t.A, disc())
		t.must(va.ConnectPeerRequest(same, same, limit))
		t.stays(va, vipl.ConnectPending)
		t.must(vb.ConnectPeerRequest(same, same, limit))
		t.met(va, vb)
	})),
	rule("peer-to-peer/close-ends-the-request", "VipCloseNic ends a peer request, and VipConnectPeerWait returns with an error.", func(t *T) {
		t.openPair()
		waits := make([]<-chan error, 2)
		for i, timeout := range []time.Duration{-1, limit} {
			v := t.vi(t.A, at(vipl.ReliableDelivery))
			local, remote := crosswise(t.A, t.B)
			t.must(v.ConnectPeerRequest(local, remote, timeout))
			waits[i] = starts(func() error { return errOf(v.ConnectPeerWait()) })
		}
		time.Sleep(moment)
		t.closesPromptly()
		for _, w := range waits {
			t.errorIf(within(t, "the return of ConnectPeerWait", w) == nil, "the wait succeeded")
		}
	}),
}

// crosswise returns the addresses of a peer-to-peer connection of two NICs, as seen from the first.
func crosswise(a, b *vipl.NIC) (local, remote vipl.NetAddress) {
	return on(a, disc()), on(b, disc())
}

// idleEnds makes count VIs on each NIC, each with a buffer.
func (t *T) idleEnds(count int) (as, bs []*end) {
	for range count {
		va, vb := t.idle(vipl.ReliableReception)
		as, bs = append(as, t.block(t.A, 1, 64).on(va)), append(bs, t.block(t.B, 1, 64).on(vb))
	}
	return as, bs
}

// ask has two VIs request each other, the first one first.
func (t *T) ask(va, vb *vipl.VI) {
	local, remote := crosswise(va.NIC(), vb.NIC())
	t.must(va.ConnectPeerRequest(local, remote, limit))
	t.must(vb.ConnectPeerRequest(remote, local, limit))
}

// met waits for the outcome at both VIs, which must be a connection.
func (t *T) met(va, vb *vipl.VI) {
	for _, v := range []*vipl.VI{va, vb} {
		t.must(errOf(v.ConnectPeerWait()))
		t.state(v, vipl.Connected)
	}
}

// meet connects two VIs that request each other.
func (t *T) meet(va, vb *vipl.VI) {
	t.ask(va, vb)
	t.met(va, vb)
}

// timesOut waits for the outcome of a request without a counterpart.
func (t *T) timesOut(v *vipl.VI) {
	t.wantErr("wait", errOf(v.ConnectPeerWait()), vipl.ErrTimeout)
	t.state(v, vipl.Idle)
}

// peerDiffer has two VIs that differ request each other, and then two that do not.
func (t *T) peerDiffer(a, b vipl.VIAttributes, want error) {
	for _, first := range []string{"A", "B"} {
		va, vb := t.vi(t.A, a), t.vi(t.B, b)
		if first == "B" {
			va, vb = vb, va
		}
		t.ask(va, vb)
		for name, v := range map[string]*vipl.VI{"the first": va, "the second": vb} {
			t.wantErr(name+" ("+first+" asks first)", errOf(v.ConnectPeerWait()), want)
			t.state(v, vipl.Idle)
		}
		t.must(va.SetAttributes(a))
		t.must(vb.SetAttributes(a))
		t.meet(vb, va)
	}
}
