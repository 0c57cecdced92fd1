package vianet

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// A silent host is asked again after a minute, by one; an answer ends that, and a silence that was short is none.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silence
		to := func(host byte) Addr { return Addr{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 80)} }
		asks := func(host byte, want bool) {
			t.Helper()
			ask, silent := s.part([]Addr{to(host)})
			if len(ask)+len(silent) != 1 || len(ask) == 1 != want {
				t.Errorf("host %d is to be asked: %v; not: %v", host, ask, silent)
			}
		}
		take := func(host byte, err error, ago time.Duration) {
			s.take(t.Context(), to(host).Addr(), err, time.Now().Add(-ago))
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		asks(1, true)
		take(1, vipl.ErrTimeout, silentLeast-1)
		asks(1, true)
		take(1, vipl.ErrResource, time.Hour) // which is of this host
		asks(1, true)
		s.take(cancelled, to(1).Addr(), vipl.ErrTimeout, time.Now().Add(-time.Hour))
		asks(1, true)
		little, end := context.WithTimeout(t.Context(), silentLeast-1)
		defer end()
		start := time.Now()
		time.Sleep(time.Hour) // this side was kept from looking
		s.take(little, to(1).Addr(), vipl.ErrTimeout, start)
		asks(1, true)
		take(1, vipl.ErrTimeout, silentLeast)
		asks(1, false)
		asks(2, true)
		if ask, silent := s.part([]Addr{to(1), to(2)}); len(ask) != 1 || ask[0] != to(2) || len(silent) != 1 {
			t.Errorf("of both %v are to be asked, %v not", ask, silent)
		}
		time.Sleep(silentTime - 1)
		asks(1, false)
		time.Sleep(time.Nanosecond)
		asks(1, true)
		asks(1, false) // until there is an answer
		take(1, vipl.ErrNotReachable, silentLeast)
		time.Sleep(silentTime - 1)
		asks(1, false)
		time.Sleep(time.Nanosecond)
		asks(1, true)
		s.take(cancelled, to(1).Addr(), vipl.ErrTimeout, time.Now().Add(-time.Hour)) // says nothing
		asks(1, false)
		time.Sleep(fallbackTime)
		asks(1, true)
		for _, err := range []error{nil, vipl.ErrNoMatch, vipl.ErrRejected} {
			s.remember(to(1).Addr())
			asks(1, false)
			take(1, err, time.Second)
			asks(1, true)
		}
		local := netip.MustParseAddr("fe80::2")
		s.remember(local.WithZone("eth0"))
		if ask, _ := s.part([]Addr{{netip.AddrPortFrom(local.WithZone("eth0"), 80)}}); len(ask) > 0 {
			t.Error("a host of this link that is silent is asked")
		}
		s.forget(local) // a request of its own has no zone
		if ask, _ := s.part([]Addr{{netip.AddrPortFrom(local.WithZone("eth0"), 80)}}); len(ask) != 1 {
			t.Error("a host of this link that was heard of is not asked")
		}
	})
}

// Half the time is the other way's.
func TestAnswerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if d := answerTime(t.Context()); d != fallbackTime {
			t.Errorf("with all the time there is: %v", d)
		}
		for _, left := range []time.Duration{time.Second, 2 * fallbackTime, time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			if d, want := answerTime(ctx), min(left/2, fallbackTime); d != want {
				t.Errorf("with %v: %v, want %v", left, d, want)
			}
			cancel()
		}
	})
}

// However many hosts are silent, few are remembered: those from which it is the longest till they are asked again.
func TestSilenceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silence
		for i := range 4 * silentMost {
			s.remember(netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1)))
			s.remember(netip.MustParseAddr("fd00::1"))
			time.Sleep(time.Millisecond)
		}
		if len(s.until) != silentMost {
			t.Errorf("%d hosts are remembered", len(s.until))
		}
		for i, want := range map[int]bool{0: true, 1: false, 3 * silentMost: false, 3*silentMost + 1: true, 4*silentMost - 1: true} {
			if _, ok := s.until[netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+1))]; ok != want {
				t.Errorf("host %d is remembered: %v", i, ok)
			}
		}
	})
}
