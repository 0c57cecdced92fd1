// Package provider is what a NIC handle of package vipl stands on: a queue, connection
// management and memory. vipl.OpenNIC makes one over AF_XDP. Tests and tools of this
// module make others, in memory or around a queue that they watch.
package provider

import (
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/secure"
	"viaxdp/xdpnic"
)

// Port is the queue of a NIC as package vipl drives it. xdpnic.Queue is one over AF_XDP,
// xdpnictest.Queue one in memory. Calls come one at a time, except for Ready, Wait and Wake.
type Port interface {
	// Alloc takes a chunk for a frame to send, Release gives it back; a
	// chunk that the kernel still has returns by itself on completion.
	Alloc() (addr uint64, buf []byte, ok bool)
	Release(addr uint64)
	TxFree() int
	// Send queues n bytes of a chunk as a frame; retain keeps the chunk ours
	// after completion. Flush hands queued frames to the kernel.
	Send(addr uint64, n int, retain bool) bool
	// SendSegs queues a frame of several segments, at most MaxSegs, each within a
	// chunk or within as much of the program's memory in the UMEM.
	SendSegs(segs []xdpnic.Desc, retain bool) bool
	MaxSegs() int
	InFlight(addr uint64) bool
	// Reading reports whether memory of the program in the frame that begins at addr may
	// still be read. Cancel takes it out of the frame and reports whether it is not read any
	// more; a later Cancel may do so after one that did not.
	Reading(addr uint64) bool
	Cancel(addr uint64) bool
	Pending() int
	Flush() error
	Reap() int
	// Receive leases arrived frames, Recycle ends a lease, Refill makes
	// recycled chunks available for new frames.
	Receive(frames []xdpnic.Frame) int
	Recycle(addr uint64)
	Refill()
	// Ready reports whether frames have arrived; Wait sleeps until then, until
	// Wake, or until the time is over (negative: no limit).
	Ready() bool
	Wait(timeout time.Duration) error
	Wake()
	// FrameCap is the largest frame in one chunk, sent and received, and
	// RxChunks the number of chunks for frames that arrive.
	FrameCap() (tx, rx int)
	RxChunks() int
}

// Provider is what OpenNIC takes. It belongs to the handle then.
type Provider struct {
	Port  Port
	GSO   GSO // of the same interface; nil: none
	Agent kagent.Agent
	Arena *hugepages.Arena
	UMEM  []byte      // memory of the Port's frames, if the arena is not in it; nil: the arena's
	Info  kagent.Info // for people; may be zero

	// Rekey limits the frames and bytes that a connection with a pre-shared key seals
	// with one key; zero: the defaults.
	Rekey secure.Limits

	// Virtual, unless nil, makes the engine's time that of a simulation.
	Virtual *Virtual
}

// Virtual is the time of a simulation. The engine reads it from Now, and has no goroutine of its own: it does what
// is due with time only in Progress. OpenNIC sets the other two functions.
type Virtual struct {
	Now      func() int64 // ns; positive, and the same until the simulation goes on
	Progress func()       // takes what has arrived and does what is due
	Due      func() int64 // the time at which Progress must be called next; math.MaxInt64: time alone requires nothing
}

// Open makes a *vipl.NIC over p; opts are of type vipl.Option. Package vipl sets it.
var Open func(p Provider, opts ...any) (any, error)

// OpenNIC is Open for N, which is *vipl.NIC: a type that this package cannot name. Handles
// with the same Port share it. Errors are those of vipl.OpenNIC.
func OpenNIC[N any](p Provider, opts ...any) (nic N, err error) {
	n, err := Open(p, opts...)
	if err != nil {
		return nic, err
	}
	return n.(N), nil
}
