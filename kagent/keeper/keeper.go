package keeper

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/kagent"
)

// firstAgent is how long a new keeper waits for an agent.
const firstAgent = 10 * time.Second

// keeper holds things for agents that come one after the other.
type keeper struct {
	leave chan struct{} // closed when there is nothing more to keep

	mu    sync.Mutex
	items map[string]*item
	agent *agent // nil: none
	left  bool
}

// agent is an agent's connection; done is closed when all that it has sent is done.
type agent struct {
	c    *net.UnixConn
	done chan struct{}
}

type item struct {
	value []byte
	fds   []int
	alive *os.File // of a lease: a copy of its first descriptor
}

// Main is the keeper process: it serves agents on the listening socket until
// there is nothing to keep, or ctx ends.
func Main(ctx context.Context, l *net.UnixListener) error {
	k := &keeper{leave: make(chan struct{}), items: make(map[string]*item)}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go k.serve(c)
		}
	}()
	timer := time.AfterFunc(firstAgent, k.settle)
	defer timer.Stop()
	select {
	case <-k.leave:
	case <-ctx.Done():
	}
	return l.Close() // and unlink
}

// settle leaves when there is no agent, and nobody has a queue.
func (k *keeper) settle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.agent != nil || k.left {
		return
	}
	for _, i := range k.items {
		if i.alive != nil {
			return
		}
	}
	k.left = true
	close(k.leave)
}

// serve is one agent's connection. The newest agent is the agent: one that is
// dead may not have been noticed yet, and what it has sent is done first.
func (k *keeper) serve(c *net.UnixConn) {
	defer c.Close()
	if !sameUser(c) {
		return
	}
	me := &agent{c, make(chan struct{})}
	k.mu.Lock()
	if k.left {
		k.mu.Unlock()
		return
	}
	before := k.agent
	k.agent = me
	k.mu.Unlock()
	defer func() {
		close(me.done)
		k.mu.Lock()
		if k.agent == me {
			k.agent = nil
		}
		k.mu.Unlock()
		k.settle()
	}()
	if before != nil {
		// Who does not hear it takes the keeper back; who does not read is stuck.
		_ = before.c.SetWriteDeadline(time.Now().Add(time.Second))
		_ = send(before.c, message{Op: "replaced"})
		_ = before.c.CloseRead() // what has come until now can be read
		<-before.done
	}
	buf := make([]byte, maxMessage)
	for {
		m, fds, err := receive(c, buf)
		if err != nil {
			closeAll(fds)
			return
		}
		k.mu.Lock()
		err = k.do(c, m, fds)
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// do executes one message. Caller holds k.mu.
func (k *keeper) do(c *net.UnixConn, m message, fds []int) error {
	done := message{Op: "done"}
	switch m.Op {
	case "put":
		k.drop(m.Key)
		k.put(m.Key, m.Value, fds)
	case "delete":
		closeAll(fds)
		k.drop(m.Key)
	case "list":
		closeAll(fds)
		for key, i := range k.items {
			if err := send(c, message{Op: "item", Key: key, Value: i.value}, i.fds...); err != nil {
				return err
			}
		}
	default:
		closeAll(fds)
		done.Error = "the keeper does not know " + m.Op
	}
	if m.Ack {
		return send(c, done)
	}
	return nil
}

// put takes an item in. Caller holds k.mu.
func (k *keeper) put(key string, value []byte, fds []int) {
	i := &item{value: slices.Clone(value), fds: fds}
	k.items[key] = i
	if !kagent.IsHeld(key) || len(fds) == 0 {
		return
	}
	fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.SetNonblock(fd, true) // so that waiting can be ended
	i.alive = os.NewFile(uintptr(fd), key)
	go k.watch(i, i.alive)
}

// watch waits for the death of a lease's holder. The agent, if there is one,
// sees it as well, and deletes what belongs to the lease.
func (k *keeper) watch(i *item, alive *os.File) {
	kagent.AwaitDeath(alive) // or dropped
	k.mu.Lock()
	i.alive = nil
	k.mu.Unlock()
	_ = alive.Close()
	k.settle()
}

// drop forgets a key. Caller holds k.mu.
func (k *keeper) drop(key string) {
	i := k.items[key]
	if i == nil {
		return
	}
	delete(k.items, key)
	closeAll(i.fds)
	if i.alive != nil {
		_ = i.alive.Close()
	}
}
