package agentd_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// The ways in which an interface is removed and comes back. If the peer stays, its own interface has not changed.
var returns = []struct {
	name      string
	peerStays bool
	away      func(t *testing.T, a, b *nstest.NS) (back func())
}{
	{"made anew", false, func(t *testing.T, a, b *nstest.NS) func() {
		a.Remove(t)
		return func() { nstest.Rejoin(t, a, b, nstest.Options{}) }
	}},
	{"lent, number kept", true, func(t *testing.T, a, _ *nstest.NS) func() {
		back := a.MoveAway(t)
		return func() { back(false) }
	}},
	{"lent, another number", true, func(t *testing.T, a, _ *nstest.NS) func() {
		back := a.MoveAway(t)
		return func() { back(true) }
	}},
}

// An agent whose interface is removed and comes back serves it again, to programs that have closed their
// handles and to those that have not, and nothing is left of the old interface. Programs are notified at once:
// connected ones, and those that wait for a connection.
func TestInterfaceReturns(t *testing.T) {
	t.Parallel()
	for _, how := range returns {
		t.Run(how.name, func(t *testing.T) {
			a, b := pair(t, nstest.Options{}, agentConfig{})
			old, err := a.open(vipl.WithSilence(time.Minute))
			nstest.Must(t, err)
			oldPeer, err := b.open(vipl.WithSilence(time.Second))
			nstest.Must(t, err)
			falls := make(chan vipl.ErrorCode, 100)
			old.ErrorCallback(func(e vipl.ErrorDescriptor) { falls <- e.Code })
			oldPeer.ErrorCallback(func(e vipl.ErrorDescriptor) {})
			s := newStream(t, old, oldPeer, "before")
			s.steps(t, 1)
			waited := make(chan error, 1)
			go func() {
				_, err := old.ConnectWait(vipl.NetAddress{Discriminator: []byte("nobody")}, waitLimit)
				waited <- err
			}()

			back := how.away(t, a.ns, b.ns)
			awaitBroken(t, s.from, s.to)
			select {
			case code := <-falls:
				nstest.ErrorIf(t, code != vipl.ErrorCatastrophic, "the first error is %v", code)
			case <-time.After(waitLimit):
				t.Error("the handler of errors is not called")
			}
			nstest.WantErr(t, "a wait for a connection", <-waited, vipl.ErrResource)
			await.Until(t, "the agent says so", func() bool { return a.log.count("the interface is gone") == 1 })

			back()
			// The program that had the interface has its old handle still.
			nic := a.nic(vipl.WithSilence(time.Minute))
			for range 20 { // there is one queue: none of them shares that of the interface that went
				more, err := a.open()
				nstest.Must(t, err)
				if i := more.Info().Index; i != a.ns.Index || !more.Query().Address.IsValid() {
					t.Errorf("a further handle is on interface %d, of address %v; the new one is %d", i, more.Query().Address, a.ns.Index)
				}
				nstest.Check(t, more.Close())
			}
			peer := oldPeer
			if !how.peerStays {
				peer = b.nic(vipl.WithSilence(time.Minute))
			}
			again := newStream(t, nic, peer, "after")
			again.steps(t, 1)
			if _, err := s.from.vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{
				Host: b.ns.IPv4, Discriminator: []byte("old"),
			}, waitLimit); err == nil {
				t.Error("the old handle connects")
			}
			nstest.WantErr(t, "the old handle", old.Close(), nil)
			if how.peerStays {
				defer func() { nstest.Check(t, oldPeer.Close()) }()
			} else if err := oldPeer.Close(); err != nil {
				t.Errorf("the peer's old handle: %v", err)
			}
			again.steps(t, 1)
			alone(t, a, nic)
			// The next agent knows of the new interface alone.
			a.restart()
			alone(t, a, nic)
			newStream(t, nic, peer, "last").steps(t, 1)
			again.steps(t, 1)
		})
	}
}

// A program's memory of a removed interface is charged to its user until the program releases it, also by a later
// agent, whether or not an agent ran at the removal.
func TestMemoryOfAnInterfaceThatIsGone(t *testing.T) {
	t.Parallel()
	for _, here := range []bool{false, true} {
		t.Run(fmt.Sprintf("agent there: %v", here), func(t *testing.T) {
			g := oneAgent(t, nstest.Options{}, agentConfig{})
			r := g.raw(t).hello()
			files := r.files(openOf(agentproto.Open{}))
			owned := func() (queues, pinned int) {
				for _, u := range g.status(t).Users {
					queues, pinned = queues+u.Queues, pinned+u.PinnedBytes
				}
				return queues, pinned
			}
			_, want := owned()
			if !here {
				g.kill()
			}
			g.ns.Remove(t)
			if here {
				await.Until(t, "the agent says so", func() bool { return g.log.count("the interface is gone") == 1 })
				g.kill()
			}
			for range 2 { // it is kept for the one after that, too
				g.start()
				if queues, pinned := owned(); queues != 1 || pinned != want || want < 8<<20 {
					t.Errorf("charged for %d queues, %d bytes", queues, pinned)
				}
				g.kill()
			}
			g.start()
			r.c.Close()
			fds.CloseFiles(files...)
			await.Until(t, "nothing is charged", func() bool { queues, pinned := owned(); return queues == 0 && pinned == 0 })
		})
	}
}

// Two programs share a queue of an interface that is removed while no agent runs. Their user is charged for one queue and its
// memory until both have released it, in whatever order.
func TestSharedMemoryOfAnInterfaceThatIsGone(t *testing.T) {
	t.Parallel()
	for _, firstStays := range []bool{true, false} {
		t.Run(fmt.Sprintf("the first stays: %v", firstStays), func(t *testing.T) {
			t.Parallel()
			g := oneAgent(t, nstest.Options{}, agentConfig{})
			var programs [2]*raw
			var files [2][]*os.File
			for i := range programs {
				programs[i] = g.raw(t).hello()
				files[i] = programs[i].files(openOf(agentproto.Open{Queue: kagent.AnyQueue}))
				defer fds.CloseFiles(files[i]...)
			}
			want := g.status(t).Users[0]
			g.kill()
			g.ns.Remove(t)
			g.start()
			for _, c := range programs {
				c.c.Close()
			}
			if u := g.status(t).Users[0]; u.Processes != 2 || u.Queues != 1 || u.PinnedBytes != want.PinnedBytes {
				t.Errorf("user: %+v, want %+v", u, want)
			}
			ends, stays := files[0], files[1]
			if firstStays {
				ends, stays = stays, ends
			}
			ends[0].Close()
			ends[2].Close()
			await.Until(t, "one program has released the queue", func() bool { return g.status(t).Users[0].Processes == 1 })
			if u := g.status(t).Users[0]; u.Queues != 1 || u.PinnedBytes < 8<<20 || u.PinnedBytes >= want.PinnedBytes {
				t.Errorf("user, after one has released the queue: %+v, before: %+v", u, want)
			}
			nstest.ErrorIf(t, blocks(t, stays[1]) == 0, "the memory is gone while the socket is there")
			g.releases(t, stays)
		})
	}
}

// alone checks that the queue of nic is all that the agent has, and all that is charged to a user.
func alone(t *testing.T, a *agent, nic *vipl.NIC) {
	t.Helper()
	var st kagent.Status
	await.Until(t, "nothing is left of the interface that went", func() bool {
		st = a.status(t)
		return len(st.NICs) == 1 && len(st.NICs[0].Leases) == 1 && len(st.Users) == 1 && st.Users[0].Queues == 1 &&
			st.NICs[0].Index == a.ns.Index && st.Users[0].PinnedBytes == nic.Info().Arena.Size+rings(nic)
	})
}
