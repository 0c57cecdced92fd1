package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func tapName(i int) string { return fmt.Sprintf("tap%d", i) }

// makeTaps takes the calling thread, which must be locked and never be
// unlocked, into a network namespace of its own, with two taps of several queues
// on a bridge. They are gone with the thread and what it has started.
func makeTaps(queues int) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network namespace (needs root): %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wire"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	for i := range 2 {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: tapName(i)}, Mode: netlink.TUNTAP_MODE_TAP,
			Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS | netlink.TUNTAP_VNET_HDR, Queues: queues,
		}
		if err := netlink.LinkAdd(tap); err != nil {
			return fmt.Errorf("%s: %w", tap.Name, err)
		}
		for _, f := range tap.Fds {
			f.Close() // the tap stays, QEMU attaches its own queues
		}
		if err := netlink.LinkSetMaster(tap, bridge); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(tap); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(bridge)
}

// countTaps is what the kernel has counted of the taps: from and to the guest.
func countTaps() string {
	var b strings.Builder
	for i := range 2 {
		l, err := netlink.LinkByName(tapName(i))
		if err != nil {
			fmt.Fprintln(&b, tapName(i), err)
			continue
		}
		counts, _ := json.Marshal(l.Attrs().Statistics)
		fmt.Fprintf(&b, "%s: %s\n", tapName(i), counts)
	}
	return b.String()
}
