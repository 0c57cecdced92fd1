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
