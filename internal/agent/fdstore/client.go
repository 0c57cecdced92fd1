package fdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
)

var _ Store = (*Client)(nil)

// answerTime limits the wait for an answer of the descriptor store. It is for a store that hangs: the end of one that
// dies is seen at once. On an overloaded machine a live one may be runnable for 10 s before it gets a CPU, and without it
// programs do not survive the agent.
const answerTime = 30 * time.Second

// Time between the end of a descriptor store and the start of another one: the first time, and at most.
const (
	mendSoon   = 10 * time.Millisecond
	mendLatest = 5 * time.Second
)

var (
	errReplaced = errors.New("fdstore: another agent has it now")
	errEnded    = errors.New("fdstore: it has ended, and another one is being started")
)

// Client is an agent's connection to its descriptor store. It has a copy of everything in the store, but for entries
// that came while this process lacked descriptors. If the store ends before the agent does, it starts another one and
// puts everything there.
type Client struct {
	log  *slog.Logger
	path string
	args []string // the command's name first

	replaced atomic.Bool     // another agent's client has the store
	ctx      context.Context // ended by end, in Close
	end      context.CancelFunc
	work     sync.WaitGroup // goroutines that read connections and reconnect

	mu   sync.Mutex // one exchange at a time on link
	held map[string]*entry
	late map[string]bool // entries of held for which the store had no room
	link *link           // nil: none now
	wait time.Duration   // waited before the store was last connected
	when time.Time       // when that was; both guarded by mu, too
}

// Start connects to the descriptor store at a socket's path, or starts one: command with args must call Main
// with the listening socket, which it gets as [ListenFD]. The process outlives this one. log may be nil.
func Start(path string, log *slog.Logger, command string, args ...string) (*Client, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Client{
		log: log, path: path, args: append([]string{command}, args...),
		held: make(map[string]*entry), late: make(map[string]bool),
	}
	k.ctx, k.end = context.WithCancel(context.Background())
	// A descriptor store that is about to exit accepts the connection and hangs up.
	for tries := 5; ; tries-- {
		l, err := k.connect()
		if err == nil {
			k.mu.Lock()
			err = k.use(l)
			k.mu.Unlock()
		}
		switch {
		case err == nil:
			return k, nil
		case tries == 1 || errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("fdstore: %w", err)
		}
		time.Sleep(20 * time.Millisecond) // it is unlinking its socket
	}
}

// connect finds or starts a descriptor store that answers. No other goroutine has the new link,
// so the wait for a store that does not answer holds no lock.
func (k *Client) connect() (*link, error) {
	c, err := k.dial()
	if fds.Short(err) || errors.Is(err, unix.EAGAIN) {
		return nil, err // there may be a store, whose socket must stay
	}
	if err != nil {
		if err = spawn(k.path, k.args[0], k.args[1:]); err == nil {
			c, err = k.dial()
		}
	}
	if err != nil {
		return nil, err
	}
	if !sameUser(c) {
		return nil, errors.Join(fmt.Errorf("a process that runs as neither this user nor root listens at %s: "+
			"remove the socket, and let no other user write to its directory", k.path), c.Close())
	}
	l := &link{c: c, answers: make(chan answer), closed: k.ctx.Done()}
	k.work.Go(func() { k.read(l) })
	if _, err := l.ask(message{Op: "hello", Version: Version, Ack: true}); err != nil {
		l.hangUp()
		return nil, err
	}
	return l, nil
}

func (k *Client) dial() (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: k.path, Net: "unixpacket"})
}

// use makes l the client's connection. If l has already ended, no goroutine would replace it, so
// use fails. Caller holds k.mu.
func (k *Client) use(l *link) error {
	if l.ended {
		l.hangUp()
		return errEnded
	}
	k.link = l
	return nil
}

// read passes on the messages of a connection until it ends, and then reconnects.
func (k *Client) read(l *link) {
	buf := make([]byte, maxMessage)
	for {
		m, files, err := receive(l.c, buf)
		if err != nil || m.Op == "replaced" {
			fds.Close(files...)
			if err == nil {
				k.replaced.Store(true)
			}
			break
		}
		l.answers <- answer{m, files} // to ask, or to end or hangUp, which drain answers that no call waits for
	}
	close(l.answers) // before k.mu: its holder may wait for the close
	k.mu.Lock()
	l.ended = true
	inUse := k.link == l
	if inUse {
		k.hangUp()
	}
	k.mu.Unlock()
	if inUse {
		k.mend()
	}
}

// mend starts another descriptor store to replace one that has ended, unless this side is closing, too.
func (k *Client) mend() {
	for wait := k.firstWait(); ; wait = min(2*wait, mendLatest) {
		select {
		case <-k.ctx.Done():
			return
		case <-time.After(wait):
		}
		if k.replaced.Load() {
			return
		}
		err := k.renew(wait)
		switch {
		case err == nil:
			k.log.Warn("the descriptor store had ended: another one has all of it now")
			return
		case k.replaced.Load() || k.isClosed():
			return
		}
		k.log.Error("the descriptor store has ended, and there is no other: programs will not survive this agent's death", "error", err)
	}
}

// firstWait returns how long to wait before the first attempt. It grows if stores end soon after each other.
func (k *Client) firstWait() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wait > 0 && time.Since(k.when) < mendLatest {
		return min(2*k.wait, mendLatest)
	}
	return mendSoon
}

// renew reconnects, and brings the store's entries into line with held. wait is the time that
// passed before this attempt.
func (k *Client) renew(wait time.Duration) error {
	l, err := k.connect()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed() {
		l.hangUp()
		return net.ErrClosed // there are no entries any more
	}
	kept, err := l.ask(message{Op: "list", Ack: true})
	there := make(map[string]bool)
	for i := range kept {
		held := k.held[kept[i].Key]
		there[kept[i].Key] = true
		if held != nil && held.bare && err == nil {
			if held.files, err = fds.DupAll(kept[i].Files); err == nil {
				held.bare = false
			}
		}
		kept[i].Close()
		if held == nil && err == nil {
			_, err = l.ask(message{Op: "delete", Key: kept[i].Key, Ack: true})
		}
	}
	for key, i := range k.held {
		switch {
		case err != nil:
		case !i.bare:
			err = k.offer(l, key, i)
		case !there[key]: // the store that has ended was the only one that had it
			k.drop(key)
			k.log.Error("the descriptor store that has ended had the only copy of an entry: its program will not survive this agent's death", "key", key)
		}
	}
	if err != nil {
		l.hangUp()
		return err
	}
	if len(k.late) > 0 {
		k.log.Error("the descriptor store has no room for some entries: their programs will not survive this agent's death", "entries", len(k.late))
	}
	k.wait, k.when = wait, time.Now()
	return k.use(l)
}

// offer puts a held entry into the store. If the store has no room, the entry becomes late, which
// is no error. Caller holds k.mu.
func (k *Client) offer(l *link, key string, i *entry) error {
	err := l.put(key, i.value, i.files...)
	var no refused
	if errors.As(err, &no) {
		k.late[key] = true
		return nil
	}
	delete(k.late, key)
	return err
}

// catchUp offers the late entries again. Caller holds k.mu.
func (k *Client) catchUp() {
	for key := range k.late {
		l, err := k.usable()
		if err == nil {
			err = k.offer(l, key, k.held[key])
		}
		if err != nil || k.late[key] { // after a failed connection, renew offers everything
			return
		}
	}
}

// hangUp ends the connection. Only the caller reconnects then. Caller holds k.mu.
func (k *Client) hangUp() {
	if k.link != nil {
		k.link.hangUp()
		k.link = nil
	}
}

func (k *Client) isClosed() bool { return k.ctx.Err() != nil }

// ListenFD is the number of the listening socket's descriptor in the descriptor store's process.
const ListenFD = 3

// Listener returns the listening socket in the descriptor store's process.
func Listener() (*net.UnixListener, error) {
	f := os.NewFile(ListenFD, "fdstore")
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("fdstore: descriptor %d: %w", ListenFD, err)
	}
	_ = f.Close()
	unixL, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("fdstore: descriptor %d is no Unix socket", ListenFD), l.Close())
	}
	unixL.SetUnlinkOnClose(true)
	return unixL, nil
}

// spawn starts a descriptor store at path, where none answers.
func spawn(path, command string, args []string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := rundir.Listen("unixpacket", path)
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(command, args...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // no zombie while this agent lives
	return nil
}

// Put is [Store]'s. After an error the entry is still held for the next descriptor store, unless no store
// could hold it, or this process lacks the descriptors. An entry for which this store has no room is offered again
// after each Delete.
func (k *Client) Put(key string, value []byte, files ...int) error {
	copies, lacks := dupAll(files)
	if lacks != nil && !errors.Is(lacks, unix.EMFILE) {
		return lacks
	}
	i := &entry{value: slices.Clone(value), files: copies, bare: lacks != nil}
	k.mu.Lock()
	defer k.mu.Unlock()
	l, err := k.usable()
	if err == nil {
		err = l.put(key, value, files...) // which takes no descriptor of this process
	}
	var no refused
	if k.isClosed() || errors.Is(err, errTooLong) {
		fds.Close(i.files...)
		return err
	}
	if i.bare && err != nil {
		return errors.Join(err, lacks) // the store still has what was there
	}
	k.drop(key)
	k.held[key] = i
	if errors.As(err, &no) {
		k.late[key] = true
	}
	return err
}

// dupAll returns copies of descriptors, or, with an error, of none.
func dupAll(files []int) (all []int, err error) {
	for _, fd := range files {
		c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			fds.Close(all...)
			return nil, os.NewSyscallError("dup", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// usable returns the connection, if there is one. Caller holds k.mu.
func (k *Client) usable() (*link, error) {
	switch {
	case k.isClosed():
		return nil, net.ErrClosed
	case k.replaced.Load():
		return nil, errReplaced
	case k.link == nil:
		return nil, errEnded
	}
	return k.link, nil
}

// drop removes the held entry of a key. Caller holds k.mu.
func (k *Client) drop(key string) {
	if i := k.held[key]; i != nil {
		fds.Close(i.files...)
		delete(k.held, key)
		delete(k.late, key)
	}
}

// Delete is [Store]'s.
func (k *Client) Delete(key string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
	_, err := k.ask(message{Op: "delete", Key: key, Ack: true})
	k.catchUp() // there may be room now
	return err
}

// List returns all entries. The files are the caller's.
func (k *Client) List() ([]Entry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	entries, err := k.ask(message{Op: "list", Ack: true})
	for n := range entries {
		i := &entry{value: entries[n].Value}
		if i.files, err = fds.DupAll(entries[n].Files); err != nil {
			break
		}
		k.drop(entries[n].Key)
		k.held[entries[n].Key] = i
	}
	if err != nil {
		closeEntries(entries)
		return nil, err
	}
	return entries, nil
}

func closeEntries(entries []Entry) {
	for i := range entries {
		entries[i].Close()
	}
}

// Close hangs up. A descriptor store without an entry of a live program then exits.
func (k *Client) Close() error {
	k.mu.Lock()
	if !k.isClosed() {
		k.end()
		k.hangUp()
		for key := range k.held {
			k.drop(key)
		}
	}
	k.mu.Unlock()
	k.work.Wait()
	return nil
}

// ask sends a request to the descriptor store. Caller holds k.mu.
func (k *Client) ask(m message) ([]Entry, error) {
	l, err := k.usable()
	if err != nil {
		return nil, err
	}
	return l.ask(m)
}
