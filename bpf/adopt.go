package bpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// Descriptors are the file descriptors of a Demux's kernel objects. Copies of
// them in another process keep the program, the maps and the attachment alive
// when the process that made them dies. AdoptDemux makes a Demux of them.
type Descriptors struct {
	Program, VIs, Sockets, Queues, Counters int
	Link                                    int // -1: not attached
}

// List returns the descriptors in the order of the fields, without a missing
// link.
func (d Descriptors) List() []int {
	all := []int{d.Program, d.VIs, d.Sockets, d.Queues, d.Counters}
	if d.Link >= 0 {
		all = append(all, d.Link)
	}
	return all
}

// DescriptorsOf is List's inverse: five descriptors, or six with a link.
func DescriptorsOf(fds []int) (Descriptors, error) {
	if len(fds) != 5 && len(fds) != 6 {
		return Descriptors{}, fmt.Errorf("bpf: %d descriptors for a demux program, want 5 or 6", len(fds))
	}
	d := Descriptors{fds[0], fds[1], fds[2], fds[3], fds[4], -1}
	if len(fds) == 6 {
		d.Link = fds[5]
	}
	return d, nil
}

// Descriptors returns the Demux's own descriptors, valid until Attach, Detach or
// Close. The caller may duplicate or send them but must not close them. ok is
// false after Close, and for a link without a descriptor.
func (d *Demux) Descriptors() (fds Descriptors, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fds, false
	}
	fds = Descriptors{
		Program: d.Program.FD(), VIs: d.vis.m.FD(), Sockets: d.Sockets.FD(),
		Queues: d.Queues.FD(), Counters: d.counters.FD(), Link: -1,
	}
	if d.link != nil {
		l, ok := d.link.(interface{ FD() int })
		if !ok {
			return fds, false
		}
		fds.Link = l.FD()
	}
	return fds, true
}

// AdoptDemux makes a Demux of a program that another process loaded and, if there
// is a link, attached to the interface. It takes ownership of the descriptors; if
// it fails it closes them.
func AdoptDemux(objects Descriptors, ifindex int) (_ *Demux, err error) {
	rest := objects.List()
	var made []io.Closer
	defer func() {
		if err != nil {
			err = &Error{Op: "take over the demux program", Err: err}
			for _, fd := range rest {
				_ = unix.Close(fd)
			}
			for _, c := range made {
				_ = c.Close()
			}
		}
	}()
	if err := fds.Need(adoptDescriptors); err != nil {
		return nil, err
	}
	next := func() int { // a constructor owns the descriptor even if it fails
		fd := rest[0]
		rest = rest[1:]
		return fd
	}
	program, err := ebpf.NewProgramFromFD(next())
	if err != nil {
		return nil, err
	}
	made = append(made, program)
	var maps [4]*ebpf.Map
	for i := range maps {
		if maps[i], err = ebpf.NewMapFromFD(next()); err != nil {
			return nil, err
		}
		made = append(made, maps[i])
	}
	d := &Demux{counters: maps[3]}
	d.Program, d.Queues, d.Sockets = program, maps[2], maps[1]
	for i, want := range []ebpf.MapType{ebpf.Array, ebpf.XSKMap, ebpf.Hash, ebpf.PerCPUArray} {
		if maps[i].Type() != want {
			return nil, fmt.Errorf("a map is of type %v, want %v", maps[i].Type(), want)
		}
	}
	if len(rest) > 0 {
		if d.link, err = link.NewFromFD(next()); err != nil {
			return nil, err
		}
		made = append(made, d.link)
		d.where = ifindex
	}
	d.vis, err = openVITable(maps[0])
	return d, err
}

// Slots lists the slots that are in use, according to the readable mirror of the
// socket map. The sockets themselves may be closed.
func (d *Demux) Slots() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	var slots []int
	for _, s := range d.slots() {
		slots = append(slots, int(s))
	}
	return slots
}

// Evict empties a slot. It does not fail if the slot is empty already.
func (d *Demux) Evict(slot int) error {
	if err := d.Unregister(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// EachVI calls f for every VI in the table.
func (d *Demux) EachVI(f func(num uint32, e VIEntry)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.vis.each(f)
	}
}
