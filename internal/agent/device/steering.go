package device

import (
	"errors"
	"fmt"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
)

// steered is a NIC with a configurable flow classifier.
type steered interface {
	steer.NIC
	Close() error
}

// steer has the NIC put the frames of the port on the lease's queue, or notes why it cannot. A
// socket receives only from its own queue. The demux program counts and drops frames that come in
// on another queue (wrong queue), and the sender retransmits them in vain.
//
// A port can go to one queue only: the first lease's. A second lease gets the frames that its
// peers send with another hash. Caller holds d.mu and is on a thread of the interface's
// namespace.
func (l *lease) steer(cfg kagent.Config) {
	d := l.dev
	note := func(format string, args ...any) { l.info.Notes = append(l.info.Notes, fmt.Sprintf(format, args...)) }
	if d.inputs < 2 || d.driver == "veth" && l.info.Mode.Generic() {
		return
	}
	if d.driver == "veth" {
		note("only frames that come in on queue %d reach this program: a veth takes those that its peer sends on the queue of the same number", l.queueID)
		return
	}
	for _, other := range d.sortedLeases() {
		if other != l && other.steered() != nil {
			note("UDP port %d is steered to queue %d, of another lease: only what the NIC puts on queue %d by itself reaches this program",
				cfg.Port, other.queueID, l.queueID)
			return
		}
	}
	err := l.steerPort(cfg)
	if err == nil {
		return
	}
	on := ""
	if errors.Is(err, steer.ErrRulesOff) {
		on = fmt.Sprintf("turn it on (ethtool -K %s ntuple on) and open again, ", l.info.Interface)
	}
	note("only frames that the NIC puts on queue %d reach this program, and UDP port %d is not steered there (%v): "+
		"%sallow the indirection table (Config.Steer), use ethtool -X %s, or one queue (ethtool -L %s combined 1)",
		l.queueID, cfg.Port, err, on, l.info.Interface, l.info.Interface)
}

func (l *lease) steerPort(cfg kagent.Config) (err error) {
	if cfg.Steer == steer.Off {
		return errors.New("steering is off")
	}
	if err := l.openNIC(); err != nil {
		return err
	}
	if l.steering, err = steer.Port(l.nic, cfg.Port, l.queueID, cfg.Steer); err != nil {
		return errors.Join(err, l.closeNIC())
	}
	l.info.Steered = l.steering.How.String()
	return nil
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
	open := l.dev.openSteered
	if open == nil {
		open = func(name string) (steered, error) { return steer.Open(name) }
	}
	l.nic, err = open(l.info.Interface)
	return err
}

func (l *lease) closeNIC() error {
	err := l.nic.Close()
	l.nic = nil
	return err
}
