package device

import (
	"errors"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
)

// An interface that is gone does not come back, although another one may have its name, or its
// number (as it has itself again that was lent to another network namespace). What would be in
// that one's way goes at once: the control port, the program, what the descriptor store keeps. The rest stays
// until the Locals are closed.

// onRemove is called by a device's watch when the interface is gone.
func (d *device) onRemove(w *route.Watch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watch == w { // else it was taken down
		// Nobody is there to tell of an error, and what was on the interface has gone with it.
		_ = d.markRemoved()
		if d.linger.running {
			d.linger.timer.Reset(0) // in its goroutine: the watch's is this one
		}
	}
}

// markRemoved makes room for another interface of the same name and number. Caller holds d.mu.
func (d *device) markRemoved() error {
	if d.key.removed > 0 {
		return nil
	}
	registry.mu.Lock()
	if registry.devices[d.key] == d {
		delete(registry.devices, d.key)
	}
	registry.removed++
	d.key.removed = registry.removed
	registry.devices[d.key] = d // LocalStatus tells of it
	registry.mu.Unlock()
	errs := []error{d.manager.CloseWith(kagent.ErrGone), d.detach()}
	if d.fdStore != nil {
		errs = append(errs, d.fdStore.clear())
	}
	return errors.Join(errs...)
}

// OnGone has f called once, when the interface is gone and nothing is in another one's way any
// more, unless Close comes first.
func (l *Local) OnGone(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.watch.OnGone(l, f)
	}
}
