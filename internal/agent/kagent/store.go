package kagent

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// FDStore keeps descriptors and what belongs to them outside of the agent's
// process, so that an agent that is killed takes nothing with it that programs
// still use. Package internal/agent/fdstore is one. Methods may be called concurrently,
// and must not call back.
type FDStore interface {
	// Put keeps value and copies of the descriptors under key, in the place
	// of what was there. When it returns, the agent's death changes nothing.
	Put(key string, value []byte, fds ...int) error
	// Delete forgets a key, known or not. When it returns, the descriptor store has
	// closed its copies.
	Delete(key string) error
}

// Entry is something out of an FDStore. Whoever has it owns the files.
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

// HasHolder reports whether a key is that of a lease or of pinned memory, whose first file ends (as
// a pipe does) when its holder is dead.
func HasHolder(key string) bool {
	return strings.HasPrefix(key, "lease/") || strings.HasPrefix(key, PinnedPrefix)
}

// IsDead tells whether the holder of the other end of a sign of life is dead: all who had
// it have closed it. So is who has closed this end.
func IsDead(alive *os.File) bool {
	dead := false
	err := fds.With(alive, func(fd int) error {
		dead = hasEnded(uintptr(fd))
		return nil
	})
	return err != nil || dead
}

// AwaitDeath waits until IsDead; the file is in non-blocking mode. Nothing is read: a program that writes to its sign of
// life makes no more work than it takes to fill the pipe.
func AwaitDeath(alive *os.File) {
	if raw, err := alive.SyscallConn(); err == nil {
		_ = raw.Read(hasEnded)
	}
}

// hasEnded tells whether the writing end of a pipe is closed everywhere.
func hasEnded(pipe uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(pipe)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLHUP != 0
}

// FreeMemory frees the pages of memory that was handed out, whoever maps it, as far
// as no queue has them pinned: who looks finds zeros, in pages of its own account.
func FreeMemory(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return fds.With(f, func(fd int) error {
		// It is sealed against shrinking, for the sake of the kernel's and the
		// agent's own mappings, and not against this.
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size())
	})
}
