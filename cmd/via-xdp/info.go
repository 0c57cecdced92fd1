package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/inspect"
)

// described is an element of what info --json prints.
type described struct {
	inspect.Interface
	Agent string `json:"agent"` // what opens NICs for programs started from here
}

func newInfo(env environment) *cobra.Command {
	var asJSON, try bool
	var name string
	cmd := &cobra.Command{
		Use:   "info [INTERFACE]",
		Short: "Show what an interface can do: driver, queues, modes, limits",
		Long: "Describes an interface, or all but the loopback. --try tests each mode: it attaches a program\n" +
			"and opens a queue for a moment, which needs root and may reset the link of a real NIC.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asked := append(args, name)
			names, err := infoNames(asked)
			if err != nil {
				return err
			}
			infos, agentOf := []described{}, whichAgent(cmd.Context())
			for _, n := range names {
				i, err := env.actions.inspect(n, try)
				if err != nil && !slices.Contains(asked, n) && inspect.Gone(err) {
					continue // it was removed meanwhile
				}
				if err != nil {
					return err
				}
				infos = append(infos, described{i, agentOf(n)})
			}
			if asJSON {
				return printJSON(env.stdout, infos)
			}
			for i := range infos {
				printInfo(env, &infos[i].Interface)
			}
			printAgents(env.stdout, infos, agentOf(""))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&name, "interface", "i", "", "interface")
	f.BoolVar(&try, "try", false, "test each mode")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// infoNames are the interfaces asked for, or all.
func infoNames(asked []string) ([]string, error) {
	var names []string
	for _, n := range asked {
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(names) > 0 {
		return names, nil
	}
	return inspect.Names(0)
}

func printInfo(env environment, i *inspect.Interface) {
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	state := "down"
	if i.Up {
		state = "up"
	}
	fmt.Fprintf(w, "%s\tindex %d, %s, %s\n", termsafe.Printable(i.Name), i.Index, cmp.Or(i.MAC, "no MAC address"), state)
	fmt.Fprintf(w, "  driver\t%s\n", i.Driver)
	fmt.Fprintf(w, "  queues\t%d RX, %d TX", i.Queues.RX, i.Queues.TX)
	if i.Queues.RXRing > 0 {
		fmt.Fprintf(w, "; rings of %d and %d entries", i.Queues.RXRing, i.Queues.TXRing)
	}
	fmt.Fprintf(w, "\n  MTU\t%d\n", i.MTU)
	fmt.Fprintf(w, "  XDP features\t%s\n", cmp.Or(strings.Join(i.Features, ", "), "none"))
	fmt.Fprintf(w, "  XDP program\t%s\n", cmp.Or(i.Program, "none"))
	for _, m := range i.Modes {
		fmt.Fprintf(w, "  mode %s\t%s\n", m.Mode, modeState(m))
	}
	for _, l := range i.Limits {
		fmt.Fprintf(w, "  limit %s\t%s: %s\n", l.Name, l.Value, l.Meaning)
	}
	for _, n := range i.Notes {
		fmt.Fprintf(w, "  note\t%s\n", n)
	}
}

func modeState(m inspect.Mode) string {
	s := "not possible"
	switch {
	case m.Reached:
		return "reached"
	case m.Tried:
		s = "not reached"
	case m.Possible:
		s = "possible"
	}
	if m.Reason != "" {
		s += ": " + m.Reason
	}
	return s
}

// agentTime is how long the agent may take to answer.
const agentTime = 2 * time.Second

// printAgents prints the agent once if it is the same for all interfaces, or if there are none.
func printAgents(w io.Writer, infos []described, agent string) {
	if len(infos) > 0 {
		agent = infos[0].Agent
	}
	if !slices.ContainsFunc(infos, func(i described) bool { return i.Agent != agent }) {
		fmt.Fprintf(w, "agent: %s\n", agent)
		return
	}
	for i := range infos {
		fmt.Fprintf(w, "agent of %s: %s\n", termsafe.Printable(infos[i].Name), infos[i].Agent)
	}
}

// whichAgent returns a function that names what opens an interface for programs that this user
// starts from here. An empty name stands for any interface.
func whichAgent(ctx context.Context) func(name string) string {
	all := func(text string) func(string) string { return func(string) string { return text } }
	_, named, ok := agentclient.Socket()
	if !ok {
		return all("none but the program itself (" + agentclient.Environment + "=none)")
	}
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	socket, here, st, err := agentclient.Find(ctx)
	switch {
	case err == nil:
		return func(name string) string {
			agent := fmt.Sprintf("process %d at %s", st.PID, socket)
			switch {
			case name == "":
				return agent
			case !here:
				return agent + ", whose interfaces are those of another network namespace"
			case st.Serves(name):
				return agent
			case named:
				return "none: " + agent + " does not serve it to this user; its settings list what it serves"
			}
			return "the program itself: " + agent + " does not serve it to this user"
		}
	case errors.Is(err, agentclient.ErrStarts):
		return all("the one that the first program starts, at " + socket)
	case named:
		return all(fmt.Sprintf("none: %v", err))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return all("the program itself; no daemon answers at " + socket)
	}
	return all(fmt.Sprintf("the program itself, and not the one at %s: %v", socket, err))
}
