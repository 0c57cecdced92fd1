package device

import (
	"errors"
	"fmt"
	"slices"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// steered is a NIC with a configurable flow classifier.
type steered interface {
	steer.NIC
	Close() error
}

// steer has the NIC put the frames for the lease on its queue, or notes why it cannot. A
// socket receives only from its own queue. The demux program counts and drops frames that come in
// on another queue (wrong queue), and the sender retransmits them in vain.
//
// A port can go to one queue only. The first lease has the interface's, which connection management uses, too. Later ones
// have a port after it, of which peers learn when they connect. The indirection table moves all ports: beside a lease that
// is steered by it no other one gets frames. Caller holds d.mu and is on a thread of the interface's namespace.
func (l *lease) steer(cfg kagent.Config) {
	d := l.dev
	note := func(format string, args ...any) { l.info.Notes = append(l.info.Notes, fmt.Sprintf(format, args...)) }
	if d.inputs < 2 || d.driver == "veth" && l.info.Mode.Generic() {
		return
	}
	if len(l.extra) > 0 {
		l.info.Steered = steer.All.String()
		return
	}
	if l.extraErr != nil {
		note("it does not receive from the other queues: %v", l.extraErr)
	} else if cfg.Steer == kagent.SteerAll {
		note("it does not receive from the other queues: %s", d.whyNotAll(l))
	}
	if d.driver == "veth" {
		note("only frames that come in on queue %d reach this program: a veth takes those that its peer sends on the queue of the same number; "+
			"to receive from all queues, choose the steering all", l.queueID)
		return
	}
	owners := make(map[uint16]*lease) // of ports
	for _, other := range d.sortedLeases() {
		if s := other.steered(); other != l && s != nil {
			owners[s.Port] = other
		}
	}
	first := owners[cfg.Port]
	err := errors.New("the indirection table moves all ports")
	if first == nil || first.steered().How != steer.RSS {
		err = l.steerPort(cfg, owners)
	}
	if err == nil {
		if s := l.steering; s.NoIPv6 != nil {
			note("UDP port %d is steered to queue %d over IPv4 only (%v): over IPv6 only frames that the NIC puts there by itself reach this program",
				s.Port, l.queueID, s.NoIPv6)
		}
		return
	}
	if first != nil {
		note("UDP port %d is steered to queue %d, of another lease, and no port to queue %d (%v): only what the NIC puts there by itself reaches this program",
			cfg.Port, first.queueID, l.queueID, err)
		return
	}
	on := ""
	if errors.Is(err, steer.ErrRulesOff) {
		on = fmt.Sprintf("turn it on (ethtool -K %s ntuple on) and open again, ", l.info.Interface)
	}
	note("only frames that the NIC puts on queue %d reach this program, and UDP port %d is not steered there (%v): "+
		"%sreceive from all queues or allow the indirection table (Config.Steer: all, rss), use ethtool -X %s, or one queue (ethtool -L %s combined 1)",
		l.queueID, cfg.Port, err, on, l.info.Interface, l.info.Interface)
}

// extraQueues returns the queues that a lease is to have beside its own, which it chooses then; nil: none. With SteerAll, or
// by default if the NIC has no rules and a few queues, a lease has all that receive, unless another one has any. On a veth, where
// a frame arrives on the queue on which it was sent, the default is so only for a lease that other processes may share: on queues of
// their own they would reach only peers on the same queue. Caller holds d.mu and is on a thread of the interface's namespace.
func (d *device) extraQueues(cfg *Config) (extra []int) {
	if d.inputs < 2 || d.inputs > 1+xdpnic.MaxExtraQueues || cfg.OneQueue || !d.idle() {
		return nil
	}
	if cfg.Steer != kagent.SteerAll && (cfg.Steer != kagent.SteerByRules || cfg.Queue != kagent.AnyQueue ||
		d.driver == "veth" && cfg.Processes <= 1 || d.inputs > kagent.AutoQueues || d.ruleWorks(cfg.Port)) {
		return nil
	}
	if cfg.Queue == kagent.AnyQueue {
		cfg.Queue = 0
	}
	for queue := range d.inputs {
		if queue != cfg.Queue {
			extra = append(extra, queue)
		}
	}
	return extra
}

// whyNotAll returns why a lease does not have all queues. Caller holds d.mu.
func (d *device) whyNotAll(l *lease) string {
	switch {
	case l.info.Mode == xdpnic.ModeZeroCopy:
		return "it is a zero-copy queue"
	case d.inputs > 1+xdpnic.MaxExtraQueues:
		return fmt.Sprintf("the interface has %d queues, of at most %d", d.inputs, 1+xdpnic.MaxExtraQueues)
	}
	return "other programs have some of them, or the user's quota allows no more"
}

// willSteerAll reports whether the NIC is to put all frames on the queue that is opened now, so that all processes need that
// one. Caller is as for ruleWorks.
func (d *device) willSteerAll(cfg Config) bool {
	return d.inputs > 1 && d.driver != "veth" && cfg.Steer == kagent.SteerByRSS &&
		!slices.ContainsFunc(d.sortedLeases(), func(l *lease) bool { return l.steered() != nil }) && !d.ruleWorks(cfg.Port)
}

// ruleWorks reports whether the NIC can put a UDP port on a queue by a rule.
func (d *device) ruleWorks(port uint16) bool {
	nic, err := d.open(d.router.Name())
	if err != nil {
		return false
	}
	defer nic.Close()
	return steer.Works(nic, port, 0) == nil
}

// steerPort steers the interface's port to the lease's queue, or another one if it has an owner.
func (l *lease) steerPort(cfg kagent.Config, owners map[uint16]*lease) (err error) {
	if cfg.Steer == steer.Off {
		return errors.New("steering is off")
	}
	if err := l.openNIC(); err != nil {
		return err
	}
	how := cfg.Steer
	if how == steer.All || len(owners) > 0 { // all queues it could not have; the table would take the others' frames
		how = steer.Rules
	}
	port := cfg.Port
	if owners[port] != nil {
		port, err = l.freePort(port, owners)
	}
	if err == nil {
		l.steering, err = steer.Port(l.nic, port, l.queueID, how)
	}
	if err != nil {
		return errors.Join(err, l.closeNIC())
	}
	l.info.Steered, l.info.PortOffset = l.steering.How.String(), uint8(port-cfg.Port)
	return nil
}

// freePort returns a port after the interface's that has no owner, and that no other rule of the NIC is about.
func (l *lease) freePort(first uint16, owners map[uint16]*lease) (uint16, error) {
	rules, err := l.nic.Rules()
	if err != nil {
		return 0, err
	}
	ruled := make(map[uint16]bool)
	for _, r := range rules {
		ruled[r.Port] = true
	}
	for offset := 1; offset < min(wire.Ports, 1<<16-int(first)); offset++ {
		if port := first + uint16(offset); owners[port] == nil && !ruled[port] {
			return port, nil
		}
	}
	return 0, fmt.Errorf("the %d ports after %d have owners, or rules of the NIC", wire.Ports-1, first)
}

// resumeSteering takes over a previous agent's changes of the NIC for the lease, or notes that they stay. The
// caller must be as for steer.
func (l *lease) resumeSteering(was *steer.State) {
	if was == nil {
		return
	}
	if err := l.openNIC(); err != nil {
		l.info.Notes = append(l.info.Notes, fmt.Sprintf("UDP port %d stays steered to queue %d when it is closed: %v", was.Port, l.queueID, err))
		return
	}
	l.steering = steer.Resume(l.nic, l.queueID, *was)
}

// steered returns what a later agent needs to resume; nil if nothing is steered.
func (l *lease) steered() *steer.State {
	s := l.steering
	if l.group != nil {
		s = l.group.steering
	}
	if s == nil {
		return nil
	}
	return &s.State
}

// unsteer undoes steer.
func (l *lease) unsteer() error {
	if l.steering == nil {
		return nil
	}
	var err error
	if r := l.dev.router; r == nil || !r.IsGone() { // else another interface may have its name
		err = l.steering.Undo()
	}
	l.steering = nil
	if err != nil {
		err = fmt.Errorf("the NIC's steering could not be put back: %w", err)
	}
	return errors.Join(err, l.closeNIC())
}

func (l *lease) openNIC() (err error) {
	l.nic, err = l.dev.open(l.info.Interface)
	return err
}

func (d *device) open(name string) (steered, error) {
	if d.openSteered != nil {
		return d.openSteered(name)
	}
	if link, err := d.router.Link(); err == nil {
		name = link.Name // by now
	}
	return steer.Open(name)
}

func (l *lease) closeNIC() error {
	err := l.nic.Close()
	l.nic = nil
	return err
}
