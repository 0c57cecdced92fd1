package agentd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// collectedBy is a Server without a socket. The test reclaims its pinned memory.
func collectedBy(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg, nil)
	nstest.Must(t, err)
	s.collecting = true
	s.sockets = func() (map[uint64]bool, bool, error) { return nil, true, nil }
	t.Cleanup(func() { nstest.Check(t, s.shut()) })
	return s
}

// The next agent charges what this one has, each queue of a handle that has several, for a link its memory alone, and of the
// programs that share a queue only one with the queue.
func TestRecordOfPinned(t *testing.T) {
	for _, d := range []pinnedQueue{
		{uid: 7, sockets: []uint64{1}, has: claims{processes: 1, queues: 1, pinned: 4096}},
		{uid: 7, sockets: []uint64{1, 2, 3}, has: claims{processes: 1, queues: 3, pinned: 4096}},
		{uid: 7, sockets: []uint64{1, 2}, has: claims{pinned: 4096}, shmLink: true},
		{uid: 7, sockets: []uint64{1, 2}, has: claims{processes: 1, pinned: 4096}, share: &share{}},
		{
			uid: 7, sockets: []uint64{1, 2}, has: claims{processes: 1, queues: 2, pinned: 4096}, share: &share{},
			shared: claims{queues: 2, pinned: 1024},
		},
	} {
		r := d.record()
		what := fmt.Sprintf("%d sockets, link %v, shared %v", len(d.sockets), d.shmLink, d.share != nil)
		nstest.Equal(t, what, r.claims(), d.has)
		nstest.Equal(t, what+": what is common", r.shared(), d.shared)
	}
}

// pin charges user 7 with a pinned queue, which has socket 4711.
func (s *Server) pin(t *testing.T, key string) {
	t.Helper()
	nstest.Must(t, s.charge(7, claims{queues: 1}))
	s.pinnedQueues[&pinnedQueue{uid: 7, has: claims{queues: 1}, sockets: []uint64{4711}, key: key}] = struct{}{}
}

// Pinned memory is charged until the socket is closed if the kernel lists the sockets, even if the program
// closes its sign of life, and until the sign of life ends if it does not.
func TestPinned(t *testing.T) {
	const ino = 4711
	for _, known := range []bool{true, false} {
		s := collectedBy(t, Config{})
		open := map[uint64]bool{ino: true}
		failure := errors.New("interrupted")
		s.sockets = func() (map[uint64]bool, bool, error) { return open, known, failure }
		fds := make([]int, 2)
		nstest.Must(t, unix.Pipe2(fds, unix.O_CLOEXEC|unix.O_NONBLOCK))
		ours, theirs := os.NewFile(uintptr(fds[0]), "alive"), os.NewFile(uintptr(fds[1]), "alive")
		nstest.Must(t, s.charge(7, claims{queues: 1, pinned: 4096}))
		s.track(&pinnedQueue{uid: 7, has: claims{queues: 1, pinned: 4096}, sockets: []uint64{ino}, alive: ours})
		hasPinned := func(want bool, when string) {
			t.Helper()
			s.collect()
			s.mu.Lock()
			defer s.mu.Unlock()
			if u := s.users[7]; (u != nil) != want || want && (u.queues != 1 || u.pinned != 4096) {
				t.Errorf("sockets known %v, %s: %+v, want a debt: %v", known, when, u, want)
			}
		}
		hasPinned(true, "nothing known")
		failure = nil
		hasPinned(true, "the program lives")
		if known {
			theirs.Close()
			hasPinned(true, "the sign of life is closed")
			open = nil
		} else {
			open = nil
			hasPinned(true, "no list of sockets")
			theirs.Close()
		}
		hasPinned(false, "at the end")
	}
}

// A program that has closed its sign of life and kept its socket stays charged while the agent lacks the descriptor with which
// it lists the sockets.
func TestPinnedWithoutDescriptors(t *testing.T) {
	s := collectedBy(t, Config{})
	s.sockets = func() (map[uint64]bool, bool, error) { return map[uint64]bool{4711: true}, true, nil }
	alive, theirs, err := os.Pipe()
	nstest.Must(t, err)
	nstest.Must(t, theirs.Close())
	nstest.Must(t, s.charge(7, claims{queues: 1}))
	s.track(&pinnedQueue{uid: 7, has: claims{queues: 1}, sockets: []uint64{4711}, alive: alive})
	s.sockets = openSockets
	nstest.WithDescriptors(t, 0, s.collect)
	s.mu.Lock()
	nstest.ErrorIf(t, s.users[7] == nil, "the user is charged for nothing")
	s.mu.Unlock()
	s.sockets = func() (map[uint64]bool, bool, error) { return nil, true, nil }
	s.collect()
	nstest.ErrorIf(t, s.users[7] != nil, "the closed socket is charged: %+v", s.users[7])
}

// The sign of life decides, too, if the kernel lists only the sockets before the one whose interface was removed.
func TestSocketsUnlisted(t *testing.T) {
	number := func(all ...int) func() (int, error) {
		return func() (n int, _ error) {
			n, all = all[0], append(all[1:], all[0])
			return n, nil
		}
	}
	for _, c := range []struct {
		count   func() (int, error)
		err     error // of the list
		known   bool
		passing bool
	}{
		{number(1), nil, true, false},
		{number(2), nil, false, false}, // one is not listed
		{number(2, 1, 1, 1), nil, true, false},
		{number(1, 2), nil, false, true},
		{number(1), unix.EINVAL, false, false},
		{number(1), netlink.ErrDumpInterrupted, false, true},
		{func() (int, error) { return 0, unix.ENOENT }, nil, false, false},
		{func() (int, error) { return 0, unix.EMFILE }, nil, false, true},
	} {
		inodes, known, err := listSockets(func() ([]*netlink.XDPDiagInfoResp, error) {
			return []*netlink.XDPDiagInfoResp{{XDPDiagMsg: &netlink.XDPSocket{Ino: 4711}}}, c.err
		}, c.count)
		nstest.ErrorIf(t, known != c.known || (err != nil) != c.passing || err == nil && !inodes[4711],
			"list %v: %v, known %v, %v; want %+v", c.err, inodes, known, err, c)
	}
	an, _ := nstest.Pair(t, nstest.Options{})
	nstest.Must(t, an.Do(func() error {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		nstest.Must(t, err)
		defer unix.Close(fd)
		n, err := socketCount()
		nstest.Equal(t, "sockets", n, 1)
		return err
	}))
}

// A request for quota while a pinned queue is being refunded, which takes the descriptor store's answer, waits
// for that and is not refused.
func TestRefundUnderWay(t *testing.T) {
	v := slow{asked: make(chan struct{}), answers: make(chan struct{})}
	s := collectedBy(t, Config{Users: map[uint32]Quota{7: {Queues: 1}}, FDStore: v})
	s.pin(t, fdstore.PinnedPrefix+"x")
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		s.collect()
	}()
	<-v.asked
	charged := make(chan error, 1)
	go func() { charged <- s.charge(7, claims{queues: 1}) }()
	select {
	case err := <-charged:
		t.Errorf("before the descriptor store has answered: %v", err)
		close(v.answers)
	case <-time.After(50 * time.Millisecond): // for one that would not wait
		close(v.answers)
		nstest.Check(t, <-charged)
	}
	<-collected
}

// Refusing a user costs one check of that user's pinned queues, and does not touch other users' sessions and
// pinned queues. Requests that wait for a check share the next.
func TestCostOfRefusal(t *testing.T) {
	s := collectedBy(t, Config{Users: map[uint32]Quota{7: {Queues: 1}, 8: {Queues: 1}}})
	looks, looking, goOn := 0, make(chan struct{}), make(chan struct{})
	s.sockets = func() (map[uint64]bool, bool, error) {
		looks++
		if looks == 2 {
			close(looking)
			<-goOn
		}
		return map[uint64]bool{4711: true}, true, nil
	}
	refused := func(uid uint32) {
		t.Helper()
		nstest.WantErr(t, fmt.Sprintf("user %d", uid), s.charge(uid, claims{queues: 1}), agentproto.ErrQuota)
	}
	nstest.Must(t, s.charge(8, claims{queues: 1}))
	s.pin(t, "")
	// A dead program's session of another user, which must not be touched.
	s.sessions["x"] = &session{server: s, uid: 7, over: true}
	s.sessions["x"].once.Do(func() {})
	refused(8)
	nstest.ErrorIf(t, looks != 0, "%d looks at the sockets for a user without debts", looks)
	asked := 0
	if s.reapDead(func(n *session) bool { asked++; return n.uid == 8 }); asked != 1 {
		t.Errorf("asked about %d sessions", asked)
	}
	refused(7)
	nstest.ErrorIf(t, looks != 1, "%d looks for a user with a debt, want 1", looks)
	// One looks, and ten come meanwhile.
	var all sync.WaitGroup
	all.Go(s.collect)
	<-looking
	askAtOnce(t, s, &all, 10)
	close(goOn)
	all.Wait()
	nstest.ErrorIf(t, looks != 3, "%d looks in all, want 3", looks)
}

// askAtOnce starts n requests for a check, which cannot begin, and returns when all are waiting.
func askAtOnce(t *testing.T, s *Server, all *sync.WaitGroup, n uint64) {
	t.Helper()
	asked := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked
	}
	want := asked() + n
	for range n {
		all.Go(s.collect)
	}
	await.Until(t, fmt.Sprintf("%d have asked", want), func() bool { return asked() >= want })
}

// A check that fails counts only for its caller: the others check for themselves.
func TestLookThatFails(t *testing.T) {
	s := collectedBy(t, Config{})
	looks, failure := 0, errors.New("interrupted")
	s.sockets = func() (map[uint64]bool, bool, error) {
		looks++
		if looks == 1 {
			return nil, false, failure
		}
		return nil, true, nil
	}
	s.pin(t, "")
	s.collection.Lock() // until two requests wait; either may be first
	var all sync.WaitGroup
	askAtOnce(t, s, &all, 2)
	s.collection.Unlock()
	all.Wait()
	nstest.ErrorIf(t, looks != 2 || len(s.pinnedQueues) > 0,
		"%d looks, %d debts; want a second look, and no debt", looks, len(s.pinnedQueues))
}

// An open first frees the memory that programs of any user have released when they ended: there may be
// hugepages for one queue only.
func TestOpenCollects(t *testing.T) {
	s := collectedBy(t, Config{Interfaces: map[string]Interface{"none": {}}})
	s.pin(t, "")
	c := &conn{server: s, cred: peer{Ucred: unix.Ucred{Uid: 8}}}
	if _, _, _, err := c.open(t.Context(), &agentproto.Open{Interface: "none"}); err == nil {
		t.Error("an interface that is not there: no error")
	}
	nstest.ErrorIf(t, len(s.pinnedQueues) > 0 || s.users[7] != nil, "debts %v, user %+v; want none", s.pinnedQueues, s.users[7])
}

// slow is a descriptor store whose deletions are slow.
type slow struct{ asked, answers chan struct{} }

func (v slow) Put(string, []byte, ...int) error { return nil }
func (v slow) Delete(string) error {
	close(v.asked)
	<-v.answers
	return nil
}

// The quota also bounds the rings of a program that joins another one on its queue, because it may not have its own. One that
// is refused leaves nothing charged, although the only other program with the queue ends just then.
func TestQuotaOfJoiner(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	const user = 7
	for _, ends := range []bool{false, true} {
		nstest.Must(t, ns.Do(func() error {
			s := collectedBy(t, Config{Interfaces: map[string]Interface{ns.Name: {}}, Users: map[uint32]Quota{user: {Queues: 1}}, Linger: -1})
			open := func() (*session, error) {
				c := &conn{server: s, c: new(net.UnixConn), cred: peer{Ucred: unix.Ucred{Uid: user}}}
				n, h, alive, err := c.open(t.Context(), &agentproto.Open{Interface: ns.Name, Queue: kagent.AnyQueue, ArenaBytes: 8 << 20})
				if err == nil {
					h.Close()
					t.Cleanup(func() { alive.Close() })
				}
				return n, err
			}
			first, err := open()
			nstest.Must(t, err)
			second, err := open()
			nstest.Must(t, err)
			rings := second.has.pinned
			nstest.Must(t, second.end(false))
			s.mu.Lock()
			s.pinnedQueues[&pinnedQueue{uid: user, sockets: []uint64{4711}}] = struct{}{} // is looked for before a refusal
			s.users[user].quota.PinnedBytes = s.users[user].pinned + rings - 1
			s.mu.Unlock()
			s.sockets = func() (map[uint64]bool, bool, error) {
				if ends && first.local.Group() != nil && len(device.LocalStatus().NICs[0].Leases) == 2 {
					first.owed()
				}
				return map[uint64]bool{4711: true}, true, nil
			}
			if _, err := open(); !errors.Is(err, agentproto.ErrQuota) || !strings.Contains(err.Error(), "rings") {
				t.Errorf("%d bytes of rings where %d are left: %v, want ErrQuota", rings, rings-1, err)
			}
			s.sockets = func() (map[uint64]bool, bool, error) { return nil, true, nil }
			nstest.Must(t, first.end(false))
			s.collect()
			s.mu.Lock()
			defer s.mu.Unlock()
			nstest.ErrorIf(t, len(s.users)+len(s.shares) > 0,
				"the other program ends: %v: user %+v, shares %v; want none", ends, s.users[user], s.shares)
			return nil
		}))
	}
}
