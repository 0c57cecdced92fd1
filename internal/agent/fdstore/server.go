package fdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
)

// firstAgent is how long a new server waits for an agent.
const firstAgent = 10 * time.Second

// server holds things for agents that come one after the other.
type server struct {
	leave chan struct{} // closed when there is nothing more to keep

	mu      sync.Mutex
	entries map[string]*entry
	agent   *agent // nil: none
	left    bool
}

// agent is an agent's connection.
type agent struct {
	c       *net.UnixConn
	greeted bool          // it has said hello, and speaks this version
	done    chan struct{} // closed when all that it has sent is done
}

type entry struct {
	value []byte
	files []int
	alive *os.File // of a lease: a copy of its first descriptor
	bare  bool     // of a Client, which lacked descriptors for copies: only the store has the files
}

// Main is the server process: it serves agents on the listening socket until
// there is nothing to keep, or ctx ends.
func Main(ctx context.Context, l *net.UnixListener) error {
	k := &server{leave: make(chan struct{}), entries: make(map[string]*entry)}
	go k.accept(l)
	timer := time.AfterFunc(firstAgent, k.endIfUnused)
	defer timer.Stop()
	select {
	case <-k.leave:
	case <-ctx.Done():
	}
	err := l.Close() // and unlink
	rundir.Unmake(filepath.Dir(l.Addr().String()))
	return err
}

// accept serves the connections of a listener until it is closed. Out of descriptors it waits:
// the next agent may be what lets go of some.
func (k *server) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			// Before the next one is accepted, which is newer.
			if me, before := k.admit(c); me != nil {
				go k.serve(me, before)
			} else {
				_ = c.Close()
			}
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// endIfUnused ends the server when there is no agent and no queue has a holder.
func (k *server) endIfUnused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.agent != nil || k.left {
		return
	}
	for _, i := range k.entries {
		if i.alive != nil {
			return
		}
	}
	k.left = true
	close(k.leave)
}

// admit makes a connection the agent's, and returns the agent before; nil: it is not served.
func (k *server) admit(c *net.UnixConn) (me, before *agent) {
	if !sameUser(c) {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left {
		return nil, nil
	}
	me, before = &agent{c: c, done: make(chan struct{})}, k.agent
	k.agent = me
	return me, before
}

// serve serves one agent's connection. The newest agent replaces the one before, which may be
// dead without the server having noticed. Its earlier requests are completed first.
func (k *server) serve(me, before *agent) {
	c := me.c
	defer c.Close()
	defer func() {
		close(me.done)
		k.mu.Lock()
		if k.agent == me {
			k.agent = nil
		}
		k.mu.Unlock()
		k.endIfUnused()
	}()
	if before != nil {
		// An agent that misses this message would reconnect and replace the new one. One that
		// does not read within the deadline is stuck.
		_ = before.c.SetWriteDeadline(time.Now().Add(time.Second))
		_ = send(before.c, message{Op: "replaced"})
		_ = before.c.CloseRead() // what has come until now can be read
		<-before.done
	}
	buf := make([]byte, maxMessage)
	for {
		m, files, err := receive(c, buf)
		if errors.Is(err, errCut) && m.Ack { // the sender hears of it
			fds.Close(files...)
			err = send(c, message{Op: "done", Error: noRoom(m.Key, errCut)})
			if err == nil {
				continue
			}
			return
		}
		if err != nil {
			fds.Close(files...)
			return
		}
		if k.do(me, m, files) != nil {
			return
		}
	}
}

// noRoom is the answer to a put for which the server lacks descriptors.
func noRoom(key string, err error) string {
	return fmt.Sprintf("the server has no room for %s: %v", key, err)
}

// do executes one message. Only the agent that is served changes entries. The lock is not held
// during a send, so an agent that does not read cannot block the next one.
func (k *server) do(me *agent, m message, files []int) error {
	c, done := me.c, message{Op: "done"}
	if m.Op == "hello" {
		me.greeted = m.Version == Version
	}
	if !me.greeted || m.Op != "put" {
		fds.Close(files...)
	}
	if !me.greeted {
		done.Error = fmt.Sprintf("the descriptor store has version %d of what agents store, this agent version %d: "+
			"end the programs that have queues, or start an agent of the store's version", Version, m.Version)
		return send(c, done)
	}
	switch m.Op {
	case "hello":
	case "put":
		if err := k.put(m.Key, m.Value, files); err != nil {
			fds.Close(files...)
			done.Error = noRoom(m.Key, err)
		}
	case "delete":
		k.mu.Lock()
		k.drop(m.Key)
		k.mu.Unlock()
	case "list":
		for key, i := range k.entries {
			if err := send(c, message{Op: "item", Key: key, Value: i.value}, i.files...); err != nil {
				return err
			}
		}
	default:
		done.Error = "the server does not know " + m.Op
	}
	if m.Ack {
		return send(c, done)
	}
	return nil
}

// put takes an item in, in the place of what is there under its key. After an error that
// stays.
func (k *server) put(key string, value []byte, files []int) error {
	i := &entry{value: slices.Clone(value), files: files}
	if HasHolder(key) && len(files) > 0 {
		fd, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.SetNonblock(fd, true) // so that waiting can be ended
		i.alive = os.NewFile(uintptr(fd), key)
		go k.watch(i, i.alive)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
	k.entries[key] = i
	return nil
}

// watch waits for the death of a lease's holder. The agent, if there is one,
// sees it as well, and deletes what belongs to the lease.
func (k *server) watch(i *entry, alive *os.File) {
	AwaitDeath(alive) // or dropped
	k.mu.Lock()
	i.alive = nil
	k.mu.Unlock()
	_ = alive.Close()
	k.endIfUnused()
}

// drop forgets a key. Caller holds k.mu.
func (k *server) drop(key string) {
	i := k.entries[key]
	if i == nil {
		return
	}
	delete(k.entries, key)
	fds.Close(i.files...)
	if i.alive != nil {
		_ = i.alive.Close()
	}
}
