package device

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/lab/nstest"
)

// partner is the part of an agent that a peer request needs.
type partner interface {
	RequestPeer(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, kagent.Incoming, error)
}

// meet makes a peer request and completes the connection. It returns the other side's offer.
func meet(ctx context.Context, p partner, local, remote kagent.Address, o kagent.Offer) (kagent.Offer, error) {
	a, in, err := p.RequestPeer(ctx, local, remote, o)
	switch {
	case err != nil:
		return kagent.Offer{}, err
	case a != nil:
		return a.Offer, a.Confirm()
	default:
		return in.Offer(), in.Accept(ctx, o)
	}
}

// meetBoth calls on both sides, the second after start has returned.
func meetBoth(t *testing.T, x, y partner, xAddr, yAddr kagent.Address, start func() partner) {
	t.Helper()
	type result struct {
		offer kagent.Offer
		err   error
	}
	xo, yo := testOffer(1), testOffer(2)
	ch := make(chan result, 1)
	go func() {
		o, err := meet(deadline(t, waitLimit), x, xAddr, yAddr, xo)
		ch <- result{o, err}
	}()
	if start != nil {
		y = start()
	}
	got, err := meet(deadline(t, waitLimit), y, yAddr, xAddr, yo)
	r := <-ch
	nstest.FatalIf(t, err != nil || r.err != nil, "%v and %v: %v, %v", xAddr, yAddr, r.err, err)
	nstest.ErrorIf(t, got != xo || r.offer != yo, "%v and %v: offers %+v, %+v", xAddr, yAddr, r.offer, got)
}

// The kernel reports that the port is closed; that does not end the call.
func TestPeerStartsLater(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a := mustOpen(t, an, small(an))
	for _, addrs := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		l, r := kagent.Address{Host: addrs[0]}, kagent.Address{Host: addrs[1]}
		nstest.WantErr(t, "no peer is there", nstest.Err(meet(deadline(t, 50*time.Millisecond), a, l, r, testOffer(1))), kagent.ErrTimeout)
		var b *Local
		meetBoth(t, a, nil, l, r, func() partner {
			// A plain request's end is the sign that the news has come.
			_, err := a.Request(deadline(t, waitLimit), kagent.Address{}, r, testOffer(3))
			nstest.WantErr(t, "no agent", err, kagent.ErrNoMatch)
			b = mustOpen(t, bn, small(bn))
			return b
		})
		nstest.Must(t, b.Close())
	}
}

// found repeats Discover until the list has all addresses of both ends: on a link that has just come up, or on
// a busy machine, one call may not suffice.
func found(t *testing.T, own, other *route.Router, discover func() ([]kagent.Neighbor, error)) {
	t.Helper()
	var list, want []kagent.Neighbor
	for end := time.Now().Add(waitLimit); time.Now().Before(end); {
		var err error
		list, err = discover()
		nstest.Must(t, err)
		want = neighborsOf(t, own, other)
		if slices.Equal(list, want) {
			return
		}
	}
	t.Errorf("found %v, want %v", list, want)
}

func neighborsOf(t *testing.T, own, other *route.Router) (list []kagent.Neighbor) {
	t.Helper()
	for hops, r := range []*route.Router{own, other} {
		link, err := r.Link()
		nstest.Must(t, err)
		addrs := slices.Concat(link.IPv4, link.IPv6)
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, a := range addrs {
			list = append(list, kagent.Neighbor{Addr: a, Hops: hops})
		}
	}
	return list
}

// With the program attached, hellos and peer requests still reach the control
// socket.
func TestLocalPeers(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	quickNeighbours(t, an)
	defer noLeaks(t)()
	a, err := openOn(t, an, small(an))
	nstest.Must(t, err)
	defer a.Close()
	b, err := openOn(t, bn, small(bn))
	nstest.Must(t, err)
	defer b.Close()
	for _, addrs := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		l, r := kagent.Address{Host: addrs[0], Disc: []byte("left")}, kagent.Address{Host: addrs[1], Disc: []byte("right")}
		meetBoth(t, a, b, l, r, nil)
		meetBoth(t, b, a, r, l, nil)
		meetBoth(t, a, a, l, l, nil)
	}
	found(t, a.router, b.router, func() ([]kagent.Neighbor, error) { return a.Discover(context.Background()) })
	found(t, b.router, a.router, func() ([]kagent.Neighbor, error) { return b.Discover(context.Background()) })

	nowhere := kagent.Address{Host: netip.MustParseAddr("10.99.0.99")}
	_, _, err = a.RequestPeer(deadline(t, waitLimit), kagent.Address{}, nowhere, testOffer(3))
	var op *kagent.OpError
	nstest.ErrorIf(t, !errors.Is(err, kagent.ErrUnreachable) || !errors.As(err, &op) || op.Op != "request peer", "no such host: %v", err)
	// Close ends a call that has no counterpart.
	closed := make(chan error, 1)
	go func() {
		time.Sleep(20 * time.Millisecond) // so that the call is most likely under way
		closed <- a.Close()
	}()
	if _, _, err := a.RequestPeer(context.Background(), kagent.Address{}, kagent.Address{Host: bn.IPv4}, testOffer(3)); !errors.Is(err, kagent.ErrClosed) {
		t.Errorf("a call that Close ends: %v", err)
	}
	nstest.Check(t, <-closed)
	if list, err := a.Discover(context.Background()); !errors.Is(err, kagent.ErrClosed) {
		t.Errorf("Discover after Close: %v, %v", list, err)
	}
}
