package main

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/nstest"
)

// Commands about all interfaces go on if one is removed meanwhile, as those of containers are.
func TestInterfaceRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	a, _ := nstest.Pair(t, nstest.Options{})
	stop, ended := make(chan bool), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "short"}, PeerName: "other"}
			for _, step := range []func(netlink.Link) error{a.Netlink().LinkAdd, a.Netlink().LinkSetUp, a.Netlink().LinkDel} {
				if err := step(l); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	runs := 150
	if testing.Short() {
		runs /= 5
	}
	for _, args := range [][]string{{"info"}, {"report", "-o", "-"}, {"doctor", "--only", "link"}} {
		for range runs {
			if status, _, errs := produceIn(t, a, args...); status != exitFine {
				t.Errorf("%v: status %d, %s", args, status, errs)
				break
			}
		}
	}
	close(stop)
	nstest.Must(t, <-ended)
}

// doctor looks at interfaces that are down if no other one is there: it is why VIs cannot run.
func TestDoctorOfNoneUp(t *testing.T) {
	t.Parallel()
	a, _ := nstest.Pair(t, nstest.Options{})
	a.SetLink(t, false)
	status, out, errs := produceIn(t, a, "doctor", "--only", "link")
	said := out + errs
	remedy := "ip link set dev " + a.Name + " up"
	nstest.ErrorIf(t, status != exitCannotRun || !strings.Contains(said, remedy) || strings.Contains(said, "--fix"),
		"status %d, %s", status, said)
}
