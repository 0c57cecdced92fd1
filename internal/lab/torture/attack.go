package torture

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// Attacks are what SoakConfig.Attack may name.
var Attacks = []string{"peer", "users", "requests"}

// AttackReport is what an attack has done, and what came of it.
type AttackReport struct {
	Name    string
	Promise string            // what is checked
	Counts  map[string]uint64 // what took place, by name
	Result  string            // one line

	Alone, Worst map[string]time.Duration `json:",omitempty"` // of users: each operation's median alone, and longest beside each kind
}

// attack is one in progress. Its promises are broken by violated.
type attack struct {
	*soak
	*AttackReport
}

// attackDefault is how long an attack lasts by default.
const attackDefault = 10 * time.Second

// attackKinds are the attacks by name: what each promises, what must have occurred for its result to count, and how
// it runs.
var attackKinds = map[string]struct {
	promise string
	needs   []string
	run     func(*attack) (line string, err error)
}{
	"peer": {
		"no byte that a program writes to the memory of a send after its completion reaches the peer",
		peerNeeds, (*attack).peer,
	},
	"users": {
		fmt.Sprintf("beside hostile users of an agent a user's open, close and dial take at most %v longer than alone, "+
			"its requests reach it, and the gateway's neighbour entry stays", usersBeyond),
		usersNeeds, (*attack).users,
	},
	"requests": {
		fmt.Sprintf("beside requests with spoofed sources, %d/s unless told otherwise, no dial is refused, 99 %% take at most %v, and an address that "+
			"has not proven itself gets at most %d times the bytes that came from it", requestsRate, requestsP99, requestsFactor),
		requestsNeeds, (*attack).requests,
	},
}

// Attack runs the attack that cfg names. The errors are those of Soak.
func Attack(ctx context.Context, cfg SoakConfig) (SoakReport, error) {
	if cfg.Rate == 0 {
		cfg.Rate = requestsRate
	}
	kind, ok := attackKinds[cfg.Attack]
	if !ok {
		return SoakReport{}, fmt.Errorf("attack %q: there are %s", cfg.Attack, strings.Join(Attacks, ", "))
	}
	if cfg.For == 0 {
		cfg.For = attackDefault
	}
	r := &AttackReport{Name: cfg.Attack, Promise: kind.promise, Counts: make(map[string]uint64)}
	a := &attack{&soak{cfg: cfg, ctx: ctx, start: time.Now(), report: SoakReport{Seed: cfg.Seed, Attack: r}}, r}
	var err error
	if r.Result, err = kind.run(a); err != nil {
		return SoakReport{}, err
	}
	a.report.Elapsed = time.Since(a.start)
	if ctx.Err() == nil {
		if missing := a.missing(kind.needs); len(missing) > 0 {
			a.violated("the attack did not take place: no %s", strings.Join(missing, ", "))
		}
	}
	if len(a.report.Violations) > 0 {
		err = fmt.Errorf("%w (seed %d)", ErrBroken, cfg.Seed)
	}
	return a.report, err
}

// over reports whether the attack has lasted long enough, or has found something.
func (a *attack) over() bool { return a.soak.over() || len(a.report.Violations) > 0 }

// missing is what of needs has not taken place yet.
func (a *attack) missing(needs []string) []string {
	return slices.DeleteFunc(slices.Clone(needs), func(what string) bool { return a.Counts[what] > 0 })
}

// attackMore is how much longer than requested an attack may last on a busy machine, until all needs have occurred.
const attackMore = 30 * time.Second

// late reports whether that time is over, too.
func (a *attack) late() bool {
	return a.ctx.Err() != nil || len(a.report.Violations) > 0 || time.Since(a.start) > a.cfg.For+attackMore
}

// percentile is the least of times, which it sorts, that p percent of them do not exceed; 0 of none.
func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[max(1, int(math.Ceil(float64(len(d))*p/100)))-1]
}

// An actor is what a worker is in an attack: an honest program, a hostile one, a peer, an agent.
type actor struct {
	lag *schedlat.Meter

	mu sync.Mutex
	r  result // since the last command

	ctx     context.Context
	end     context.CancelFunc
	run     sync.WaitGroup
	closers []func() error // the last one first
	stack   *vianet.Stack
	nic     *vipl.NIC
}

// result is what an actor has done.
type result struct {
	Counts map[string]uint64
	Times  map[string][]time.Duration // of what was timed, beyond what the actor ran late
	Wrong  []string                   `json:",omitempty"` // what must not be
	Spells []schedlat.Spell           `json:",omitempty"` // of the process: see schedlat
}

func newActor(meter *schedlat.Meter) actor {
	ctx, end := context.WithCancel(context.Background())
	return actor{lag: meter, ctx: ctx, end: end, r: newResult()}
}

func newResult() result {
	return result{Counts: make(map[string]uint64), Times: make(map[string][]time.Duration)}
}

// result is what it has done since the last command.
func (w *actor) result() result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.r
	w.r = newResult()
	r.Spells = w.lag.Spells()
	return r
}

// leave ends what runs.
func (w *actor) leave() error {
	w.end()
	var errs []error
	for _, f := range slices.Backward(w.closers) {
		errs = append(errs, f())
	}
	w.run.Wait()
	return errors.Join(errs...)
}

// count adds to a counter.
func (w *actor) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.r.Counts[what]++
}

// mostWrong is how many violations a worker reports at once.
const mostWrong = 5

// wrong records a violation.
func (w *actor) wrong(format string, args ...any) {
	w.count("wrong")
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.r.Wrong) < mostWrong {
		w.r.Wrong = append(w.r.Wrong, fmt.Sprintf(format, args...))
	}
}

// briefly is a time that needs no allowance for a worker that ran late.
const briefly = 10 * time.Millisecond

// time records how long f takes, less this process's scheduling latency. An error of f is a violation.
func (w *actor) time(what string, f func() error) error {
	mark := w.lag.Mark()
	err := f()
	took := time.Since(mark.At)
	if took > briefly {
		time.Sleep(briefly) // the meter knows of lateness when it is over
		took -= min(took, mark.Allow(0))
	}
	if err != nil {
		w.wrong("%s failed after %v: %v", what, took.Round(time.Millisecond), err)
		return err
	}
	w.count(what)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.r.Times[what] = append(w.r.Times[what], took)
	return nil
}

// become makes the process another user's, for good.
func (w *actor) become(c *command) {
	fail.If(errors.Join(syscall.Setgroups(nil), syscall.Setgid(c.User), syscall.Setuid(c.User)))
	// Changing the user clears it (commit_creds, begin_new_exec), and the parent may be killed.
	fail.If(unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0))
}

// Memory of a worker's queue: little, so that opening one is quick.
const (
	workerArena  = 8 << 20
	workerChunks = 256
)

// queueConfig is how a worker opens a queue.
func queueConfig(queue, arena int) kagent.Config {
	return kagent.Config{
		Interface: Interface, Queue: queue, RxChunks: workerChunks, TxChunks: workerChunks, ArenaBytes: arena, Hugepages: hugepages.Avoid,
		Mode: xdpnic.ModeNative, // in generic mode a veth has one queue
	}
}

// open opens the interface, by an agent or by the worker itself.
func (w *actor) open(socket string, queue, arena int) (_ *vipl.NIC, err error) {
	defer fail.Catch(&err)
	agent := openAgent(socket, queueConfig(queue, arena))
	nic, err := provider.OpenNIC[*vipl.NIC](provider.Provider{
		Port: agent.Queue(), Agent: agent, Arena: agent.Arena(), Info: agent.Info(),
	}, vipl.WithSilence(unhurriedSilence))
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	return nic, nil
}

// unhurriedSilence is longer than a busy machine keeps a worker waiting.
const unhurriedSilence = 10 * time.Second

// workers are the processes of an attack, by name, on a site.
type workers struct {
	a    *attack
	site *testbed.Site
	all  map[string]*Worker
}

// workers makes the site of an attack: its hosts are joined directly by as many queues, or with 0 through a Middle.
func (a *attack) workers(queues int) *workers {
	pair := testbed.Pair{Names: [2]string{Interface, Interface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, Queues: queues}
	return &workers{a: a, site: fail.Must(testbed.NewSite(pair, queues == 0)), all: make(map[string]*Worker)}
}

// start starts a worker on a side, of a user if that is not 0, and has it execute its first command.
func (ws *workers) start(name string, side, user int, first command) {
	p := fail.Must(newWorker(ws.site.Spawn(side, ws.a.cfg.Args, ws.a.cfg.Stderr)))
	ws.all[name] = p
	if user != 0 {
		ws.do(name, command{Do: "become", User: user})
	}
	ws.do(name, first)
}

// do has a worker execute a command.
func (ws *workers) do(name string, c command) *result { return ws.begin(name, c)() }

// begin is do without waiting; what it returns waits.
func (ws *workers) begin(name string, c command) func() *result {
	var wait func() *answer
	fail.During(name, func() { wait = ws.all[name].begin(c) })
	return func() *result {
		var a *answer
		fail.During(name, func() { a = wait() })
		for what, n := range a.Result.Counts {
			ws.a.Counts[name+" "+what] += n
		}
		return &a.Result
	}
}

// close ends all workers, the named ones first, and the site.
func (ws *workers) close(names ...string) error {
	var errs []error
	for _, name := range names {
		if p := ws.all[name]; p != nil {
			if err := p.Close(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return errors.Join(append(errs, ws.site.Close())...)
}
