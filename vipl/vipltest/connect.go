package vipltest

import (
	"bytes"
	"errors"
	"time"

	"viaxdp/vipl"
)

var connectRules = []Rule{
	{
		ID:   "client-server/request-meets-wait",
		Text: "VipConnectRequest is connected with the VI that the program in VipConnectWait accepts with; both are Connected.",
		run:  connectMeets,
	},
	{
		ID:   "client-server/each-learns-the-others-attributes",
		Text: "Both sides learn the attributes of the remote VI: the server with the request, the client with the answer.",
		run:  connectAttributes,
	},
	{
		ID:   "client-server/wait-learns-the-requesters-address",
		Text: "VipConnectWait tells the requester's address: its host and its discriminator.",
		run:  connectRemote,
	},
	{
		ID:   "client-server/no-match-when-nobody-waits",
		Text: "A request that nobody waits for gets NO_MATCH, soon, and the VI is Idle again.",
		run:  connectNoMatch,
	},
	{
		ID:     "client-server/no-match-after-the-wait",
		Text:   "A request that comes after the last VipConnectWait has returned is held for the next one or gets NO_MATCH.",
		Choice: "held for 100 ms after a wait that ended, then NO_MATCH",
		run:    connectBetweenWaits,
	},
	{
		ID:   "client-server/discriminators-match-exactly",
		Text: "Discriminators match byte for byte: no prefix, no case, no trailing zero.",
		run:  connectExact,
	},
	{
		ID:   "client-server/discriminators-may-be-empty-or-binary",
		Text: "A discriminator is any bytes, or none.",
		run:  connectBinary,
	},
	{
		ID:   "client-server/requests-are-never-mixed-up",
		Text: "A program that waits for several discriminators in turn gets each request at its own one.",
		run:  connectInTurn,
	},
	{
		ID:   "client-server/local-host-counts",
		Text: "A wait that names its host gets requests to that host only.",
		run:  connectHost,
	},
	{
		ID:   "client-server/wait-zero-polls",
		Text: "VipConnectWait with time-out 0 polls: TIMEOUT at once when no request is there.",
		run:  connectPoll,
	},
	{
		ID:   "client-server/wait-times-out",
		Text: "VipConnectWait returns TIMEOUT when its time is over.",
		run: func(t *T) {
			_, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: disc()}, moment)
			t.wantErr("wait", err, vipl.ErrTimeout)
		},
	},
	{
		ID:   "client-server/request-zero-is-refused",
		Text: "VipConnectRequest with time-out 0 returns INVALID_PARAMETER.",
		run:  connectZero,
	},
	{
		ID:   "client-server/nobody-answers",
		Text: "A request that nobody accepts or rejects returns TIMEOUT, and the VI is Idle; accepting it later fails with TIMEOUT.",
		run:  connectTimeout,
	},
	{
		ID:   "client-server/not-reachable",
		Text: "A request to a host to which there is no way returns NOT_REACHABLE, and the VI is Idle.",
		run:  connectUnreachable,
	},
	{
		ID:   "client-server/reject",
		Text: "VipConnectReject gives the requester REJECT; its VI is Idle and may ask again.",
		run:  connectReject,
	},
	{
		ID:   "client-server/one-answer-a-request",
		Text: "A request that was accepted or rejected cannot be answered again.",
		run:  connectAnswered,
	},
	{
		ID:   "client-server/request-only-when-idle",
		Text: "VipConnectRequest on a VI that is not Idle returns INVALID_STATE and changes nothing.",
		run:  connectState,
	},
	{
		ID:   "client-server/accept-only-when-idle",
		Text: "VipConnectAccept with a VI that is not Idle returns INVALID_STATE; the request stays and another VI may be tried.",
		run:  connectAcceptState,
	},
	{
		ID:   "client-server/level-must-be-the-same",
		Text: "Accepting with another reliability level is INVALID_RELIABILITY_LEVEL; the requester hears nothing and the accept may be tried again.",
		run: func(t *T) {
			t.mismatch(vipl.ViAttributes{Level: vipl.ReliableDelivery}, vipl.ViAttributes{Level: vipl.ReliableReception},
				vipl.ErrInvalidReliabilityLevel)
			t.mismatch(vipl.ViAttributes{Level: vipl.UnreliableDelivery}, vipl.ViAttributes{Level: vipl.ReliableDelivery},
				vipl.ErrInvalidReliabilityLevel)
		},
	},
	{
		ID:   "client-server/transfer-size-must-be-the-same",
		Text: "Accepting with another MaxTransferSize is INVALID_MTU; the requester hears nothing and the accept may be tried again.",
		run: func(t *T) {
			for _, n := range []int{32767, 32769} {
				t.mismatch(vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 32768},
					vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n}, vipl.ErrInvalidMTU)
			}
		},
	},
	{
		ID:   "client-server/rdma-enables-may-differ",
		Text: "The RDMA enables and tags of the two VIs need not be the same.",
		run:  connectEnables,
	},
	{
		ID:   "client-server/long-discriminators-are-refused",
		Text: "An address with a discriminator of more than MaxDiscriminatorLen bytes is INVALID_PARAMETER.",
		run:  connectLong,
	},
	{
		ID:   "client-server/many-on-one-discriminator",
		Text: "Many clients may ask on one discriminator at once: each is connected with a VI of its own.",
		run:  func(t *T) { connectMany(t, func(int) []byte { return []byte("all") }) },
	},
	{
		ID:   "client-server/many-discriminators",
		Text: "Many programs may wait, each on a discriminator of its own, and many clients ask at once.",
		run:  func(t *T) { connectMany(t, func(int) []byte { return disc() }) },
	},
	{
		ID:   "client-server/both-may-send-at-once",
		Text: "As soon as a connect has returned, its side may send; receives that were posted before get it.",
		run:  connectSends,
	},
	{
		ID:   "client-server/failed-requests-leave-receives",
		Text: "A request that fails leaves what is posted as it is.",
		run:  connectLeaves,
	},
	{
		ID:   "client-server/both-directions-between-two-hosts",
		Text: "Each NIC may be client and server at the same time.",
		run: func(t *T) {
			a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
			for range 3 {
				t.join(t.vi(t.A, a), t.vi(t.B, a))
				t.join(t.vi(t.B, a), t.vi(t.A, a))
			}
		},
	},
}

// requestFrom is request with a local address, and gives what it told.
func (t *T) requestFrom(v *vipl.VI, local, remote vipl.NetAddress) (vipl.RemoteAttributes, error) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		r, err := v.ConnectRequest(local, remote, patience)
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return r, err
		}
	}
}

func connectMeets(t *T) {
	for _, level := range allLevels {
		a := vipl.ViAttributes{Level: level}
		va, vb := t.vi(t.A, a), t.vi(t.B, a)
		c, result := t.askedOf(va, t.B)
		t.state(va, vipl.ConnectPending)
		t.state(vb, vipl.Idle)
		t.must(c.Accept(vb))
		t.must(<-result)
		for _, v := range []*vipl.VI{va, vb} {
			if s, err := v.Query(); err != nil || s.State != vipl.Connected {
				t.Errorf("%v: a VI is %v, %v", level, s.State, err)
			}
		}
	}
}

func connectAttributes(t *T) {
	for i, level := range reliableLevels {
		mine := vipl.ViAttributes{Level: level, MaxTransferSize: 1000 + i, EnableRdmaWrite: i == 0, EnableRdmaRead: i == 1}
		theirs := mine
		theirs.EnableRdmaWrite, theirs.EnableRdmaRead = mine.EnableRdmaRead, mine.EnableRdmaWrite
		va, vb := t.vi(t.A, mine), t.vi(t.B, theirs)
		d := disc()
		type answer struct {
			vipl.RemoteAttributes
			err error
		}
		told := make(chan answer, 1)
		go func() {
			r, err := t.requestFrom(va, vipl.NetAddress{}, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: d})
			told <- answer{r, err}
		}()
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		t.must(err)
		if got, want := c.RemoteAttributes(), remoteOf(mine); got != want {
			t.Errorf("the server learns %+v, want %+v", got, want)
		}
		t.must(c.Accept(vb))
		if got, want := <-told, remoteOf(theirs); got.err != nil || got.RemoteAttributes != want {
			t.Errorf("the client learns %+v, want %+v", got, want)
		}
	}
}

// remoteOf is what the other side learns of a VI.
func remoteOf(a vipl.ViAttributes) vipl.RemoteAttributes {
	return vipl.RemoteAttributes{
		Level: a.Level, MaxTransferSize: a.MaxTransferSize, QoS: a.QoS,
		EnableRdmaWrite: a.EnableRdmaWrite, EnableRdmaRead: a.EnableRdmaRead,
	}
}

func connectRemote(t *T) {
	host := t.A.Query().Address
	for _, local := range []vipl.NetAddress{
		{Discriminator: []byte("client")},
		{Host: host, Discriminator: []byte{0, 1, 0}},
		{},
	} {
		d := disc()
		va := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
		ended := make(chan error, 1)
		go func() {
			_, err := t.requestFrom(va, local, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: d})
			ended <- err
		}()
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		t.must(err)
		if r := c.Remote(); r.Host != host || !bytes.Equal(r.Discriminator, local.Discriminator) {
			t.Errorf("the requester is %v %q, want %v %q", r.Host, r.Discriminator, host, local.Discriminator)
		}
		t.must(c.Reject())
		t.wantErr("request", <-ended, vipl.ErrRejected)
	}
}

func (t *T) noMatch(what string, v *vipl.VI, to vipl.NetAddress) {
	t.Helper()
	_, err := v.ConnectRequest(vipl.NetAddress{}, to, patience)
	t.wantErr(what, err, vipl.ErrNoMatch)
	t.state(v, vipl.Idle)
}

func connectNoMatch(t *T) {
	for _, level := range allLevels {
		v := t.vi(t.A, vipl.ViAttributes{Level: level})
		for range 5 {
			t.noMatch("request", v, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()})
		}
		// Programs spin on it until somebody waits.
		t.join(v, t.vi(t.B, vipl.ViAttributes{Level: level}))
	}
}

func connectBetweenWaits(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	d := disc()
	_, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, time.Millisecond)
	t.wantErr("the first wait", err, vipl.ErrTimeout)
	result := make(chan error, 1)
	go func() { result <- t.request(va, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: d}) }()
	time.Sleep(moment)
	c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
	t.must(err)
	t.must(c.Accept(vb))
	t.must(<-result)

	// When the time is over, nobody waits any more.
	again := t.vi(t.A, a)
	time.Sleep(150 * time.Millisecond)
	t.noMatch("request after the last wait", again, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: d})
}

func connectExact(t *T) {
	d := []byte("Rule-exact")
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	accepted := make(chan error, 1)
	go func() {
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		if err == nil {
			err = c.Accept(vb)
		}
		accepted <- err
	}()
	host := t.B.Query().Address
	for _, wrong := range []string{"", "Rule", "Rule-exac", "Rule-exact2", "rule-exact", "Rule-exact\x00", "\x00Rule-exact"} {
		t.noMatch(wrong, va, vipl.NetAddress{Host: host, Discriminator: []byte(wrong)})
	}
	t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
	t.must(<-accepted)
}

func connectBinary(t *T) {
	host := t.B.Query().Address
	for _, d := range [][]byte{nil, {0}, {0, 0}, {255, 0, 10, 13}, bytes.Repeat([]byte{0}, 16)} {
		a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
		va, vb := t.vi(t.A, a), t.vi(t.B, a)
		accepted := make(chan error, 1)
		go func() {
			c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
			if err == nil {
				err = c.Accept(vb)
			}
			accepted <- err
		}()
		t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
		t.must(<-accepted)
	}
}

// connectInTurn has clients ask in one order, and waits in another one.
func connectInTurn(t *T) {
	const count = 6
	host := t.B.Query().Address
	var discs [count][]byte
	results := make(chan error, count)
	for i := range count {
		discs[i] = disc()
		a := vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000 + i}
		v := t.vi(t.A, a)
		go func() { results <- t.request(v, vipl.NetAddress{Host: host, Discriminator: discs[i]}) }()
	}
	for k := range count {
		i := (k*5 + 3) % count
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: discs[i]}, patience)
		t.must(err)
		if n := c.RemoteAttributes().MaxTransferSize; n != 1000+i {
			t.Errorf("discriminator %d got the request of client %d", i, n-1000)
		}
		t.must(c.Accept(t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000 + i})))
	}
	for range count {
		t.must(<-results)
	}
}

func connectHost(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	d, host := disc(), t.B.Query().Address
	accepted := make(chan error, 1)
	go func() {
		c, err := t.B.ConnectWait(vipl.NetAddress{Host: host, Discriminator: d}, patience)
		if err == nil {
			err = c.Accept(vb)
		}
		accepted <- err
	}()
	t.must(t.request(va, vipl.NetAddress{Host: host, Discriminator: d}))
	t.must(<-accepted)

	// A wait for another host gets nothing, or is refused.
	d = disc()
	other := vipl.NetAddress{Host: t.A.Query().Address, Discriminator: d}
	ended := make(chan error, 1)
	go func() {
		_, err := t.B.ConnectWait(other, 3*moment)
		ended <- err
	}()
	vc := t.vi(t.A, a)
	for end := time.Now().Add(2 * moment); time.Now().Before(end); {
		t.noMatch("request to another host than was waited for", vc, vipl.NetAddress{Host: host, Discriminator: d})
	}
	if err := <-ended; err == nil {
		t.Error("the wait for another host got a request")
	}
}

func connectPoll(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	local := vipl.NetAddress{Discriminator: disc()}
	_, err := t.B.ConnectWait(local, 0)
	t.wantErr("poll", err, vipl.ErrTimeout)

	// A program may wait by polling alone.
	result := make(chan error, 1)
	go func() {
		result <- t.request(va, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: local.Discriminator})
	}()
	var c *vipl.Conn
	t.until("a poll finds the request", func() bool {
		if c, err = t.B.ConnectWait(local, 0); err != nil {
			t.wantErr("poll", err, vipl.ErrTimeout)
		}
		return err == nil
	})
	t.must(c.Accept(vb))
	t.must(<-result)
}

func connectZero(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	_, err := v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()}, 0)
	t.wantErr("time-out 0", err, vipl.ErrInvalidParameter)
	_, err = v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Discriminator: disc()}, patience)
	t.wantErr("no remote host", err, vipl.ErrInvalidParameter)
	t.state(v, vipl.Idle)
}
