package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netns"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/trace"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// levelNames maps the names in flags to levels.
var levelNames = map[string]vipl.ReliabilityLevel{
	"unreliable": vipl.UnreliableDelivery, "reliable-delivery": vipl.ReliableDelivery, "reliable-reception": vipl.ReliableReception,
}

func newTrace(env environment) *cobra.Command {
	var asJSON bool
	c := trace.Config{}
	level, mode, mtu := "reliable-delivery", "auto", 1500
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show the steps of a message with the time of each",
		Long: "Sends messages between two namespaces of its own and records the time of each step, as\n" +
			"numbered in ARCHITECTURE.md. AT is the median time since the call of PostSend, TOOK the\n" +
			"median time since the step before. Each timestamp costs about 50 ns, which the figures\n" +
			"include. A negative TOOK means that the two sides worked at the same time. Needs root. To\n" +
			"measure latency itself, use via-xdp demo.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var ok bool
			if c.Level, ok = levelNames[level]; !ok {
				return fmt.Errorf("--level %s: want unreliable, reliable-delivery or reliable-reception", level)
			}
			if err := checkMode(mode); err != nil {
				return err
			}
			c.Mode, _ = xdpnic.ParseMode(mode)
			if err := errors.Join(
				within("-n", c.Messages, 1, math.MaxInt), within("-s", c.Bytes, 0, vipl.MaxTransferSize), checkMTU(mtu),
			); err != nil {
				return err
			}
			if err := testbed.Require(testbed.Namespaces, testbed.Sockets, testbed.Programs); err != nil {
				return err
			}
			bed, err := testbed.Start(testbed.Config{
				Args: []string{workerCommand}, CPUs: [2]int{-1, -1}, Stderr: env.stderr,
				Pairs: []testbed.Pair{{Names: [2]string{"via0", "via0"}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, MTU: mtu}},
			})
			if err != nil && cmd.Context().Err() != nil { // Ctrl-C may have reached a child, too
				return context.Cause(cmd.Context())
			}
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, bed.Close()) }()
			for i, e := range []*trace.End{&c.Sender, &c.Receiver} {
				*e = trace.End{Enter: enterSide(bed.Side(i)), Interface: "via0", Host: bed.Side(i).Ends[0].IPv4.Addr()}
			}
			steps, err := trace.Run(cmd.Context(), c)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(env.stdout, steps)
			}
			what := 0
			for _, s := range steps {
				what = max(what, len(s.Name))
			}
			fmt.Fprintf(env.stdout, "STEP  %8s  %8s  %10s  %-*s  WHERE\n", "AT us", "TOOK us", "P99 us", what, "WHAT")
			for _, s := range steps {
				number := fmt.Sprint(s.Number)
				if s.Number == 0 {
					number = "-"
				}
				fmt.Fprintf(env.stdout, "%4s  %8.2f  %8.2f  %10.2f  %-*s  %s\n", number, ns(s.At), ns(s.Took), ns(s.P99), what, s.Name, s.Where)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVarP(&c.Messages, "count", "n", 10000, "messages")
	f.IntVarP(&c.Bytes, "size", "s", 64, "bytes of a message")
	f.StringVar(&level, "level", level, "unreliable, reliable-delivery or reliable-reception")
	f.StringVar(&mode, "mode", mode, modeHelp)
	f.IntVar(&mtu, "mtu", mtu, fmt.Sprintf("MTU of the pair, %d to %d", testbed.MinMTU, testbed.MaxMTU))
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// ns is nanoseconds as microseconds.
func ns(n int64) float64 { return float64(n) / 1000 }

// enterSide calls functions in the network namespace of a side, each on a thread
// that ends with it.
func enterSide(s *testbed.Side) func(func() error) error {
	return func(f func() error) error {
		h, err := netns.GetFromPid(s.Pid)
		if err != nil {
			return err
		}
		defer h.Close()
		return thread.In(int(h), f)
	}
}
