package vianet

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// Shutdown closes all listeners, waits until the program has closed all connections and
// what it wrote is delivered, however long that takes within Options.Linger, and then
// closes the stack. When ctx ends before, it closes the stack as it is, as Close does,
// and the error is that of ctx. Listen fails from the beginning on; Dial goes on until the
// stack is closed, for those whose work is not done. It does nothing after Close.
//
// It tells nobody who has a connection: a server of connections that rest, as those of
// HTTP may, is shut down first:
//
//	err := errors.Join(server.Shutdown(ctx), stack.Shutdown(ctx))
func (s *Stack) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	empty, listeners := s.empty, slices.Collect(maps.Keys(s.listeners))
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	s.mu.Lock()
	s.checkEmpty()
	s.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
	var err error
	if !isClosed(empty) {
		err = ctx.Err()
	}
	return errors.Join(err, s.Close())
}

// checkEmpty tells Shutdown when no connection is left. Under mu.
func (s *Stack) checkEmpty() {
	if s.empty != nil && len(s.conns) == 0 && !isClosed(s.empty) {
		close(s.empty)
	}
}
