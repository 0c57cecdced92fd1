package route

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"viaxdp/internal/agent/kagent"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watch reports changes of an interface. A message of the kernel (rtnetlink) only triggers a read
// of the interface: the current state counts, not the message. So a lost message does no harm if
// the loss is detected, and an address that is removed and added before the read was never away.
type Watch struct {
	file   *os.File // a netlink socket in the interface's namespace
	conn   syscall.RawConn
	router *Router
	closed chan struct{} // closed by close
	over   chan struct{} // closed when run has ended

	mu   sync.Mutex                // held during callbacks, so that they run in order
	last kagent.Link               // as last reported; its Name is empty before the first report
	told map[any]func(kagent.Link) // by the watcher
	lost map[any]func()            // to be called when the interface is removed; nil: they have been called
}

const (
	watchBatch = 256                    // messages between two reads of the interface, at most
	lookAgain  = 100 * time.Millisecond // wait after a failed read
)

// linkGroups are the groups of notices about interfaces and addresses.
var linkGroups = []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}

// subscribe opens a socket that gets the notices of groups in the namespace of the calling thread.
func subscribe(groups ...uint) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	mask := uint32(0)
	for _, g := range groups {
		mask |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: mask}); err != nil {
		return 0, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return fd, nil
}

// NewWatch starts watching the interface of r, in the namespace of the calling thread. From then
// on r asks for the interface, or for a path again, only after a change. onRemove is called when it is removed, after all
// watchers were notified.
func NewWatch(r *Router, onRemove func(*Watch)) (_ *Watch, err error) {
	if err := errors.Join(r.links.subscribe(linkGroups), r.paths.subscribe(pathGroups), r.openMTU6()); err != nil {
		return nil, err
	}
	fd, err := subscribe(linkGroups...)
	if err != nil {
		return nil, err
	}
	w := &Watch{
		file: os.NewFile(uintptr(fd), "netlink:"+r.name), router: r,
		closed: make(chan struct{}), over: make(chan struct{}), told: make(map[any]func(kagent.Link)),
		lost: make(map[any]func()),
	}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	go func() {
		gone := w.run()
		close(w.over)
		if gone {
			onRemove(w)
			w.removed()
		}
	}()
	return w, nil
}

// Close ends the watch, and returns when no callback runs any more.
func (w *Watch) Close() error {
	close(w.closed)
	err := w.file.Close()
	<-w.over
	return err
}

// run reads the interface whenever it may have changed, until close or the interface's removal. A
// removed interface never returns, although a new one may get its index.
func (w *Watch) run() (gone bool) {
	buf := make([]byte, 32<<10)
	for again := false; ; {
		until := time.Time{}
		if again {
			until = time.Now().Add(lookAgain)
		}
		if w.file.SetReadDeadline(until) != nil {
			return false
		}
		changed, err := w.read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			// Closed, or the kernel reports nothing: then only this loop reads the interface, at
			// intervals.
			select {
			case <-w.closed:
				return false
			case <-time.After(lookAgain):
			}
		}
		if changed || err != nil {
			link, err := w.look()
			if again = err != nil; link.Gone {
				return true
			}
		}
	}
}

// read waits for messages and takes them. It reports whether one of them may be about the
// interface, or some were lost.
func (w *Watch) read(buf []byte) (changed bool, err error) {
	var failed error
	err = w.conn.Read(func(fd uintptr) bool {
		for n := range watchBatch {
			m, _, err := unix.Recvfrom(int(fd), buf, 0)
			switch {
			case err == nil:
				gone := false
				eachAbout(buf[:m], w.router.index, func(kind uint16, body []byte) {
					changed = true
					gone = gone || saysGone(kind, body)
				})
				if gone { // though another one, or itself, may have come by its number since
					w.router.gone.Store(true)
				}
			case errors.Is(err, unix.EAGAIN):
				return n > 0
			case errors.Is(err, unix.ENOBUFS): // the socket was full: messages were lost
				changed = true
			case !errors.Is(err, unix.EINTR):
				failed = os.NewSyscallError("recvfrom", err)
				return true
			}
		}
		return true
	})
	return changed, errors.Join(err, failed)
}

// eachAbout calls f for each message of rtnetlink that may be about an interface, with its type
// and as much of its body as is there; for a truncated message, with type 0. Messages about links
// and about addresses have the interface's index in the same place (struct ifinfomsg, struct
// ifaddrmsg).
func eachAbout(b []byte, index int, f func(kind uint16, body []byte)) {
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			f(0, nil)
			return
		}
		size := binary.NativeEndian.Uint32(b)
		if size < unix.NLMSG_HDRLEN || uint64(size) > uint64(len(b)) {
			f(0, nil) // longer than the buffer, perhaps
			return
		}
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			body := b[unix.NLMSG_HDRLEN:size]
			switch {
			case len(body) < 8:
				f(0, nil)
			case int(int32(binary.NativeEndian.Uint32(body[4:]))) == index:
				f(kind, body)
			}
		}
		b = b[min(len(b), int(size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
}

// saysGone reports whether a message of eachAbout means that the interface was removed. A bridge
// sends a similar message for a port that has left it (AF_BRIDGE).
func saysGone(kind uint16, body []byte) bool {
	return kind == unix.RTM_DELLINK && body[0] == unix.AF_UNSPEC
}

// look reads the interface, and calls the watchers if it has changed.
func (w *Watch) look() (kagent.Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	link, err := w.now()
	if err != nil || w.last.Equal(&link) {
		return link, err
	}
	w.last = link
	for _, f := range w.told {
		tell(f, link)
	}
	return link, nil
}

// now returns the interface with the addresses that frames may come from. This includes an
// address that programs cannot bind to yet: duplicate address detection takes a second or two
// after it was added.
func (w *Watch) now() (kagent.Link, error) {
	link, err := w.router.read(unix.IFA_F_DADFAILED)
	if IsGone(err) {
		w.router.gone.Store(true)
		return kagent.Link{Name: w.router.name, Index: w.router.index, Gone: true}, nil
	}
	return link, err
}

// IsGone reports whether an error of reading an interface means that it does not exist.
func IsGone(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.Is(err, kagent.ErrGone) || errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// OnGone has f called once, when the interface is removed, or at once if it already is; nil ends
// that.
func (w *Watch) OnGone(watcher any, f func()) {
	w.mu.Lock()
	now := w.lost == nil && f != nil
	switch {
	case f == nil:
		delete(w.lost, watcher)
	case !now:
		w.lost[watcher] = f
	}
	w.mu.Unlock()
	if now {
		f()
	}
}

// removed calls the callbacks of OnGone.
func (w *Watch) removed() {
	w.mu.Lock()
	all := w.lost
	w.lost = nil
	w.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// Add has f called at once, and after each change; nil ends that.
func (w *Watch) Add(watcher any, f func(kagent.Link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == nil {
		delete(w.told, watcher)
		return
	}
	w.told[watcher] = f
	if w.last.Name == "" {
		link, err := w.now()
		if err != nil {
			return // the first change reports it
		}
		w.last = link
	}
	tell(f, w.last)
}

func tell(f func(kagent.Link), link kagent.Link) {
	link.IPv4, link.IPv6 = slices.Clone(link.IPv4), slices.Clone(link.IPv6)
	f(link)
}
