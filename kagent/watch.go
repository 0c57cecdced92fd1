package kagent

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch tells the Locals of a device when its interface has changed. What the
// kernel says (rtnetlink) is taken as a sign to look, not as the news: what
// matters is how things are, so that a message that was lost does no harm where
// the loss is known, and an address that is back before anybody has looked was
// never away.
type watch struct {
	file   *os.File // a netlink socket in the interface's namespace
	conn   syscall.RawConn
	router *router
	closed chan struct{} // closed by close
	over   chan struct{} // closed when run has ended

	mu   sync.Mutex // held while somebody is told, so that news come in order
	last Link       // as it was told; its Name is empty before
	told map[*Local]func(Link)
}

const (
	watchBatch = 256                    // messages between two looks, at most
	lookAgain  = 100 * time.Millisecond // after a look, or a read, that has failed
)

// newWatch begins to watch the interface of r, in the namespace of the calling
// thread.
func newWatch(r *router) (_ *watch, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	groups := uint32(0)
	for _, g := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	w := &watch{
		file: os.NewFile(uintptr(fd), "netlink:"+r.name), router: r,
		closed: make(chan struct{}), over: make(chan struct{}), told: make(map[*Local]func(Link)),
	}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	go w.run()
	return w, nil
}

// close ends it, and returns when nobody is being told any more.
func (w *watch) close() error {
	close(w.closed)
	err := w.file.Close()
	<-w.over
	return err
}

// run looks at the interface when it may have changed, until close, or until the
// interface is gone: it does not come back, although another one may get its number.
func (w *watch) run() {
	defer close(w.over)
	buf := make([]byte, 32<<10)
	for again := false; ; {
		until := time.Time{}
		if again {
			until = time.Now().Add(lookAgain)
		}
		if w.file.SetReadDeadline(until) != nil {
			return
		}
		changed, err := w.read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			// Closed, or the kernel tells nothing: then nobody but us looks, now and then.
			select {
			case <-w.closed:
				return
			case <-time.After(lookAgain):
			}
		}
		if changed || err != nil {
			link, err := w.look()
			if again = err != nil; link.Gone {
				return
			}
		}
	}
}

// read waits for messages and takes them. It says whether one of them may be about
// the interface, or some were lost.
func (w *watch) read(buf []byte) (changed bool, err error) {
	var failed error
	err = w.conn.Read(func(fd uintptr) bool {
		for n := range watchBatch {
			m, _, err := unix.Recvfrom(int(fd), buf, 0)
			switch {
			case err == nil:
				changed = changed || concerns(buf[:m], w.router.index)
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

// concerns tells whether messages of rtnetlink may be about an interface. Those of
// links and addresses have its number in the same place (struct ifinfomsg, struct
// ifaddrmsg).
func concerns(b []byte, index int) bool {
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return true
		}
		size := binary.NativeEndian.Uint32(b)
		if size < unix.NLMSG_HDRLEN || uint64(size) > uint64(len(b)) {
			return true // longer than the buffer, perhaps
		}
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			body := b[unix.NLMSG_HDRLEN:size]
			if len(body) < 8 || int(int32(binary.NativeEndian.Uint32(body[4:]))) == index {
				return true
			}
		}
		b = b[min(len(b), int(size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false
}

// look reads the interface, and tells all if it has changed.
func (w *watch) look() (Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	link, err := w.now()
	if err != nil || w.last.same(&link) {
		return link, err
	}
	w.last = link
	for l, f := range w.told {
		l.tell(f, link)
	}
	return link, nil
}

// now is the interface with the addresses that frames may come from: also one that
// the kernel does not let programs bind to yet, as it asks whether another host has
// it, which takes a second or two after it was added.
func (w *watch) now() (Link, error) {
	link, err := w.router.read(unix.IFA_F_DADFAILED)
	if isGone(err) {
		return Link{Name: w.router.name, Index: w.router.index, Gone: true}, nil
	}
	return link, err
}

// isGone tells whether reading an interface has failed because there is none.
func isGone(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// add has f called, at once and from now on; nil ends that.
func (w *watch) add(l *Local, f func(Link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == nil {
		delete(w.told, l)
		return
	}
	w.told[l] = f
	if w.last.Name == "" {
		link, err := w.now()
		if err != nil {
			return // the first change tells
		}
		w.last = link
	}
	l.tell(f, w.last)
}

func (l *Local) tell(f func(Link), link Link) {
	link.Queue = l.lease.queueID
	link.IPv4, link.IPv6 = slices.Clone(link.IPv4), slices.Clone(link.IPv6)
	f(link)
}

// same tells whether nothing differs.
func (l *Link) same(o *Link) bool {
	return l.Name == o.Name && l.Index == o.Index && l.MAC == o.MAC && l.MTU == o.MTU && l.Up == o.Up &&
		l.Gone == o.Gone && slices.Equal(l.IPv4, o.IPv4) && slices.Equal(l.IPv6, o.IPv6)
}

// Watch tells of changes of the interface; see [Agent].
func (l *Local) Watch(f func(Link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.watch.add(l, f)
	}
}
