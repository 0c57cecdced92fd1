package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/ops/capture"
	"viaxdp/internal/ops/status"
)

func newCapture(env environment) *cobra.Command {
	var c capture.Config
	var file string
	var vis []string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "capture -w FILE.pcapng [INTERFACE]",
		Short: "Capture the frames of VIs, both directions, for Wireshark",
		Long: "Writes the frames that programs send and receive beside the kernel's stack, where tcpdump\n" +
			"does not see them, until Ctrl-C or until the programs close their NICs. It captures your own programs,\n" +
			"or all programs for root. contrib/wireshark/via.lua dissects the file. For connection\n" +
			"management, which is UDP of the kernel, use tcpdump udp port 4793. Frames that a program\n" +
			"had no room for are counted as lost. Queues that are opened after the capture has begun\n" +
			"are not in it. Other users may not read the file, unless it was there before.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if file == "" {
				return errors.New("-w FILE: where to write; - is standard output")
			}
			if duration < 0 {
				return fmt.Errorf("--duration %v: want a time above 0, or 0 for none", duration)
			}
			if c.Snaplen < 64 || c.Snaplen > 1<<17 {
				return errors.New("-s: want 64 to 131072 bytes")
			}
			for _, v := range vis {
				n, err := strconv.ParseUint(strings.TrimPrefix(v, "0x"), 16, 32)
				if err != nil {
					return fmt.Errorf("--vi %s: want a VI number as res vi shows it, in hexadecimal", v)
				}
				c.VIs = append(c.VIs, uint32(n))
			}
			c.Interface = strings.Join(args, "")
			all := status.Take(rundir.AllPrograms())
			tellUnseen(env.stderr, all)
			all.Only(c.Interface)
			ctx := cmd.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			if len(all.Targets()) == 0 {
				where := ""
				if c.Interface != "" {
					where = " on " + c.Interface
				}
				return fmt.Errorf("%w%s: start one first; via-xdp res lists them", capture.ErrNobody, where)
			}
			out := env.stdout
			if file != "-" {
				f, err := create(file, 0o600) // other users may not ask the programs, either
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				out = f
			}
			if isTerminal(out) {
				return errors.New("-w -: a capture is not for a terminal: pipe it, as in | wireshark -k -i -")
			}
			if isTerminal(env.stderr) {
				c.Progress = showCaptured(env.stderr)
			}
			s, err := capture.Run(ctx, out, all.Targets(), c)
			fmt.Fprintf(env.stderr, "%s of %s, %d not wanted, %d lost\n", counted(s.Frames, "frame"), counted(len(s.Queues), "queue"), s.Skipped, s.Lost)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "write", "w", "", "the `file` to write; - is standard output")
	f.StringSliceVar(&vis, "vi", nil, "capture frames to these VIs only: numbers as res vi shows them; a connection has two")
	f.IntVarP(&c.Snaplen, "snaplen", "s", 1<<17, "bytes of a frame to keep")
	f.Uint64VarP(&c.Count, "count", "c", 0, "stop after this number of frames")
	f.DurationVar(&duration, "duration", 0, "stop after this time")
	return cmd
}

// showCaptured shows the count on a terminal, now and then.
func showCaptured(w io.Writer) func(capture.Summary) {
	last := time.Time{}
	return func(s capture.Summary) {
		if now := time.Now(); now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(w, "\r%d frames, %d lost\x1b[K\r", s.Frames, s.Lost)
		}
	}
}
