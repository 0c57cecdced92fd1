package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"viaxdp/bench"
	"viaxdp/internal/lab/testbed"
)

func newDemo(env environment) *cobra.Command {
	cfg := bench.DemoConfig{
		Plan: bench.Plan{
			Sizes: bench.DefaultSizes(), Turns: bench.DefaultTurns,
			Duration: bench.DefaultDuration, Latency: true, Bandwidth: true,
		},
		BedConfig: bench.BedConfig{
			MTU: 1500, Mode: "generic", Hugepages: true, WorkerArgs: []string{workerCommand}, GuardArgs: []string{guardCommand},
		},
	}
	var out output
	names, segmentation := bench.Names(), true
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Measure all transports between two namespaces of this machine",
		Long: "Makes two network namespaces and two veth pairs, one for AF_XDP and one that never\n" +
			"has an XDP program for the kernel's own transports, and runs ping-pong and streaming\n" +
			"with all transports in turn; streams of VIs post lists of 16 descriptors, as perftest\n" +
			"does with --post_list. Nothing of it stays behind. Needs root.\n\nNames:\n" + namesHelp(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(
				within("--turns", cfg.Plan.Turns, 1, math.MaxInt), lasting("--duration", cfg.Plan.Duration),
				checkMTU(cfg.MTU), checkMode(cfg.Mode), out.check(),
			); err != nil {
				return err
			}
			cfg.Plan.Rows = bench.RowsOf(names)
			for i := range cfg.Plan.Rows {
				r := &cfg.Plan.Rows[i]
				r.VI.NoSegmentation = !segmentation && bench.TakesVIOptions(r.Name)
			}
			progress := newProgress(env.stderr)
			cfg.Plan.Progress = progress.step
			cfg.Stderr = env.stderr
			result, err := env.actions.demo(cmd.Context(), cfg)
			progress.done()
			if err != nil {
				return err
			}
			return out.write(env, result)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&names, "names", names, "transports to measure")
	f.IntSliceVar(&cfg.Plan.Sizes, "sizes", cfg.Plan.Sizes, "message sizes in bytes")
	f.DurationVar(&cfg.Plan.Duration, "duration", cfg.Plan.Duration, "time of one measurement: a name, a size, a turn")
	f.IntVar(&cfg.Plan.Turns, "turns", cfg.Plan.Turns, "times that all names are gone through")
	f.BoolVar(&cfg.Plan.Check, "check", false, "verify every byte of every message")
	f.IntVar(&cfg.MTU, "mtu", cfg.MTU, fmt.Sprintf("MTU of both pairs, %d to %d", testbed.MinMTU, testbed.MaxMTU))
	f.StringVar(&cfg.Mode, "mode", cfg.Mode, modeHelp+"; on veth, generic is the faster one")
	f.BoolVar(&segmentation, "segmentation", segmentation, "long messages of VIs leave as packets of several frames, in generic mode")
	f.BoolVar(&cfg.Hugepages, "hugepages", cfg.Hugepages, "allow for surplus hugepages while memory is mapped")
	out.flags(f)
	return cmd
}

const modeHelp = "XDP mode: auto (the best that works), zero-copy, native, generic"

func namesHelp() string {
	var b strings.Builder
	for _, n := range bench.Names() {
		fmt.Fprintf(&b, "  %-28s %s\n", n, bench.Summary(n))
	}
	for _, n := range bench.Layers() {
		fmt.Fprintf(&b, "  %-28s %s; where it is named\n", n, bench.Summary(n))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
