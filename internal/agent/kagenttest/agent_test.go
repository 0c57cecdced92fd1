package kagenttest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/nstest"
)

// The VI table admits what was entered, and nothing else.
func TestAdmit(t *testing.T) {
	f := kagenttest.NewFabric(kagenttest.Faults{})
	a, b := f.Agent("a"), f.Agent("b")
	defer a.Close()
	defer b.Close()
	vi, err := a.NewVI()
	nstest.Must(t, err)
	peer := b.Addr()
	nstest.ErrorIf(t, a.Admit(vi, 9, peer), "admitted before Enter")
	nstest.Must(t, a.Enter(vi, 9, peer))
	nstest.ErrorIf(t, a.Enter(vi+1, 9, peer) == nil, "entered a VI that is not handed out")
	mapped := netip.AddrFrom16(peer.As16())
	for _, c := range []struct {
		vi   uint32
		key  uint64
		src  netip.Addr
		want bool
	}{
		{vi, 9, peer, true}, {vi, 9, mapped, true},
		{vi, 8, peer, false}, {vi ^ 1<<16, 9, peer, false}, {vi, 9, a.Addr(), false}, {0, 0, netip.Addr{}, false},
	} {
		nstest.Equal(t, fmt.Sprintf("Admit(%#x, %d, %v)", c.vi, c.key, c.src), a.Admit(c.vi, c.key, c.src), c.want)
	}
	if err := a.Remove(vi); err != nil || a.Admit(vi, 9, peer) {
		t.Errorf("after Remove (%v)", err)
	}
	nstest.Must(t, a.Enter(vi, 9, peer))
	if a.FreeVI(vi); a.Admit(vi, 9, peer) {
		t.Error("admitted after FreeVI")
	}
	nstest.Must(t, a.Close())
	nstest.ErrorIf(t, a.Enter(vi, 9, peer) == nil, "Enter after Close")
}

// The fabric has the configured faults.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := kagenttest.NewFabric(kagenttest.Faults{Delay: 3 * time.Millisecond})
		a, b := f.Agent("a"), f.Agent("b")
		defer a.Close()
		defer b.Close()
		ask := func() (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := a.Request(ctx, kagent.Address{}, kagent.Address{Host: b.Addr()}, kagent.Offer{VI: 1, Level: 1})
			return time.Since(start), err
		}
		if d, err := ask(); !errors.Is(err, kagent.ErrNoMatch) || d != 6*time.Millisecond {
			t.Errorf("delay: %v after %v", err, d)
		}
		f.SetFaults(kagenttest.Faults{Loss: 1})
		nstest.WantErr(t, "loss", nstest.Err(ask()), kagent.ErrTimeout)
		// Every third question arrives, and every third answer to those: the ninth, that is.
		f.SetFaults(kagenttest.Faults{Loss: 1, Streak: 2})
		if d, err := ask(); !errors.Is(err, kagent.ErrNoMatch) || d != 715*time.Millisecond {
			t.Errorf("losses in a row: %v after %v", err, d)
		}
		f.SetFaults(kagenttest.Faults{})
		f.Cut(b.Addr(), true)
		nstest.WantErr(t, "cut", nstest.Err(ask()), kagent.ErrTimeout)
		f.Cut(b.Addr(), false)
		nstest.WantErr(t, "whole again", nstest.Err(ask()), kagent.ErrNoMatch)

		p, err := a.Path(t.Context(), netip.Addr{}, b.Addr())
		if err != nil || p.Src != a.Addr() || p.Dst != b.Addr() || p.SrcMAC != a.Link().MAC || p.DstMAC != b.Link().MAC || p.Loopback {
			t.Errorf("path: %+v, %v", p, err)
		}
		if p, err := a.Path(t.Context(), netip.Addr{}, a.Addr()); err != nil || !p.Loopback {
			t.Errorf("path to itself: %+v, %v", p, err)
		}
		nstest.WantErr(t, "path to a host that does not exist", nstest.Err(a.Path(t.Context(), netip.Addr{}, netip.MustParseAddr("10.1.1.1"))), kagent.ErrUnreachable)
	})
}
