package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

var errClosed = fmt.Errorf("bpf: program: %w", os.ErrClosed)

// socketProgram is the common part of Demux and Redirect: a program that
// redirects to AF_XDP sockets, the socket maps, and the link to an interface.
type socketProgram struct {
	Program *ebpf.Program // for test runs
	Sockets *ebpf.Map     // XSKMAP: the socket in each slot
	// Queues is the readable mirror of Sockets, which user space can only write.
	// It has a key for each slot in use. It is a hash because entries of an array
	// cannot be deleted.
	Queues *ebpf.Map

	mu     sync.Mutex // guards the fields below, and those above against close
	closed bool
	link   link.Link // nil if not attached; the reference keeps the link from being collected, which detaches
	where  int       // interface index of link
}

// maxSlots bounds the size of a map. Only a mistake exceeds it.
const maxSlots = 1 << 20

func checkSlots(name string, n int) error {
	if n < 1 || n > maxSlots {
		return fmt.Errorf("bpf: %s is %d, want 1 to %d", name, n, maxSlots)
	}
	return nil
}

// Register puts an AF_XDP socket into a slot and replaces the socket that is
// there. The kernel empties the slot when the socket is released.
func (p *socketProgram) Register(slot, fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(slot); err != nil {
		return err
	}
	if fd < 0 {
		return fmt.Errorf("bpf: slot %d: file descriptor %d", slot, fd)
	}
	if err := p.put(uint32(slot), uint32(fd)); err != nil {
		return fmt.Errorf("bpf: slot %d: file descriptor %d (an AF_XDP socket?): %w", slot, fd, err)
	}
	return nil
}

// Unregister empties a slot. If it is empty, the error matches
// [ebpf.ErrKeyNotExist].
func (p *socketProgram) Unregister(slot int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(slot); err != nil {
		return err
	}
	if err := p.delete(uint32(slot)); err != nil {
		return fmt.Errorf("bpf: slot %d: %w", slot, err)
	}
	return nil
}

// put enters the socket first, so that Queues does not name a slot whose
// descriptor the kernel has refused.
func (p *socketProgram) put(slot, fd uint32) error {
	if err := p.Sockets.Put(slot, fd); err != nil {
		return err
	}
	if err := p.Queues.Put(slot, uint32(1)); err != nil {
		return errors.Join(err, p.Sockets.Delete(slot))
	}
	return nil
}

// delete removes the key in Queues first: if that fails, nothing has changed.
func (p *socketProgram) delete(slot uint32) error {
	if err := p.Queues.Delete(slot); err != nil {
		return err
	}
	// The kernel has already emptied the slot of a released socket.
	if err := p.Sockets.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (p *socketProgram) check(slot int) error {
	if p.closed {
		return errClosed
	}
	if max := p.Sockets.MaxEntries(); slot < 0 || slot >= int(max) {
		return fmt.Errorf("bpf: slot %d is out of range: there are %d", slot, max)
	}
	return nil
}

// Attach attaches the program to an interface of the calling thread's network
// namespace. It never replaces another program, but returns a [*BusyError]. Other
// errors of the kernel are an [*Error] with a remedy. A program is attached to
// one interface at a time.
func (p *socketProgram) Attach(ifindex int, mode Mode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if p.link != nil {
		return fmt.Errorf("bpf: already attached to interface %d: detach first", p.where)
	}
	l, err := attach(p.Program, ifindex, mode)
	if err != nil {
		return err
	}
	p.link, p.where = l, ifindex
	return nil
}

// Attached reports whether the program is attached to an interface. Another
// process may have detached it ("bpftool link detach"), or the interface may have
// been removed.
func (p *socketProgram) Attached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return false
	}
	info, err := p.link.Info()
	if err != nil {
		return true // assume that it is attached
	}
	x := info.XDP()
	return x == nil || x.Ifindex != 0
}

// Detach detaches the program from its interface. Maps and entries stay. If it is
// not attached, Detach does nothing.
func (p *socketProgram) Detach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.detach()
}

func (p *socketProgram) detach() error {
	if p.link == nil {
		return nil
	}
	// Closing the descriptor alone would not detach while another copy of it
	// exists, in a child between fork and exec for instance.
	err := errors.Join(p.link.Detach(), p.link.Close())
	p.link = nil
	if err != nil {
		return &Error{Op: fmt.Sprintf("detach from interface %d", p.where), Err: err}
	}
	return nil
}

// Close removes the sockets and the link and closes the program and the maps. A
// second Close does nothing.
func (p *socketProgram) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	return p.close()
}

func (p *socketProgram) close() error {
	p.closed = true
	var errs []error
	for _, slot := range p.slots() {
		errs = append(errs, p.delete(slot))
	}
	return errors.Join(append(errs, p.detach(), p.Sockets.Close(), p.Queues.Close(), p.Program.Close())...)
}

// slots lists the slots in use.
func (p *socketProgram) slots() []uint32 {
	var slots []uint32
	var slot, one uint32
	for it := p.Queues.Iterate(); it.Next(&slot, &one); {
		slots = append(slots, slot)
	}
	return slots
}
