package vipl_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
)

// A process that is killed in the middle of traffic leaves nothing behind, and its peer is notified. VIA_KILLS
// is the number of rounds; each takes about two seconds.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	na, nb := nstest.Pair(t, nstest.Options{})
	rounds := testsize.Number(t, "VIA_KILLS", 3, 3)
	var nic *vipl.NIC
	must(t, na.Do(func() (err error) {
		nic, err = vipl.OpenNIC(na.Name)
		return err
	}))
	defer nic.Close()
	programs := []ebpf.ProgramID{attachedProgram(t, na)}
	meter := schedlat.Start()
	defer meter.Close()
	load := newLoad(t, nic)
	for round := range rounds {
		asks := round%2 == 0 // the side that requests the connection, alternately
		child := startVictim(t, nb, na.IPv4.String(), asks)
		if err := load.connect(nic, nb, asks); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for start := time.Now(); load.messages == 0; load.turn(t) {
			fatalIf(t, time.Since(start) > ackDelay, "no load came up")
		}
		alive := time.Now().Add(time.Duration(rand.IntN(60)) * time.Millisecond)
		for time.Now().Before(alive) {
			load.turn(t)
		}
		programs = append(programs, attachedProgram(t, nb))
		must(t, child.Process.Signal(unix.SIGKILL))
		killed := meter.Mark()
		child.Wait()
		for {
			load.turn(t)
			s, err := load.vi.Query()
			must(t, err)
			if s.State == vipl.Error {
				break
			}
			fatalIf(t, killed.Over(2*time.Second), "round %d: %v after the kill the VI is %v", round, time.Since(killed.At), s.State)
		}
		equal(t, "round", load.taken+load.flushed(t), len(load.recvs.desc))
		must(t, load.vi.Disconnect())
		nb.Do(func() error {
			if a, ok, err := bpf.AttachedTo(nb.Index); err != nil || ok {
				t.Errorf("round %d: program %v is attached still (%v)", round, a, err)
			}
			start := meter.Mark()
			again, err := vipl.OpenNIC(nb.Name)
			if err != nil {
				t.Errorf("round %d: the queue does not open again: %v", round, err)
				return nil
			}
			errorIf(t, start.Over(2*time.Second), "round %d: the queue opened after %v", round, time.Since(start.At))
			return again.Close()
		})
	}
	noError(t, nic.Close())
	for _, id := range programs {
		gone := false
		for range 3000 {
			p, err := ebpf.NewProgramFromID(id)
			if gone = errors.Is(err, os.ErrNotExist); gone {
				break
			}
			p.Close()
			time.Sleep(10 * time.Millisecond) // the kernel frees it when all processors have left it
		}
		errorIf(t, !gone, "demux program %d is in the kernel still", id)
	}
}

// attachedProgram is the program that the interface has.
func attachedProgram(t *testing.T, ns *nstest.NS) (id ebpf.ProgramID) {
	t.Helper()
	must(t, ns.Do(func() error {
		a, ok, err := bpf.AttachedTo(ns.Index)
		if err == nil && !ok {
			err = errors.New("no program is attached")
		}
		id = ebpf.ProgramID(a.ID)
		return err
	}))
	return id
}

// load keeps messages going in both directions over one VI.
type load struct {
	vi           *vipl.VI
	sends, recvs *box
	messages     int
	taken        int // receives that turn found flushed
}

const loadSize = 4000

func newLoad(t testing.TB, nic *vipl.NIC) *load {
	t.Helper()
	vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)
	must(t, err)
	l := &load{vi: vi, sends: newBox(t, nic, 8, loadSize), recvs: newBox(t, nic, 32, loadSize)}
	for _, b := range []*box{l.sends, l.recvs} {
		for i, d := range b.desc {
			d.SetSegments(b.segs[i])
		}
	}
	return l
}

// connect posts the receives, connects, and sends the first messages.
func (l *load) connect(nic *vipl.NIC, peer *nstest.NS, asked bool) error {
	l.messages, l.taken = 0, 0
	for _, d := range l.recvs.desc {
		if err := l.vi.PostRecv(d, l.recvs.region.Handle()); err != nil {
			return err
		}
	}
	if asked {
		c, err := nic.ConnectWait(vipl.NetAddress{Discriminator: []byte("kill")}, ackDelay)
		if err != nil {
			return err
		}
		if err := c.Accept(l.vi); err != nil {
			return err
		}
	} else if err := ask(l.vi, vipl.NetAddress{Host: peer.IPv4, Discriminator: []byte("kill")}); err != nil {
		return err
	}
	for _, d := range l.sends.desc {
		if err := l.vi.PostSend(d, l.sends.region.Handle()); err != nil {
			return err
		}
	}
	return nil
}

func ask(v *vipl.VI, to vipl.NetAddress) (err error) {
	for range 1000 {
		if _, err = v.ConnectRequest(vipl.NetAddress{}, to, time.Second); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond) // no wait may be active yet
	}
	return err
}

// turn takes what has arrived, posts the receive again and answers.
func (l *load) turn(t testing.TB) {
	for {
		d, err := l.vi.RecvDone()
		if d != nil && err != nil {
			l.taken++ // the end has come; flushed takes the others
		}
		if err != nil {
			return
		}
		l.messages++
		must(t, l.vi.PostRecv(d, l.recvs.region.Handle()))
		if s, err := l.vi.SendDone(); err == nil {
			l.vi.PostSend(s, l.sends.region.Handle())
		}
	}
}

// flushed takes everything off the queues and counts the receives that are
// flushed.
func (l *load) flushed(t testing.TB) (n int) {
	for {
		d, err := l.vi.RecvDone()
		if d == nil {
			break
		}
		if !errors.Is(err, vipl.ErrDescriptor) || d.Status()&vipl.StatusFlushed == 0 {
			t.Errorf("a receive completed with %v, %v", err, d.Status())
		}
		n++
	}
	for {
		if d, _ := l.vi.SendDone(); d == nil {
			return n
		}
	}
}

const victimEnv = "VIA_TEST_VICTIM"

// startVictim starts this test binary as the process to be killed.
func startVictim(t *testing.T, ns *nstest.NS, peer string, asks bool) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=TestVictim$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%v", victimEnv, peer, asks))
	cmd.Stderr = os.Stderr
	must(t, ns.Do(cmd.Start))
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

// TestVictim is the process that TestKilledUnderLoad kills.
func TestVictim(t *testing.T) {
	env := os.Getenv(victimEnv)
	if env == "" {
		return // an ordinary run of the tests
	}
	peer, asks, _ := strings.Cut(env, ",")
	nic, err := vipl.OpenNIC("via0")
	must(t, err)
	l := newLoad(t, nic)
	ns := &nstest.NS{}
	must(t, ns.IPv4.UnmarshalText([]byte(peer)))
	must(t, l.connect(nic, ns, asks != "true"))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		l.turn(t)
	}
}
