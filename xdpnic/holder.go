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

// describeHolders names the processes that may hold a queue, as far as [Holders] can
// determine them.
func describeHolders(ifindex, queue, self int) string {
	list, exact := Holders(ifindex)
	var names []string
	for _, h := range list {
		if exact && h.Queue != queue {
			continue
		}
		name := fmt.Sprintf("process %d", h.PID)
		if c := termsafe.Name(h.PID); c != "" {
			name += " (" + c + ")"
		}
		if h.PID == self {
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
	queues := map[string]int{} // by socket, as /proc/PID/fd names it
	socks, err := netlink.SocketDiagXDP()
	exact = err == nil
	for _, s := range socks {
		if s.XDPInfo != nil && int(s.XDPInfo.Ifindex) == ifindex {
			queues[fmt.Sprintf("socket:[%d]", s.XDPDiagMsg.Ino)] = int(s.XDPInfo.QueueID)
		}
	}
	if exact && len(queues) == 0 {
		return nil, true
	}
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
			h := Holder{PID: pid, Queue: -1}
			if exact {
				var found bool
				if h.Queue, found = queues[target]; !found {
					continue
				}
			} else if socketProtocol(path) != "XDP" {
				continue
			}
			if !slices.Contains(list, h) {
				list = append(list, h)
			}
		}
	}
	slices.SortFunc(list, func(a, b Holder) int { return cmp.Or(a.Queue-b.Queue, a.PID-b.PID) })
	return list, exact
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
