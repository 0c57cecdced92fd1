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

// meet makes a peer request and completes the connection. It returns the other side's offer.
func meet(ctx context.Context, p *Local, local, remote kagent.Address, o kagent.Offer) (kagent.Offer, error) {
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

// meetBoth calls on both sides.
func meetBoth(t *testing.T, x, y *Local, xAddr, yAddr kagent.Address) {
	t.Helper()
	xo, yo := testOffer(1), testOffer(2)
	var far kagent.Offer
	ended := make(chan error, 1)
	go func() {
		var err error
		far, err = meet(t.Context(), x, xAddr, yAddr, xo)
		ended <- err
	}()
	near, err := meet(t.Context(), y, yAddr, xAddr, yo)
	nstest.Must(t, errors.Join(err, <-ended))
	nstest.ErrorIf(t, near != xo || far != yo, "%v and %v: offers %+v, %+v", xAddr, yAddr, far, near)
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

// With the program attached, requests, hellos and peer requests still reach the control socket, by both families.
func TestLocalConnect(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	defer noLeaks(t)()
	a, err := openOn(t, an, small(an))
	nstest.Must(t, err)
	defer a.Close()
	b, err := openOn(t, bn, small(bn))
	nstest.Must(t, err)
	defer b.Close()
	for _, addrs := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		l, r := kagent.Address{Host: addrs[0], Disc: []byte("left")}, kagent.Address{Host: addrs[1], Disc: []byte("right")}
		ln, err := b.Listen(r)
		nstest.Must(t, err)
		bo := testOffer(7)
		served := make(chan error, 1)
		go func() {
			in, err := ln.Wait(t.Context())
			if err == nil {
				err = in.Accept(t.Context(), bo)
			}
			served <- err
		}()
		ans, err := a.Request(t.Context(), kagent.Address{}, r, testOffer(3))
		nstest.Must(t, err)
		nstest.Must(t, errors.Join(ans.Confirm(), <-served))
		nstest.ErrorIf(t, ans.Offer != bo || ans.Local.Host != addrs[0], "got %+v", ans)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		nstest.WantErr(t, "short of time", nstest.Err(a.Request(short, kagent.Address{}, r, testOffer(3))), kagent.ErrTimeout)
		nstest.Must(t, ln.Close())

		meetBoth(t, a, b, l, r)
		meetBoth(t, b, a, r, l)
		meetBoth(t, a, a, l, l) // which the kernel would route elsewhere
	}
	found(t, a.router, b.router, func() ([]kagent.Neighbor, error) { return a.Discover(context.Background()) })
	found(t, b.router, a.router, func() ([]kagent.Neighbor, error) { return b.Discover(context.Background()) })

	for _, host := range []string{"192.0.2.1", "2001:db8::1"} {
		nowhere := kagent.Address{Host: netip.MustParseAddr(host)}
		_, err := a.Request(t.Context(), kagent.Address{}, nowhere, testOffer(3))
		_, _, peerErr := a.RequestPeer(t.Context(), kagent.Address{}, nowhere, testOffer(3))
		for what, err := range map[string]error{"request": err, "request peer": peerErr} {
			var op *kagent.OpError
			nstest.ErrorIf(t, !errors.Is(err, kagent.ErrUnreachable) || !errors.As(err, &op) || op.Op != what,
				"%s: %v", host, err)
			nstest.ErrorIf(t, kagent.Unavailable(err), "%s: %v counts as a lack of privilege", host, err)
		}
	}
	nstest.Must(t, b.Close())
	for _, host := range []netip.Addr{bn.IPv4, bn.IPv6} {
		nstest.WantErr(t, "a host without an agent",
			nstest.Err(a.Request(t.Context(), kagent.Address{}, kagent.Address{Host: host}, testOffer(3))), kagent.ErrNoMatch)
	}
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
	nstest.WantErr(t, "Discover after Close", nstest.Err(a.Discover(context.Background())), kagent.ErrClosed)
}
