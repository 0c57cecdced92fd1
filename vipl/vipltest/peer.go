package vipltest

import (
	"sync"
	"time"

	"viaxdp/vipl"
)

var peerRules = []Rule{
	{
		ID:   "peer-to-peer/both-ask-and-are-connected",
		Text: "Two VIs for which VipConnectPeerRequest was called crosswise are connected, whoever asks first.",
		run:  peerBoth,
	},
	{
		ID:   "peer-to-peer/request-returns-at-once",
		Text: "VipConnectPeerRequest returns at once; the VI is in Connect Pending, and VipConnectPeerDone returns NOT_DONE until there is an outcome.",
		run:  peerPending,
	},
	{
		ID:   "peer-to-peer/wait-blocks-until-the-outcome",
		Text: "VipConnectPeerWait returns with the outcome.",
		run:  peerWaits,
	},
	{
		ID:     "peer-to-peer/outcome-is-told-once",
		Text:   "VipConnectPeerDone and VipConnectPeerWait without a request under way are an error.",
		Choice: "INVALID_STATE; an outcome is told once",
		run:    peerOnce,
	},
	{
		ID:   "peer-to-peer/each-learns-the-others-attributes",
		Text: "Both sides learn the attributes of the remote VI with the outcome.",
		run:  peerAttributes,
	},
	{
		ID:   "peer-to-peer/both-at-once",
		Text: "Both sides may ask at the same moment.",
		run:  peerAtOnce,
	},
	{
		ID:   "peer-to-peer/many-pairs-at-once",
		Text: "Many pairs connect at once; each finds the VI that its discriminators say.",
		run:  peerMany,
	},
	{
		ID:     "peer-to-peer/several-with-the-same-pair",
		Text:   "Several VIs may ask with the same pair of addresses.",
		Choice: "each is connected with one of the other side's",
		run:    peerSame,
	},
	{
		ID:   "peer-to-peer/pairs-match-crosswise",
		Text: "Requests whose (local, remote) pairs do not match crosswise do not meet: TIMEOUT, and both VIs are Idle.",
		run:  peerMismatch,
	},
	{
		ID:   "peer-to-peer/nobody-asks",
		Text: "When the other side does not ask in time the outcome is TIMEOUT, and the VI is Idle and may ask again.",
		run:  peerNobody,
	},
	{
		ID:   "peer-to-peer/level-must-be-the-same",
		Text: "VIs of different reliability levels do not connect: both sides get INVALID_RELIABILITY_LEVEL and are Idle.",
		run: func(t *T) {
			t.peerDiffer(vipl.ViAttributes{Level: vipl.ReliableDelivery}, vipl.ViAttributes{Level: vipl.ReliableReception},
				vipl.ErrInvalidReliabilityLevel)
		},
	},
	{
		ID:   "peer-to-peer/transfer-size-must-be-the-same",
		Text: "VIs of different MaxTransferSize do not connect: both sides get INVALID_MTU and are Idle.",
		run: func(t *T) {
			t.peerDiffer(vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000},
				vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1001}, vipl.ErrInvalidMTU)
		},
	},
	{
		ID:   "peer-to-peer/no-mixture-with-client-server",
		Text: "A peer request does not meet a VipConnectWait, nor a VipConnectRequest a peer request.",
		run:  peerServer,
	},
	{
		ID:   "peer-to-peer/not-reachable",
		Text: "The outcome of a peer request to a host to which there is no way is NOT_REACHABLE.",
		run:  peerUnreachable,
	},
	{
		ID:   "peer-to-peer/wrong-parameters-are-refused",
		Text: "Time-out 0, no remote host or a discriminator that is too long is INVALID_PARAMETER.",
		run:  peerWrong,
	},
	{
		ID:   "peer-to-peer/only-when-idle",
		Text: "VipConnectPeerRequest on a VI that is not Idle returns INVALID_STATE.",
		run:  peerState,
	},
	{
		ID:   "peer-to-peer/pending-as-with-client-server",
		Text: "While a peer request is under way receives stay posted, sends complete in error, attributes stay and the VI cannot be destroyed.",
		run:  peerWhilePending,
	},
	{
		ID:     "peer-to-peer/disconnect-ends-the-request",
		Text:   "What VipDisconnect does while a peer request is under way is the provider's.",
		Choice: "it ends the request: the VI is Idle, and there is no outcome",
		run:    peerDisconnect,
	},
	{
		ID:   "peer-to-peer/connection-is-like-any-other",
		Text: "Messages, RDMA, disconnect and asynchronous errors are as on any other connection.",
		run:  peerTraffic,
	},
	{
		ID:   "peer-to-peer/local",
		Text: "Two VIs of one NIC connect peer-to-peer, too.",
		run:  peerLocal,
	},
	{
		ID:   "peer-to-peer/close-ends-the-request",
		Text: "VipCloseNic ends a peer request, and VipConnectPeerWait returns with an error.",
		run:  peerClose,
	},
}

// crosswise are the addresses of a peer-to-peer connection of two NICs, as seen
// from the first.
func crosswise(a, b *vipl.Nic) (local, remote vipl.NetAddress) {
	return vipl.NetAddress{Host: a.Query().Address, Discriminator: disc()},
		vipl.NetAddress{Host: b.Query().Address, Discriminator: disc()}
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

// peerPair makes two VIs that ask for each other.
func (t *T) peerPair(a vipl.ViAttributes) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	t.must(va.ConnectPeerRequest(local, remote, patience))
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	t.met(va, vb)
	return va, vb
}

func peerBoth(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		for _, first := range []string{"A", "B"} {
			va, vb := t.vi(t.A, vipl.ViAttributes{Level: level}), t.vi(t.B, vipl.ViAttributes{Level: level})
			if first == "B" {
				va, vb = vb, va
			}
			local, remote := crosswise(va.Nic(), vb.Nic())
			t.must(va.ConnectPeerRequest(local, remote, patience))
			time.Sleep(2 * time.Millisecond)
			t.must(vb.ConnectPeerRequest(vipl.NetAddress{Discriminator: remote.Discriminator}, local, patience))
			t.met(va, vb)
		}
	})
}

func peerPending(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	t.promptly("ConnectPeerRequest", func() { t.wantErr("request", va.ConnectPeerRequest(local, remote, patience), nil) })
	t.stays(va, vipl.ConnectPending)
	_, err := va.ConnectPeerDone()
	t.wantErr("done", err, vipl.ErrNotDone)
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	for _, v := range []*vipl.VI{va, vb} {
		t.until("an outcome", func() bool {
			if _, err = v.ConnectPeerDone(); err != nil {
				t.wantErr("done", err, vipl.ErrNotDone)
			}
			return err == nil
		})
		t.state(v, vipl.Connected)
	}
}

func peerWaits(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local, remote := crosswise(t.A, t.B)
	t.must(va.ConnectPeerRequest(local, remote, patience))
	result := starts(func() error { _, err := va.ConnectPeerWait(); return err })
	time.Sleep(moment)
	select {
	case err := <-result:
		t.Errorf("the wait returned %v when nobody had asked", err)
	default:
	}
	t.must(vb.ConnectPeerRequest(remote, local, patience))
	t.wantErr("wait", <-result, nil)
	_, err := vb.ConnectPeerWait()
	t.wantErr("wait of the other", err, nil)
}

func peerOnce(t *T) {
	none := func(v *vipl.VI) {
		t.Helper()
		_, err := v.ConnectPeerDone()
		t.wantErr("done", err, vipl.ErrInvalidState)
		_, err = v.ConnectPeerWait()
		t.wantErr("wait", err, vipl.ErrInvalidState)
	}
	none(t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}))
	va, vb := t.peerPair(vipl.ViAttributes{Level: vipl.ReliableDelivery})
	none(va)
	none(vb)
	va, _ = t.pair(vipl.ReliableDelivery) // client and server
	none(va)
}

func peerAttributes(t *T) {
	for i, level := range reliableLevels {
		mine := vipl.ViAttributes{Level: level, MaxTransferSize: 1000 + i, EnableRdmaWrite: i == 0, EnableRdmaRead: i == 1}
		theirs := mine
		theirs.EnableRdmaWrite, theirs.EnableRdmaRead = mine.EnableRdmaRead, mine.EnableRdmaWrite
		va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
		local, remote := crosswise(t.A, t.B)
		t.must(va.ConnectPeerRequest(local, remote, patience))
		t.must(vb.ConnectPeerRequest(remote, local, patience))
		for _, c := range []struct {
			v    *vipl.VI
			want vipl.RemoteAttributes
		}{{va, remoteOf(theirs)}, {vb, remoteOf(mine)}} {
			if got, err := c.v.ConnectPeerWait(); err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		}
	}
}

func peerAtOnce(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	for range 20 {
		local, remote := crosswise(t.A, t.B)
		var group sync.WaitGroup
		group.Go(func() { t.wantErr("request", va.ConnectPeerRequest(local, remote, patience), nil) })
		group.Go(func() { t.wantErr("request", vb.ConnectPeerRequest(remote, local, patience), nil) })
		group.Wait()
		t.met(va, vb)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		t.must(vb.Disconnect())
	}
}

func peerMany(t *T) {
	const count = 20
	a := vipl.ViAttributes{Level: vipl.ReliableReception}
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	var as, bs []*vipl.VI
	var locals, remotes []vipl.NetAddress
	for range count {
		local, remote := crosswise(t.A, t.B)
		as, bs = append(as, t.vi(t.A, a)), append(bs, t.vi(t.B, a))
		locals, remotes = append(locals, local), append(remotes, remote)
	}
	for i := range count {
		t.must(as[i].ConnectPeerRequest(locals[i], remotes[i], patience))
		k := count - 1 - i
		t.must(bs[k].ConnectPeerRequest(remotes[k], locals[k], patience))
	}
	for i := range count {
		t.met(as[i], bs[i])
		y.recv(bs[i], i, 64)
		fill(x.buf(i), i)
		x.send(as[i], i, 64)
	}
	for i := range count {
		t.received(bs[i], 0)
		t.holds("message", y.buf(i), i)
		t.sent(as[i], 0)
	}
}

func peerSame(t *T) {
	const count = 4
	a := vipl.ViAttributes{Level: vipl.ReliableReception}
	local, remote := crosswise(t.A, t.B)
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	var as, bs []*vipl.VI
	for i := range count {
		as, bs = append(as, t.vi(t.A, a)), append(bs, t.vi(t.B, a))
		y.recv(bs[i], i, 64)
		t.must(as[i].ConnectPeerRequest(local, remote, patience))
	}
	for _, v := range bs {
		t.must(v.ConnectPeerRequest(remote, local, patience))
	}
	seen := make(map[byte]bool)
	for i := range count {
		t.met(as[i], bs[i])
	}
	for i := range count {
		fill(x.buf(i), i)
		x.send(as[i], i, 64)
		t.sent(as[i], 0)
	}
	for i := range count {
		t.received(bs[i], 0)
		seen[y.buf(i)[0]] = true
	}
	if len(seen) != count {
		t.Errorf("%d VIs got a message, of %d", len(seen), count)
	}
}
