package ctrlport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/termsafe"
)

// HolderOf names the processes that keep the UDP port of an interface in the calling thread's
// namespace, " (process 12 (name))", as far as this process may see; "" when it sees none. If the
// kernel lacks CONFIG_INET_UDP_DIAG, these are all processes that have a UDP socket on the port.
func HolderOf(port uint16, ifindex int) string {
	inodes := make(map[string]bool)
	if !boundInodes(port, ifindex, inodes) {
		for _, family := range []string{"udp", "udp6"} {
			if f, err := os.Open("/proc/thread-self/net/" + family); err == nil {
				udpInodes(f, port, inodes)
				f.Close()
			}
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	var names []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range dirs {
		if !holdsSocket(dir, inodes) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		name := fmt.Sprintf("process %d", pid)
		if c := termsafe.Name(pid); c != "" {
			name += " (" + c + ")"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s)", strings.Join(names, ", "))
}

// boundInodes collects the inodes of the sockets on a port that are bound to the interface, or to none. It
// reports whether the kernel lists sockets.
func boundInodes(port uint16, ifindex int, inodes map[string]bool) bool {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.SocketDiagUDP(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // then the list is what there is
			return false
		}
		for _, s := range list {
			if s.ID.SourcePort == port && (s.ID.Interface == 0 || int(s.ID.Interface) == ifindex) {
				inodes[fmt.Sprintf("socket:[%d]", s.INode)] = true
			}
		}
	}
	return true
}

// udpInodes collects the inodes of the sockets on a port from a table in the format of
// proc_pid_net(5): the second field is the local address, "address:port" in hexadecimal, the
// tenth is the inode.
func udpInodes(table io.Reader, port uint16, inodes map[string]bool) {
	for s := bufio.NewScanner(table); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 10 {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		p, err := strconv.ParseUint(hex, 16, 16)
		inode, err2 := strconv.ParseUint(fields[9], 10, 64)
		if err == nil && err2 == nil && uint16(p) == port {
			inodes[fmt.Sprintf("socket:[%d]", inode)] = true
		}
	}
}

// holdsSocket reports whether one of a process's descriptors, listed in dir, is one of the
// sockets.
func holdsSocket(dir string, inodes map[string]bool) bool {
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // gone, or not ours to read
	}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && inodes[target] {
			return true
		}
	}
	return false
}
