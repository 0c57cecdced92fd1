// Command via-xdp measures VIs over AF_XDP, makes a test bed for them and
// tells what an interface can do.
//
//	via-xdp demo                 two namespaces, all transports, a table
//	via-xdp pingpong [SERVER]    latency between two hosts
//	via-xdp stream [SERVER]      bandwidth between two hosts
//	via-xdp testbed up|down|status
//	via-xdp info [INTERFACE]
//
// Exit status: 0 fine, 1 failed, 2 cannot run here, 130 interrupted.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	// A second Ctrl-C ends the program at once; its children go with it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, environment{
		args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, actions: production(),
	}))
}
