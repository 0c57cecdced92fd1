package vipl_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
)

// A host that has another NIC by now, of another hardware address, is found by the request for a connection, and
// the connection goes there, though the kernel is sure for an hour of the address that it knows.
func TestPeerHasAnotherNIC(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	nics := make([]*vipl.Nic, 2)
	for i, ns := range []*nstest.NS{na, nb} {
		if err := ns.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(ns.Name, vipl.WithAgent("none"), vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nics[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := na.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+na.Name+"/delay_first_probe_time", []byte("3600"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	was := &netlink.Neigh{
		LinkIndex: na.Index, Family: netlink.FAMILY_V4, IP: nb.IPv4.AsSlice(), State: netlink.NUD_STALE,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x77},
	}
	if err := na.Netlink().NeighSet(was); err != nil {
		t.Fatal(err)
	}
	va, vb := connect(t, nics[0], nics[1], vipl.ReliableReception)
	xa, xb := newBox(t, nics[0], 1, 64), newBox(t, nics[1], 1, 64)
	// A NIC would not take frames for another address, as a veth does before a program of its.
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- nics[0].Capture(w, 64, nil) }()
	if !comes(func() bool { return nics[0].Captures() == 1 }) {
		t.Fatal("no capture")
	}
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 0, 8)
	received(t, vb, 0)
	for {
		ours, _, frame, err := record(r)
		if err != nil {
			t.Fatal(err)
		}
		if ours {
			if to := net.HardwareAddr(frame[:6]).String(); to != nb.MAC.String() {
				t.Errorf("frames go to %s, want %v", to, nb.MAC)
			}
			break
		}
	}
	r.Close()
	sent(t, va, 0)
	list, err := na.Netlink().NeighList(na.Index, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.IP.Equal(was.IP) && n.HardwareAddr.String() != nb.MAC.String() {
			t.Errorf("the kernel has %v for it, want %v", n.HardwareAddr, nb.MAC)
		}
	}
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 0, 8) // the capture finds nobody who reads
	sent(t, va, 0)
	if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// What an administrator has said of a host's hardware address stays.
func TestPermanentNeighbourStays(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	var a *vipl.Nic
	if err := na.Do(func() (err error) {
		a, err = vipl.OpenNic(na.Name, vipl.WithAgent("none"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	said := &netlink.Neigh{
		LinkIndex: na.Index, Family: netlink.FAMILY_V4, IP: nb.IPv4.AsSlice(), State: netlink.NUD_PERMANENT,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x77},
	}
	if err := na.Netlink().NeighSet(said); err != nil {
		t.Fatal(err)
	}
	v, err := a.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: nb.IPv4, Discriminator: []byte("test")}, time.Second); err == nil {
		t.Error("somebody answers")
	}
	list, err := na.Netlink().NeighList(na.Index, netlink.FAMILY_V4)
	if err != nil || len(list) != 1 || list[0].State != netlink.NUD_PERMANENT || list[0].HardwareAddr.String() != said.HardwareAddr.String() {
		t.Errorf("%+v, %v", list, err)
	}
}
