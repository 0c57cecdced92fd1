package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/testbed"
)

func newTestbed(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "testbed",
		Short: "A veth pair between two named namespaces, for use by hand",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newUp(env), newDown(env), newStatus(env))
	return cmd
}

func newUp(env environment) *cobra.Command {
	bed := testbed.DefaultNamed()
	bed.Hugepages = 2 * kagent.DefaultArena >> 21 // an arena for a program at each end
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make the namespaces via0 and via1, joined by a veth pair",
		Long: "Makes the namespaces via0 and via1 (ip netns exec via0 ...) with the interfaces via0\n" +
			"(10.77.0.1, fd77::1) and via1 (10.77.0.2, fd77::2), and adds hugepages to the host's\n" +
			"pool. When the bed is up already, nothing changes. Needs root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(
				checkMTU(bed.Pair.MTU), within("--queues", bed.Pair.Queues, 1, testbed.MaxQueues), within("--hugepages", bed.Hugepages, 0, math.MaxInt),
			); err != nil {
				return err
			}
			before, err := env.actions.status(bed)
			if err != nil {
				return err
			}
			if err := env.actions.up(bed); err != nil {
				return err
			}
			if before.Up && cmd.Flags().NFlag() > 0 {
				fmt.Fprintln(env.stderr, "via-xdp: the bed was up already and is unchanged: run via-xdp testbed down first to make another one")
			}
			return printStatus(env, bed)
		},
	}
	f := cmd.Flags()
	f.IntVar(&bed.Pair.MTU, "mtu", bed.Pair.MTU, fmt.Sprintf("MTU of the pair, %d to %d", testbed.MinMTU, testbed.MaxMTU))
	f.IntVar(&bed.Pair.Queues, "queues", bed.Pair.Queues, fmt.Sprintf("RX and TX queues of each interface, 1 to %d", testbed.MaxQueues))
	f.IntVar(&bed.Hugepages, "hugepages", bed.Hugepages, "pages of 2 MB to add to the host's pool until down")
	return cmd
}

func newDown(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Undo up, and nothing else",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return env.actions.down(testbed.DefaultNamed())
		},
	}
}

func newStatus(env environment) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Report whether the bed is up",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !asJSON {
				return printStatus(env, testbed.DefaultNamed())
			}
			s, err := env.actions.status(testbed.DefaultNamed())
			if err != nil {
				return err
			}
			return printJSON(env.stdout, s)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printStatus(env environment, bed testbed.Named) error {
	s, err := env.actions.status(bed)
	if err != nil {
		return err
	}
	switch {
	case s.Up:
		fmt.Fprintln(env.stdout, "up")
	case s.Problem != "":
		fmt.Fprintln(env.stdout, "broken:", s.Problem)
	default:
		fmt.Fprintln(env.stdout, "down")
	}
	for i, e := range s.Ends {
		fmt.Fprintf(env.stdout, "  namespace %s: interface %s, MTU %d, %s, %v, %v\n",
			s.Namespaces[i], e.Name, e.MTU, e.MAC, e.IPv4, e.IPv6)
	}
	if s.Up {
		fmt.Fprintf(env.stdout, "  hugepages of 2 MB added to the host's pool: %d\n", s.Hugepages)
	}
	if s.Note != "" {
		fmt.Fprintln(env.stdout, "  no hugepages:", s.Note)
	}
	return nil
}
