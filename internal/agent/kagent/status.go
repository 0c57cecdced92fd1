package kagent

import (
	"cmp"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/base/termsafe"
)

// Status is what an agent knows: who holds which queue, and the VIs on it. It
// is the answer to the daemon's request of that name, and of [LocalStatus].
type Status struct {
	Daemon bool          `json:"daemon"` // false: the agent in a program's own process
	PID    int           `json:"pid"`    // of the agent
	Since  time.Time     `json:"since"`  // when the agent began
	NICs   []NICStatus   `json:"nics"`   // by name of the interface, and index: one that is gone may be beside the new one
	Served []string      `json:"served"` // interfaces that a daemon serves to who asks, by name; nil: all
	Users  []UserStatus  `json:"users,omitempty"`
	Counts DaemonCounter `json:"counts"` // zero in a program's own process
}

// Serves tells whether the agent opens an interface for who has asked for its status.
func (s *Status) Serves(name string) bool {
	return s.Served == nil && name != "lo" || slices.Contains(s.Served, name)
}

// NICStatus is one interface that the agent has open.
type NICStatus struct {
	Interface string        `json:"interface"`
	Index     int           `json:"index"`
	Driver    string        `json:"driver"`
	Mode      string        `json:"mode"`   // how the program is attached; empty: it is not
	MTU       int           `json:"mtu"`    // bytes; 0 when the interface is gone
	Queues    int           `json:"queues"` // that a socket can be bound to
	Port      uint16        `json:"port"`
	VIs       int           `json:"vis"`      // numbers handed out
	MaxVIs    int           `json:"max_vis"`  // numbers that there are
	Counters  bpf.Counters  `json:"counters"` // of the demux program
	Connects  Counters      `json:"connects"` // of connection management
	Leases    []LeaseStatus `json:"leases"`   // by queue
}

// LeaseStatus is one queue that is taken.
type LeaseStatus struct {
	Queue       int        `json:"queue"`
	Slot        int        `json:"slot"` // in the map of sockets
	Mode        string     `json:"mode"`
	Since       time.Time  `json:"since"`
	Holder      Holder     `json:"holder"`
	Handles     int        `json:"handles"`      // NIC handles that share the queue
	PinnedBytes int        `json:"pinned_bytes"` // registered memory
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

// UserStatus is what a user has of a daemon, and may have.
type UserStatus struct {
	UID         uint32 `json:"uid"`
	Sessions    int    `json:"sessions"` // connections to the agent
	Queues      int    `json:"queues"`
	VIs         int    `json:"vis"`
	PinnedBytes int    `json:"pinned_bytes"`     // registered memory, rings of queues, shared-memory links
	MaxSessions int    `json:"max_sessions"`     // 0: no limit
	MaxQueues   int    `json:"max_queues"`       // 0: no limit
	MaxVIs      int    `json:"max_vis"`          // 0: no limit
	MaxPinned   int    `json:"max_pinned_bytes"` // 0: no limit
}

// DaemonCounter counts what a daemon has done since it began.
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

// started is when this process began to be an agent.
var started = time.Now()

// LocalStatus tells what this process has open by itself, without a daemon. It
// takes locks of the control path only.
func LocalStatus() Status {
	return Status{PID: os.Getpid(), Since: started, NICs: nicStatus()}
}

func nicStatus() []NICStatus {
	registry.mu.Lock()
	devices := make([]*device, 0, len(registry.devices))
	for _, d := range registry.devices {
		devices = append(devices, d)
	}
	registry.mu.Unlock()
	nics := []NICStatus{}
	for _, d := range devices {
		if s, ok := d.status(); ok {
			nics = append(nics, s)
		}
	}
	slices.SortFunc(nics, func(a, b NICStatus) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Port, b.Port))
	})
	return nics
}

// status describes a device that is up.
func (d *device) status() (NICStatus, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.up {
		return NICStatus{}, false
	}
	s := NICStatus{
		Interface: d.router.name, Index: d.key.index, Driver: d.driver, Queues: d.queues, Port: d.key.port,
		VIs: d.numbers.Used(), MaxVIs: d.maxVIs - 1, Leases: []LeaseStatus{},
	}
	if d.attached && d.demux.Attached() {
		s.Mode = d.mode.String()
	}
	if link, err := d.router.link(); err == nil {
		s.MTU = link.MTU
	}
	// Counters that cannot be read are zero.
	s.Counters, _ = d.demux.Counters()
	s.Connects = d.manager.Counters()
	for _, l := range d.sortedLeases() {
		s.Leases = append(s.Leases, l.status())
	}
	return s, true
}

// status describes a lease. Caller holds d.mu.
func (l *lease) status() LeaseStatus {
	s := LeaseStatus{
		Queue: l.queueID, Slot: l.slot, Mode: l.info.Mode.String(), Since: l.since, Holder: l.holder,
		Handles: l.refs, PinnedBytes: l.info.Arena.Size, VIs: l.vis.list(),
	}
	if s.Holder == (Holder{}) {
		s.Holder = self()
	}
	return s
}

// self is this process as a holder.
func self() Holder {
	return Holder{PID: os.Getpid(), UID: uint32(unix.Getuid()), Comm: termsafe.Name(os.Getpid())}
}
