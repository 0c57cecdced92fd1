package bench

import (
	"context"
	"errors"
	"io"
	"slices"

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

// Demo makes a [Bed], runs the plan on it, and takes all down again, also when
// ctx ends or the process is killed.
func Demo(ctx context.Context, cfg DemoConfig) (_ *Result, err error) {
	if err := cfg.Plan.validate(); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(cfg.Plan.Rows, Row.usesXDP) {
		if err := testbed.Require(testbed.Namespaces, testbed.Sockets, testbed.Programs); err != nil {
			return nil, err
		}
	}
	bed, err := StartBed(ctx, BedConfig{
		MTU: cfg.MTU, Mode: cfg.Mode, Hugepages: cfg.Hugepages,
		WorkerArgs: cfg.WorkerArgs, GuardArgs: cfg.GuardArgs, Stderr: cfg.Stderr,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	return bed.Run(ctx, cfg.Plan)
}
