package vipltest

import (
	"bytes"
	"errors"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

var connectRules = []Rule{
	rule("client-server/request-meets-wait", "VipConnectRequest is connected with the VI that the program in VipConnectWait accepts with; both are Connected.", requestMeetsWait),
	rule("client-server/each-learns-the-others-attributes", "Both sides learn the attributes of the remote VI: the server with the request, the client with the answer.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		mine, theirs := t.unlike(level)
		va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
		d := disc()
		over := starts(func() error {
			r, err := t.request(va, vipl.NetAddress{}, on(t.B, d))
			equal(t, "the client learns", r, attributesOf(theirs))
			return err
		})
		c, err := t.B.ConnectWait(named(d), limit)
		t.must(err)
		equal(t, "the server learns", c.RemoteAttributes(), attributesOf(mine))
		t.accept(c, vb, over)
	})),
	rule("client-server/wait-learns-the-requesters-address", "VipConnectWait tells the requester's address: its host and its discriminator.", func(t *T) {
		host := t.A.Query().Address
		for _, local := range []vipl.NetAddress{named([]byte("client")), {Host: host, Discriminator: []byte{0, 1, 0}}, {}} {
			c, result := t.askedFrom(t.vi(t.A, at(vipl.ReliableDelivery)), local, t.B)
			r := c.Remote()
			t.errorIf(r.Host != host || !bytes.Equal(r.Discriminator, local.Discriminator), "the requester is %v %q, want %v %q", r.Host, r.Discriminator, host, local.Discriminator)
			t.reject(c, result)
		}
	}),
	rule("client-server/no-match-when-nobody-waits", "A request that nobody waits for gets NO_MATCH, soon, and the VI is Idle again.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
		for range 5 {
			t.noMatch("request", va, on(t.B, disc()))
		}
		t.join(va, vb) // programs repeat the request until a server waits
	})),
	choice("client-server/no-match-after-the-wait", "A request that comes after the last VipConnectWait has returned is held for the next one or gets NO_MATCH.", "held for 100 ms after a wait that ended, then NO_MATCH", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d := disc()
		t.wantErr("the first wait", errOf(t.B.ConnectWait(named(d), time.Millisecond)), vipl.ErrTimeout)
		result := starts(func() error { return errOf(t.request(va, vipl.NetAddress{}, on(t.B, d))) })
		time.Sleep(moment)
		c, err := t.B.ConnectWait(named(d), limit)
		t.must(err)
		t.accept(c, vb, result)

		// After the time is over no wait is active.
		time.Sleep(150 * time.Millisecond)
		t.noMatch("request after the last wait", t.vi(t.A, at(vipl.ReliableDelivery)), on(t.B, d))
	}),
	rule("client-server/discriminators-match-exactly", "Discriminators match byte for byte: no prefix, no case, no trailing zero.", func(t *T) {
		d := []byte("Rule-exact")
		va, vb := t.idle(vipl.ReliableDelivery)
		accepted := serves(vb, named(d))
		for _, wrong := range []string{"", "Rule", "Rule-exac", "Rule-exact2", "rule-exact", "Rule-exact\x00", "\x00Rule-exact"} {
			t.noMatch(wrong, va, on(t.B, []byte(wrong)))
		}
		t.must(errOf(t.request(va, vipl.NetAddress{}, on(t.B, d))))
		t.must(<-accepted)
	}),
	rule("client-server/discriminators-may-be-empty-or-binary", "A discriminator is any bytes, or none.", func(t *T) {
		for _, d := range [][]byte{nil, {0}, {0, 0}, {255, 0, 10, 13}, bytes.Repeat([]byte{0}, 16)} {
			va, vb := t.idle(vipl.ReliableDelivery)
			t.joinAt(va, vb, named(d), on(t.B, d))
		}
	}),
	// Clients connect in one order, and the server waits in another one.
	rule("client-server/requests-are-never-mixed-up", "A program that waits for several discriminators in turn gets each request at its own one.", func(t *T) {
		const count = 6
		var discs [count][]byte
		results := make(chan error, count)
		attributes := func(i int) vipl.VIAttributes {
			return vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000 + i}
		}
		for i := range count {
			discs[i] = disc()
			v := t.vi(t.A, attributes(i))
			go func() { results <- errOf(t.request(v, vipl.NetAddress{}, on(t.B, discs[i]))) }()
		}
		for k := range count {
			i := (k*5 + 3) % count
			c, err := t.B.ConnectWait(named(discs[i]), limit)
			t.must(err)
			equal(t, "the MaxTransferSize of the client", c.RemoteAttributes().MaxTransferSize, 1000+i)
			t.must(c.Accept(t.vi(t.B, attributes(i))))
		}
		for range count {
			t.must(<-results)
		}
	}),
	rule("client-server/local-host-counts", "A wait that names its host gets requests to that host only.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		to := on(t.B, disc())
		t.joinAt(va, vb, to, to)

		// A wait for another host gets nothing, or is refused.
		d := disc()
		ended := starts(func() error { return errOf(t.B.ConnectWait(on(t.A, d), 3*moment)) })
		vc := t.vi(t.A, at(vipl.ReliableDelivery))
		for end := time.Now().Add(2 * moment); time.Now().Before(end); {
			t.noMatch("request to another host than was waited for", vc, on(t.B, d))
		}
		t.errorIf(<-ended == nil, "the wait for another host got a request")
	}),
	rule("client-server/wait-zero-polls", "VipConnectWait with time-out 0 polls: TIMEOUT at once when no request is there.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d := disc()
		poll := func() (*vipl.Conn, error) { return t.B.ConnectWait(named(d), 0) }
		t.wantErr("poll", errOf(poll()), vipl.ErrTimeout)

		// A program may wait by polling alone.
		result := starts(func() error { return errOf(t.request(va, vipl.NetAddress{}, on(t.B, d))) })
		var c *vipl.Conn
		t.until("a poll finds the request", func() (ok bool) {
			var err error
			if c, err = poll(); err != nil {
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
		t.wantErr("no remote host", errOf(v.ConnectRequest(vipl.NetAddress{}, named(disc()), limit)), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
	}),
	rule("client-server/nobody-answers", "A request that nobody accepts or rejects returns TIMEOUT, and the VI is Idle; accepting it later fails with TIMEOUT.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		d := disc()
		got := waits(t.B, named(d))
		var c *vipl.Conn
		for c == nil {
			_, err := va.ConnectRequest(vipl.NetAddress{}, on(t.B, d), 200*time.Millisecond)
			if !errors.Is(err, vipl.ErrNoMatch) { // else no wait is active yet
				t.wantErr("request", err, vipl.ErrTimeout)
			}
			t.state(va, vipl.Idle)
			select {
			case w := <-got:
				t.must(w.err)
				c = w.c
			default: // a wait that receives the request after its end continues to wait
			}
		}
		t.wantErr("accept of a request that is over", c.Accept(vb), vipl.ErrTimeout)
		t.state(vb, vipl.Idle)
		t.join(va, vb)
	}),
	rule("client-server/not-reachable", "A request to a host to which there is no way returns NOT_REACHABLE, and the VI is Idle.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		for _, host := range []string{"192.0.2.1", "2001:db8::1"} { // reserved for documentation, so no host has them
			to := vipl.NetAddress{Host: netip.MustParseAddr(host), Discriminator: disc()}
			t.wantErr(host, errOf(va.ConnectRequest(vipl.NetAddress{}, to, limit)), vipl.ErrNotReachable)
			t.state(va, vipl.Idle)
		}
		t.join(va, vb)
	}),
	rule("client-server/reject", "VipConnectReject gives the requester REJECT; its VI is Idle and may ask again.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
		for range 3 {
			t.reject(t.asked(va, t.B))
			t.state(va, vipl.Idle)
		}
		t.join(va, vb)
	})),
	rule("client-server/one-answer-a-request", "A request that was accepted or rejected cannot be answered again.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		wa, wb := t.idle(vipl.ReliableDelivery)
		answered := func(c *vipl.Conn) {
			t.wantErr("accept", c.Accept(wb), vipl.ErrInvalidParameter)
			t.wantErr("reject", c.Reject(), vipl.ErrInvalidParameter)
			t.state(wb, vipl.Idle)
		}
		c, result := t.asked(va, t.B)
		t.accept(c, vb, result)
		answered(c)
		c, result = t.asked(wa, t.B)
		t.reject(c, result)
		answered(c)
	}),
	rule("client-server/request-only-when-idle", "VipConnectRequest on a VI that is not Idle returns INVALID_STATE and changes nothing.", func(t *T) {
		t.onlyWhenIdle(func(v *vipl.VI) error {
			return errOf(v.ConnectRequest(vipl.NetAddress{}, on(t.B, disc()), limit))
		})
	}),
	rule("client-server/accept-only-when-idle", "VipConnectAccept with a VI that is not Idle returns INVALID_STATE; the request stays and another VI may be tried.", func(t *T) {
		_, connected := t.pair(vipl.ReliableDelivery)
		peer, lost := t.pair(vipl.ReliableDelivery)
		t.drops(peer, lost)
		pending := t.vi(t.B, at(vipl.ReliableDelivery))
		other, ended := t.asked(pending, t.A)

		va, vb := t.idle(vipl.ReliableDelivery)
		c, result := t.asked(va, t.B)
		for v, in := range map[*vipl.VI]vipl.State{connected: vipl.Connected, lost: vipl.Error, pending: vipl.ConnectPending} {
			t.isIn(v, in)
			t.wantErr(in.String(), c.Accept(v), vipl.ErrInvalidState)
			t.isIn(v, in)
		}
		t.state(va, vipl.ConnectPending)
		t.accept(c, vb, result)
		t.reject(other, ended)
	}),
	rule("client-server/level-must-be-the-same", "Accepting with another reliability level is INVALID_RELIABILITY_LEVEL; the requester hears nothing and the accept may be tried again.", func(t *T) {
		t.mismatch(at(vipl.ReliableDelivery), at(vipl.ReliableReception), vipl.ErrInvalidReliabilityLevel)
		t.mismatch(at(vipl.UnreliableDelivery), at(vipl.ReliableDelivery), vipl.ErrInvalidReliabilityLevel)
	}),
	rule("client-server/transfer-size-must-be-the-same", "Accepting with another MaxTransferSize is INVALID_MTU; the requester hears nothing and the accept may be tried again.", func(t *T) {
		for _, n := range []int{32767, 32769} {
			t.mismatch(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 32768},
				vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n}, vipl.ErrInvalidMTU)
		}
	}),
	rule("client-server/rdma-enables-may-differ", "The RDMA enables and tags of the two VIs need not be the same.", func(t *T) {
		t.pairOf(vipl.VIAttributes{Level: vipl.ReliableDelivery, EnableRDMAWrite: true, Ptag: t.tag(t.A)},
			vipl.VIAttributes{Level: vipl.ReliableDelivery, EnableRDMARead: true})
	}),
	rule("client-server/long-discriminators-are-refused", "An address with a discriminator of more than MaxDiscriminatorLen bytes is INVALID_PARAMETER.", func(t *T) {
		d := make([]byte, t.B.Query().MaxDiscriminatorLen+1)
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.wantErr("wait", errOf(t.B.ConnectWait(on(t.B, d), time.Millisecond)), vipl.ErrInvalidParameter)
		t.wantErr("request to it", errOf(v.ConnectRequest(vipl.NetAddress{}, on(t.B, d), limit)), vipl.ErrInvalidParameter)
		t.wantErr("request from it", errOf(v.ConnectRequest(named(d), on(t.B, disc()), limit)), vipl.ErrInvalidParameter)
		t.state(v, vipl.Idle)
	}),
	rule("client-server/many-on-one-discriminator", "Many clients may ask on one discriminator at once: each is connected with a VI of its own.", func(t *T) { connectMany(t, func(int) []byte { return []byte("all") }) }),
	rule("client-server/many-discriminators", "Many programs may wait, each on a discriminator of its own, and many clients ask at once.", func(t *T) { connectMany(t, func(int) []byte { return disc() }) }),
	rule("client-server/both-may-send-at-once", "As soon as a connect has returned, its side may send; receives that were posted before get it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
		a, b := t.block(t.A, 2, 64).on(va), t.block(t.B, 2, 64).on(vb)
		a.recv(0, 64)
		b.recv(0, 64)
		c, result := t.asked(va, t.B)
		t.must(c.Accept(vb))
		b.sendMessage(1, 64, 2)
		t.must(<-result)
		a.sendMessage(1, 64, 1)
		a.arrived(0, 64, 2)
		b.arrived(0, 64, 1)
		a.sent()
		b.sent()
	})),
	rule("client-server/failed-requests-leave-receives", "A request that fails leaves what is posted as it is.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		a, b := t.block(t.A, 1, 64).on(va), t.block(t.B, 1, 64).on(vb)
		a.recv(0, 64)
		t.noMatch("request", va, on(t.B, disc()))
		t.reject(t.asked(va, t.B))
		t.nothingDone(va.RecvDone, vipl.ErrNotDone)
		t.join(va, vb)
		b.carries(a, 64, 4)
	}),
	rule("client-server/both-directions-between-two-hosts", "Each NIC may be client and server at the same time.", func(t *T) {
		for range 3 {
			va, vb := t.idle(vipl.ReliableDelivery)
			t.join(va, vb)
			va, vb = t.idle(vipl.ReliableDelivery)
			t.join(vb, va)
		}
	}),
}

// unlike are attributes of two VIs that differ but may be connected.
func (t *T) unlike(level vipl.ReliabilityLevel) (mine, theirs vipl.VIAttributes) {
	mine = vipl.VIAttributes{Level: level, MaxTransferSize: 1000 + int(level), EnableRDMAWrite: true}
	theirs = vipl.VIAttributes{Level: level, MaxTransferSize: 1000 + int(level), EnableRDMARead: true}
	return mine, theirs
}

// attributesOf returns the attributes that the other side gets.
func attributesOf(a vipl.VIAttributes) vipl.RemoteAttributes {
	return vipl.RemoteAttributes{
		Level: a.Level, MaxTransferSize: a.MaxTransferSize, QoS: a.QoS,
		EnableRDMAWrite: a.EnableRDMAWrite, EnableRDMARead: a.EnableRDMARead,
	}
}

// asked has va request a connection. It returns the request, from n's ConnectWait, and a channel for the
// result. The rule ends when the request has ended.
func (t *T) asked(va *vipl.VI, n *vipl.NIC) (*vipl.Conn, <-chan error) {
	return t.askedFrom(va, vipl.NetAddress{}, n)
}

// askedFrom is asked for a VI at a local address.
func (t *T) askedFrom(va *vipl.VI, local vipl.NetAddress, n *vipl.NIC) (*vipl.Conn, <-chan error) {
	to := on(n, disc())
	result, came, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			_, err := va.ConnectRequest(local, to, limit)
			select {
			case <-came: // or the request has ended already
				result <- err
				return
			default:
			}
			if !errors.Is(err, vipl.ErrNoMatch) {
				result <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { <-ended })
	c, err := n.ConnectWait(named(to.Discriminator), limit)
	close(came)
	t.must(err)
	return c, result
}

// accept accepts a request, and waits until the requester's call returns; reject rejects it.
func (t *T) accept(c *vipl.Conn, v *vipl.VI, result <-chan error) {
	t.must(c.Accept(v))
	t.must(<-result)
}

func (t *T) reject(c *vipl.Conn, result <-chan error) {
	t.must(c.Reject())
	t.wantErr("request", <-result, vipl.ErrRejected)
}

func (t *T) noMatch(what string, v *vipl.VI, to vipl.NetAddress) {
	t.wantErr(what, errOf(v.ConnectRequest(vipl.NetAddress{}, to, limit)), vipl.ErrNoMatch)
	t.state(v, vipl.Idle)
}

// onlyWhenIdle checks that an operation is refused with INVALID_STATE on VIs that are
// pending, connected, and in Error, and changes nothing.
func (t *T) onlyWhenIdle(operation func(*vipl.VI) error) {
	va, vb := t.idle(vipl.ReliableDelivery)
	refused := func(v *vipl.VI, in vipl.State) {
		before := t.state(v, in)
		t.wantErr(in.String(), operation(v), vipl.ErrInvalidState)
		equal(t, "attributes", t.state(v, in).Attributes, before.Attributes)
	}
	c, result := t.asked(va, t.B)
	refused(va, vipl.ConnectPending)
	t.accept(c, vb, result)
	refused(va, vipl.Connected)
	refused(vb, vipl.Connected)
	t.must(va.Disconnect())
	refused(vb, vipl.Error)
	t.must(vb.Disconnect())
}

// mismatch has a request of a VI with attributes theirs accepted by a VI with ours, which fails, and then by
// one that matches.
func (t *T) mismatch(theirs, ours vipl.VIAttributes, want error) {
	va, wrong := t.vi(t.A, theirs), t.vi(t.B, ours)
	c, result := t.asked(va, t.B)
	t.wantErr("accept", c.Accept(wrong), want)
	t.state(wrong, vipl.Idle)
	t.stays(va, vipl.ConnectPending) // it gets no answer
	t.wantErr("accept again", c.Accept(wrong), want)
	t.must(wrong.SetAttributes(theirs))
	t.accept(c, wrong, result)
	t.state(va, vipl.Connected)
}

// connectMany connects many pairs at once, and sends each client's number over its connection, to check that no
// two are mixed up.
func connectMany(t *T, discOf func(i int) []byte) {
	const count = 24
	clients, servers := t.idleEnds(count)
	numbers := make([]int, count) // which client the server's connection is of
	discs := make([][]byte, count)
	for i := range count {
		servers[i].recv(0, 64)
		discs[i] = discOf(i)
	}
	together(2*count, func(k int) {
		i := k / 2
		if k%2 > 0 {
			_, err := t.request(clients[i].v, named([]byte{byte(i)}), on(t.B, discs[i]))
			t.errorIf(err != nil, "client %d: %v", i, err)
			return
		}
		c, err := t.B.ConnectWait(named(discs[i]), limit)
		if err == nil {
			numbers[i] = int(c.Remote().Discriminator[0])
			err = c.Accept(servers[i].v)
		}
		t.errorIf(err != nil, "server %d: %v", i, err)
	})
	if t.Failed() {
		return
	}
	for i, e := range clients {
		e.sendMessage(0, 64, i)
		e.sent()
	}
	seen := make(map[int]bool)
	for i, e := range servers {
		e.arrived(0, 64, numbers[i])
		seen[numbers[i]] = true
	}
	equal(t, "clients", len(seen), count)
}

// waited is the result of a ConnectWait.
type waited struct {
	c   *vipl.Conn
	err error
}

func waits(n *vipl.NIC, local vipl.NetAddress) <-chan waited {
	got := make(chan waited, 1)
	go func() {
		c, err := n.ConnectWait(local, limit)
		got <- waited{c, err}
	}()
	return got
}

func requestMeetsWait(t *T) {
	for _, level := range allLevels {
		va, vb := t.idle(level)
		c, result := t.asked(va, t.B)
		t.state(va, vipl.ConnectPending)
		t.state(vb, vipl.Idle)
		equal(t, "the requester", c.Remote().Host, t.A.Query().Address)
		t.accept(c, vb, result)
		t.isIn(va, vipl.Connected)
		t.isIn(vb, vipl.Connected)
	}
}
