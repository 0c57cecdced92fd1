package vipltest_test

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
)

// TestNICs runs the suite over two NICs that the environment names, in the mode that it names:
// zero-copy if the driver supports it. Package vm selects the data part of the suite by
// -test.run.
func TestNICs(t *testing.T) {
	na, nb, mode := realNICs(t)
	// If frames do not arrive by themselves, the NIC must be steered.
	queue, _ := strconv.Atoi(os.Getenv("VIA_NICS_QUEUE"))
	// An emulated NIC that is descheduled for a while has room for a ring of frames, 256.
	open := func(t testing.TB, ns *nstest.NS) *vipl.NIC {
		e := pairtest.Open(t, ns, vipl.WithMode(mode, true), vipl.WithHugepages(hugepages.Avoid),
			vipl.WithArena(3*arenaBytes), vipl.WithQueue(queue), vipl.WithSteering(vipl.SteerByRSS),
			// An emulated processor may be kept from its work for long.
			vipl.WithSilence(20*time.Second))
		wantDriverMode(t, ns, mode)
		return e.NIC
	}
	vipltest.Run(t, vipltest.Config{Burst: 100_000, Open: func(t testing.TB) (a, b *vipl.NIC) { return open(t, na), open(t, nb) }})
}

// realNICs are the NICs of nstest.NICs, and the mode that they must reach.
func realNICs(t testing.TB) (a, b *nstest.NS, mode xdpnic.Mode) {
	t.Helper()
	a, b, name := nstest.NICs(t)
	mode, err := xdpnic.ParseMode(name)
	nstest.Must(t, err)
	return a, b, mode
}

// wantDriverMode asks the kernel how the program is attached.
func wantDriverMode(t testing.TB, ns *nstest.NS, mode xdpnic.Mode) {
	t.Helper()
	if x := ns.Link(t).Attrs().Xdp; x == nil || (x.AttachMode == nl.XDP_ATTACHED_DRV) == mode.Generic() {
		t.Errorf("%s: XDP program %+v in %v mode", ns.Name, x, mode)
	}
}

// What was posted when the last handle is closed still leaves: a driver drops what its
// rings hold when the program is taken off, or the socket goes.
func TestLastFramesOfNICs(t *testing.T) {
	na, nb, mode := realNICs(t)
	const frames, etherType = 200, 0x88b5 // for local experiments (IEEE 802)
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
	listen := -1
	nstest.Must(t, nb.Do(func() (err error) {
		listen, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
		if err == nil {
			err = unix.Bind(listen, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: nb.Index})
		}
		return errors.Join(err,
			unix.SetsockoptInt(listen, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20), // a driver's frame takes pages
			unix.SetsockoptTimeval(listen, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	}))
	defer unix.Close(listen)
	// Some drivers drop the carrier for seconds when they set up their rings again: when the
	// earlier programs were detached, and when this one is attached.
	awaitCarriers(t, na, nb)
	agent := nstest.In(t, na, func() (*device.Local, error) {
		return device.Open(kagent.Config{
			Interface: na.Name, Mode: mode, RequireMode: true, Hugepages: hugepages.Avoid, ArenaBytes: arenaBytes,
		})
	})
	awaitCarriers(t, na, nb)
	q := agent.Queue()
	for i := range frames {
		addr, b, ok := q.Alloc()
		nstest.FatalIf(t, !ok, "%d chunks to send from, want %d", i, frames)
		copy(b, "\xff\xff\xff\xff\xff\xff")
		copy(b[6:], na.MAC)
		binary.BigEndian.PutUint16(b[12:], etherType)
		nstest.FatalIf(t, !q.Send(addr, 64, false), "no room for frame %d", i)
	}
	nstest.Check(t, agent.Close())
	for i := range frames {
		if _, err := unix.Read(listen, make([]byte, 2048)); err != nil {
			t.Fatalf("frame %d of %d: %v", i, frames, err)
		}
	}
}

func awaitCarriers(t testing.TB, all ...*nstest.NS) {
	t.Helper()
	for _, ns := range all {
		await.Until(t, ns.Name+" has a carrier", func() bool { return ns.Link(t).Attrs().OperState == netlink.OperUp })
	}
}
