package vipltest

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"time"

	"viaxdp/vipl"
)

var connectRules = []Rule{
	rule("client-server/request-meets-wait", "VipConnectRequest is connected with the VI that the program in VipConnectWait accepts with; both are Connected.", requestMeetsWait),
	rule("client-server/each-learns-the-others-attributes", "Both sides learn the attributes of the remote VI: the server with the request, the client with the answer.", func(t *T) {
		for i, level := range reliableLevels {
			mine := vipl.VIAttributes{Level: level, MaxTransferSize: 1000 + i, EnableRDMAWrite: i == 0, EnableRDMARead: i == 1}
			theirs := mine
			theirs.EnableRDMAWrite, theirs.EnableRDMARead = mine.EnableRDMARead, mine.EnableRDMAWrite
			va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
			d := disc()
			type answer struct {
				vipl.RemoteAttributes
				err error
			}
			told := make(chan answer, 1)
			go func() {
				r, err := t.requestFrom(va, vipl.NetAddress{}, on(t.B, d))
				told <- answer{r, err}
			}()
			c, err := t.B.ConnectWait(named(d), ackDelay)
			t.must(err)
			if got, want := c.RemoteAttributes(), remoteOf(mine); got != want {
				t.Errorf("the server learns %+v, want %+v", got, want)
			}
			t.must(c.Accept(vb))
			if got, want := <-told, remoteOf(theirs); got.err != nil || got.RemoteAttributes != want {
				t.Errorf("the client learns %+v, want %+v", got, want)
			}
		}
	}),
	rule("client-server/wait-learns-the-requesters-address", "VipConnectWait tells the requester's address: its host and its discriminator.", func(t *T) {
		host := t.A.Query().Address
		for _, local := range []vipl.NetAddress{
			{Discriminator: []byte("client")},
			{Host: host, Discriminator: []byte{0, 1, 0}},
			{},
		} {
			d := disc()
			va := t.vi(t.A, at(vipl.ReliableDelivery))
			ended := starts(func() error { return errOf(t.requestFrom(va, local, on(t.B, d))) })
			c, err := t.B.ConnectWait(named(d), ackDelay)
			t.must(err)
			r := c.Remote()
			t.errorIf(r.Host != host || !bytes.Equal(r.Discriminator, local.Discriminator), "the requester is %v %q, want %v %q", r.Host, r.Discriminator, host, local.Discriminator)
			t.must(c.Reject())
			t.wantErr("request", <-ended, vipl.ErrRejected)
		}
	}),
	rule("client-server/no-match-when-nobody-waits", "A request that nobody waits for gets NO_MATCH, soon, and the VI is Idle again.", func(t *T) {
		for _, level := range allLevels {
			v := t.vi(t.A, at(level))
			for range 5 {
				t.noMatch("request", v, on(t.B, disc()))
			}
			// Programs repeat the request until the server waits.
			t.join(v, t.vi(t.B, at(level)))
		}
	}),
	choice("client-server/no-match-after-the-wait", "A request that comes after the last VipConnectWait has returned is held for the next one or gets NO_MATCH.", "held for 100 ms after a wait that ended, then NO_MATCH", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d := disc()
		t.wantErr("the first wait", errOf(t.B.ConnectWait(named(d), time.Millisecond)), vipl.ErrTimeout)
		result := starts(func() error { return t.request(va, on(t.B, d)) })
		time.Sleep(moment)
		c, err := t.B.ConnectWait(named(d), ackDelay)
		t.must(err)
		t.accept(c, vb, result)

		// When the time is over, nobody waits any more.
		again := t.vi(t.A, at(vipl.ReliableDelivery))
		time.Sleep(150 * time.Millisecond)
		t.noMatch("request after the last wait", again, on(t.B, d))
	}),
	rule("client-server/discriminators-match-exactly", "Discriminators match byte for byte: no prefix, no case, no trailing zero.", func(t *T) {
		d := []byte("Rule-exact")
		va, vb := t.idle(vipl.ReliableDelivery)
		accepted := serves(vb, named(d))
		host := t.B.Query().Address
		for _, wrong := range []string{"", "Rule", "Rule-exac", "Rule-exact2", "rule-exact", "Rule-exact\x00", "\x00Rule-exact"} {
			t.noMatch(wrong, va, vipl.NetAddress{Host: host, Discriminator: []byte(wrong)})
		}
		t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
		t.must(<-accepted)
	}),
	rule("client-server/discriminators-may-be-empty-or-binary", "A discriminator is any bytes, or none.", func(t *T) {
		host := t.B.Query().Address
		for _, d := range [][]byte{nil, {0}, {0, 0}, {255, 0, 10, 13}, bytes.Repeat([]byte{0}, 16)} {
			va, vb := t.idle(vipl.ReliableDelivery)
			accepted := serves(vb, named(d))
			t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
			t.must(<-accepted)
		}
	}),
	// Clients ask in one order, and the server waits in another one.
	rule("client-server/requests-are-never-mixed-up", "A program that waits for several discriminators in turn gets each request at its own one.", func(t *T) {
		const count = 6
		host := t.B.Query().Address
		var discs [count][]byte
		results := make(chan error, count)
		for i := range count {
			discs[i] = disc()
			a := vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000 + i}
			v := t.vi(t.A, a)
			go func() { results <- t.request(v, vipl.NetAddress{Host: host, Discriminator: discs[i]}) }()
		}
		for k := range count {
			i := (k*5 + 3) % count
			c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: discs[i]}, ackDelay)
			t.must(err)
			equal(t, "the MaxTransferSize of the client", c.RemoteAttributes().MaxTransferSize, 1000+i)
			t.must(c.Accept(t.vi(t.B, vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000 + i})))
		}
		for range count {
			t.must(<-results)
		}
	}),
	rule("client-server/local-host-counts", "A wait that names its host gets requests to that host only.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d, host := disc(), t.B.Query().Address
		accepted := serves(vb, vipl.NetAddress{Host: host, Discriminator: d})
		t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
		t.must(<-accepted)

		// A wait for another host gets nothing, or is refused.
		d = disc()
		other := on(t.A, d)
		ended := starts(func() error { return errOf(t.B.ConnectWait(other, 3*moment)) })
		vc := t.vi(t.A, at(vipl.ReliableDelivery))
		for end := time.Now().Add(2 * moment); time.Now().Before(end); {
			t.noMatch("request to another host than was waited for", vc, vipl.NetAddress{Host: host, Discriminator: d})
		}
		t.errorIf(<-ended == nil, "the wait for another host got a request")
	}),
	rule("client-server/wait-zero-polls", "VipConnectWait with time-out 0 polls: TIMEOUT at once when no request is there.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		local := named(disc())
		t.wantErr("poll", errOf(t.B.ConnectWait(local, 0)), vipl.ErrTimeout)

		// A program may wait by polling alone.
		result := starts(func() error { return t.request(va, on(t.B, local.Discriminator)) })
		var c *vipl.Conn
		t.until("a poll finds the request", func() bool {
			var err error
			if c, err = t.B.ConnectWait(local, 0); err != nil {
				t.wantErr("poll", err, vipl.ErrTimeout)
			}
			return err == nil
		})
		t.accept(c, vb, result)
	}),
	rule("client-server/wait-times-out", "VipConnectWait returns TIMEOUT when its time is over.", func(t *T) {
		t.wantErr("wait", errOf(t.B.ConnectWait(named(disc()), moment)), vipl.ErrTimeout)
	}),
	rule("client-server/request-zero-is-refused", "VipConnectRequest with time-out 0 returns INVALID_PARAMETER.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.wantErr("time-out 0", errOf(v.ConnectRequest(vipl.NetAddress{}, on(t.B, disc()), 0)), vipl.ErrInvalidParameter)
		t.wantErr("no remote host", errOf(v.ConnectRequest(vipl.NetAddress{}, named(disc()), ackDelay)), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
	}),
	rule("client-server/nobody-answers", "A request that nobody accepts or rejects returns TIMEOUT, and the VI is Idle; accepting it later fails with TIMEOUT.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d := disc()
		got := waits(t.B, named(d))
		var c *vipl.Conn
		for c == nil {
			_, err := va.ConnectRequest(vipl.NetAddress{}, on(t.B, d), 200*time.Millisecond)
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
	}),
	rule("client-server/not-reachable", "A request to a host to which there is no way returns NOT_REACHABLE, and the VI is Idle.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		for _, host := range []string{"192.0.2.1", "2001:db8::1"} { // for documentation: never anybody's
			t.wantErr(host, errOf(v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: netip.MustParseAddr(host), Discriminator: disc()}, ackDelay)), vipl.ErrNotReachable)
			t.state(v, vipl.Idle)
		}
		t.join(v, t.vi(t.B, at(vipl.ReliableDelivery)))
	}),
	rule("client-server/reject", "VipConnectReject gives the requester REJECT; its VI is Idle and may ask again.", func(t *T) {
		for _, level := range allLevels {
			va := t.vi(t.A, at(level))
			for range 3 {
				c, result := t.askedOf(va, t.B)
				t.must(c.Reject())
				t.wantErr("request", <-result, vipl.ErrRejected)
				t.state(va, vipl.Idle)
			}
			t.join(va, t.vi(t.B, at(level)))
		}
	}),
	rule("client-server/one-answer-a-request", "A request that was accepted or rejected cannot be answered again.", func(t *T) {
		a := at(vipl.ReliableDelivery)
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
	}),
	rule("client-server/request-only-when-idle", "VipConnectRequest on a VI that is not Idle returns INVALID_STATE and changes nothing.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		refused := func(v *vipl.VI, in vipl.State) {
			t.Helper()
			t.state(v, in)
			t.wantErr(in.String(), errOf(v.ConnectRequest(vipl.NetAddress{}, on(t.B, disc()), ackDelay)), vipl.ErrInvalidState)
			t.state(v, in)
		}
		c, result := t.askedOf(va, t.B)
		refused(va, vipl.ConnectPending)
		t.accept(c, vb, result)
		refused(va, vipl.Connected)
		refused(vb, vipl.Connected)
		t.must(va.Disconnect())
		refused(vb, vipl.Error)
	}),
	rule("client-server/accept-only-when-idle", "VipConnectAccept with a VI that is not Idle returns INVALID_STATE; the request stays and another VI may be tried.", func(t *T) {
		a := at(vipl.ReliableDelivery)
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
		t.accept(c, vb, result)
		t.must(other.Reject())
		t.wantErr("the other request", <-ended, vipl.ErrRejected)
	}),
	rule("client-server/level-must-be-the-same", "Accepting with another reliability level is INVALID_RELIABILITY_LEVEL; the requester hears nothing and the accept may be tried again.", func(t *T) {
		t.mismatch(at(vipl.ReliableDelivery), at(vipl.ReliableReception),
			vipl.ErrInvalidReliabilityLevel)
		t.mismatch(at(vipl.UnreliableDelivery), at(vipl.ReliableDelivery),
			vipl.ErrInvalidReliabilityLevel)
	}),
	rule("client-server/transfer-size-must-be-the-same", "Accepting with another MaxTransferSize is INVALID_MTU; the requester hears nothing and the accept may be tried again.", func(t *T) {
		for _, n := range []int{32767, 32769} {
			t.mismatch(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 32768},
				vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n}, vipl.ErrInvalidMTU)
		}
	}),
	rule("client-server/rdma-enables-may-differ", "The RDMA enables and tags of the two VIs need not be the same.", func(t *T) {
		a := vipl.VIAttributes{Level: vipl.ReliableDelivery, EnableRDMAWrite: true, Ptag: t.tag(t.A)}
		b := vipl.VIAttributes{Level: vipl.ReliableDelivery, EnableRDMARead: true}
		t.pairOf(a, b)
	}),
	rule("client-server/long-discriminators-are-refused", "An address with a discriminator of more than MaxDiscriminatorLen bytes is INVALID_PARAMETER.", func(t *T) {
		long := on(t.B, make([]byte, t.B.Query().MaxDiscriminatorLen+1))
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.wantErr("wait", errOf(t.B.ConnectWait(long, time.Millisecond)), vipl.ErrInvalidParameter)
		t.wantErr("request to it", errOf(v.ConnectRequest(vipl.NetAddress{}, long, ackDelay)), vipl.ErrInvalidParameter)
		from, to := vipl.NetAddress{Discriminator: long.Discriminator}, vipl.NetAddress{Host: long.Host, Discriminator: disc()}
		t.wantErr("request from it", errOf(v.ConnectRequest(from, to, ackDelay)), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
	}),
	rule("client-server/many-on-one-discriminator", "Many clients may ask on one discriminator at once: each is connected with a VI of its own.", func(t *T) { connectMany(t, func(int) []byte { return []byte("all") }) }),
	rule("client-server/many-discriminators", "Many programs may wait, each on a discriminator of its own, and many clients ask at once.", func(t *T) { connectMany(t, func(int) []byte { return disc() }) }),
	rule("client-server/both-may-send-at-once", "As soon as a connect has returned, its side may send; receives that were posted before get it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
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
		t.coalesces("the server's message", x.buf(0), 2)
		t.coalesces("the client's message", y.buf(0), 1)
		t.sent(va, 0)
		t.sent(vb, 0)
	})),
	rule("client-server/failed-requests-leave-receives", "A request that fails leaves what is posted as it is.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		x.recv(v, 0, 64)
		t.noMatch("request", v, on(t.B, disc()))
		c, result := t.askedOf(v, t.B)
		t.must(c.Reject())
		t.wantErr("request", <-result, vipl.ErrRejected)
		t.nothingDone(v.RecvDone, vipl.ErrNotDone)
		peer := t.vi(t.B, at(vipl.ReliableDelivery))
		t.join(v, peer)
		y.sendMessage(peer, 0, 64, 4)
		t.receivedMessage(v, x.buf(0), 4)
	}),
	rule("client-server/both-directions-between-two-hosts", "Each NIC may be client and server at the same time.", func(t *T) {
		a := at(vipl.ReliableDelivery)
		for range 3 {
			t.join(t.vi(t.A, a), t.vi(t.B, a))
			t.join(t.vi(t.B, a), t.vi(t.A, a))
		}
	}),
}

// requestFrom is request with a local address, and gives what it told.
func (t *T) requestFrom(v *vipl.VI, local, remote vipl.NetAddress) (vipl.RemoteAttributes, error) {
	for end := time.Now().Add(ackDelay); ; time.Sleep(time.Millisecond) {
		r, err := v.ConnectRequest(local, remote, ackDelay)
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return r, err
		}
	}
}

// remoteOf is what the other side learns of a VI.
func remoteOf(a vipl.VIAttributes) vipl.RemoteAttributes {
	return vipl.RemoteAttributes{
		Level: a.Level, MaxTransferSize: a.MaxTransferSize, QoS: a.QoS,
		EnableRDMAWrite: a.EnableRDMAWrite, EnableRDMARead: a.EnableRDMARead,
	}
}

func (t *T) noMatch(what string, v *vipl.VI, to vipl.NetAddress) {
	t.Helper()
	t.wantErr(what, errOf(v.ConnectRequest(vipl.NetAddress{}, to, ackDelay)), vipl.ErrNoMatch)
	t.state(v, vipl.Idle)
}

// mismatch has a request of a VI with theirs accepted by one with ours, which
// fails, and then by one that fits.
func (t *T) mismatch(theirs, ours vipl.VIAttributes, want error) {
	t.Helper()
	va, wrong := t.vi(t.A, theirs), t.vi(t.B, ours)
	c, result := t.askedOf(va, t.B)
	t.wantErr("accept", c.Accept(wrong), want)
	t.state(wrong, vipl.Idle)
	t.stays(va, vipl.ConnectPending) // it hears nothing
	t.wantErr("accept again", c.Accept(wrong), want)
	t.must(wrong.SetAttributes(theirs))
	t.accept(c, wrong, result)
	t.state(va, vipl.Connected)
}

// connectMany connects many pairs at once, and sends each client's number over
// its connection: no two are mixed up.
func connectMany(t *T, discOf func(i int) []byte) {
	const count = 24
	host := t.B.Query().Address
	a := at(vipl.ReliableReception)
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
			c, err := t.B.ConnectWait(named(d), ackDelay)
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
		x.sendMessage(v, i, 64, i)
		t.sent(v, 0)
	}
	seen := make(map[byte]bool)
	for i, v := range servers {
		t.receivedMessage(v, y.buf(i), int(numbers[i]))
		seen[numbers[i]] = true
	}
	equal(t, "clients", len(seen), count)
}

// waited is what became of a ConnectWait.
type waited struct {
	c   *vipl.Conn
	err error
}

func waits(n *vipl.NIC, local vipl.NetAddress) <-chan waited {
	got := make(chan waited, 1)
	go func() {
		c, err := n.ConnectWait(local, ackDelay)
		got <- waited{c, err}
	}()
	return got
}

func requestMeetsWait(t *T) {
	for _, level := range allLevels {
		va, vb := t.idle(level)
		c, result := t.askedOf(va, t.B)
		t.state(va, vipl.ConnectPending)
		t.state(vb, vipl.Idle)
		equal(t, "the requester", c.Remote().Host, t.A.Query().Address)
		t.accept(c, vb, result)
		t.isIn(va, vipl.Connected)
		t.isIn(vb, vipl.Connected)
	}
}
