package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
)

// session numbers the victims.
var session atomic.Uint64

// A survivor talks to one victim after the other, by the same VI.
type survivor struct {
	t       *testing.T
	own, ns *nstest.NS // its own, and the victims'
	nic     *nic
	d       *dialogue
	meter   *schedlat.Meter
	victim  victim // but for Session and Die

	programs []ebpf.ProgramID // of victims
	killed   *killed
}

func newSurvivor(t *testing.T, v victim, meter *schedlat.Meter) *survivor {
	t.Helper()
	s := &survivor{t: t, victim: v, meter: meter}
	s.own, s.ns = nstest.Pair(t, nstest.Options{})
	s.victim.Peer = s.own.IPv4
	must(t, s.own.Do(func() (err error) {
		s.nic, err = openNIC(NICConfig{RxChunks: 128, TxChunks: 128, Arena: 1 << 20, Silence: silence})
		return err
	}))
	t.Cleanup(func() {
		nstest.Check(t, s.nic.Close())
		for _, l := range s.nic.lacking {
			t.Error(l)
		}
	})
	must(t, fail.Try(func() { s.d = newDialogue(s.nic.NIC, v.Level) }))
	s.d.waitLimit = 2 * waitLimit // a victim that waits for what was lost ends before its survivor does
	return s
}

// A life is what became of a victim.
type life struct {
	steps     []string // that it reported
	killed    bool
	connected bool
	silent    bool          // the survivor took it for dead, before or after
	talked    error         // how the survivor's part ended
	told      time.Duration // how long after the death the survivor knew
	allowed   time.Duration
	come      int    // messages or answers that the survivor has taken
	complete  int    // messages of the survivor that have completed
	landed    int    // bytes of the RDMA write
	complaint string // of a victim that ended by itself, with an error
}

// outlive lets a victim live until it dies at a step, or to the end, and checks what is left. An error is a
// broken promise.
func (s *survivor) outlive(die string) (l life, err error) {
	defer fail.Catch(&err)
	v, lost := s.victim, s.nic.Counters().PeersLost
	v.Session, v.Die = session.Add(1), die
	s.d.begin(v.Session)
	listener := fail.Must(s.nic.Listen(v.address()))
	defer listener.Close()
	p := s.bear(v)
	defer p.in.Close()
	l.talked = fail.Try(func() { s.converse(v, listener, p, &l.connected) })
	known := time.Now()
	<-p.gone
	l.killed, l.steps, l.complaint = p.killed, p.steps, p.complaint.String()
	l.come, l.complete = s.d.come, s.d.complete
	l.told, l.allowed = known.Sub(p.death.At), p.death.Allow(toldIn)
	var bad broken
	if errors.As(l.talked, &bad) {
		return l, l.talked
	}
	l.landed = s.d.landed(kindsOf(v.Level))
	st, err := s.d.vi.Query()
	if want := l.state(); err != nil || st.State != want {
		return l, fmt.Errorf("connected %v, and then %v: the VI is %v, not %v (%w)", l.connected, l.talked, st.State, want, err)
	}
	l.silent = s.nic.Counters().PeersLost > lost
	return l, errors.Join(fail.Try(s.d.end), s.clean(p.death))
}

// state is the state that the survivor's VI must have.
func (l *life) state() vipl.State {
	if l.connected && l.talked != nil {
		return vipl.Error
	}
	return vipl.Idle
}

// process is a victim as its survivor has it.
type process struct {
	in          io.Closer // it ends with it
	waits, gone chan struct{}

	// after gone
	steps     []string
	killed    bool
	complaint strings.Builder
	death     schedlat.Mark
}

// bear starts a victim.
func (s *survivor) bear(v victim) *process {
	p := &process{waits: make(chan struct{}), gone: make(chan struct{})}
	cmd := exec.Command("/proc/self/exe", asVictim, string(fail.Must(json.Marshal(v))))
	cmd.Stderr = &p.complaint
	p.in = fail.Must(cmd.StdinPipe())
	out := fail.Must(cmd.StdoutPipe())
	fail.If(s.ns.Do(cmd.Start))
	go func() {
		defer close(p.gone)
		hangs := time.AfterFunc(waitLimit, func() { cmd.Process.Signal(unix.SIGQUIT) })
		defer hangs.Stop()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			if line == lineWaits {
				close(p.waits)
			} else if step, ok := strings.CutPrefix(line, lineStep); ok {
				p.steps = append(p.steps, step)
			} else if number, ok := strings.CutPrefix(line, lineProgram); ok {
				id, _ := strconv.ParseUint(number, 10, 32)
				s.programs = append(s.programs, ebpf.ProgramID(id))
			}
		}
		p.death = s.meter.Mark()
		var exit *exec.ExitError
		if errors.As(cmd.Wait(), &exit) {
			p.killed = exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
		}
	}()
	return p
}

// converse is the survivor's part of what the victim does. It fails when that ends early.
func (s *survivor) converse(v victim, l *vipl.Listener, p *process, connected *bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.gone:
			time.AfterFunc(silence, cancel) // no side sends any more
		case <-ctx.Done():
		}
	}()
	kinds := kindsOf(v.Level)
	if v.Sends {
		fail.If(fail.Must(l.Wait(ctx)).Accept(s.d.vi))
		*connected = true
		s.d.receive(kinds)
		s.d.hear() // the victim disconnects, or dies
		return
	}
	select {
	case <-p.waits:
	case <-p.gone:
		return
	}
	to := v.address()
	to.Host = s.ns.IPv4
	_ = fail.Must(s.d.vi.ConnectRequestContext(ctx, vipl.NetAddress{}, to))
	*connected = true
	s.d.send(kinds)
	s.d.end()
}

// clean reports what a dead victim has left on its interface.
func (s *survivor) clean(death schedlat.Mark) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		err := s.ns.Do(func() error {
			if a, ok, err := bpf.AttachedTo(s.ns.Index); err != nil || ok {
				return fmt.Errorf("program %v is attached still (%w)", a, err)
			}
			return nil
		})
		if err == nil || death.Over(waitLimit) {
			return err
		}
	}
}

// stageOf is the number of the stage that a step is of.
func stageOf(step string, kinds []string) int {
	stage, _, _ := strings.Cut(step, ":")
	return slices.Index(slices.Concat([]string{stageConnect}, kinds, []string{stageDisconnect, stageClose}), stage)
}

// judge returns what is wrong with the data that a survivor has of a victim that died at a step.
func (s *survivor) judge(step string, l life) error {
	kinds := kindsOf(s.victim.Level)
	at, last := stageOf(step, kinds), len(kinds)
	if l.connected && l.talked != nil && l.told > l.allowed {
		return fmt.Errorf("the survivor knew after %v, %v are allowed", l.told, l.allowed)
	}
	least, most := at-1, at // a stage begins when the answer to the one before has come
	if !s.victim.Sends {
		least, most = at-2, at-1 // or is on its way
	}
	if least, most = min(max(least, 0), last), min(max(most, 0), last); l.come < least || l.come > most {
		return fmt.Errorf("%d messages or answers have come, %d to %d were sent", l.come, least, most)
	}
	if s.victim.Sends {
		write := slices.Index(kinds, stageWrite) + 1
		if at < write && l.landed > 0 || at > write && l.landed < longBytes {
			return fmt.Errorf("%d bytes of the RDMA write have landed", l.landed)
		}
		return nil
	}
	most = min(at, last)
	if s.victim.Level == vipl.ReliableReception && at == most && strings.HasSuffix(step, ": "+stepLeased) {
		most = max(most-1, 0) // nothing of the last one was placed
	}
	if l.complete > most {
		return fmt.Errorf("%d messages are complete, the victim can have taken %d", l.complete, most)
	}
	return nil
}

// TestKilledBetweenSteps kills one side between any two steps of the way of a message, of each kind, and of the
// connection's making and end. Without VIA_TORTURE it is every seventh step. With -short it is every third of one
// level: a killed victim cannot report what the race detector has found in it.
func TestKilledBetweenSteps(t *testing.T) {
	t.Parallel()
	meter := schedlat.Start()
	t.Cleanup(meter.Close)
	which, stride, bystanders := levels, 7, 3 // bystanders are survivors that share the steps of a victim
	switch {
	case thorough():
		stride, bystanders = 1, 8
	case testing.Short():
		stride = 3
		which = []vipl.ReliabilityLevel{vipl.ReliableDelivery}
	}
	var run sync.WaitGroup
	var survivors []*survivor
	for _, level := range which {
		for _, sends := range []bool{true, false} {
			v := victim{Level: level, Sends: sends}
			first := newSurvivor(t, v, meter)
			all := first.whole()
			first.killed = &killed{}
			steps := make(chan string, len(all))
			for i, step := range all {
				if i%stride > 0 {
					first.killed.spared = append(first.killed.spared, step)
					continue
				}
				steps <- step
			}
			close(steps)
			for i := range bystanders {
				s := first
				if i > 0 {
					s = newSurvivor(t, v, meter)
					s.killed = first.killed
				}
				survivors = append(survivors, s)
				run.Go(func() {
					for step := range steps {
						s.killAt(step)
					}
					s.whole() // and it can connect again
					s.gone()
				})
			}
		}
	}
	run.Wait()
	n := 0
	for i := 0; i < len(survivors); i += bystanders {
		s := survivors[i]
		n += len(s.killed.at)
		for _, step := range required(s.victim) {
			if !slices.Contains(s.killed.at, step) && !slices.Contains(s.killed.spared, step) {
				s.errorf("nobody was killed at %q", step)
			}
		}
	}
	t.Logf("%d killed", n)
}

const attempts = 20

// killed are the steps at which victims of one sort have died.
type killed struct {
	spared []string // of all, those at which none is to die

	mu sync.Mutex
	at []string
}

func (k *killed) add(step string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at = append(k.at, step)
}

func (s *survivor) errorf(format string, args ...any) {
	s.t.Helper()
	s.t.Errorf("%v, victim sends: %v: %s", s.victim.Level, s.victim.Sends, fmt.Sprintf(format, args...))
}

// whole lets a victim live to its end, and returns its steps.
func (s *survivor) whole() []string {
	for range attempts {
		l, err := s.outlive("")
		switch {
		case err != nil || l.killed:
			s.errorf("nobody was killed: %+v, %v", l, err)
			return nil
		case l.complaint == "" && l.come == len(kindsOf(s.victim.Level)):
			return l.steps
		case !l.silent:
			s.errorf("nobody was killed: %+v", l)
			return nil
		}
		s.t.Logf("a machine without time: %+v", l)
	}
	s.errorf("no victim has lived")
	return nil
}

// killAt kills a victim at a step, if that comes.
func (s *survivor) killAt(step string) {
	for range attempts {
		l, err := s.outlive(step)
		if err == nil && l.killed {
			err = s.judge(step, l)
			s.killed.add(step)
		}
		switch {
		case err != nil:
			s.errorf("killed at %q: %v (%+v)", step, err, l)
			return
		case l.killed:
			return
		case l.complaint == "":
			// The order differed this time, as with a step that waits for a timer.
		case l.silent:
			s.t.Logf("%q: a machine without time: %+v", step, l)
		default:
			s.errorf("to be killed at %q: %+v", step, l)
			return
		}
		if !slices.Contains(required(s.victim), step) {
			return
		}
	}
	s.errorf("%q has not come in %d lives", step, attempts)
}

// gone waits until nothing is left of the victims in the kernel.
func (s *survivor) gone() {
	for _, id := range s.programs {
		for end := s.meter.Mark(); ; time.Sleep(10 * time.Millisecond) {
			p, err := ebpf.NewProgramFromID(id)
			if errors.Is(err, os.ErrNotExist) {
				break
			}
			p.Close()
			if end.Over(waitLimit) {
				s.errorf("demux program %d is in the kernel still", id)
				break
			}
		}
	}
}

// required are the steps that must come.
func required(v victim) (all []string) {
	add := func(stage string, steps ...string) {
		for _, s := range steps {
			all = append(all, stage+": "+s)
		}
	}
	frame := []string{"frame is built", "frame is on the ring", "doorbell", "doorbell has returned"}
	arrives := []string{stepLeased, "frame is placed", "frame is recycled", "receive is done"}
	add(stageConnect, "interface is open", "VI enters the table", "VI enters the table has returned")
	if v.Sends {
		add(stageConnect, "request", "request has returned", "confirm", "confirm has returned", "connect has returned")
	} else {
		add(stageConnect, "request has come", "accept", "accept has returned", "connect has returned")
	}
	for _, kind := range kindsOf(v.Level) {
		add(kind, "send is posted", "post has returned", "send is done")
		add(kind, frame...)
		add(kind, arrives...)
		if v.Level != vipl.UnreliableDelivery {
			add(kind, "frame is acknowledged")
		}
		if v.Sends && kind != stageShort && kind != stageRead {
			for _, s := range frame[:2] {
				add(kind, s+", 2", s+", 3")
			}
		}
	}
	add(stageDisconnect, "VI leaves the table", "VI leaves the table has returned", "disconnect has returned")
	add(stageClose, "VI is destroyed", "agent closes", "agent closes has returned", "all is closed")
	return all
}
