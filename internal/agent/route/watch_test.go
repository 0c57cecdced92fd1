package route

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// news has the reports to a watcher.
type news chan kagent.Link

// until waits for an interface that is as wanted, and passes over others.
func (n news) until(t *testing.T, what string, ok func(l *kagent.Link) bool) {
	t.Helper()
	end := time.After(waitLimit)
	for {
		select {
		case l := <-n:
			if ok(&l) {
				return
			}
			t.Logf("%s: not %+v", what, l)
		case <-end:
			t.Fatalf("%s: no watcher was notified", what)
		}
	}
}

func watchOn(t *testing.T, n *nstest.NS) (w *Watch) {
	t.Helper()
	w = nstest.In(t, n, func() (*Watch, error) { return NewWatch(New(n.Netlink(), n.Name, n.Index, testPort), func(*Watch) {}) })
	t.Cleanup(func() { nstest.Check(t, w.Close()) })
	return w
}

// A watcher gets the state of the interface, and each change of it, until its removal.
func TestWatch(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	a := watchOn(t, an)
	told := make(news, 100)
	a.Add(t, func(l kagent.Link) { told <- l })
	told.until(t, "as it is", func(l *kagent.Link) bool {
		return l.Name == an.Name && l.Index == an.Index && l.Has(an.IPv4) && l.Has(an.IPv6) &&
			net.HardwareAddr(l.MAC[:]).String() == an.MAC.String()
	})

	h := an.Netlink()
	nic := an.Link(t)
	addrs, err := h.AddrList(nic, netlink.FAMILY_V4)
	nstest.Must(t, err)
	nstest.Must(t, h.AddrDel(nic, &addrs[0]))
	told.until(t, "an address less", func(l *kagent.Link) bool { return !l.Has(an.IPv4) && l.Has(an.IPv6) })
	// Programs cannot bind to it yet: duplicate address detection is under way.
	fresh, err := netlink.ParseAddr("fd99::77/64")
	nstest.Must(t, err)
	nstest.Must(t, h.AddrAdd(nic, fresh))
	told.until(t, "an address more", func(l *kagent.Link) bool {
		return len(l.IPv6) > 1 && (l.IPv6[0].String() == "fd99::77" || l.IPv6[1].String() == "fd99::77")
	})
	nstest.Must(t, h.LinkSetHardwareAddr(nic, net.HardwareAddr{2, 0, 0, 0, 0, 0x77}))
	told.until(t, "another hardware address", func(l *kagent.Link) bool { return l.MAC[5] == 0x77 })

	// What does not concern the interface is no news, nor what changes nothing.
	lo, err := h.LinkByName("lo")
	nstest.Must(t, err)
	nstest.Must(t, errors.Join(h.LinkSetUp(lo), h.LinkSetUp(nic)))
	late := make(news, 100)
	a.Add(t, func(l kagent.Link) { late <- l })
	late.until(t, "a later watcher", func(l *kagent.Link) bool { return l.MAC[5] == 0x77 })
	nstest.Must(t, h.LinkDel(nic))
	late.until(t, "the end", func(l *kagent.Link) bool { return l.Gone && l.Name == an.Name })
	for len(told) > 0 {
		if l := <-told; l.Gone {
			t.Error("told although another takes its place")
		}
	}
	select {
	case <-a.over:
	case <-time.After(waitLimit):
		t.Error("still watching an interface that is gone")
	}
	nstest.ErrorIf(t, !a.router.IsGone(), "the router finds an interface that is gone")
}

// extra is an address that tests add.
var extra = &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 7, 7), Mask: net.CIDRMask(32, 32)}}

// busyWatcher adds a watcher, whose callback does not return, once change has been reported, until goOn.
func busyWatcher(t *testing.T, w *Watch, change func()) (told news, goOn func()) {
	t.Helper()
	told = make(news, 10_000)
	entered, busy := make(chan struct{}, 10_000), make(chan struct{})
	first := true
	w.Add(t, func(l kagent.Link) {
		if told <- l; !first {
			entered <- struct{}{}
			<-busy
		}
		first = false
	})
	change()
	<-entered
	return told, func() { close(busy) }
}

// The loss of kernel messages for lack of room does not hide the interface's state from watchers.
func TestWatchOverrun(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	h := an.Netlink()
	nic := an.Link(t)
	addrs, err := h.AddrList(nic, netlink.FAMILY_V6)
	nstest.Must(t, err)
	for i := range addrs { // the kernel reports each again a second later
		nstest.Must(t, h.AddrDel(nic, &addrs[i]))
	}
	a := watchOn(t, an)
	nstest.Must(t, a.conn.Control(func(fd uintptr) {
		nstest.Check(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	}))
	told, goOn := busyWatcher(t, a, func() { nstest.Must(t, h.AddrAdd(nic, extra)) })
	lo, err := h.LinkByName("lo")
	nstest.Must(t, err)
	for range 300 {
		other, err := netlink.ParseAddr("127.0.7.7/32")
		nstest.Must(t, errors.Join(err, h.AddrAdd(lo, other), h.AddrDel(lo, other)))
	}
	nstest.Must(t, h.AddrDel(nic, extra)) // of this there is no message
	goOn()
	told.until(t, "as it is", func(l *kagent.Link) bool { return len(l.IPv4) == 1 })
	told.until(t, "an address more", func(l *kagent.Link) bool { return len(l.IPv4) == 2 })
	told.until(t, "the last change", func(l *kagent.Link) bool { return len(l.IPv4) == 1 })
}

// Watching continues if reading the kernel's messages fails.
func TestWatchUnread(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	h := an.Netlink()
	nic := an.Link(t)
	a := watchOn(t, an)
	told, goOn := busyWatcher(t, a, func() { nstest.Must(t, h.AddrAdd(nic, extra)) })
	null, err := os.Open(os.DevNull)
	nstest.Must(t, err)
	defer null.Close()
	if err := a.conn.Control(func(fd uintptr) { // no socket any more
		nstest.Check(t, unix.Dup3(int(null.Fd()), int(fd), unix.O_CLOEXEC))
	}); err != nil {
		t.Fatal(err)
	}
	goOn()
	has := func(l *kagent.Link) bool { return l.Has(netip.MustParseAddr("10.99.7.7")) }
	hasNot := func(l *kagent.Link) bool { return !has(l) }
	told.until(t, "as it is", hasNot)
	told.until(t, "an address more", has)
	nstest.Must(t, h.AddrDel(nic, extra))
	told.until(t, "an address less", hasNot)
}

// message is one of rtnetlink, padded.
func message(kind uint16, body ...uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+4*len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, unix.NLMSG_HDRLEN-6)...)
	for _, w := range body {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

// concernsModel reports whether messages, as package syscall reads them, are about an interface or cannot be
// parsed.
func concernsModel(b []byte, index int) bool {
	padded := append(b[:len(b):len(b)], make([]byte, -len(b)&(unix.NLMSG_ALIGNTO-1))...)
	all, err := syscall.ParseNetlinkMessage(padded)
	if err != nil {
		return true
	}
	at := 0
	for _, m := range all {
		if at+int(m.Header.Len) > len(b) {
			return true
		}
		at += (int(m.Header.Len) + 3) / 4 * 4
		switch m.Header.Type {
		case syscall.RTM_NEWLINK, syscall.RTM_DELLINK, syscall.RTM_NEWADDR, syscall.RTM_DELADDR:
			if len(m.Data) < 8 || int32(binary.NativeEndian.Uint32(m.Data[4:8])) == int32(index) {
				return true
			}
		}
	}
	return at < len(b) // something is left that is no message
}

func concerns(b []byte, index int) (yes bool) {
	eachAbout(b, index, func(uint16, []byte) { yes = true })
	return yes
}

// Messages of the kernel are about an interface if an independent parser finds that, and if they are truncated:
// no change is overlooked.
func FuzzConcerns(f *testing.F) {
	of := func(index uint32) []byte { return message(unix.RTM_NEWLINK, 0, index, 0, 0) }
	for _, b := range [][]byte{
		nil, of(7), of(8), append(of(8), of(7)...), append(of(8), of(7)[:19]...), append(of(8), 1, 2, 3),
		message(unix.RTM_DELADDR, 2, 7), message(unix.RTM_NEWADDR, 2), message(unix.RTM_NEWROUTE, 0, 7),
		append(message(unix.NLMSG_DONE), message(unix.RTM_DELLINK, 0, 7)...),
	} {
		f.Add(b, int32(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, index int32) {
		if got, want := concerns(b, int(index)), concernsModel(b, int(index)); got != want {
			t.Fatalf("% x concerns %d: %v, want %v", b, index, got, want)
		}
		if whole := append(of(uint32(index)+1), of(uint32(index))...); concerns(of(uint32(index)+1), int(index)) || !concerns(whole, int(index)) {
			t.Fatalf("interface %d", index)
		}
	})
}

// A message that an interface was removed is one of the interface itself, and not of its place in a bridge.
func TestSaysGone(t *testing.T) {
	for _, c := range []struct {
		kind   uint16
		family byte
		gone   bool
	}{
		{unix.RTM_DELLINK, unix.AF_UNSPEC, true}, {unix.RTM_DELLINK, unix.AF_BRIDGE, false}, {unix.RTM_NEWLINK, unix.AF_UNSPEC, false},
	} {
		said, about := false, 0
		m := message(c.kind, 0, 7)
		m[unix.NLMSG_HDRLEN] = c.family
		eachAbout(m, 7, func(kind uint16, body []byte) {
			about++
			said = said || saysGone(kind, body)
		})
		nstest.ErrorIf(t, about != 1 || said != c.gone, "%+v: gone is %v, by %d messages", c, said, about)
	}
}
