package vipl_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

func address(n *memoryHost, disc string) vipl.NetAddress {
	return vipl.NetAddress{Host: n.Query().Address, Discriminator: []byte(disc)}
}

// request asks until somebody waits.
func request(v *vipl.VI, to vipl.NetAddress) (r vipl.RemoteAttributes, err error) {
	comes(func() bool {
		r, err = v.ConnectRequest(vipl.NetAddress{Discriminator: []byte("from")}, to, patience)
		return !errors.Is(err, vipl.ErrNoMatch)
	})
	return r, err
}

func TestRequestOutcomes(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	ask := func(to vipl.NetAddress, timeout time.Duration) error {
		_, err := v.ConnectRequest(vipl.NetAddress{}, to, timeout)
		if s := stateIs(t, v, vipl.Idle); s.Cause != nil {
			t.Errorf("cause %v", s.Cause)
		}
		return err
	}
	wantError(t, "nobody waits", ask(address(n.b, "x"), patience), vipl.ErrNoMatch)
	wantError(t, "no time", ask(address(n.b, "x"), 0), vipl.ErrInvalidParameter)
	wantError(t, "no host", ask(vipl.NetAddress{}, patience), vipl.ErrInvalidParameter)
	wantError(t, "long discriminator", ask(address(n.b, string(make([]byte, vipl.MaxDiscriminatorLen+1))), patience), vipl.ErrInvalidParameter)
	wantError(t, "no such host", ask(vipl.NetAddress{Host: netip.MustParseAddr("10.9.9.9")}, patience), vipl.ErrNotReachable)
	n.fabric.Cut(n.b.agent.Addr(), true)
	wantError(t, "silent host", ask(address(n.b, "x"), 30*time.Millisecond), vipl.ErrTimeout)
	n.fabric.Cut(n.b.agent.Addr(), false)

	if _, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("x")}, 0); err != vipl.ErrTimeout {
		t.Errorf("wait without time: %v", err)
	}
	if _, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: make([]byte, 65)}, 0); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("long discriminator: %v", err)
	}
	if err := n.b.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, "closed NIC", ask(address(n.b, "x"), patience), vipl.ErrNoMatch)
	if _, err := n.b.ConnectWait(vipl.NetAddress{}, patience); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("wait on a closed NIC: %v", err)
	}
}

// A request that nobody answers ends in time, and the VI is as before.
func TestRequestNotAnswered(t *testing.T) {
	// In a bubble, in which whoever waits has the request before its time is over.
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t, memoryConfig{bubble: true})
		va, vb := newVI(t, n.a.Nic, vipl.ReliableDelivery), newVI(t, n.b.Nic, vipl.ReliableDelivery)
		waited := make(chan *vipl.Conn, 1)
		go func() {
			c, _ := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("x")}, patience)
			waited <- c
		}()
		synctest.Wait()
		start := time.Now()
		_, err := va.ConnectRequest(vipl.NetAddress{}, address(n.b, "x"), 50*time.Millisecond)
		wantError(t, "request", err, vipl.ErrTimeout)
		if d := time.Since(start); d != 50*time.Millisecond {
			t.Errorf("it took %v", d)
		}
		stateIs(t, va, vipl.Idle)
		c := <-waited
		err = c.Accept(vb)
		if !errors.Is(err, vipl.ErrTimeout) {
			t.Errorf("accept of a request that was given up: %v", err)
		}
		stateIs(t, vb, vipl.Idle)
		join(t, n.a.Nic, va, n.b.Nic, vb)
	})
}

// Discriminators are matched byte for byte, each request finds its own waiter.
func TestDiscriminatorsAreExact(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	discs := []string{"a", "ab", "abc", "ab\x00", "", "B", "b"}
	type result struct {
		disc string
		from vipl.NetAddress
		err  error
	}
	results := make(chan result)
	for _, d := range discs {
		go func() {
			c, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte(d)}, patience)
			if err != nil {
				results <- result{d, vipl.NetAddress{}, err}
				return
			}
			results <- result{d, c.Remote(), c.Reject()}
		}()
	}
	for i := len(discs) - 1; i >= 0; i-- {
		v := newVI(t, n.a.Nic, vipl.UnreliableDelivery)
		_, err := request(v, address(n.b, discs[i]))
		wantError(t, "request", err, vipl.ErrRejected)
		r := <-results
		if r.disc != discs[i] || r.err != nil || string(r.from.Discriminator) != "from" || r.from.Host != n.a.agent.Addr() {
			t.Errorf("request to %q met the waiter of %q: %+v", discs[i], r.disc, r)
		}
	}
}

// Attributes that differ: the caller of Accept learns which, the requester
// nothing, and another VI may be tried.
func TestAcceptMismatch(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	va, err := n.a.CreateVi(vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: 40000}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	remote := make(chan vipl.RemoteAttributes, 1)
	go func() {
		r, err := request(va, address(n.b, "x"))
		remote <- r
		done <- err
	}()
	c, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("x")}, patience)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.RemoteAttributes(); r.Level != vipl.ReliableReception || r.MaxTransferSize != 40000 || r.QoS != 0 {
		t.Errorf("%+v", r)
	}
	for _, try := range []struct {
		a    vipl.ViAttributes
		want error
	}{
		{vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 40000}, vipl.ErrInvalidReliabilityLevel},
		{vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: 40001}, vipl.ErrInvalidMTU},
	} {
		v, err := n.b.CreateVi(try.a, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, "accept", c.Accept(v), try.want)
		stateIs(t, v, vipl.Idle)
	}
	other := newVI(t, n.a.Nic, vipl.ReliableReception)
	wantError(t, "VI of another NIC", c.Accept(other), vipl.ErrInvalidParameter)
	select {
	case err := <-done:
		t.Fatalf("the requester heard of it: %v", err)
	default:
	}
	vb, err := n.b.CreateVi(vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: 40000}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Accept(vb); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := <-remote; r.Level != vipl.ReliableReception || r.MaxTransferSize != 40000 {
		t.Errorf("%+v", r)
	}
	if err := c.Accept(newViLike(t, n.b, 40000)); err == nil {
		t.Error("accepted twice")
	}
	if err := c.Reject(); err == nil {
		t.Error("rejected after accept")
	}
	stateIs(t, va, vipl.Connected)
	stateIs(t, vb, vipl.Connected)
	_, err = va.ConnectRequest(vipl.NetAddress{}, address(n.b, "x"), time.Second)
	wantError(t, "request on a connected VI", err, vipl.ErrInvalidState)
}

func newViLike(t testing.TB, h *memoryHost, size int) *vipl.VI {
	t.Helper()
	v, err := h.CreateVi(vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: size}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestViAttributesChecked(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	tag, _ := n.b.CreatePtag()
	cq, _ := n.b.CreateCQ(1)
	for _, c := range []struct {
		a    vipl.ViAttributes
		cq   *vipl.CQ
		want error
	}{
		{vipl.ViAttributes{}, nil, vipl.ErrInvalidReliabilityLevel},
		{vipl.ViAttributes{Level: 3}, nil, vipl.ErrInvalidReliabilityLevel},
		{vipl.ViAttributes{Level: 1, MaxTransferSize: vipl.MaxTransferSize + 1}, nil, vipl.ErrInvalidMTU},
		{vipl.ViAttributes{Level: 1, MaxTransferSize: -1}, nil, vipl.ErrInvalidMTU},
		{vipl.ViAttributes{Level: 1, QoS: 1}, nil, vipl.ErrInvalidQoS},
		{vipl.ViAttributes{Level: 1, Ptag: tag}, nil, vipl.ErrInvalidPtag},
		{vipl.ViAttributes{Level: 1}, cq, vipl.ErrInvalidParameter},
	} {
		if v, err := n.a.CreateVi(c.a, c.cq, nil); v != nil || !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.a, err, c.want)
		}
	}
	own, _ := n.a.CreatePtag()
	v, err := n.a.CreateVi(vipl.ViAttributes{Level: 1, Ptag: own}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "tag in use", own.Destroy(), vipl.ErrResource)
	v.Destroy()
	if err := own.Destroy(); err != nil {
		t.Error(err)
	}
	_, err = n.a.CreateVi(vipl.ViAttributes{Level: 1, Ptag: own}, nil, nil)
	wantError(t, "destroyed tag", err, vipl.ErrInvalidPtag)
}

// Two VIs of one NIC connect with each other.
func TestLoopback(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := connect(t, n.a.Nic, n.a.Nic, level)
		x := newBox(t, n.a.Nic, 2, 5000)
		postRecv(t, vb, x, 1, 5000)
		fillPattern(x.buf[0], 5)
		postSend(t, va, x, 0, 5000)
		received(t, vb, 0)
		checkPattern(t, x.buf[1][:5000], 5)
		sent(t, va, 0)
	})
}
