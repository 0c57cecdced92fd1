package kagent

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// An interface that is gone does not come back, although another one may have its name, or its
// number (as it has itself again that was lent to another network namespace). What would be in
// that one's way goes at once: the control port, the program, what the vault keeps. The rest stays
// until the Locals are closed.

// fall is called by a device's watch when the interface is gone.
func (d *device) fall(w *watch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watch == w { // else it was taken down
		// Nobody is there to tell of an error, and what was on the interface has gone with it.
		_ = d.retire()
	}
}

// retire makes room for another interface of the same name and number. Caller holds d.mu.
func (d *device) retire() error {
	if d.key.fallen > 0 {
		return nil
	}
	registry.mu.Lock()
	if registry.devices[d.key] == d {
		delete(registry.devices, d.key)
	}
	registry.fallen++
	d.key.fallen = registry.fallen
	registry.devices[d.key] = d // LocalStatus tells of it
	registry.mu.Unlock()
	errs := []error{d.manager.end(ErrGone), d.detach()}
	if d.vault != nil {
		errs = append(errs, d.vault.clear())
	}
	return errors.Join(errs...)
}

// OnGone has f called once, when the interface is gone and nothing is in another one's way any
// more, unless Close comes first.
func (l *Local) OnGone(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.watch.onGone(l, f)
	}
}

// shelf is the part of a Vault that a device has. Once it is cleared nothing comes in any more:
// the keys may be another device's.
type shelf struct {
	vault Vault

	mu      sync.Mutex // held while the vault is called
	keys    map[string]bool
	cleared bool
}

func newShelf(v Vault) *shelf {
	if v == nil {
		return nil
	}
	return &shelf{vault: v, keys: make(map[string]bool)}
}

// Put is Vault's.
func (s *shelf) Put(key string, value []byte, fds ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return nil
	}
	s.keys[key] = true
	return s.vault.Put(key, value, fds...)
}

// Delete is Vault's.
func (s *shelf) Delete(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return nil
	}
	delete(s.keys, key)
	return s.vault.Delete(key)
}

// holds says that something is there already.
func (s *shelf) holds(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = true
}

func (s *shelf) clear() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleared = true
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		errs = append(errs, s.vault.Delete(key))
	}
	s.keys = nil
	return errors.Join(errs...)
}
