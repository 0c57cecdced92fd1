package device

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/termsafe"
)

// started is the time at which this process became an agent.
var started = time.Now()

// LocalStatus returns what this process has open by itself, without a daemon. It takes locks of
// the control path only.
func LocalStatus() kagent.Status {
	return kagent.Status{PID: os.Getpid(), Since: started, NICs: nicStatus()}
}

func nicStatus() []kagent.NICStatus {
	registry.mu.Lock()
	devices := slices.Collect(maps.Values(registry.devices))
	registry.mu.Unlock()
	nics := []kagent.NICStatus{}
	for _, d := range devices {
		if s, ok := d.status(); ok {
			nics = append(nics, s)
		}
	}
	slices.SortFunc(nics, func(a, b kagent.NICStatus) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Port, b.Port))
	})
	return nics
}

// status describes a device that is up.
func (d *device) status() (kagent.NICStatus, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.up {
		return kagent.NICStatus{}, false
	}
	s := kagent.NICStatus{
		Interface: d.router.Name(), Index: d.key.index, Driver: d.driver, Queues: d.queues, Port: d.key.port,
		VIs: d.numbers.Used(), MaxVIs: d.maxVIs - 1, Leases: []kagent.LeaseStatus{},
	}
	if d.attached && d.demux.Attached() {
		s.Mode = d.mode.String()
	}
	if link, err := d.router.Link(); err == nil {
		s.MTU, s.Interface = link.MTU, link.Name // it may have been renamed
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
func (l *lease) status() kagent.LeaseStatus {
	s := kagent.LeaseStatus{
		Queue: l.queueID, ExtraQueues: l.extra, Slot: l.slot, Mode: l.info.Mode.String(), Since: l.since, Holder: l.holder,
		Handles: l.refs, PinnedBytes: l.info.Arena.Size, VIs: l.vis.list(),
	}
	if g := l.group; g != nil {
		s.Processes, s.Room = len(g.members), 1+g.of.Config.Sharing.Guests
		if l.partition > 0 {
			s.PinnedBytes = 0
		}
	}
	if s.Holder == (kagent.Holder{}) {
		s.Holder = self()
	}
	return s
}

// self returns this process as a holder.
func self() kagent.Holder {
	return kagent.Holder{PID: os.Getpid(), UID: uint32(unix.Getuid()), Comm: termsafe.Name(os.Getpid())}
}
