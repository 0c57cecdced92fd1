package xdpnic

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/termsafe"
)

// describeHolders names the processes that may hold a queue, as far as it can
// tell. With CONFIG_XDP_SOCKETS_DIAG the kernel names the socket; otherwise it
// lists every process with an AF_XDP socket. Reading the descriptors of other
// processes takes CAP_SYS_PTRACE.
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
		if c := termsafe.Name(pid); c != "" {
			name += " (" + c + ")"
		}
		if pid == self {
			name += ", this one"
		}
		names = append(names, name)
	}
	switch {
	case len(names) == 0:
		return "the process that holds it is not visible"
	case exact:
		return "held by " + strings.Join(names, "; ")
	default:
		return "AF_XDP sockets are open in " + strings.Join(names, "; ")
	}
}

// A Holder is a process that has an AF_XDP socket open.
type Holder struct {
	PID   int
	Queue int // queue that the socket is bound to; -1: unknown
}

// Holders lists the processes that have AF_XDP sockets on an interface of the
// calling thread's network namespace, sorted by queue and process. exact is false
// if the kernel lacks CONFIG_XDP_SOCKETS_DIAG: the list then has every process
// with an AF_XDP socket on any interface. Seeing other users' processes takes
// CAP_SYS_PTRACE.
func Holders(ifindex int) (list []Holder, exact bool) {
	socks, err := netlink.SocketDiagXDP()
	if err != nil {
		for pid := range xdpSockets(nil, false) {
			list = append(list, Holder{PID: pid, Queue: -1})
		}
		return sortHolders(list), false
	}
	for _, s := range socks {
		if s.XDPInfo == nil || int(s.XDPInfo.Ifindex) != ifindex {
			continue
		}
		inode := map[string]bool{fmt.Sprintf("socket:[%d]", s.XDPDiagMsg.Ino): true}
		for pid := range xdpSockets(inode, true) {
			list = append(list, Holder{PID: pid, Queue: int(s.XDPInfo.QueueID)})
		}
	}
	return sortHolders(list), true
}

func sortHolders(list []Holder) []Holder {
	slices.SortFunc(list, func(a, b Holder) int { return cmp.Or(a.Queue-b.Queue, a.PID-b.PID) })
	return list
}

// xdpSockets finds the processes that have one of the sockets open or, if exact
// is false, any AF_XDP socket.
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
			continue // the process has ended, or we may not read it
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
