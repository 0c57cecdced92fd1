package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/mpirun"
	"viaxdp/mvich"
	"viaxdp/mvich/mpiapps"
	"viaxdp/mvich/mpibench"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

func newMpibench(env environment) *cobra.Command {
	var device, protocol string
	var o mpibench.Options
	cmd := &cobra.Command{
		Use:   "mpibench [flags] " + strings.Join(mpibench.Names(), "|") + "...",
		Short: "Be a rank that measures package mvich as OSU's benchmarks measure MPI",
		Long: "To be started by via-xdp mpirun, or Hydra's mpiexec on hosts with an interface each.\n" +
			"Rank 0 prints the columns of Ohio State University's benchmarks.",
		Args:      cobra.MatchAll(cobra.MinimumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: mpibench.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := protocolOf(protocol)
			if err := errors.Join(err,
				within("--min", o.MinSize, 1, mostBytes), within("--max", o.MaxSize, o.MinSize, mostBytes),
				within("--step", o.Step, 2, mostBytes), within("--iterations", o.Iterations, 0, math.MaxInt),
				within("--warmup", o.Warmup, 0, math.MaxInt), within("--window", o.Window, 0, mostWindow),
				within("--most-bytes", o.MostBytes, 0, math.MaxInt),
			); err != nil {
				return err
			}
			return rank(cmd.Context(), env, device, p, func(c *mvich.Comm) error {
				for _, name := range args {
					rows, err := mpibench.Run(c, name, o)
					if err != nil {
						return err
					}
					if c.Rank() > 0 {
						continue
					}
					if err := mpibench.Print(env.stdout, name, rows); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&device, "interface", "i", os.Getenv(mvich.DeviceVariable), "interface of this rank")
	f.StringVar(&protocol, "protocol", "auto", "auto, eager, r3, rget, rput")
	f.IntVar(&o.MinSize, "min", 1, "smallest message in bytes")
	f.IntVar(&o.MaxSize, "max", 4<<20, "largest message in bytes")
	f.IntVar(&o.Step, "step", 2, "factor from one size to the next")
	f.IntVar(&o.Iterations, "iterations", 0, "iterations of each size (default: OSU's)")
	f.IntVar(&o.Warmup, "warmup", 0, "iterations of each size that do not count (default: OSU's)")
	f.IntVar(&o.MostBytes, "most-bytes", 0, "limit of a size's iterations: their messages (one window each for bw) have at most these `bytes`; at least one iteration (default: no limit)")
	f.IntVar(&o.Window, "window", 0, "messages under way, of bw, bibw and mbw_mr (default: OSU's 64)")
	return cmd
}

// What a rank has the memory for: it has twice the largest message for each rank.
const (
	mostBytes  = 1 << 30
	mostWindow = 1 << 16
)

func protocolOf(name string) (mvich.Protocol, error) {
	for p := mvich.Auto; p <= mvich.RPUT; p++ {
		if p.String() == name {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q: auto, eager, r3, rget, rput", name)
}

// rankSilence is long, because ranks compute on busy machines. The end of a process is
// noticed without it.
const rankSilence = 10 * time.Second

// rank is this process's part of a job that a launcher has started. When ctx ends, every
// operation fails. A launcher that ends signals its
// ranks once, and again when the first rank has ended; the second signal must not
// interrupt the close. A rank that hangs gets SIGKILL.
func rank(ctx context.Context, env environment, device string, p mvich.Protocol, f func(*mvich.Comm) error) (err error) {
	l, err := pmi.FromEnv()
	if err != nil {
		return err
	}
	if device == "" {
		return fmt.Errorf("no interface: give one by -i, or in %s", mvich.DeviceVariable)
	}
	again := make(chan os.Signal, 1) // never read: a second signal is ignored
	signal.Notify(again, unix.SIGTERM)
	defer signal.Stop(again)
	nic, err := vipl.OpenNIC(device, vipl.WithSilence(rankSilence))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	w, err := mvich.Init(nic, l, mvich.WithProtocol(p))
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	stop := context.AfterFunc(ctx, func() { w.Stop(ctx.Err()) })
	defer stop()
	if err := f(w.Comm()); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else { // before the abort, as Hydra kills all ranks at once
			printError(env, err)
			err = printedError{err}
		}
		w.Abort(1)
		return err
	}
	if err := w.Finalize(); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}

func newMpiapp(env environment) *cobra.Command {
	var device string
	var inJSON bool
	var o mpiapps.Options
	cmd := &cobra.Command{
		Use:   "mpiapp [flags] " + strings.Join(mpiapps.Names(), "|"),
		Short: "Be a rank of an application: a stencil, or conjugate gradients",
		Long: "To be started by via-xdp mpirun, or Hydra's mpiexec on hosts with an interface each.\n" +
			"The ranks cut a square into blocks and compute it together; rank 0 then computes it\n" +
			"alone, compares the results, and fails where they differ. It prints how long the\n" +
			"ranks took, and the share of it that was communication.",
		Example: "  via-xdp mpirun -np 4 via-xdp mpiapp stencil\n" +
			"  mpiexec.hydra -hosts a,b via-xdp mpiapp -i eth1 cg",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: mpiapps.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			if f.Changed("size") {
				if err := within("--size", o.Size, 1, mpiapps.MaxSize); err != nil {
					return err
				}
			}
			if f.Changed("steps") {
				if err := within("--steps", o.Steps, 1, math.MaxInt); err != nil {
					return err
				}
			}
			return rank(cmd.Context(), env, device, mvich.Auto, func(c *mvich.Comm) error {
				r, err := mpiapps.Run(c, args[0], o)
				switch {
				case err != nil || r == nil:
					return err
				case inJSON:
					return json.NewEncoder(env.stdout).Encode(r)
				}
				return r.Print(env.stdout)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&device, "interface", "i", os.Getenv(mvich.DeviceVariable), "interface of this rank")
	f.BoolVar(&inJSON, "json", false, "print the result as JSON")
	f.IntVar(&o.Size, "size", 0, "`points` of a side of the square (default: 1024 of the stencil, 512 of cg)")
	f.IntVar(&o.Steps, "steps", 0, "steps of the stencil, most steps of cg (default: 400, 5000)")
	return cmd
}

// exitStatus is the status that a command ends with for a program that it has run.
type exitStatus struct {
	status int
	err    error
}

func (e *exitStatus) Error() string { return e.err.Error() }
func (e *exitStatus) Unwrap() error { return e.err }

func newMpirun(env environment, start func(context.Context, mpirun.Job) error) *cobra.Command {
	var percent float64
	j := mpirun.Job{Ranks: 2, MTU: 1500, Agent: []string{"agent", "--config", os.DevNull, "--no-fdstored"}, Stdout: below(env.stdout), Stderr: env.stderr}
	cmd := &cobra.Command{
		Use:   "mpirun [flags] PROGRAM [ARGUMENT...]",
		Short: "Start the ranks of a job on this machine, in namespaces that stand for hosts",
		Long: "Starts -np processes of a program. Each gets a network namespace with an interface of its\n" +
			"own, or with --hosts the ranks share that many; all interfaces are connected. Ranks that\n" +
			"share an interface share its queue through an agent that mpirun starts. PMI-1 tells the\n" +
			"processes their ranks. Programs of package mvich find their interface in VIADEV_DEVICE;\n" +
			"programs of other MPI implementations work if they speak PMI-1. Standard input is\n" +
			"/dev/null.\n\n" +
			"The exit status is that of the first rank that fails, or 128 plus its signal; the other\n" +
			"ranks are then ended. mpirun removes everything that it made. Needs root.",
		Example: "  via-xdp mpirun -np 4 via-xdp mpibench allreduce\n" +
			"  via-xdp mpirun -np 8 --hosts 2 via-xdp mpiapp cg\n" +
			"  via-xdp mpirun -np 4 --loss 1 via-xdp mpiapp stencil",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if j.Ranks < 1 || j.Ranks > testbed.MaxStar {
				return fmt.Errorf("-np %d: want 1 to %d ranks", j.Ranks, testbed.MaxStar)
			}
			if cmd.Flags().Changed("hosts") {
				if err := within("--hosts", j.Hosts, 1, j.Ranks); err != nil {
					return err
				}
			}
			if err := checkMTU(j.MTU); err != nil {
				return err
			}
			j.Program, j.Lossy = args, cmd.Flags().Changed("loss")
			if j.Loss = percent / 100; j.Lossy && !(percent >= 0 && percent < 100) {
				return fmt.Errorf("--loss %v: want percent, 0 to less than 100", percent)
			}
			broken := make(chan os.Signal, 1) // never read: that nobody reads the output is an error of the write
			signal.Notify(broken, unix.SIGPIPE)
			defer signal.Stop(broken)
			err := start(cmd.Context(), j)
			var rank *mpirun.RankError
			if errors.As(err, &rank) {
				return &exitStatus{rank.Status, err}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the program is the program's
	f.IntVarP(&j.Ranks, "np", "n", j.Ranks, fmt.Sprintf("ranks, 1 to %d", testbed.MaxStar))
	f.IntVar(&j.Hosts, "hosts", 0, "hosts that the ranks are divided among, in blocks (default: one for each rank)")
	f.IntVar(&j.MTU, "mtu", j.MTU, fmt.Sprintf("MTU of the interfaces, %d to %d", testbed.MinMTU, testbed.MaxMTU))
	f.BoolVar(&j.Bind, "bind", false, "pin rank 0 to the first CPU, rank 1 to the second, and so on, round robin")
	f.Float64Var(&percent, "loss", 0, "`percent` of the frames that a hub between the ranks drops; 0: the same hub without loss")
	f.BoolVar(&j.Prefix, "prefix", false, "prefix each line of output with its rank")
	return cmd
}

// mpirunArgs makes -np, which every mpirun has and no flag package knows, --np.
// What follows the program is left alone.
func mpirunArgs(args []string) []string {
	if len(args) == 0 || args[0] != "mpirun" {
		return args
	}
	args = slices.Clone(args)
	for i := 1; i < len(args) && strings.HasPrefix(args[i], "-") && args[i] != "--"; i++ {
		switch args[i] {
		case "-np":
			args[i] = "--np"
			i++
		case "--np", "-n", "--hosts", "--mtu", "--loss":
			i++ // its value
		}
	}
	return args
}
