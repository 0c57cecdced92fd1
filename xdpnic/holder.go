package xdpnic

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// describeHolders says who may hold a queue, as far as can be known. With
// CONFIG_XDP_SOCKETS_DIAG the kernel names the socket; else every process with
// an AF_XDP socket is a suspect. Other processes' descriptors can be read with
// CAP_SYS_PTRACE only.
func describeHolders(ifindex, queue, self int) string {
	inodes := map[string]bool{}
	exact := false
	if socks, err := netlink.SocketDiagXDP(); err == nil {
		exact = true
		for _, s := range socks {
			if s.XDPInfo != nil && int(s.XDPInfo.Ifindex) == ifindex && int(s.XDPInfo.QueueID) == queue {
				inodes[fmt.Sprintf("socket:[%d]", s.XDPDiagMsg.Ino)] = true
			}
		}
	}
	var names []string
	for pid := range xdpSockets(inodes, exact) {
		name := fmt.Sprintf("process %d", pid)
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			name += " (" + strings.TrimSpace(string(comm)) + ")"
		}
		if pid == self {
			name += ", this one"
		}
		names = append(names, name)
	}
	switch {
	case len(names) == 0:
		return "no process that holds it can be seen"
	case exact:
		return "held by " + strings.Join(names, "; ")
	default:
		return "AF_XDP sockets are open in " + strings.Join(names, "; ")
	}
}

// xdpSockets finds the processes that have one of the sockets open, or, when
// the sockets are not known exactly, any bound for AF_XDP.
func xdpSockets(inodes map[string]bool, exact bool) map[int]bool {
	found := map[int]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil {
			continue
		}
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // gone, or not ours to read
		}
		for _, fd := range fds {
			path := filepath.Join(dir, fd.Name())
			target, err := os.Readlink(path)
			if err != nil || !strings.HasPrefix(target, "socket:[") {
				continue
			}
			if exact && inodes[target] || !exact && socketProtocol(path) == "XDP" {
				found[pid] = true
			}
		}
	}
	return found
}

// socketProtocol is the name of a socket's protocol, which the kernel gives as
// an extended attribute (net/socket.c, sockfs_xattr_get).
func socketProtocol(path string) string {
	var b [32]byte
	n, err := unix.Getxattr(path, "system.sockprotoname", b[:])
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(b[:n]), "\x00")
}
