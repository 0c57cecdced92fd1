package kagent

import (
	"cmp"
	"fmt"

	"viaxdp/hugepages"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// DefaultArena is the size of the registered memory in bytes, the pool of
// chunks at its start included.
const DefaultArena = 64 << 20

// AnyQueue selects the first free queue.
const AnyQueue = -1

// Config selects the interface to open, and how. All fields but Interface may be zero.
type Config struct {
	Interface string // name in the network namespace of the calling thread
	Queue     int    // RX/TX queue, or AnyQueue
	// ShareQueue shares the lease of another Local of this process if no queue is free: both then return the
	// same Queue and Arena, and sizes and modes are those of the first.
	ShareQueue bool

	// Mode is the best data path to try, ModeAuto the fastest known for the
	// driver. With RequireMode, Open fails rather than take a lesser one.
	Mode        xdpnic.Mode
	RequireMode bool

	ArenaBytes int              // bytes of registered memory, all of it UMEM; 0: DefaultArena
	Hugepages  hugepages.Policy // whether it must, or must not, be on hugepages
	ChunkSize  int              // bytes; 0: by the MTU
	RxChunks   int              // 0: xdpnic.DefaultChunks
	TxChunks   int              // 0: xdpnic.DefaultChunks
	// SingleBuffer limits every frame to one chunk. Without it, if a frame of the MTU is longer than a chunk,
	// the queue receives and sends frames of several chunks (XDP multi-buffer), if kernel and driver support
	// it.
	SingleBuffer bool

	// Steer is how the NIC of an interface with several queues is made to put frames for Port on
	// the leased queue: by a rule of its classifier, by the indirection table of its hash, which
	// moves all traffic, or not at all. It is undone when the queue is given back.
	// With SteerAll the handle instead has a socket on each queue, and all are leased to it.
	Steer Steering

	// Sealed: every connection of the program has a pre-shared key. Such a program shares a queue only with others.
	Sealed bool

	MaxVIs int    // size of the VI table, one table for an interface; 0: DefaultMaxVIs
	Port   uint16 // UDP port; 0: wire.Port. Peers must use the same.
}

// Steering is how Config.Steer may change the NIC.
type Steering = steer.How

// AutoQueues is the number of queues up to which a handle receives from all of them without being told to.
const AutoQueues = 4

// The values. SteerByRules is the default. If the NIC has no rules, and the interface at most AutoQueues queues, which are all
// free, it is SteerAll; on a veth only through an agent whose other programs may share the queues.
const (
	SteerByRules = steer.Rules // a rule of the flow classifier, for the one port
	SteerByRSS   = steer.RSS   // where there are no rules, the hash's indirection table, for all traffic
	SteerOff     = steer.Off   // nothing is changed
	SteerAll     = steer.All   // nothing is changed; the handle receives from all queues of the interface
)

// ParseSteering reads the names "rules", "rss", "off" and "all".
func ParseSteering(s string) (Steering, error) { return steer.Parse(s) }

func (c Config) WithDefaults() (Config, error) {
	c.ArenaBytes, c.MaxVIs, c.Port = cmp.Or(c.ArenaBytes, DefaultArena), cmp.Or(c.MaxVIs, DefaultMaxVIs), cmp.Or(c.Port, wire.Port)
	var err error
	switch {
	case c.Interface == "":
		err = fmt.Errorf("no interface is named")
	case c.Queue < AnyQueue:
		err = fmt.Errorf("queue %d: want a number from 0, or AnyQueue", c.Queue)
	case c.MaxVIs < 2 || c.MaxVIs > 1<<16:
		err = fmt.Errorf("MaxVIs is %d, want 2 to %d", c.MaxVIs, 1<<16)
	case c.Mode > xdpnic.ModeGeneric:
		err = fmt.Errorf("no data path is %v", c.Mode)
	case c.ArenaBytes < 0:
		err = fmt.Errorf("an arena of %d bytes", c.ArenaBytes)
	}
	if err != nil {
		return c, &OpError{Op: "open", Link: c.Interface, Err: err}
	}
	return c, nil
}

// mostBytes is more than an address space, and sums of it do not overflow.
const mostBytes = 1 << 47

// PinnedBytes returns the memory that a queue opened with c would take, as Info.PinnedBytes
// reports it after Open. It counts only the arena if Open would refuse the chunks.
func (c Config) PinnedBytes() int {
	arena := hugepages.Config{Size: min(c.ArenaBytes, mostBytes), Policy: c.Hugepages}.MappedBytes()
	// The rings do not depend on the chunk size; without one, the interface would be queried.
	nic, err := xdpnic.Config{ChunkSize: xdpnic.MaxChunk, RxChunks: c.RxChunks, TxChunks: c.TxChunks}.WithDefaults()
	if err != nil {
		return arena
	}
	return arena + nic.Rings.Bytes()
}

// PinnedBytes returns the memory that the queue takes as long as its socket exists: the arena, and the
// kernel's rings.
func (i *Info) PinnedBytes() int { return i.Arena.Size + i.NIC.RingBytes() }

// Info is what Open got. It does not change.
type Info struct {
	Interface string
	Index     int
	Driver    string // name of the interface's driver, or empty
	Bus       string // bus address of the NIC; empty for virtual ones
	Queue     int
	Queues    int // queues that AF_XDP sockets can be bound to
	MTU       int // bytes, when opened

	Mode     xdpnic.Mode      // reached
	Attempts []xdpnic.Attempt // each mode that was tried, with the error of those refused
	Notes    []string         // what the user of this interface should know
	Steered  string           // how frames come to the handle: steered by "rules" or "rss", by a socket on "all" queues, or "" if nothing was done

	NIC    xdpnic.Info
	Arena  hugepages.Info
	MaxVIs int
	Port   uint16
	// PortOffset is what is added to Port in frames to the handle: a port of its own, if the NIC steers it to the queue.
	PortOffset uint8
	// Agent is the socket of the daemon; empty: the agent in this process.
	Agent string
}
