package xdpnic

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by Flush and Wait of a closed Queue.
var ErrClosed = errors.New("xdpnic: queue is closed")

// Errors of Flush. They are variables so that the data path does not allocate.
// They unwrap to ENETDOWN and ENXIO.
var (
	// ErrLinkDown: the interface is administratively down. Entries stay in the
	// TX ring; the next Flush after the interface is up sends them.
	ErrLinkDown error = &OpError{Op: "kick", Ifindex: -1, Err: unix.ENETDOWN}
	// ErrGone: the socket is no longer bound, because the interface was
	// removed. The queue can only be closed.
	ErrGone error = &OpError{Op: "kick", Ifindex: -1, Err: unix.ENXIO}
)

// OpError is an error of the control path: the operation, the interface and queue, and the cause. Its text also
// names the remedy.
type OpError struct {
	Op      string // "socket", "umem", "bind", ...
	Ifindex int    // interface index, or -1 when the error is ready-made
	Queue   int    // queue number on the interface
	Err     error  // cause; a unix.Errno wherever a system call failed
	Detail  string // further facts, for instance the process that holds the queue
}

// Error returns operation, interface and queue, cause, detail and, in parentheses, the remedy.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("xdpnic: ")
	b.WriteString(e.Op)
	if e.Ifindex >= 0 {
		fmt.Fprintf(&b, ", interface %d queue %d", e.Ifindex, e.Queue)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, "; %s", e.Detail)
	}
	if h := hint(e.Op, e.Err); h != "" {
		fmt.Fprintf(&b, " (%s)", h)
	}
	return b.String()
}

// Unwrap gives the cause, for errors.Is and errors.As.
func (e *OpError) Unwrap() error { return e.Err }

// hints are the likely causes and remedies of kernel errors, each for an operation or, without one, for the other
// operations. The causes are those of net/xdp/xsk.c, xdp_umem.c and xsk_buff_pool.c.
var hints = map[hintOf]string{
	{"socket", unix.EPERM}: "an AF_XDP socket needs CAP_NET_RAW in the user namespace that owns the network namespace: " +
		"run as root or give the program cap_net_raw,cap_net_admin,cap_bpf",
	{"", unix.EPERM}:        "the kernel requires privilege: run as root or give the program cap_net_raw,cap_net_admin",
	{"", unix.EAFNOSUPPORT}: "the kernel has no AF_XDP: it needs CONFIG_XDP_SOCKETS=y",
	{"umem", unix.ENOBUFS}: "the memory exceeds RLIMIT_MEMLOCK, which applies to programs without CAP_IPC_LOCK: " +
		"raise it (ulimit -l, LimitMEMLOCK=) or use less memory",
	{"", unix.ENOBUFS}: "the kernel is short of buffers",
	{"", unix.ENOMEM}:  "the kernel is short of memory: use fewer chunks or smaller rings",
	{"bind", unix.EBUSY}: "another AF_XDP socket or the driver's own use of page pool memory holds the queue: " +
		"close it, or use another queue",
	{"bind", unix.EOPNOTSUPP}: "the driver has no zero-copy mode, or its rings do not support it: use native or generic mode",
	{"umem", unix.EINVAL}:     "the kernel takes page-aligned memory and chunks of 2048 to 4096 bytes, powers of two unless unaligned",
	{"bind", unix.EINVAL}:     "the queue number is beyond the interface's queues, or the driver refuses these flags or this chunk size",
	{"", unix.ENODEV}:         "there is no such interface in this network namespace",
	{"", unix.ENETDOWN}:       "the interface is down: set it up",
	{"", unix.ENXIO}:          "the interface was removed: close the queue and open it again",
}

type hintOf struct {
	op    string
	errno unix.Errno
}

// hint returns the likely cause and remedy of a kernel error in an operation; "" if nothing is known beyond the error.
func hint(op string, err error) string {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	if errno == unix.EACCES {
		errno = unix.EPERM
	}
	return cmp.Or(hints[hintOf{op, errno}], hints[hintOf{"", errno}])
}
