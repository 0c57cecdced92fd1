package vipltest_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"

	"viaxdp/hugepages"
	"viaxdp/internal/nstest"
	"viaxdp/kagent"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
)

// TestNICs runs the suite over two NICs that the environment names, in the mode
// it names: zero-copy where the driver can. The lane of package vm gives it the
// data part of the suite by -test.run.
func TestNICs(t *testing.T) {
	_, _, name := nstest.NICs(t)
	mode, err := xdpnic.ParseMode(name)
	if err != nil {
		t.Fatal(err)
	}
	// Where frames do not come by themselves, the NIC must be told.
	queue, _ := strconv.Atoi(os.Getenv("VIA_NICS_QUEUE"))
	// What is emulated and kept from its work for a while has room for a ring of frames, 256.
	vipltest.Run(t, vipltest.Config{Burst: 100_000, Open: func(t testing.TB) (a, b *vipl.Nic) {
		na, nb, _ := nstest.NICs(t)
		var nics []*vipl.Nic
		for _, ns := range []*nstest.NS{na, nb} {
			var n *vipl.Nic
			if err := ns.Do(func() (err error) {
				n, err = vipl.OpenNic(ns.Name, vipl.WithMode(mode, true), vipl.WithHugepages(hugepages.Avoid),
					vipl.WithArena(3*arenaBytes), vipl.WithQueue(queue), vipl.WithSteering(kagent.SteerByRSS),
					// An emulated processor may be kept from its work for long.
					vipl.WithSilence(20*time.Second))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
			wantDriverMode(t, ns, mode)
			nics = append(nics, n)
		}
		return nics[0], nics[1]
	}})
}

// wantDriverMode asks the kernel how the program is attached.
func wantDriverMode(t testing.TB, ns *nstest.NS, mode xdpnic.Mode) {
	t.Helper()
	l, err := ns.Netlink().LinkByIndex(ns.Index)
	if err != nil {
		t.Fatal(err)
	}
	if x := l.Attrs().Xdp; x == nil || (x.AttachMode == nl.XDP_ATTACHED_DRV) == mode.Generic() {
		t.Errorf("%s: XDP program %+v in %v mode", ns.Name, x, mode)
	}
}
