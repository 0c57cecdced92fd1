package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaxdp/bench"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// measureFlags are those of pingpong and stream, named as perftest names them.
type measureFlags struct {
	out        output
	name       string
	size       int
	iterations int
	duration   float64
	all        bool
	port       int
	events     bool
	histogram  bool
	check      bool
	keep       bool
	cpu        int
	place      bench.Place
}

func (m *measureFlags) add(f *pflag.FlagSet) {
	m.out.flags(f)
	f.StringVar(&m.name, "name", defaultTransport(), "transport; the list is under demo --help")
	f.IntVarP(&m.size, "size", "s", 64, "message size in bytes")
	f.IntVarP(&m.iterations, "iters", "n", 0, "number of messages (default: as many as the duration allows)")
	f.Float64VarP(&m.duration, "duration", "D", 1, "seconds for each size")
	f.BoolVarP(&m.all, "all", "a", false, "all sizes, the powers of two from 2 bytes to 1 MiB")
	f.IntVarP(&m.port, "port", "p", bench.DefaultControlPort, "TCP port of the server")
	f.BoolVarP(&m.events, "events", "e", false, "sleep until there is an event instead of polling")
	f.BoolVar(&m.check, "check", false, "verify every byte of every message")
	f.BoolVar(&m.keep, "keep", false, "server: go on after a client has left")
	f.IntVar(&m.cpu, "cpu", -1, "run on this CPU only")
	f.StringVarP(&m.place.Interface, "interface", "i", "", "interface of the AF_XDP transports (default: the one of the connection)")
	f.IntVar(&m.place.Queue, "queue", 0, "queue of the interface")
	f.StringVar(&m.place.Steer, "steer", "", "how a NIC of several queues is made to put a VI's frames on its queue: rules (the default; all on a NIC without rules and with up to four queues), rss (moves all traffic), all (receives from all queues) or off")
	f.StringVar(&m.place.Mode, "mode", "auto", modeHelp)
	f.DurationVar(&m.place.Silence, "silence", 0, fmt.Sprintf("time after which a silent peer of a VI is taken for dead, on both sides alike (default %v); more for emulated or very busy machines", bench.DefaultSilence))
	f.BoolVar(&m.place.Hugepages, "hugepages", true, "memory on hugepages where there are any")
}

// defaultTransport is the VI that most programs would use, or else the rings
// below it.
func defaultTransport() string {
	const reliable = "vi-reliable-delivery"
	if slices.Contains(bench.Names(), reliable) {
		return reliable
	}
	return bench.Names()[0]
}

// transport is the name that the flags mean.
func (m *measureFlags) transport() (string, error) {
	if !m.events || strings.HasSuffix(m.name, "-wait") {
		return m.name, nil
	}
	name := m.name + "-wait"
	if !slices.Contains(bench.Names(), name) {
		return "", fmt.Errorf("-e: %s has no form that sleeps for events", m.name)
	}
	return name, nil
}

func (m *measureFlags) sizes() []int {
	if !m.all {
		return []int{m.size}
	}
	var sizes []int
	for s := 2; s <= bench.MaxMessage; s *= 2 {
		sizes = append(sizes, s)
	}
	return sizes
}

// twoSides is what server and client are, in help.
const twoSides = "The server waits at a TCP port for a client, which says what is measured: transport, sizes,\n" +
	"times and checks are the client's to choose. Where frames go is of each side: -i, --queue,\n" +
	"--mode, --steer, --cpu, --hugepages. The server ends when the client has left, unless --keep."

func newPingpong(env environment) *cobra.Command {
	cmd, m := newMeasure(env, "pingpong", bench.Plan{Latency: true})
	cmd.Short = "Latency" + betweenHosts
	cmd.Long = "Measures one way, half of a round trip, and prints p50, p99 and more for each size.\n" + twoSides
	cmd.Flags().BoolVarP(&m.histogram, "histogram", "H", false, "print the histogram of the latencies")
	return cmd
}

func newStream(env environment) *cobra.Command {
	cmd, _ := newMeasure(env, "stream", bench.Plan{Bandwidth: true})
	cmd.Short = "Bandwidth" + betweenHosts
	cmd.Long = "Sends messages from client to server as fast as they are taken.\n" + twoSides
	return cmd
}

const betweenHosts = " between two hosts: without an argument the server, with one the client"

// newMeasure is a command that measures by a plan, with what pingpong and stream have in common.
func newMeasure(env environment, name string, plan bench.Plan) (*cobra.Command, *measureFlags) {
	m := &measureFlags{}
	cmd := &cobra.Command{
		Use: name + " [flags] [SERVER]",
		Example: "  via-xdp " + name + " -i eth1                  # on one host: the server\n" +
			"  via-xdp " + name + " -i eth1 -a 192.0.2.1     # on the other, with the first one's address",
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return m.run(cmd, env, args, plan)
	}
	m.add(cmd.Flags())
	return cmd, m
}

func checkSilence(d time.Duration) error {
	if d != 0 && d < vipl.MinSilence {
		return fmt.Errorf("--silence %v: want %v or more, or 0 for the default", d, vipl.MinSilence)
	}
	return nil
}

// otherSide refuses flags that have no effect on this side. The server accepts flags that
// the client chooses, such as sizes, as perftest does.
func otherSide(f *pflag.FlagSet, server bool) error {
	if !server && f.Changed("keep") {
		return errors.New("--keep is of the server, and with a SERVER this is the client")
	}
	for _, name := range []string{"json", "svg", "histogram"} {
		if server && f.Changed(name) {
			return fmt.Errorf("--%s is of the client, and without a SERVER this is the server", name)
		}
	}
	return nil
}

func (m *measureFlags) run(cmd *cobra.Command, env environment, args []string, plan bench.Plan) error {
	if err := cmp.Or(otherSide(cmd.Flags(), len(args) == 0), checkSilence(m.place.Silence)); err != nil {
		return err
	}
	if err := errors.Join(within("--queue", m.place.Queue, 0, math.MaxInt), checkMode(m.place.Mode)); err != nil {
		return err
	}
	if cmd.Flags().Changed("cpu") {
		if err := testbed.PinProcess(m.cpu); err != nil {
			return fmt.Errorf("--cpu: %w", err)
		}
	}
	if len(args) == 0 {
		if err := within("-p", m.port, 0, math.MaxUint16); err != nil {
			return err
		}
		return m.serve(cmd.Context(), env)
	}
	if m.all && cmd.Flags().Changed("size") {
		return errors.New("-a and -s: one of them")
	}
	if m.iterations > 0 && cmd.Flags().Changed("duration") {
		return errors.New("-n and -D: one of them")
	}
	name, err := m.transport()
	if err := errors.Join(err, within("-p", m.port, 1, math.MaxUint16), within("-n", m.iterations, 0, math.MaxInt), m.out.check()); err != nil {
		return err
	}
	if !(m.duration > 0) {
		return errors.New("-D: the duration must be positive")
	}
	duration, err := timeOf("-D", m.duration, 0)
	if err != nil {
		return err
	}
	plan.Rows, plan.Sizes, plan.Messages, plan.Check = bench.RowsOf([]string{name}), m.sizes(), m.iterations, m.check
	plan.Duration = duration
	if plan.Messages > 0 {
		plan.Duration = min(plan.Duration, bench.DefaultDuration) // that of the warm-up
	}
	progress := newProgress(env.stderr)
	plan.Progress = progress.step
	result, err := env.actions.measure(cmd.Context(), bench.ClientConfig{
		Place: m.place, Server: args[0], Port: m.port, Plan: plan,
	})
	progress.done()
	if err != nil {
		return err
	}
	if err := m.out.write(env, result); err != nil {
		return err
	}
	if !m.histogram {
		return nil
	}
	to := m.out.json.text(env)
	for _, bytes := range plan.Sizes {
		fmt.Fprintf(to, "\n%s, %d bytes\n", name, bytes)
		if err := bench.WriteHistogram(to, name, result.Histograms[bench.Case{Name: name, Bytes: bytes}]); err != nil {
			return err
		}
	}
	return nil
}

func (m *measureFlags) serve(ctx context.Context, env environment) error {
	return env.actions.serve(ctx, bench.ServerConfig{
		Place: m.place, Port: m.port, Keep: m.keep,
		Ready: func(a net.Addr) {
			fmt.Fprintf(env.stderr, "via-xdp: waiting for a client on %v\n", a)
			if env.actions.listening != nil {
				env.actions.listening(a)
			}
		},
		Failed: func(err error) { fmt.Fprintf(env.stderr, "via-xdp: %s\n", oneLine(err)) },
	})
}

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
