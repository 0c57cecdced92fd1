package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// BedConfig of a place to measure on.
type BedConfig struct {
	MTU       int    // of both pairs; 0: 1500
	Mode      string // how XDP is attached: auto, native, generic
	Hugepages bool   // memory on hugepages, allowed for while it is mapped

	// Through joins each pair through a forwarder, which can do to the frames what
	// SetFaults says. It takes its CPU time from the two that measure.
	Through bool

	WorkerArgs []string // with which this program becomes a worker: WorkerMain
	GuardArgs  []string // with which it becomes a guard: testbed.GuardMain; none: no guard
	AgentArgs  []string // with which it becomes a Kernel Agent, before --socket PATH; none: no agents
	Stderr     io.Writer
}

// Names of the interfaces in the two namespaces of a bed.
const (
	xdpInterface    = "via0"
	kernelInterface = "tcp0"
)

// overcommitPages is the number of 2 MB pages added to the host's allowance while both
// sides map their memory.
const overcommitPages = 512

// Bed is two workers, pinned to a CPU each, in network namespaces of their own.
// Two veth pairs join them: one for AF_XDP, and one that never has an XDP
// program, which would take the kernel's offloads away. A Bed belongs to one
// goroutine; it serves one Run at a time, and none after one that has failed.
type Bed struct {
	cfg BedConfig
	bed *testbed.Bed

	client, server *Worker
}

// StartBed makes a bed. Without the privilege for it the error is a
// *testbed.MissingError. On an error nothing is left behind. If ctx has ended by then,
// the error is that of ctx: Ctrl-C may also kill a child that has no process group of
// its own yet, and that child's death is not the cause.
func StartBed(ctx context.Context, cfg BedConfig) (_ *Bed, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	defer fail.Catch(&err)
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	fail.If(testbed.Require(testbed.Namespaces))
	allowed := fail.Must(testbed.AllowedCPUs())
	cpus := [2]int{allowed[0], allowed[min(1, len(allowed)-1)]} // with a single one both workers share it
	b := &Bed{cfg: cfg}
	network := testbed.Config{
		Args: cfg.WorkerArgs, CPUs: cpus, Stderr: cfg.Stderr, Through: cfg.Through,
		Pairs: []testbed.Pair{
			{Names: [2]string{xdpInterface, xdpInterface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, MTU: cfg.MTU},
			{Names: [2]string{kernelInterface, kernelInterface}, Net4: testbed.KernelNet4, Net6: testbed.KernelNet6, MTU: cfg.MTU},
		},
	}
	b.bed = fail.Must(testbed.Start(network))
	for _, m := range b.bed.Middles() {
		if err := m.Prefer(cpus); err != nil {
			fail.If(errors.Join(err, b.Close()))
		}
	}
	b.client, b.server = b.worker(0), b.worker(1)
	return b, nil
}

// Missing reports whether an error says that this machine, or this process,
// lacks something without which nothing can be measured.
func Missing(err error) bool {
	_, missing := errors.AsType[*testbed.MissingError](err)
	return missing
}

// Run carries out a plan on the bed. The end of ctx ends the workers.
func (b *Bed) Run(ctx context.Context, p Plan) (*Result, error) {
	var result *Result
	agents := slices.ContainsFunc(p.Rows, func(r Row) bool { return r.VI.Agent })
	if err := b.do(ctx, agents, func() { result = fail.Must(Run(ctx, p, b.client, b.server)) }); err != nil {
		return nil, err
	}
	if result.Conditions.Interface == "" {
		result.Conditions.Interface, result.Conditions.MTU = kernelInterface, b.cfg.MTU
	}
	return result, nil
}

// endGrace is how long workers have to stop and close their NICs when ctx ends. A
// variable for tests.
var endGrace = time.Second

// Session opens a transport for messages of at most maxBytes between the workers, calls f, and closes it. change, if
// any, alters the parameters of both sides.
func (b *Bed) Session(ctx context.Context, row Row, maxBytes int, f func(*Session) error, change ...func(*Params)) error {
	return b.do(ctx, row.VI.Agent, func() {
		s := fail.Must(openSession(ctx, b.client, b.server, row, maxBytes, change...))
		fail.If(f(s))
		fail.If(s.Close(ctx))
	})
}

// do calls f, which makes requests of the workers and may fail by package fail, while there are agents if it needs
// them. It explains an error by what has become of the workers. The end of ctx ends the workers and is the error
// then; they are gone when do returns.
func (b *Bed) do(ctx context.Context, agents bool, f func()) error {
	if agents {
		return b.withAgents(func() { fail.If(b.do(ctx, false, f)) })
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		b.bed.CloseWithin(endGrace)
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	err := fail.Try(f)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// What a worker says when the other one is gone is not the reason.
	if why := b.bed.Ended(endedWithin); why != nil {
		err = fmt.Errorf("%w (%w)", err, why)
	}
	return err
}

// Close ends the workers and gives everything back.
func (b *Bed) Close() error { return b.bed.Close() }

// endedWithin is how long a process that was killed may take to be gone, after the
// other one has noticed.
const endedWithin = 3 * time.Second

// guard is how to become a guard of what hugepages need, if anything.
func (cfg BedConfig) guard() []string {
	if !cfg.Hugepages {
		return nil
	}
	return cfg.GuardArgs
}

// allowing calls open, in which workers map memory, while the allowance of surplus hugepages is raised. A host that
// has none to give is no reason to stop: the memory says what it got.
func (w *Worker) allowing(open func()) {
	guard := testbed.NewGuard(w.guard)
	if len(w.guard) == 0 || guard.Raise(overcommitPages) != nil {
		open()
		return
	}
	fail.If(errors.Join(fail.Try(open), guard.Restore()))
}

func (b *Bed) worker(i int) *Worker {
	side := b.bed.Side(i)
	at := func(end testbed.End) Params {
		return Params{Place: Place{Interface: end.Name, Mode: b.cfg.Mode, Hugepages: b.cfg.Hugepages}, Local: end.IPv4.Addr()}
	}
	xdp := at(side.Ends[0])
	w := NewWorker([]string{"client", "server"}[i], side.Control, at(side.Ends[1]))
	w.over, w.ended, w.guard = &xdp, side.Err, b.cfg.guard()
	return w
}

// SetFaults sets what happens to the frames of the pair for AF_XDP, or of the
// kernel's, in both directions. The bed was made with Through.
func (b *Bed) SetFaults(xdp bool, f testbed.Faults) { b.middle(xdp).SetBoth(f) }

// Crossed counts the frames that the client has sent on a pair, and those of the
// server. The bed was made with Through.
func (b *Bed) Crossed(xdp bool) (client, server testbed.EmulatorCounters) {
	m := b.middle(xdp)
	return m.Counters(0), m.Counters(1)
}

func (b *Bed) middle(xdp bool) *testbed.Middle {
	if xdp {
		return b.bed.Middles()[0]
	}
	return b.bed.Middles()[1]
}

// withAgents calls f while each namespace has a Kernel Agent, a process of its own, which rows with VIOptions.Agent need.
func (b *Bed) withAgents(f func()) (err error) {
	defer fail.Catch(&err)
	if len(b.cfg.AgentArgs) == 0 {
		fail.With("rows of NICs that an agent opens: the bed has none")
	}
	dir := fail.Must(os.MkdirTemp("", "via-xdp-bench"))
	defer fail.Closing(&err, func() error { return os.RemoveAll(dir) })
	for i, w := range []*Worker{b.client, b.server} {
		socket := filepath.Join(dir, fmt.Sprintf("agent%d.sock", i))
		end, err := b.bed.Agent(i, b.cfg.AgentArgs, socket)
		fail.Wrap(err, "agent of the %s", w.name)
		defer end()
		w.over.Agent = socket
		defer func() { w.over.Agent = "" }()
	}
	f()
	return nil
}

// DemoConfig of a whole demonstration.
type DemoConfig struct {
	Plan Plan
	BedConfig
}

// Demo makes a [Bed], runs the plan on it, and takes all down again, also when
// ctx ends or the process is killed.
func Demo(ctx context.Context, cfg DemoConfig) (_ *Result, err error) {
	defer fail.Catch(&err)
	fail.If(cfg.Plan.Validate())
	if slices.ContainsFunc(cfg.Plan.Rows, Row.usesXDP) {
		fail.If(testbed.Require(testbed.Namespaces, testbed.Sockets, testbed.Programs))
	}
	bed := fail.Must(StartBed(ctx, cfg.BedConfig))
	defer fail.Closing(&err, bed.Close)
	return bed.Run(ctx, cfg.Plan)
}
