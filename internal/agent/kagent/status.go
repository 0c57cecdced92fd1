package kagent

import (
	"net/netip"
	"slices"
	"time"

	"viaxdp/bpf"
)

// Status is the state of an agent: the holder of each queue, and the VIs on it. The daemon's
// status request and [LocalStatus] return it.
type Status struct {
	Daemon bool          `json:"daemon"` // false: the agent in a program's own process
	PID    int           `json:"pid"`    // of the agent
	Since  time.Time     `json:"since"`  // when the agent began
	NICs   []NICStatus   `json:"nics"`   // by interface name and index: a removed one may be beside a new one
	Served []string      `json:"served"` // interfaces that a daemon serves to the requesting user, by name; nil: all
	Users  []UserStatus  `json:"users,omitempty"`
	Counts DaemonCounter `json:"counts"` // zero in a program's own process
}

// Serves reports whether the agent opens an interface for the user that asked for the status.
func (s *Status) Serves(name string) bool {
	return s.Served == nil && name != "lo" || slices.Contains(s.Served, name)
}

// NICStatus is one interface that the agent has open.
type NICStatus struct {
	Interface string        `json:"interface"`
	Index     int           `json:"index"`
	Driver    string        `json:"driver"`
	Mode      string        `json:"mode"`   // how the program is attached; empty: not attached
	MTU       int           `json:"mtu"`    // bytes; 0 when the interface is gone
	Queues    int           `json:"queues"` // that a socket can be bound to
	Port      uint16        `json:"port"`
	VIs       int           `json:"vis"`      // numbers handed out
	MaxVIs    int           `json:"max_vis"`  // size of the VI table
	Counters  bpf.Counters  `json:"counters"` // of the demux program
	Connects  Counters      `json:"connects"` // of connection management
	Leases    []LeaseStatus `json:"leases"`   // by queue
}

// Counters counts messages of connection management from the network that had no effect.
type Counters struct {
	Malformed uint64 `json:"malformed"` // not a message of ours: version, lengths, fields that contradict each other, or damaged
	NoMatch   uint64 `json:"no_match"`  // requests to a discriminator on which no call waits
	Refused   uint64 `json:"refused"`   // requests for which there was no room, or that were evicted for a later one
	Forged    uint64 `json:"forged"`    // confirmations without the key of the Accept, or the proof of the pre-shared key
	Retries   uint64 `json:"retries"`   // requests answered by a cookie, from addresses that had not proven themselves
	Overrun   uint64 `json:"overrun"`   // datagrams that the kernel dropped because the socket was full
}

// LeaseStatus is one queue that is taken.
type LeaseStatus struct {
	Queue       int        `json:"queue"`
	ExtraQueues []int      `json:"extra_queues,omitempty"` // further queues that it receives from
	Slot        int        `json:"slot"`                   // in the map of sockets
	Mode        string     `json:"mode"`
	Since       time.Time  `json:"since"`
	Holder      Holder     `json:"holder"`
	Handles     int        `json:"handles"`      // NIC handles that share the queue
	PinnedBytes int        `json:"pinned_bytes"` // registered memory; of a queue that processes share, the first one's
	Processes   int        `json:"processes"`    // that share the queue; 0: no other process can have it
	Room        int        `json:"room"`         // for how many processes there is room
	VIs         []VIStatus `json:"vis"`          // by number
}

// Holder is the process that has a queue.
type Holder struct {
	PID  int    `json:"pid"`
	UID  uint32 `json:"uid"`
	Comm string `json:"comm"`
}

// VIStatus is one VI as the agent knows it.
type VIStatus struct {
	Num   uint32     `json:"num"`
	State string     `json:"state"` // "created" or "connected"
	Peer  netip.Addr `json:"peer"`  // zero unless connected
}

// UserStatus is a user's resources at a daemon, and their limits.
type UserStatus struct {
	UID         uint32 `json:"uid"`
	Sessions    int    `json:"sessions"`  // connections to the agent
	Processes   int    `json:"processes"` // that have a queue, or share one
	Queues      int    `json:"queues"`
	VIs         int    `json:"vis"`
	PinnedBytes int    `json:"pinned_bytes"`     // registered memory, rings of queues, shared-memory links
	MaxSessions int    `json:"max_sessions"`     // 0: no limit
	MaxProcs    int    `json:"max_processes"`    // 0: no limit
	MaxQueues   int    `json:"max_queues"`       // 0: no limit
	MaxVIs      int    `json:"max_vis"`          // 0: no limit
	MaxPinned   int    `json:"max_pinned_bytes"` // 0: no limit
}

// DaemonCounter counts events of a daemon since its start.
type DaemonCounter struct {
	Accepted uint64 `json:"accepted"` // connections of programs
	Refused  uint64 `json:"refused"`  // connections closed at once: too many
	Invalid  uint64 `json:"invalid"`  // connections ended for breaking the protocol
	Requests uint64 `json:"requests"` // requests of programs
	Failed   uint64 `json:"failed"`   // requests answered with an error
	Quota    uint64 `json:"quota"`    // requests refused by a quota
	Deaths   uint64 `json:"deaths"`   // programs that ended without closing their NIC
}

// States of a VI in a VIStatus.
const (
	VICreated   = "created"
	VIConnected = "connected"
)
