package vipl

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"viaxdp/xdpnic"
)

// ProgramStatus is what a program with open NICs reports about itself, for display: `via-xdp res`, `stat` and `top`
// show it.
type ProgramStatus struct {
	Time time.Time   `json:"time"` // when it was taken
	Nics []NICStatus `json:"nics"`
}

// NICStatus is the status of a NIC handle. Counters, Socket and Demux are of the queue, which handles may share;
// everything else is the handle's own.
type NICStatus struct {
	ID        uint32 `json:"id"` // number of the queue in this process
	Interface string `json:"interface"`
	Index     int    `json:"index"`
	Queue     int    `json:"queue"`
	Port      uint16 `json:"port"` // UDP port of frames to the queue
	Mode      string `json:"mode"`
	Handles   int    `json:"handles"` // handles that share the queue
	// NoGSO is why long messages leave frame by frame to every peer; empty: they leave in GSO packets to peers that take
	// them.
	NoGSO string `json:"no_gso,omitempty"`
	// NoHeadroom is why a receiver in generic mode copies each GSO packet once more; empty: it need not.
	NoHeadroom string   `json:"no_headroom,omitempty"`
	Counters   Counters `json:"counters"`
	// Socket and Demux are counters by name, of the AF_XDP socket and of the demux program; see docs/counters.md.
	// nil: they cannot be read.
	Socket map[string]uint64 `json:"socket,omitempty"`
	Demux  map[string]uint64 `json:"demux,omitempty"`

	VIs   []VIStatus `json:"vis"` // by number
	CQs   []CQStatus `json:"cqs"`
	Mem   MemStatus  `json:"mem"`
	Ptags int        `json:"ptags"`

	// Process is the number of this process among those that share the queue, from 0, and Processes for how many there is
	// room; 0: no other process may have the queue.
	Process   int `json:"process"`
	Processes int `json:"processes"`
	// ExtraQueues are further queues from which the handle receives.
	ExtraQueues []int `json:"extra_queues,omitempty"`
}

// VIStatus is the status of a VI.
type VIStatus struct {
	Number uint32     `json:"number"`
	State  string     `json:"state"`
	Level  string     `json:"level"`
	Peer   netip.Addr `json:"peer,omitzero"`
	PeerVI uint32     `json:"peer_vi,omitempty"`
	Cause  string     `json:"cause,omitempty"` // why it is in Error

	SendPosted uint64 `json:"send_posted"` // descriptors not complete
	RecvPosted uint64 `json:"recv_posted"`
	SendDone   uint64 `json:"send_done"` // descriptors completed since the VI was created
	RecvDone   uint64 `json:"recv_done"`
	SendUnread uint64 `json:"send_unread"` // completed and not dequeued
	RecvUnread uint64 `json:"recv_unread"`

	InFlight int    `json:"in_flight"` // frames not acknowledged; 0 on an unreliable VI, as are the fields below
	Sent     uint64 `json:"sent"`      // frames of this connection
	Resent   uint64 `json:"resent"`
	Timeouts uint64 `json:"timeouts"`
	Held     int    `json:"held"` // frames out of order that wait
}

// CQStatus is the status of a completion queue.
type CQStatus struct {
	Size    int    `json:"size"`    // entries that it has room for
	Waiting uint64 `json:"waiting"` // entries not dequeued
	Bound   int    `json:"bound"`   // work queues
}

// MemStatus is the status of a NIC handle's registered memory.
type MemStatus struct {
	Regions int    `json:"regions"`
	Bytes   uint64 `json:"bytes"`
	Arena   int    `json:"arena"` // bytes of the NIC's arena, chunks of frames included
	Pages   string `json:"pages"` // kind of pages of the arena
}

// Status returns the handle's current status. It takes the port's lock for some microseconds, like a poll that
// finds frames. It may be called concurrently.
func (n *NIC) Status() NICStatus {
	s := NICStatus{
		ID: n.port.id, Interface: n.info.Interface, Index: n.info.Index, Queue: n.info.Queue, Port: n.info.Port + uint16(n.info.PortOffset),
		Mode: n.info.Mode.String(),
		VIs:  []VIStatus{}, CQs: []CQStatus{}, ExtraQueues: n.info.NIC.ExtraQueues,
	}
	if sharing := n.info.NIC.Sharing; sharing.Guests > 0 {
		s.Process, s.Processes = sharing.Partition, 1+sharing.Guests
	}
	mem := n.mem.Stats()
	s.Ptags = mem.Ptags
	s.Mem = MemStatus{
		Regions: mem.Regions, Bytes: mem.Bytes, Arena: n.info.Arena.Size, Pages: n.info.Arena.Kind.String(),
	}
	if a, ok := n.agent.(interface {
		EachCounter(func(name string, v uint64)) error
	}); ok {
		demux := map[string]uint64{}
		if a.EachCounter(func(name string, v uint64) { demux[name] = v }) == nil {
			s.Demux = demux
		}
	}
	ports.Lock()
	if shared := ports.open[n.port.nic]; shared != nil {
		s.Handles = shared.handles
	}
	ports.Unlock()

	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Counters = p.stats
	if s.NoGSO = p.gso.none(); s.NoGSO == "" {
		s.NoHeadroom = p.gso.out.NoHeadroom()
	}
	if q, ok := p.nic.(interface{ Stats() (xdpnic.Stats, error) }); ok {
		if stats, err := q.Stats(); err == nil {
			s.Socket = map[string]uint64{}
			stats.Each(func(c xdpnic.Counter) { s.Socket[c.Name] = c.Value })
		}
	}
	for v := range n.vis {
		s.VIs = append(s.VIs, v.status())
	}
	slices.SortFunc(s.VIs, func(a, b VIStatus) int { return cmp.Compare(a.Number, b.Number) })
	for c := range n.cqs {
		s.CQs = append(s.CQs, CQStatus{Size: len(c.ring), Waiting: c.waiting.Load(), Bound: c.bound})
	}
	slices.SortFunc(s.CQs, func(a, b CQStatus) int { return cmp.Or(b.Bound-a.Bound, b.Size-a.Size) })
	return s
}

// status returns the VI's status. Under the port's lock.
func (v *VI) status() VIStatus {
	s := VIStatus{Number: v.num, State: v.state.String(), Level: v.attrs.Level.String()}
	if v.cause != nil {
		s.Cause = fmt.Sprint(v.cause)
	}
	s.SendPosted, s.SendDone, s.SendUnread = v.send.counts()
	s.RecvPosted, s.RecvDone, s.RecvUnread = v.recv.counts()
	c := v.conn
	if c == nil {
		return s
	}
	s.Peer, s.PeerVI = c.peer.Addr(), c.header.VI
	if c.sender != nil {
		stats := c.sender.Stats()
		s.InFlight, s.Sent, s.Resent, s.Timeouts = c.sender.Outstanding(), stats.Sent, stats.Resent, stats.Timeouts
		s.Held = c.receiver.Buffered()
	}
	return s
}

// counts returns the numbers of descriptors that are not complete, that are complete, and that are complete but not
// dequeued. Under the port's lock.
func (q *workQueue) counts() (posted, done, unread uint64) {
	done = q.completed.Load()
	return q.tail.Load() - done, done, done - q.dequeued.Load()
}
