package torture

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// silence of the workers here; the default is longer.
const silence = time.Second

// toldIn is how soon after a death a survivor learns of it: with the default silence, 2 s.
const toldIn = silence * 5 / 4

// mortal are flows that connect again. They leave the machine idle time, because the test does not
// measure reports that are late for lack of a CPU.
func mortal(name string, level vipl.ReliabilityLevel) FlowConfig {
	cfg := mixed(name, level, 3)
	cfg.Again, cfg.Gap = true, time.Millisecond
	return cfg
}

// An interface that was removed comes back, the same one to the eye, by another number, and with
// the hardware address that it had or another one. All connections have ended by then, the owner's
// within 2 s. The owner closes its unusable NIC and opens the new one. The survivor, whose own
// interface has stayed, goes on with its handle.
func TestInterfaceReturns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		side int // 1 asks for the connections
		same bool
	}{
		{"who is asked, same hardware address", 0, true}, {"who is asked", 0, false}, {"who asks", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSoak(t, BedConfig{}, silence)
			for side := range 2 {
				must(t, trusting(s.bed, side))
			}
			s.live(t, []event{{"interface returns", true, func(s *soak) { s.interfaceReturns(c.side, c.same) }}})
		})
	}
}

// trusting makes a side's kernel never re-validate a hardware address by itself; by default it
// does so within a minute.
func trusting(b *Bed, side int) error {
	return b.Site.Do(side, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+Interface+"/delay_first_probe_time", []byte("3600"), 0)
	})
}

// interfaceReturns has a side's interface go and come back.
func (s *soak) interfaceReturns(side int, same bool) {
	was := s.bed.Site.Ends[side]
	s.allEnd("interface goes", [2]time.Duration{toldIn, toldIn}, s.link(side, netlink.LinkDel))
	r := fail.Must(s.bed.Workers[side].CloseNIC())
	r.Lacking = nil // what the interface had when it went does not complete
	s.add(side, r)
	var mac net.HardwareAddr
	if same {
		mac = fail.Must(net.ParseMAC(was.MAC))
	}
	fail.If(s.bed.Site.Replug(side, mac))
	if now := s.bed.Site.Ends[side]; now.Index == was.Index || (now.MAC == was.MAC) != same || now.Name != was.Name || now.IPv4 != was.IPv4 {
		fail.With("%+v came back, and %+v went", now, was)
	}
	s.reopen(side)
}

// The name of an interface is in no frame: when it gets another one, connections
// stay, and new ones are made by the same NIC handles.
func TestInterfaceRenamed(t *testing.T) {
	t.Parallel()
	newSoak(t, BedConfig{}, unhurried).live(t, []event{{"interface is renamed", true, func(s *soak) {
		before := s.known
		fail.If(s.bed.Site.Do(1, func() error { return rename(Interface, "another") }))
		cfg := mortal("after", vipl.ReliableDelivery)
		fail.If(s.bed.Start(cfg))
		s.flows += cfg.Flows
		s.awaitTalk("interface is renamed")
		for side, r := range s.known {
			if n := len(before[side].Breaks); len(r.Breaks) > n {
				t.Errorf("side %d: %d connections broke (%s)", side, len(r.Breaks)-n, r.Breaks[n].Cause)
			}
			if n := r.Engine.SourcesLost; n != before[side].Engine.SourcesLost {
				t.Errorf("side %d: SourcesLost is %d", side, n)
			}
		}
		fail.If(s.bed.Site.Do(1, func() error { return rename("another", Interface) }))
	}}})
}

func rename(from, to string) error {
	l, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	err = netlink.LinkSetName(l, to)
	if errors.Is(err, unix.EBUSY) { // kernels before 6.2: not while it is up
		err = errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
	}
	return err
}
