package torture

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// An interface that was removed comes back, the same one to the eye, by another number, and with
// the hardware address that it had or another one. Everybody's connections have ended by then, the
// owner's within 2 s; the owner closes its NIC, of which nothing is left, and opens the new one,
// and the survivor, whose own interface has stayed, goes on by the handle that it has.
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
			b := newBed(t, BedConfig{})
			for side := range 2 {
				must(t, trusting(b, side))
			}
			living(t, b)
			returning(t, b, c.side, c.same)
			rest(t, b)
		})
	}
}

// trusting has a side's kernel never doubt a hardware address by itself; else it does so in a minute
// at the latest.
func trusting(b *Bed, side int) error {
	return b.Site.Do(side, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+Interface+"/delay_first_probe_time", []byte("3600"), 0)
	})
}

// returning has a side's interface go and come back, and waits until all talk as before.
func returning(t *testing.T, b *Bed, side int, same bool) {
	t.Helper()
	before, err := b.Reports()
	must(t, err)
	was := b.Site.Ends[side]
	death := b.Mark()
	must(t, b.Link(side, netlink.LinkDel))
	var after [2]*Report
	for i := range after {
		after[i] = brokenOnce(t, b, i, death, before[i], 0)
	}
	r, err := b.Parties[side].CloseNIC()
	must(t, err)
	r.Lacking = nil // what the interface had when it went does not complete
	promises(t, side, r)

	var mac net.HardwareAddr
	if same {
		mac, err = net.ParseMAC(was.MAC)
		must(t, err)
	}
	must(t, b.Site.Replug(side, mac))
	if now := b.Site.Ends[side]; now.Index == was.Index || (now.MAC == was.MAC) != same || now.Name != was.Name || now.IPv4 != was.IPv4 {
		t.Fatalf("%+v came back, and %+v went", now, was)
	}
	back := time.Now()
	must(t, b.OpenSide(side, NICConfig{Silence: silence}))
	for _, l := range levels {
		must(t, b.StartSide(side, mortal("mortal-"+l.String(), l)))
	}
	after[side] = &Report{}
	talking(t, b, after)
	t.Logf("all talk %v after the interface was back", time.Since(back))
}
