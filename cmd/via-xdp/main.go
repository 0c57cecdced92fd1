// Command via-xdp has all commands of this project: they check and tune a machine, show
// running programs, measure, and serve.
//
//	via-xdp doctor, info, tune, cleanup, report        the machine and its interfaces
//	via-xdp res, stat, top, capture, ping              programs that have NICs open
//	via-xdp demo, bench, pingpong, stream, trace       how fast it goes
//	via-xdp mpibench, mpiapp, soak, testbed            ranks, faults, namespaces by hand
//	via-xdp agent, proxy, mpirun                       NICs, TCP and ranks for other programs
//
// docs/cli.md, made from the commands, has all of them.
//
// Exit status: 0 fine, 1 failed, 2 cannot run here, 130 interrupted.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

func main() {
	// A signal that the parent has had ignored stays so: SIGHUP by nohup, SIGINT in background jobs of scripts.
	ends := slices.DeleteFunc([]os.Signal{os.Interrupt, unix.SIGHUP}, signal.Ignored)
	ctx, stop := signal.NotifyContext(context.Background(), append(ends, unix.SIGTERM)...)
	defer stop()
	// A second Ctrl-C ends the program at once; its children go with it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, environment{
		args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, actions: production(),
	}))
}
