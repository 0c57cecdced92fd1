package bpf

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

//go:generate ./generate.sh

const (
	// DefaultPort is the UDP port of connection management and of data frames. Data
	// frames may also go to one of the 63 ports after it (wire.Ports).
	DefaultPort = 4793
	// DefaultMaxVIs is the size of the VI table.
	DefaultMaxVIs = 32768
	// DefaultMaxSockets is the number of slots.
	DefaultMaxSockets = 256

	// indexBits is the number of low bits of a VI number that are the index in
	// the table. The other bits are the generation.
	indexBits = 16
	indexMask = 1<<indexBits - 1
)

// Config configures a demux program. The zero value is valid.
type Config struct {
	Port       uint16 // UDP destination port, the first of 64; 0: DefaultPort
	MaxVIs     int    // entries of the VI table, 40 bytes each, at most 65536; 0: DefaultMaxVIs
	MaxSockets int    // slots; 0: DefaultMaxSockets
	// SingleBuffer loads the program without BPF_F_XDP_HAS_FRAGS. In generic
	// mode the kernel then makes headroom in place instead of copying the frame
	// to a page of its pool (skb_cow_data_for_xdp in net/core/skbuff.c). That
	// saves 0.2 us per short frame. Frames of several fragments, kernel TCP's
	// included, are linearized first. In native mode it limits the MTU to about
	// a page.
	SingleBuffer bool
}

func (c *Config) setDefaults() error {
	c.Port, c.MaxVIs = cmp.Or(c.Port, DefaultPort), cmp.Or(c.MaxVIs, DefaultMaxVIs)
	c.MaxSockets = cmp.Or(c.MaxSockets, DefaultMaxSockets)
	if c.MaxVIs < 1 || c.MaxVIs > 1<<indexBits {
		return fmt.Errorf("bpf: MaxVIs is %d, want 1 to %d", c.MaxVIs, 1<<indexBits)
	}
	return checkSlots("MaxSockets", c.MaxSockets)
}

// Demux is a loaded demux program with its maps and, once attached, its link to
// the interface. The fields Sockets and Queues are the maps of the slots; Program
// is exported for test runs. Do not use them while Close may run.
type Demux struct {
	socketProgram
	vis      viTable
	counters *ebpf.Map
}

// loadDescriptors is how many descriptors must be free when a program is loaded. That takes fewer, those that are kept included.
// The ebpf library learns some things about the machine once, such as the number of CPUs, and also keeps an error. So a
// process without descriptors at its first program could never load one. It takes others of these errors for a kernel that is
// too old.
const loadDescriptors = 12

// adoptDescriptors is the same for a program that is taken over.
const adoptDescriptors = 1

// LoadDemux loads the program and creates its maps. It attaches nothing. Errors
// of the kernel are of type [*Error] and name what is missing.
func LoadDemux(cfg Config) (*Demux, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	const op = "load the demux program"
	if err := fds.Need(loadDescriptors); err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	spec, err := loadDemux()
	if err != nil {
		return nil, fmt.Errorf("bpf: embedded object: %w", err)
	}
	if err := spec.Variables[demuxVarUdpPort].Set(cfg.Port); err != nil {
		return nil, fmt.Errorf("bpf: embedded object: %s: %w", demuxVarUdpPort, err)
	}
	if cfg.SingleBuffer {
		spec.Programs[demuxProgViaDemux].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
	}
	spec.Maps[demuxMapVis].MaxEntries = uint32(cfg.MaxVIs)
	spec.Maps[demuxMapSockets].MaxEntries = uint32(cfg.MaxSockets)
	spec.Maps[demuxMapQueues].MaxEntries = uint32(cfg.MaxSockets)
	// The kernel refuses types of an XSKMAP (map_check_btf, kernel/bpf/syscall.c), but only after it has made the map. It then
	// frees that, which takes a grace period of about 10 ms, and the library tries again without types.
	spec.Maps[demuxMapSockets].Key, spec.Maps[demuxMapSockets].Value = nil, nil

	var o struct {
		demuxPrograms
		demuxMaps
	}
	if err := spec.LoadAndAssign(&o, nil); err != nil {
		return nil, loadError(op, err)
	}
	d := &Demux{counters: o.Counters}
	d.Program, d.Queues, d.Sockets = o.ViaDemux, o.Queues, o.Sockets
	if d.vis, err = openVITable(o.Vis); err != nil {
		return nil, errors.Join(&Error{Op: "map the VI table", Err: err}, o.Vis.Close(), d.Close())
	}
	return d, nil
}

// EnterVI enters a VI in the table and replaces an entry with the same index.
// From then on the VI's frames go to the socket in the slot. It fails if the
// number is 0, its index is outside the table, or the slot or the address is
// invalid, and with [os.ErrClosed] after Close.
func (d *Demux) EnterVI(num uint32, e VIEntry) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	if max := d.Sockets.MaxEntries(); uint64(e.Slot)+uint64(e.Queues) > uint64(max) || e.Slot >= max {
		return fmt.Errorf("bpf: slot %d of VI %#x, for %d queues, is out of range: there are %d", e.Slot, num, e.Queues, max)
	}
	return d.vis.enter(num, e)
}

// RemoveVI removes a VI from the table. A frame that the program is processing at
// this moment may still reach the socket, whose owner checks number and key
// again. It fails with [ErrNoVI] if the VI is not in the table, also if its index
// now belongs to another generation, and with [os.ErrClosed] after Close.
func (d *Demux) RemoveVI(num uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	return d.vis.remove(num)
}

// Close removes the VI entries, the sockets and the link, in this order, and then
// closes the program and the maps. A second Close does nothing.
func (d *Demux) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.vis.clear()
	return errors.Join(d.close(), d.vis.close(), d.counters.Close())
}

// Counters counts the frames on our UDP port since the program was loaded by
// their outcome, summed over the CPUs. The program drops all but those of
// Redirected and Control. Of frames to the 63 ports after it, only those of a VI
// here are counted, in Redirected, Queue and NoSocket. All others pass.
type Counters struct {
	Redirected uint64 `json:"redirected"` // given to a socket, which may still drop it: full ring, or socket of another queue
	Control    uint64 `json:"control"`    // connection management, passed to the kernel's UDP socket
	Short      uint64 `json:"short"`      // frame ends before the end of our header
	Version    uint64 `json:"version"`    // another version of the frame format
	NoVI       uint64 `json:"no_vi"`      // no such VI, or an earlier one with the same index
	Key        uint64 `json:"key"`        // not the VI's key
	Source     uint64 `json:"source"`     // not from the VI's peer
	Queue      uint64 `json:"queue"`      // arrived on a queue other than the socket's: steering is wrong
	NoSocket   uint64 `json:"no_socket"`  // the VI's slot is empty
}

// causes maps each of the program's counters to its name and field.
var causes = [demuxCauseCAUSE_COUNT]struct {
	name  string
	field func(*Counters) *uint64
}{
	demuxCauseCAUSE_REDIRECTED: {"redirected", func(c *Counters) *uint64 { return &c.Redirected }},
	demuxCauseCAUSE_CONTROL:    {"control", func(c *Counters) *uint64 { return &c.Control }},
	demuxCauseCAUSE_SHORT:      {"short", func(c *Counters) *uint64 { return &c.Short }},
	demuxCauseCAUSE_VERSION:    {"version", func(c *Counters) *uint64 { return &c.Version }},
	demuxCauseCAUSE_NO_VI:      {"no_vi", func(c *Counters) *uint64 { return &c.NoVI }},
	demuxCauseCAUSE_KEY:        {"key", func(c *Counters) *uint64 { return &c.Key }},
	demuxCauseCAUSE_SOURCE:     {"source", func(c *Counters) *uint64 { return &c.Source }},
	demuxCauseCAUSE_QUEUE:      {"queue", func(c *Counters) *uint64 { return &c.Queue }},
	demuxCauseCAUSE_NO_SOCKET:  {"no_socket", func(c *Counters) *uint64 { return &c.NoSocket }},
}

// Each calls f for every counter, always in the same order, with the name that
// JSON and metrics use.
func (c Counters) Each(f func(name string, v uint64)) {
	for _, cause := range causes {
		f(cause.name, *cause.field(&c))
	}
}

// Counters reads the counters. The values are not a snapshot: frames that arrive
// meanwhile may be counted in one and not yet in another.
func (d *Demux) Counters() (Counters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return Counters{}, errClosed
	}
	var c Counters
	var perCPU []uint64
	for key, cause := range causes {
		if err := d.counters.Lookup(uint32(key), &perCPU); err != nil {
			return Counters{}, fmt.Errorf("bpf: counter %s: %w", cause.name, err)
		}
		for _, n := range perCPU {
			*cause.field(&c) += n
		}
	}
	return c, nil
}
