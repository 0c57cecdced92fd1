package kagent

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// lingerer keeps a device up for a time after its last lease: see Config.Linger. While it does it has
// one of the device's references. Guarded by device.mu.
type lingerer struct {
	time    time.Duration // the longest that an Open has asked for
	mtu     int           // of the interface when the program was loaded
	running bool
	round   int // counts startLinger
	timer   *time.Timer
}

// startLinger makes the caller's reference linger's, if it is the last one and the program is
// attached. Caller holds d.mu.
func (d *device) startLinger() bool {
	registry.mu.Lock()
	last := d.refs == 1
	registry.mu.Unlock()
	if l := &d.linger; last && l.time > 0 && !l.running && d.up && d.attached && d.key.removed == 0 {
		l.round++
		l.running = true
		round := l.round
		l.timer = time.AfterFunc(l.time, func() {
			d.mu.Lock()
			if !d.linger.running || d.linger.round != round {
				d.mu.Unlock()
				return
			}
			_ = d.endLinger() // nobody is there to tell
		})
		return true
	}
	return false
}

// endLinger takes the device down, unless it was opened meanwhile. Caller holds d.mu, which
// endLinger releases.
func (d *device) endLinger() error {
	d.linger.running = false
	d.linger.timer.Stop()
	return d.drop()
}

// stopLinger ends lingering for an Open, which has a reference of its own, and takes the device down
// where the program must not be kept. Caller holds d.mu.
func (d *device) stopLinger(cfg Config, mtu int) (err error) {
	l := &d.linger
	if l.running {
		l.running = false
		l.timer.Stop()
		registry.mu.Lock()
		d.refs--
		registry.mu.Unlock()
		if cfg.Linger == 0 || l.mtu != mtu { // which frames the program takes depends on the MTU
			err = d.takeDown()
			l.time = 0
		}
	}
	l.time = max(l.time, cfg.Linger)
	return err
}

// SetLinger is Config.Linger for a queue that Restore has returned.
func (l *Local) SetLinger(t time.Duration) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	l.dev.linger.time = max(l.dev.linger.time, t)
}

// EndLinger takes all interfaces down that have no queue any more and only linger.
func EndLinger() error {
	registry.mu.Lock()
	all := slices.Collect(maps.Values(registry.devices))
	registry.mu.Unlock()
	var errs []error
	for _, d := range all {
		d.mu.Lock()
		if !d.linger.running {
			d.mu.Unlock()
			continue
		}
		errs = append(errs, d.endLinger())
	}
	return errors.Join(errs...)
}
