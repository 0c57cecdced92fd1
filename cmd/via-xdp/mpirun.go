package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/mpirun"
)

// exitStatus is the status that a command ends with for a program that it has run.
type exitStatus struct {
	status int
	err    error
}

func (e *exitStatus) Error() string { return e.err.Error() }
func (e *exitStatus) Unwrap() error { return e.err }

func newMpirun(env environment, start func(context.Context, mpirun.Job) error) *cobra.Command {
	var percent float64
	j := mpirun.Job{Ranks: 2, MTU: 1500, Stdout: below(env.stdout), Stderr: env.stderr}
	cmd := &cobra.Command{
		Use:   "mpirun [flags] PROGRAM [ARGUMENT...]",
		Short: "Start the ranks of a job on this machine, each in a namespace of its own",
		Long: "Starts -np processes of a program. Each gets a network namespace with an interface of its\n" +
			"own; all interfaces are connected. PMI-1 tells the processes their ranks. Programs of\n" +
			"package mvich find their interface in VIADEV_DEVICE; programs of other MPI\n" +
			"implementations work if they speak PMI-1. Standard input is /dev/null.\n\n" +
			"The exit status is that of the first rank that fails, or 128 plus its signal; the other\n" +
			"ranks are then ended. mpirun removes everything that it made. Needs root.",
		Example: "  via-xdp mpirun -np 4 via-xdp mpibench allreduce\n" +
			"  via-xdp mpirun -np 4 --loss 1 via-xdp mpiapp stencil",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if j.Ranks < 1 || j.Ranks > testbed.MaxStar {
				return fmt.Errorf("-np %d: want 1 to %d ranks", j.Ranks, testbed.MaxStar)
			}
			if err := checkMTU(j.MTU); err != nil {
				return err
			}
			j.Program, j.Lossy = args, cmd.Flags().Changed("loss")
			if j.Loss = percent / 100; j.Lossy && !(percent >= 0 && percent < 100) {
				return fmt.Errorf("--loss %v: want percent, 0 to less than 100", percent)
			}
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
		case "--np", "-n", "--mtu", "--loss":
			i++ // its value
		}
	}
	return args
}
