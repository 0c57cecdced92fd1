package mvich

import (
	"errors"
	"time"
)

const (
	// farewell bounds how long the last packets may take where another rank has died,
	// and those that live may not come to take leave.
	farewell = 2 * time.Second

	// parting bounds how long the others may take to take leave, too.
	parting = 10 * time.Second
)

// Finalize ends this rank's part of the job: it waits until what was sent has
// gone and all other ranks have called it, too, takes leave of them and they of it,
// for which it waits ten seconds at most, and gives back what Init took of the NIC.
// Every request should be complete before: those that are not end with an error.
// The NIC stays open. ErrFinalized: it was called before, and may not have ended.
//
// A RankError means that another rank has died before; everything was given
// back all the same.
func (w *World) Finalize() error {
	w.mu.Lock()
	if w.leaving || w.finalized {
		w.mu.Unlock()
		return ErrFinalized
	}
	w.leaving = true
	w.await(w.quiet)
	w.mu.Unlock()
	err := w.world.Barrier()
	w.mu.Lock()
	w.finalized = true
	for _, p := range w.peers {
		w.queueControl(p, packet{header: header{kind: kindBye}})
	}
	w.pushDirty()
	over, end := w.alone, time.Now().Add(parting)
	if err != nil {
		over, end = w.quiet, time.Now().Add(farewell)
	}
	w.await(func() bool { return over() || time.Now().After(end) })
	w.mu.Unlock()
	return errors.Join(err, w.shut())
}

// quiet says that nothing waits to be sent.
func (w *World) quiet() bool {
	for _, p := range w.peers {
		if !p.gone() && !p.idle() {
			return false
		}
	}
	return true
}

// alone says that all others have left. What this rank has sent before its good-bye may
// be lost on the way, and be sent again only as long as the connection is there: longer
// than Disconnect waits, where a rank is busy that others need. Who has said good-bye has
// got it; whose connection has ended otherwise will not.
func (w *World) alone() bool {
	for _, p := range w.peers {
		if p.state == joined {
			return false
		}
	}
	return w.quiet()
}

// shut ends connections and goroutines, and gives everything back.
func (w *World) shut() error {
	w.mu.Lock()
	w.finalized = true
	w.end()
	w.endWaiting(ErrFinalized)
	for _, p := range w.peers {
		if p.rank != w.rank {
			w.leave(p)
		}
	}
	w.mu.Unlock()
	w.tasks.Wait() // links that have retired, and the listener
	w.mu.Lock()
	err := w.release()
	w.mu.Unlock()
	return errors.Join(err, w.launcher.Close()) // which may wait for the others
}
