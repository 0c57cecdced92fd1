package fdstore

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
)

// fake is a descriptor store that a test controls.
type fake struct {
	t *testing.T
	l *net.UnixListener
}

// startFake starts a client of a fake, which has answered it.
func startFake(t *testing.T) (f fake, k *Client, c *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fdstore")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	nstest.Must(t, err)
	f = fake{t, l}
	started := make(chan error, 1)
	go func() {
		var err error
		k, err = Start(path, nil, "/bin/false")
		started <- err
	}()
	c = f.accept()
	f.answer(c, "hello")
	nstest.Must(t, <-started)
	t.Cleanup(func() { nstest.Check(t, errors.Join(k.Close(), l.Close())) })
	return f, k, c
}

func (f fake) accept() *net.UnixConn {
	f.t.Helper()
	_ = f.l.SetDeadline(time.Now().Add(waitLimit))
	c, err := f.l.AcceptUnix()
	nstest.Must(f.t, err)
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// next is the next message of the client, which is to be an op.
func (f fake) next(c *net.UnixConn, op string) message {
	f.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(waitLimit))
	m, files, err := receive(c, make([]byte, maxMessage))
	fds.Close(files...)
	nstest.FatalIf(f.t, err != nil || m.Op != op, "the client says %+v, %v, want %s", m, err, op)
	return m
}

func (f fake) say(c *net.UnixConn, op string) {
	f.t.Helper()
	nstest.Must(f.t, send(c, message{Op: op}))
}

// sayUnasked sends an answer that no call waits for, and waits until it is read.
func (f fake) sayUnasked(c *net.UnixConn) {
	f.t.Helper()
	f.say(c, "item")
	raw, err := c.SyscallConn()
	nstest.Must(f.t, err)
	for end := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
		unread := 0
		cerr := raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
		if err = errors.Join(err, cerr); err != nil || time.Now().After(end) {
			f.t.Fatalf("the client has left %d bytes, %v", unread, err)
		}
		if unread == 0 {
			return
		}
	}
}

func (f fake) answer(c *net.UnixConn, op string) {
	f.t.Helper()
	f.next(c, op)
	f.say(c, "done")
}

// A descriptor store that does not answer delays only the goroutine that connects to it, and gets all entries
// when it answers after all.
func TestServerSilent(t *testing.T) {
	f, k, c := startFake(t)
	_ = c.Close()
	c = f.accept()
	f.next(c, "hello")
	nstest.WantErr(t, "Put", k.Put("nic/a", []byte("one")), errEnded)
	nstest.WantErr(t, "Delete", k.Delete("nic/b"), errEnded)
	// The question was not given up meanwhile.
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, _, err := receive(c, make([]byte, maxMessage)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client has not gone on at once: %v", err)
	}
	f.say(c, "done")
	f.answer(c, "list")
	if m := f.next(c, "put"); m.Key != "nic/a" || string(m.Value) != "one" {
		t.Errorf("put %+v", m)
	}
	f.say(c, "done")

	// Nor does it keep an agent from its end.
	_ = c.Close()
	f.next(f.accept(), "hello")
	nstest.Check(t, k.Close())
}

// A descriptor store on an overloaded machine, which gets no CPU for seconds, keeps its agent.
func TestServerStarved(t *testing.T) {
	t.Parallel() // it waits
	f, k, c := startFake(t)
	put := make(chan error, 1)
	go func() { put <- k.Put("vi/a", nil) }()
	f.next(c, "put")
	time.Sleep(6 * time.Second) // answers came up to 9.6 s late on a starved machine; the limit was 5 s
	f.say(c, "done")
	nstest.Check(t, <-put)
	go func() { put <- k.Delete("vi/a") }()
	f.answer(c, "delete")
	nstest.Check(t, <-put)
}

// An unexpected message does not hide the end of its connection.
func TestUnaskedAnswer(t *testing.T) {
	f, k, c := startFake(t)
	f.sayUnasked(c)
	_ = c.Close()
	nstest.ErrorIf(t, k.Put("nic/a", nil) == nil, "a descriptor store that is gone has taken something")
	f.next(f.accept(), "hello")
}

// An agent whose descriptor store another one has taken does not take it back: the message about the
// replacement precedes the end, also if a Put sees the end first.
func TestReplacedIsHeard(t *testing.T) {
	f, k, c := startFake(t)
	f.sayUnasked(c) // what comes next is not read before this is taken
	f.say(c, "replaced")
	nstest.Must(t, c.CloseRead())
	nstest.WantErr(t, "Put", k.Put("nic/a", nil), unix.EPIPE)
	nstest.WantErr(t, "another Put", k.Put("nic/a", nil), errReplaced)
}

// An agent that is out of descriptors does not remove the descriptor store's socket, by which the next agent
// finds the store.
func TestAgentOutOfDescriptors(t *testing.T) {
	f, k, _ := startFake(t)
	var limit unix.Rlimit
	nstest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	nstest.Must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}, nil))
	_, err := k.connect()
	nstest.Must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil))
	nstest.ErrorIf(t, !errors.Is(err, unix.EMFILE), "%v, want EMFILE", err)
	nstest.Check(t, nstest.Err(os.Lstat(f.l.Addr().String())))
}

// An agent that is out of descriptors stores what programs have all the same: the store has copies of its own. Another store gets
// them, unless the one before took the only copy with it.
func TestPutWithoutDescriptors(t *testing.T) {
	put := func(k *Client, key string, during func()) {
		t.Helper()
		alive, _ := pipe(t)
		nstest.WithDescriptors(t, 0, func() {
			result := make(chan error, 1)
			go func() { result <- k.Put(key, []byte("one"), fd(t, alive)) }()
			during()
			nstest.Must(t, <-result)
		})
	}
	path := filepath.Join(t.TempDir(), "fdstore")
	k := start(t, path)
	put(k, "lease/a", func() {})
	nstest.Must(t, k.Close())
	k = start(t, path)
	entries, err := k.List()
	nstest.Must(t, err)
	defer closeEntries(entries)
	nstest.ErrorIf(t, len(entries) != 1 || entries[0].Key != "lease/a" || len(entries[0].Files) != 1,
		"the next agent gets %+v", entries)
	nstest.Must(t, k.Close())

	f, k, c := startFake(t)
	for _, key := range []string{"lease/a", "lease/b"} {
		put(k, key, func() {
			_ = c.SetReadDeadline(time.Now().Add(waitLimit))
			nstest.Must(t, nstest.Err(c.Read(make([]byte, maxMessage)))) // without the descriptor, for which there is no room
			f.say(c, "done")
		})
	}
	_ = c.Close()
	c = f.accept()
	f.answer(c, "hello")
	f.next(c, "list")
	alive, _ := pipe(t)
	nstest.Must(t, send(c, message{Op: "item", Key: "lease/a", Value: []byte("one")}, fd(t, alive)))
	f.say(c, "done")
	for range 2 { // also when that store has ended, too
		if m := f.next(c, "put"); m.Key != "lease/a" || string(m.Value) != "one" {
			t.Errorf("put %+v", m)
		}
		f.say(c, "done")
		_ = c.Close()
		c = f.accept()
		f.answer(c, "hello")
		f.answer(c, "list")
	}
}

// Any input is a message that survives writing and reading, or an error.
func FuzzMessage(f *testing.F) {
	for _, m := range []message{
		{Op: "hello", Version: Version, Ack: true}, {Op: "put", Key: "vi/eth0/10001", Value: []byte(`{"x":1}`), Ack: true},
		{Op: "delete", Key: "nic/eth0"}, {Op: "list", Ack: true}, {Op: "done", Error: "no"}, {Op: "replaced"},
	} {
		b, err := json.Marshal(m)
		nstest.Must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"Op":"put","Value":"AA"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		if len(m.Value) == 0 {
			m.Value = nil // it is left out
		}
		again, err := json.Marshal(m)
		nstest.Must(t, err)
		if n, err := parse(again); err != nil || !reflect.DeepEqual(m, n) {
			t.Fatalf("%+v is read again as %+v, %v", m, n, err)
		}
	})
}
