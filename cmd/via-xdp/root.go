package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"viaxdp/bench"
	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/bench/suite"
	"viaxdp/internal/testbed"
	"viaxdp/internal/torture"
)

// Exit status of the program.
const (
	exitFine        = 0
	exitFailed      = 1
	exitCannotRun   = 2
	exitInterrupted = 130
)

// environment is all that the command line takes from outside.
type environment struct {
	args           []string
	stdout, stderr io.Writer
	actions        actions
}

// actions do the work behind the commands.
type actions struct {
	demo      func(context.Context, bench.DemoConfig) (*bench.Result, error)
	serve     func(context.Context, bench.ServerConfig) error
	measure   func(context.Context, bench.ClientConfig) (*bench.Result, error)
	up        func(testbed.Named) error
	down      func(testbed.Named) error
	status    func(testbed.Named) (testbed.Status, error)
	inspect   func(name string, try bool) (bench.InterfaceInfo, error)
	suite     func(context.Context, suite.Config) (*report.Report, error)
	worker    func() error
	guard     func() error
	peer      func() error
	listening func(addr net.Addr) // a server is ready; may be nil
}

func production() actions {
	return actions{
		demo:    bench.Demo,
		serve:   bench.ListenAndServe,
		measure: bench.Measure,
		up:      testbed.Named.Up,
		down:    testbed.Named.Down,
		status:  testbed.Named.Status,
		inspect: bench.Inspect,
		suite:   suite.Run,
		worker:  bench.WorkerMain,
		guard:   testbed.GuardMain,
		peer:    peers.WorkerMain,
	}
}

// Hidden commands with which the program becomes a child of itself.
const (
	workerCommand = "internal-worker"
	guardCommand  = "internal-guard"
)

// run executes the command line and returns the exit status.
func run(ctx context.Context, env environment) int {
	root := newRoot(env)
	root.SetArgs(env.args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	status := statusOf(ctx, err)
	if status == exitInterrupted {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(env.stderr, "via-xdp: %s\n", oneLine(err))
	return status
}

func statusOf(ctx context.Context, err error) int {
	var missing *testbed.MissingError
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &missing):
		return exitCannotRun
	}
	return exitFailed
}

// oneLine joins the lines of a compound error.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:           "via-xdp",
		Short:         "Virtual Interfaces over AF_XDP: measure, demonstrate, inspect",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newDemo(env),
		newPingpong(env),
		newStream(env),
		newBench(env),
		newSoak(env, torture.Soak),
		newTestbed(env),
		newInfo(env),
		newVersion(env),
		newChild(workerCommand, env.actions.worker),
		newChild(guardCommand, env.actions.guard),
		newChild(partyCommand, party),
		newChild(peers.WorkerCommand, env.actions.peer),
	)
	return root
}

func newVersion(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.stdout, "via-xdp", bench.Version())
			return err
		},
	}
}

func newChild(name string, main func() error) *cobra.Command {
	return &cobra.Command{
		Use:    name,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return main() },
	}
}
