package fdstore

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// Store keeps descriptors and what belongs to them outside of the agent's
// process, so that an agent that is killed takes nothing with it that programs
// still use. Client is one. Methods may be called concurrently,
// and must not call back.
type Store interface {
	// Put keeps value and copies of the descriptors under key, in the place
	// of what was there. When it returns, the agent's death changes nothing.
	Put(key string, value []byte, fds ...int) error
	// Delete forgets a key, known or not. When it returns, the descriptor store has
	// closed its copies.
	Delete(key string) error
}

// Entry is an entry of a Store. Its holder owns the files.
type Entry struct {
	Key   string
	Value []byte
	Files []*os.File
}

// Close closes the files.
func (i *Entry) Close() {
	fds.CloseFiles(i.Files...)
	i.Files = nil
}

// PinnedPrefix begins the keys of what a program has kept of a queue that it gave back.
const PinnedPrefix = "pinned/"

// HasHolder reports whether a key names a lease or pinned memory. The first file of such an entry
// is a pipe that ends when its holder dies.
func HasHolder(key string) bool {
	return strings.HasPrefix(key, "lease/") || strings.HasPrefix(key, PinnedPrefix)
}

// IsDead reports whether the writing end of a sign of life is closed everywhere, because its
// holder is dead or has closed it. It is also true if this end is closed.
func IsDead(alive *os.File) bool {
	dead := false
	err := fds.With(alive, func(fd int) error {
		dead = hasEnded(uintptr(fd))
		return nil
	})
	return err != nil || dead
}

// AwaitDeath waits until IsDead. The file is in non-blocking mode. AwaitDeath reads nothing, so a
// program that writes to its sign of life only fills the pipe.
func AwaitDeath(alive *os.File) {
	if raw, err := alive.SyscallConn(); err == nil {
		_ = raw.Read(hasEnded)
	}
}

// hasEnded reports whether the writing end of a pipe is closed everywhere.
func hasEnded(pipe uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(pipe)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP != 0
}
