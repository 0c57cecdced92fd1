package vipl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/shmlink"
	"viaxdp/xdpnic"
)

// Connections with a VI on another queue of the interface, in this program or in another one. What one queue sends
// does not arrive on another, so frames go through a shared-memory link (package shmlink). The format and the steps
// are the same. The agent creates the link and gives it to both sides. If the link is full, the frame waits, as
// with a full ring. The other side is not trusted: a link carries only frames of its own connections, and frames of
// those connections are accepted from no other path.

// shmLinks has the shared-memory links of a port. The list changes under the lock; polls read it without.
type shmLinks struct{ all atomic.Pointer[[]*shmLink] }

// shmLink is a shared-memory link of a port, with the number of connections that use it.
type shmLink struct {
	*shmlink.Link
	id    uint64
	conns int
	buf   [1]xdpnic.Frame // a copy of the arriving frame, so that the other side cannot change it
	wake  *os.File        // readable when the other side has rung, because this side sleeps
	bell  *os.File        // rings at the other side
	ring  int             // file descriptor of bell
	left  chan struct{}   // closed with the last connection
}

var errNoLink = errors.New("the agent cannot join two queues of one interface: open both handles on one (WithQueue)")

// linkTo finds or makes the link to the queue of VI peer. The connection counts as one of its users until
// leaveLink.
func (v *VI) linkTo(peer uint32) (*shmLink, error) {
	agent, ok := v.nic.agent.(kagent.ShmLinker)
	if !ok {
		return nil, errNoLink
	}
	end, err := agent.ShmLink(peer)
	if err != nil {
		return nil, err
	}
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	if v.gone.Load() || v.nic.closing() {
		end.Close()
		return nil, kagent.ErrClosed
	}
	return v.port.enterLink(end)
}

// enterLink finds or makes the port's part of a link, for one more connection. Under the lock.
func (p *port) enterLink(end *kagent.ShmLinkEnd) (*shmLink, error) {
	for _, l := range p.allLinks() {
		if l.id == end.ID {
			end.Close()
			l.conns++
			return l, nil
		}
	}
	l, err := newShmLink(end)
	if err != nil {
		end.Close()
		return nil, err
	}
	l.conns = 1
	all := append(slices.Clone(p.allLinks()), l)
	p.links.all.Store(&all)
	p.nic.Wake() // the sleeper has not announced its sleep on this link
	p.poller.stopped.Go(func() { p.answerBell(l) })
	return l, nil
}

func newShmLink(end *kagent.ShmLinkEnd) (*shmLink, error) {
	l := &shmLink{
		id: end.ID, wake: end.Wake, bell: end.Bell, left: make(chan struct{}),
		buf: [1]xdpnic.Frame{{Data: make([]byte, shmlink.MaxFrame)}},
	}
	memory, err := descriptor(end.Memory)
	if err != nil {
		return nil, err
	}
	if l.ring, err = descriptor(end.Bell); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(memory, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	// A file that is shrunk later loses pages that this process has mapped: SIGBUS.
	seals, err := unix.FcntlInt(uintptr(memory), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size < shmlink.Size {
		return nil, errors.Join(fmt.Errorf("a shared-memory link of %d bytes, want %d sealed against shrinking", st.Size, shmlink.Size), err)
	}
	mem, err := unix.Mmap(memory, 0, shmlink.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if l.Link, err = shmlink.New(mem, end.Side); err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	_ = end.Memory.Close() // the mapping stays
	// A poll reads the link without a lock, perhaps just as the link is dropped.
	runtime.AddCleanup(l, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return l, nil
}

// descriptor returns the descriptor of a file. It is valid as long as the file is open.
func descriptor(f *os.File) (n int, err error) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	return n, err
}

// leaveLink drops one connection's use of a link; the last one drops the link. Under the lock.
func (p *port) leaveLink(l *shmLink) {
	if l.conns--; l.conns > 0 {
		return
	}
	all := slices.DeleteFunc(slices.Clone(p.allLinks()), func(x *shmLink) bool { return x == l })
	p.links.all.Store(&all)
	if len(all) == 0 {
		p.links.all.Store(nil)
	}
	close(l.left)
	_ = l.wake.SetReadDeadline(time.Unix(1, 0)) // answerBell ends, and closes the files
}

// allLinks returns the port's links. Any goroutine.
func (p *port) allLinks() []*shmLink {
	if all := p.links.all.Load(); all != nil {
		return *all
	}
	return nil
}

// answerBell wakes the goroutine that sleeps for the port when the other side has sent something. It also closes
// the files: Close may wait for a read to end, which must not happen under the lock.
func (p *port) answerBell(l *shmLink) {
	b := make([]byte, 256)
	for {
		if _, err := l.wake.Read(b); err != nil {
			break
		}
		p.nic.Wake()
	}
	<-l.left // the other side may be gone earlier
	_ = l.wake.Close()
	_ = l.bell.Close()
}

var ringOnce = []byte{1}

// sendLink sends a frame through a link. If the frame is retained, its chunk stays allocated, else it is released
// at once. Under the lock.
func (p *port) sendLink(l *shmLink, addr uint64, size int, retain bool) bool {
	sent, bell := l.Send(p.mem[addr : addr+uint64(size)])
	if !sent {
		return false
	}
	if bell {
		// It does not wait. If there is no room, the other side has been rung already and has not looked yet.
		_ = unix.Send(l.ring, ringOnce, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if !retain {
		p.nic.Release(addr)
	}
	return true
}

// arrived reports whether frames have arrived, on the queue or on a link. Any goroutine.
func (p *port) arrived() bool {
	return p.nic.Ready() || p.links.all.Load() != nil && p.linkReady()
}

func (p *port) linkReady() bool {
	for _, l := range p.allLinks() {
		if l.Ready() {
			return true
		}
		runtime.KeepAlive(l)
	}
	return false
}

// pauseLinks announces on all links whether this side sleeps.
func (p *port) pauseLinks(on bool) {
	for _, l := range p.allLinks() {
		l.Sleep(on)
		runtime.KeepAlive(l)
	}
}
