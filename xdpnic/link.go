package xdpnic

import (
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Running reports whether an interface of the calling thread's network namespace
// is up and has its carrier. It checks three flags, because they change one after
// the other: the carrier at once, the others a moment later.
func Running(ifindex int) (bool, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return false, &OpError{Op: "link", Ifindex: ifindex, Err: err}
	}
	a := l.Attrs()
	return a.Flags&net.FlagUp != 0 && a.Flags&net.FlagRunning != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0, nil
}

// AwaitRunning waits until the interface is running. Some drivers take up to two
// seconds after a program was attached or a socket was bound; frames sent before
// are lost. It gives up after timeout, and reports whether the interface is
// running.
func AwaitRunning(ifindex int, timeout time.Duration) bool {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		if ok, err := Running(ifindex); ok || err != nil {
			return ok
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}
