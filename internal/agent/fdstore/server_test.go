package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

func TestMain(m *testing.M) {
	if os.Getenv("KEEPER_TEST") != "" {
		l, err := Listener()
		if err == nil {
			err = Main(context.Background(), l)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The goroutine that waits for a descriptor store lives as long as that process takes to end.
	ignore := goleak.IgnoreAnyFunction("os/exec.(*Cmd).Wait")
	code := m.Run()
	// A goroutine that ends may have to wait for a processor.
	var err error
	if code == 0 && !await.Comes(func() bool { err = goleak.Find(ignore); return err == nil }) {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// waitLimit is how long a test waits for what must happen.
const waitLimit = time.Minute

func start(t *testing.T, path string) *Client {
	t.Helper()
	t.Setenv("KEEPER_TEST", "1")
	k, err := Start(path, nil, "/proc/self/exe")
	nstest.Must(t, err)
	return k
}

// pipe makes a sign of life.
func pipe(t *testing.T) (alive, program *os.File) {
	t.Helper()
	alive, program, err := os.Pipe()
	nstest.Must(t, err)
	t.Cleanup(func() { fds.CloseFiles(alive, program) })
	return alive, program
}

func fd(t *testing.T, f *os.File) (n int) {
	t.Helper()
	nstest.Must(t, fds.With(f, func(fd int) error { n = fd; return nil }))
	return n
}

func keys(entries []Entry) (k []string) {
	for i := range entries {
		k = append(k, entries[i].Key)
		entries[i].Close()
	}
	slices.Sort(k)
	return k
}

// gone reports whether another process removes a file.
func gone(path string) bool {
	return await.Comes(func() bool {
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	})
}

// The next agent finds what one agent has put, with descriptors that work.
// The descriptor store exits when the last holder of a lease is dead and there is no agent.
func TestServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	first := start(t, path)
	alive, program := pipe(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	nstest.Must(t, err)
	defer file.Close()
	for range 2 { // the second takes the first one's place
		nstest.Must(t, errors.Join(
			first.Put("nic/a", []byte("one"), fd(t, file), fd(t, file)),
			first.Put("lease/a/0", []byte("two"), fd(t, alive)),
			first.Put("vi/a/1", []byte("three")),
		))
	}
	nstest.Must(t, errors.Join(first.Delete("vi/a/1"), first.Delete("nothing"), first.Close()))

	second := start(t, path)
	entries, err := second.List()
	nstest.Must(t, err)
	for _, i := range entries {
		switch i.Key {
		case "nic/a":
			if _, err := i.Files[1].WriteString("through"); err != nil || len(i.Files) != 2 || string(i.Value) != "one" {
				t.Errorf("%q with %d files: %v", i.Value, len(i.Files), err)
			}
		case "lease/a/0":
			nstest.ErrorIf(t, len(i.Files) != 1 || string(i.Value) != "two", "%q with %d files", i.Value, len(i.Files))
		}
	}
	if b, err := os.ReadFile(file.Name()); string(b) != "through" {
		t.Errorf("the file has %q, %v", b, err)
	}
	nstest.Same(t, "what is kept", keys(entries), []string{"lease/a/0", "nic/a"})
	// The newest agent is the agent.
	third := start(t, path)
	nstest.ErrorIf(t, second.Delete("nic/a") == nil, "the agent before the last one still rules")
	nstest.Must(t, errors.Join(second.Close(), third.Close()))
	time.Sleep(50 * time.Millisecond) // for a descriptor store that would leave wrongly
	fourth := start(t, path)
	if entries, err := fourth.List(); err != nil || len(keys(entries)) != 2 {
		t.Fatalf("the descriptor store has left with a program alive: %v, %v", entries, err)
	}
	nstest.Must(t, errors.Join(fourth.Close(), program.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays when there is nothing to keep")
}

// An agent that stops in the middle of a list does not keep the next one out.
func TestServerOfAgentThatDoesNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	first := start(t, path)
	alive, program := pipe(t)
	nstest.Must(t, first.Put("lease/a/0", nil, fd(t, alive)))
	for n := range 64 { // more than a socket buffer holds
		nstest.Must(t, first.Put("vi/a/"+strconv.Itoa(n), make([]byte, maxMessage/2)))
	}
	stuck, err := first.dial()
	nstest.Must(t, err)
	nstest.Must(t, errors.Join(first.Close(), send(stuck, message{Op: "hello", Version: Version}), send(stuck, message{Op: "list"})))
	await.Until(t, "the list has begun", func() (begun bool) {
		nstest.Must(t, fds.With(stuck, func(fd int) error {
			unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
			begun = unread > 0
			return err
		}))
		return begun
	})
	next := start(t, path)
	entries, err := next.List()
	nstest.ErrorIf(t, err != nil || len(keys(entries)) != 65, "the next agent finds %d entries, %v", len(entries), err)
	nstest.Check(t, errors.Join(stuck.Close(), next.Close(), program.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays")
}

// Messages that are too long or invalid are an error and do not block the descriptor store. A store with only an agent
// exits when the agent does.
func TestServerRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	k := start(t, path)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want it for its owner only", st.Mode(), err)
	}
	nstest.ErrorIf(t, k.Put("nic/a", make([]byte, maxMessage)) == nil, "a value that is too long: no error")
	nstest.ErrorIf(t, k.Put("nic/a", nil, make([]int, maxFiles+1)...) == nil, "too many descriptors: no error")
	nstest.WantErr(t, "descriptor -1", k.Put("nic/a", nil, -1), unix.EBADF)
	k.mu.Lock()
	_, err := k.ask(message{Op: "dance", Ack: true})
	k.mu.Unlock()
	nstest.ErrorIf(t, err == nil, "an unknown operation: no error")
	if entries, err := k.List(); err != nil || len(entries) != 0 {
		t.Errorf("kept %v, %v", entries, err)
	}
	nstest.Must(t, errors.Join(k.Put("nic/a", nil), k.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays")
}

// An agent of another version gets nothing of what is stored, and an error that names both versions. The programs keep
// what they have, for an agent of the store's version.
func TestServerOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	first := start(t, path)
	alive, program := pipe(t)
	nstest.Must(t, errors.Join(first.Put("lease/a/0", []byte("one"), fd(t, alive)), first.Close()))
	for _, m := range []message{{Op: "hello", Version: Version + 1, Ack: true}, {Op: "list", Ack: true}, {Op: "delete", Key: "lease/a/0"}} {
		c, err := first.dial()
		nstest.Must(t, err)
		nstest.Must(t, send(c, m))
		a, files, err := receive(c, make([]byte, maxMessage))
		fds.Close(files...)
		want := fmt.Sprintf("version %d of what agents store, this agent version %d: end the programs", Version, m.Version)
		nstest.ErrorIf(t, err != nil || a.Op != "done" || !strings.Contains(a.Error, want), "%s: %+v, %v", m.Op, a, err)
		nstest.Must(t, c.Close())
	}
	second := start(t, path)
	entries, err := second.List()
	nstest.Must(t, err)
	nstest.Same(t, "what is kept", keys(entries), []string{"lease/a/0"})
	nstest.Must(t, errors.Join(second.Close(), program.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays")
}

// A descriptor store that ends before its agent is replaced by another one with all entries: those put into
// either, also in between, except deleted ones.
func TestServerKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	k := start(t, path)
	alive, program := pipe(t)
	nstest.Must(t, errors.Join(
		k.Put("nic/a", []byte("one"), fd(t, alive)), k.Put("lease/a/0", []byte("two"), fd(t, alive)), k.Put("vi/a/1", nil),
	))
	for round := range 3 {
		kill(t)
		_ = k.Delete("vi/a/1") // it may be gone, or another may be there
		_ = k.Put("nic/a", []byte{byte(round)}, fd(t, alive))
		await.Succeeds(t, "there is another descriptor store", func() error { return k.Put("vi/b/1", []byte{byte(round)}) })
	}
	// The next agent finds all of it, and the one before lets it be.
	second := start(t, path)
	entries, err := second.List()
	nstest.Must(t, err)
	for _, i := range entries {
		if want := map[string]string{"nic/a": "\x02", "lease/a/0": "two", "vi/b/1": "\x02"}[i.Key]; string(i.Value) != want {
			t.Errorf("%s: %q, want %q", i.Key, i.Value, want)
		}
		nstest.ErrorIf(t, (len(i.Files) == 1) != (i.Key[0] != 'v'), "%s: %d files", i.Key, len(i.Files))
	}
	nstest.Same(t, "what is kept", keys(entries), []string{"lease/a/0", "nic/a", "vi/b/1"})
	nstest.ErrorIf(t, k.Put("nic/a", nil) == nil, "the agent before the last one still rules")
	// What an agent has found, it can give to another descriptor store.
	kill(t)
	await.Succeeds(t, "there is another descriptor store", func() error { return second.Put("vi/b/1", nil) })
	third := start(t, path)
	if entries, err := third.List(); err != nil || len(keys(entries)) != 3 {
		t.Errorf("kept %v, %v", entries, err)
	}
	nstest.Check(t, errors.Join(program.Close(), k.Close(), second.Close(), third.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays")
}

// A descriptor store that is out of descriptors reports that, and stays the agent's. It gets what it had no
// room for when there is room, and the next agent gets all of it.
func TestServerOutOfDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fdstore")
	others := processes()
	k := start(t, path)
	alive, program := pipe(t)
	nstest.Must(t, k.Put("lease/a/0", []byte("one"), fd(t, alive)))
	own := slices.DeleteFunc(processes(), func(pid int) bool { return slices.Contains(others, pid) })
	nstest.FatalIf(t, len(own) != 1, "keepers: %d", own)
	pid := own[0]
	var limit unix.Rlimit
	nstest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	few := unix.Rlimit{Max: limit.Max}
	for err := error(nil); err == nil; few.Cur++ { // beyond the first number that is free
		_, err = os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, few.Cur))
	}
	nstest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
	link := k.link
	var no refused
	for _, files := range [][]int{{fd(t, alive), fd(t, alive), fd(t, alive)}, {fd(t, alive)}} { // no room for them; for what is made of them
		if err := k.Put("lease/a/1", []byte("two"), files...); !errors.As(err, &no) || !strings.Contains(err.Error(), "lease/a/1") {
			t.Errorf("%d descriptors: %v", len(files), err)
		}
	}
	nstest.WantErr(t, "without descriptors", k.Put("vi/a/1", nil), nil)
	nstest.ErrorIf(t, k.link != link, "there is another connection")
	nstest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
	nstest.Check(t, k.Delete("vi/b/1")) // there is room now
	nstest.ErrorIf(t, len(k.late) != 0, "still late: %v", k.late)
	nstest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}, nil)) // not even for a connection
	second, err := k.dial()
	nstest.Must(t, err)
	second.Close()
	nstest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
	next := start(t, path)
	entries, err := next.List()
	nstest.Check(t, err)
	nstest.Same(t, "what the next agent finds", keys(entries), []string{"lease/a/0", "lease/a/1", "vi/a/1"})
	nstest.Check(t, errors.Join(program.Close(), k.Close(), next.Close()))
	nstest.ErrorIf(t, !gone(path), "the descriptor store stays")
}

// kill kills the descriptor store, which is this process' child.
func kill(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(waitLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, pid := range processes() {
			if unix.Kill(pid, unix.SIGKILL) != nil {
				continue
			}
			for end := time.Now().Add(waitLimit); unix.Kill(pid, 0) == nil && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			return
		}
	}
	t.Fatal("there is no descriptor store to kill")
}

// processes returns the running descriptor stores, including those that are about to end.
func processes() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, p := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(p)
			cmd, _ := os.ReadFile("/proc/" + p + "/cmdline")
			if strings.HasPrefix(string(cmd), "/proc/self/exe") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Nothing is given to a descriptor store of another user.
func TestServerOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root, to be another user")
	}
	dir, err := os.MkdirTemp("", "fdstore") // t.TempDir is root's alone
	nstest.Must(t, err)
	defer os.RemoveAll(dir)
	nstest.Must(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "fdstore")
	done := make(chan error)
	var fd int
	go func() {
		// Never unlocked: the thread ends with the goroutine. The raw call changes
		// this thread only.
		runtime.LockOSThread()
		var err error
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 60001, 60001, 60001); errno != 0 {
			err = errno
		}
		if err == nil {
			fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		}
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 8))
		}
		done <- err
	}()
	nstest.Must(t, <-done)
	defer unix.Close(fd)
	k, err := Start(path, nil, "/bin/false")
	if err == nil {
		k.Close()
	}
	nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "neither this user nor root"), "%v, want an error that names the listener", err)
}

// A sign of life ends when the last copy is closed. What its holder writes to it is not read: when the pipe is
// full, writes have no further effect.
func TestSignOfLife(t *testing.T) {
	ours, theirs := pipe(t)
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		AwaitDeath(ours)
	}()
	full := func() (n int) {
		for b := make([]byte, 1); ; n++ {
			switch _, err := unix.Write(fd(t, theirs), b); {
			case errors.Is(err, unix.EAGAIN):
				return n
			case err != nil:
				t.Fatal(err)
			}
		}
	}
	nstest.ErrorIf(t, full() == 0, "nothing can be written")
	time.Sleep(10 * time.Millisecond) // for one that would read
	nstest.Equal(t, "bytes that were read", full(), 0)
	select {
	case <-dead:
		t.Error("dead by what it has written")
	default:
	}
	nstest.ErrorIf(t, IsDead(ours), "dead, and has its end")
	nstest.Must(t, theirs.Close())
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Fatal("the end was not detected")
	}
	nstest.ErrorIf(t, !IsDead(ours), "not dead")
}

// Closing the file ends a wait.
func TestSignOfLifeClosed(t *testing.T) {
	ours, _ := pipe(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		AwaitDeath(ours)
	}()
	nstest.Must(t, ours.Close())
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("still waiting")
	}
	nstest.ErrorIf(t, !IsDead(ours), "not dead, and closed")
}
