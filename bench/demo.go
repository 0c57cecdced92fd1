package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"viaxdp/internal/testbed"
)

// DemoConfig of a whole demonstration.
type DemoConfig struct {
	Plan      Plan
	MTU       int    // of both pairs; 0: 1500
	Mode      string // how XDP is attached: auto, native, generic
	Hugepages bool   // memory on hugepages, allowed for while it is mapped

	WorkerArgs []string // with which this program becomes a worker: WorkerMain
	GuardArgs  []string // with which it becomes a guard: testbed.GuardMain
	Stderr     io.Writer
}

// Names of the interfaces in the two namespaces of the demonstration.
const (
	xdpInterface    = "via0"
	kernelInterface = "tcp0"
)

// overcommitPages is by how many pages of 2 MB the host's allowance is raised
// while both sides map their memory.
const overcommitPages = 512

// Demo makes two namespaces with two veth pairs, one for AF_XDP and one that
// never has an XDP program, which would take the kernel's offloads away; runs
// the plan between them; and takes all down again, also when ctx ends or the
// process is killed.
func Demo(ctx context.Context, cfg DemoConfig) (_ *Result, err error) {
	if err := cfg.Plan.validate(); err != nil {
		return nil, err
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	needs := []testbed.Need{testbed.Namespaces}
	if slices.ContainsFunc(cfg.Plan.Names, UsesXDP) {
		needs = append(needs, testbed.Sockets, testbed.Programs)
	}
	if err := testbed.Require(needs...); err != nil {
		return nil, err
	}
	cpus, err := workerCPUs()
	if err != nil {
		return nil, err
	}
	bed, err := testbed.Start(testbed.Config{
		Args: cfg.WorkerArgs, CPUs: cpus, Stderr: cfg.Stderr,
		Pairs: []testbed.Pair{
			{Names: [2]string{xdpInterface, xdpInterface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, MTU: cfg.MTU},
			{Names: [2]string{kernelInterface, kernelInterface}, Net4: testbed.KernelNet4, Net6: testbed.KernelNet6, MTU: cfg.MTU},
		},
	})
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	// A worker in the middle of a round has no ear for anything else.
	stop := context.AfterFunc(ctx, bed.Kill)
	defer stop()

	if cfg.Hugepages && len(cfg.GuardArgs) > 0 {
		guard, err := testbed.StartGuard(cfg.GuardArgs)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, guard.Close()) }()
		cfg.Plan.Opening = guarded(guard)
	}
	result, err := Run(ctx, cfg.Plan, demoWorker(bed, 0, cfg), demoWorker(bed, 1, cfg))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		// What a worker says when the other one is gone is not the reason.
		if why := bed.Ended(endedWithin); why != nil {
			err = fmt.Errorf("%w (%w)", err, why)
		}
		return nil, err
	}
	if result.Conditions.Interface == "" {
		result.Conditions.Interface, result.Conditions.MTU = kernelInterface, cfg.MTU
	}
	return result, nil
}

// endedWithin is how long a process that was killed may take to be gone.
const endedWithin = 100 * time.Millisecond

// guarded raises the allowance of surplus hugepages around an opening. A host
// that has none to give is no reason to stop: the memory says what it got.
func guarded(g *testbed.Guard) func(func() error) error {
	return func(open func() error) error {
		if g.Raise(overcommitPages) != nil {
			return open()
		}
		err := open()
		return errors.Join(err, g.Restore())
	}
}

func demoWorker(bed *testbed.Bed, i int, cfg DemoConfig) *Worker {
	side := bed.Side(i)
	at := func(end testbed.End) Params {
		return Params{
			Interface: end.Name, Local: end.IPv4.Addr(), Mode: cfg.Mode, Hugepages: cfg.Hugepages,
		}
	}
	xdp := at(side.Ends[0])
	w := NewWorker([]string{"client", "server"}[i], side.Control, at(side.Ends[1]))
	w.over, w.ended = &xdp, side.Err
	return w
}

// workerCPUs are the first two CPUs that this process may use. With a single
// one both workers share it.
func workerCPUs() ([2]int, error) {
	allowed, err := testbed.AllowedCPUs()
	if err != nil {
		return [2]int{}, err
	}
	if len(allowed) == 0 {
		return [2]int{}, errors.New("this process may use no CPU")
	}
	return [2]int{allowed[0], allowed[min(1, len(allowed)-1)]}, nil
}
