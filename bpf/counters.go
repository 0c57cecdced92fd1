package bpf

import "fmt"

// Counters counts the frames on our UDP port since the program was loaded by
// their outcome, summed over the CPUs. The program drops all but those of
// Redirected and Control. Frames to other ports are not counted.
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
