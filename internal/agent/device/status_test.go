package device

import (
	"net/netip"
	"os"
	"testing"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// Status lists the queue, its holder, and each VI with its peer, and drops them when they end.
func TestLocalStatus(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	agent, err := openOn(t, a, small(a))
	nstest.Must(t, err)
	idle, err := agent.NewVI()
	nstest.Must(t, err)
	connected, err := agent.NewVI()
	nstest.Must(t, err)
	nstest.Must(t, agent.Enter(connected, kagent.NewKey(), b.IPv4))
	lease := func() kagent.LeaseStatus {
		t.Helper()
		s := LocalStatus()
		nstest.FatalIf(t, s.Daemon || s.PID != os.Getpid() || len(s.NICs) != 1 || len(s.NICs[0].Leases) != 1, "status: %+v", s)
		n := s.NICs[0]
		nstest.ErrorIf(t, n.Interface != a.Name || n.Driver != "veth" || n.MTU != a.MTU || n.VIs != len(n.Leases[0].VIs), "NIC: %+v", n)
		return n.Leases[0]
	}
	agent.manager.Receive([]byte("?"), a.IPv4, netip.AddrPortFrom(b.IPv4, 4793))
	if c := LocalStatus().NICs[0].Connects; c != (kagent.Counters{Malformed: 1}) {
		t.Errorf("connection management: %+v", c)
	}
	l := lease()
	nstest.ErrorIf(t, l.Queue != 0 || l.Holder.PID != os.Getpid() || l.Holder.Comm == "" || l.PinnedBytes < 4<<20 || l.Handles != 1, "lease: %+v", l)
	want := map[uint32]kagent.VIStatus{
		idle:      {Num: idle, State: kagent.VICreated},
		connected: {Num: connected, State: kagent.VIConnected, Peer: b.IPv4},
	}
	for _, v := range l.VIs {
		nstest.ErrorIf(t, want[v.Num] != v, "VI: %+v, want %+v", v, want[v.Num])
		delete(want, v.Num)
	}
	nstest.ErrorIf(t, len(want) > 0, "missing: %+v", want)
	agent.FreeVI(idle)
	nstest.Must(t, agent.Remove(connected))
	if l := lease(); len(l.VIs) != 1 || l.VIs[0] != (kagent.VIStatus{Num: connected, State: kagent.VICreated, Peer: netip.Addr{}}) {
		t.Errorf("after removing: %+v", l.VIs)
	}
	nstest.Must(t, agent.Close())
	if s := LocalStatus(); len(s.NICs) != 0 {
		t.Errorf("after closing: %+v", s)
	}
}
