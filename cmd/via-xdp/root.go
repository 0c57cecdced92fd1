package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/bench/suite"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/torture"
	"viaxdp/internal/ops/inspect"
	"viaxdp/internal/ops/mpirun"
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
	inspect   func(name string, try bool) (inspect.Interface, error)
	suite     func(context.Context, suite.Config) (*report.Report, error)
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
		inspect: inspect.Look,
		suite:   suite.Run,
	}
}

// Hidden commands for child processes that run this program.
const (
	workerCommand = "internal-worker"
	guardCommand  = "internal-guard"
)

// run executes the command line and returns the exit status.
func run(ctx context.Context, env environment) int {
	out := &printed{w: env.stdout}
	env.stdout = out
	root := newRoot(env)
	refuseUnknown(root)
	root.SetArgs(mpirunArgs(env.args))
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("standard output: %w", out.err)
	}
	if err == nil {
		return exitFine
	}
	status := statusOf(ctx, err)
	switch {
	case status == exitInterrupted:
		err = errors.New("interrupted")
	case errors.As(err, new(printedError)):
		return status
	}
	printError(env, err)
	return status
}

// printedError is an error that its command has printed.
type printedError struct{ error }

func (e printedError) Unwrap() error { return e.error }

func printError(env environment, err error) {
	if errors.Is(err, unix.EMFILE) {
		err = fmt.Errorf("%w (raise the limit of this process: ulimit -n)", err)
	}
	fmt.Fprintf(env.stderr, "via-xdp: %s\n", oneLine(err))
}

func statusOf(ctx context.Context, err error) int {
	var missing *testbed.MissingError
	var program *exitStatus
	var capability *capabilityError
	var nic *kagent.OpError
	switch {
	case errors.As(err, &program):
		return program.status
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &missing), errors.As(err, &capability), errors.As(err, &nic) && kagent.Unavailable(err):
		return exitCannotRun
	}
	return exitFailed
}

// oneLine joins the lines of a compound error. Names in it, and what a server of measurements answers, may have any bytes.
func oneLine(err error) string {
	return termsafe.Printable(strings.NewReplacer("\n", "; ", "\t", " ").Replace(strings.TrimSpace(err.Error())))
}

func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:           "via-xdp",
		Short:         "Virtual Interfaces over AF_XDP: inspect, fix, measure",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		Version:       bench.Version(),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("via-xdp {{.Version}}\n")
	root.SetFlagErrorFunc(usageError)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	addGroup(root, "The machine:", newDoctor(env), newInfo(env), newTune(env), newCleanup(env), newReport(env))
	addGroup(root, "Programs that run:", newRes(env), newStat(env), newTop(env), newCapture(env), newPing(env))
	addGroup(root, "Measuring:", newDemo(env), newPingpong(env), newStream(env), newTrace(env), newBench(env),
		newMpibench(env), newMpiapp(env), newSoak(env, torture.Soak), newTestbed(env))
	addGroup(root, "Serving:", newAgent(env), newProxy(env), newMpirun(env, mpirun.Run))
	root.AddCommand(
		newVersion(env), newGen(env),
		newChild(workerCommand, func(context.Context) error { return bench.WorkerMain() }),
		newChild(guardCommand, func(context.Context) error { return testbed.GuardMain() }),
		newChild(soakWorkerCommand, func(context.Context) error { return torture.Main() }),
		newChild(fdstoredCommand, fdstored),
	)
	completeArguments(root)
	explainArguments(root)
	return root
}

// addGroup adds commands that help lists together.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

// completeArguments has shells complete interfaces where a command takes one.
func completeArguments(cmd *cobra.Command) {
	if strings.Contains(cmd.Use, "INTERFACE]") {
		cmd.ValidArgsFunction = completeInterfaces
	}
	if f := cmd.Flags().Lookup("interface"); f != nil {
		cmd.RegisterFlagCompletionFunc("interface", completeInterfaces)
	}
	for _, sub := range cmd.Commands() {
		completeArguments(sub)
	}
}

func newVersion(env environment) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(env.stdout, struct {
					Version string `json:"version"`
					Go      string `json:"go"`
					Format  uint8  `json:"format"` // of frames; ping reports a host's
				}{bench.Version(), runtime.Version(), wire.VersionNumber})
			}
			_, err := fmt.Fprintln(env.stdout, "via-xdp", bench.Version())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// newChild is a hidden command for a child process.
func newChild(name string, main func(context.Context) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return main(cmd.Context()) },
	}
}
