package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/torture"
	"viaxdp/vipl"
)

// soakWorkerCommand is the hidden command with which the program becomes a worker of
// a soak.
const soakWorkerCommand = "internal-soak-worker"

func soakWorker() error { return torture.Main() }

// newSoak is the command around soak, which is torture.Soak.
func newSoak(env environment, soak func(context.Context, torture.SoakConfig) (torture.SoakReport, error)) *cobra.Command {
	cfg := torture.SoakConfig{For: time.Minute, Silence: vipl.DefaultSilence, Args: []string{soakWorkerCommand}, Stderr: env.stderr}
	asJSON, gigabytes := jsonFile(""), 0.
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Traffic under faults, deaths and returns, every byte checked",
		Long: "Makes two network namespaces that are joined through a third, which loses, repeats,\n" +
			"reorders, delays and damages frames, and runs traffic of all reliability levels\n" +
			"between two processes that are killed, suspended and cut off, and come back, and whose\n" +
			"interfaces get other addresses and another MTU. Ends with a report, and with status 1\n" +
			"when a promise was broken: a wrong byte, a message lost, doubled or out of order, a\n" +
			"connection that broke without a reason, something that was not given back, a frame\n" +
			"that was neither received nor counted as dropped where nobody was killed or cut off.\n" +
			"Nothing of it stays behind. Needs root.\n\n" +
			"With --kills one worker or the other is killed so many times at random points, and\n" +
			"every connection of the survivor has to end within 2 s, or a quarter more than the\n" +
			"silence if that is longer. With --gigabytes so much is moved through 1 % loss, 1 %\n" +
			"duplication and 1 % reordering. Both end when they are done, or with --for.\n\n" +
			"With --hostile connections are sealed, and forgers send what they make of the frames\n" +
			"that they see. Beside them the rate of messages must be half of what it is, at least,\n" +
			"beside forgers that do the same work for frames that nobody gets. With --plain as well\n" +
			"nothing is sealed, and forgers guess: VIs, keys, sources, versions and lengths. Each\n" +
			"has to be dropped by its name, and none answered.\n\n" +
			"With --attack there is an attack instead, and a line that says what came of it. One\n" +
			"that did not take place is a broken promise, too; time in which the machine ran late\n" +
			"does not count. With --attack peer a peer acknowledges, and ends connections, before\n" +
			"the NIC, one in memory, has read what a program sends by reference: no byte that the\n" +
			"program writes after a completion may reach the peer. With --attack users a user of an\n" +
			"agent keeps queues, listens where another user does, has the agent look for hosts that\n" +
			"are silent, and floods it: the other user's open, close and dial may take 100 ms longer\n" +
			"than alone, its requests have to reach it, and the gateway keeps its neighbour entry.\n" +
			"With --attack requests a server gets 10,000 requests/s whose sources are invented: no\n" +
			"dial may be refused, 99 % have to take 50 ms at most, and no source may be sent more\n" +
			"than three times the bytes that came from it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.For <= 0 || cfg.Act <= 0 || cfg.Flows <= 0 {
				return errors.New("--for, --act and --flows must be positive")
			}
			if cfg.Silence < vipl.MinSilence {
				return fmt.Errorf("--silence %v: at least %v", cfg.Silence, vipl.MinSilence)
			}
			if cfg.Kills < 0 || gigabytes < 0 || cfg.Kills > 0 && gigabytes > 0 {
				return errors.New("--kills and --gigabytes must not be negative, and there is one or the other")
			}
			if cfg.Hostile && (cfg.Kills > 0 || gigabytes > 0) {
				return errors.New("--hostile is for random events: there is no flood beside --kills and --gigabytes")
			}
			if cfg.Attack != "" && !slices.Contains(torture.Attacks, cfg.Attack) {
				return fmt.Errorf("--attack %q: want one of %s", cfg.Attack, strings.Join(torture.Attacks, ", "))
			}
			if cfg.Attack != "" {
				for _, name := range notForAttacks {
					if cmd.Flags().Changed(name) {
						return fmt.Errorf("--attack is not for --%s: an attack has programs and faults of its own", name)
					}
				}
			}
			if cfg.Plain && !cfg.Hostile {
				return errors.New("--plain is for --hostile: without it nothing is sealed")
			}
			if !(gigabytes <= 1e9) {
				return fmt.Errorf("--gigabytes %v: want a number of at most 10^9", gigabytes)
			}
			if cfg.IP != 0 && cfg.IP != 4 && cfg.IP != 6 {
				return fmt.Errorf("--ip %d: want 4 or 6", cfg.IP)
			}
			if cmd.Flags().Changed("mtu") {
				if err := within("--mtu", cfg.MTU, leastSoakMTU, testbed.MaxMTU); err != nil {
					return err
				}
			}
			if err := asJSON.check(); err != nil {
				return err
			}
			cfg.Bytes = uint64(gigabytes * 1e9)
			if !cmd.Flags().Changed("for") && (cfg.Kills > 0 || cfg.Bytes > 0) {
				cfg.For = 0
			}
			if !cmd.Flags().Changed("seed") {
				cfg.Seed = rand.Uint64()
			}
			progress := newProgress(env.stderr)
			cfg.Progress = func(r torture.SoakReport) { progress.line("%s", soakStep(r)) }
			report, err := soak(cmd.Context(), cfg)
			progress.done()
			if report.Elapsed == 0 { // it did not begin
				return err
			}
			err = errors.Join(err, asJSON.write(env,
				func(w io.Writer) error { return printSoak(w, report) },
				func(w io.Writer) error { return printJSON(w, report) }))
			if err == nil {
				err = cmd.Context().Err()
			}
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.For, "for", cfg.For, "how long")
	f.IntVar(&cfg.Kills, "kills", 0, "kill so many `workers`, instead of random events")
	f.Float64Var(&gigabytes, "gigabytes", 0, "move so many `GB` (10^9 bytes) through faults, instead of random events")
	f.DurationVar(&cfg.Act, "act", 20*time.Second, "time after which everything is closed and counted, again and again; what has begun is gone through, whatever --for says")
	f.IntVar(&cfg.Flows, "flows", 4, "VIs at each of the three reliability levels")
	f.BoolVar(&cfg.Hostile, "hostile", false, "seal the connections by a pre-shared key, and flood both sides with forged frames")
	f.BoolVar(&cfg.Plain, "plain", false, "with --hostile: do not seal the connections, and forge as somebody who has not seen their frames")
	f.StringVar(&cfg.Attack, "attack", "", "instead of random events, the `attack` of a peer, users or requests")
	f.DurationVar(&cfg.Silence, "silence", cfg.Silence, "time after which a silent peer of a VI is taken for dead, on both sides alike")
	f.BoolVar(&cfg.Agents, "agent", false, "have an agent on each side open the interfaces")
	f.IntVar(&cfg.IP, "ip", 0, "IP `version` over which the workers connect, 4 or 6 (default: as the seed has it; 4 with --kills, --gigabytes and --hostile)")
	f.IntVar(&cfg.MTU, "mtu", 0, fmt.Sprintf("`MTU` of the interfaces, %d to %d (default: 1500 or 9000, as the seed has it; 1500 with --kills, --gigabytes and --hostile)", leastSoakMTU, testbed.MaxMTU))
	f.Uint64Var(&cfg.Seed, "seed", 0, "of the events and faults (default: a random one, which the report tells)")
	asJSON.flag(f, "write the report as JSON to this `file`; - for standard output, the text then goes to standard error")
	return cmd
}

// notForAttacks are the flags of other soaks.
var notForAttacks = []string{"kills", "gigabytes", "act", "flows", "hostile", "plain", "silence", "agent", "ip", "mtu"}

// leastSoakMTU leaves room for less, which IPv6 has to have, too.
const leastSoakMTU = 1500

func printSoak(w io.Writer, r torture.SoakReport) error {
	var b strings.Builder
	if a := r.Attack; a != nil {
		fmt.Fprintf(&b, "%v, attack %s, seed %d\n", r.Elapsed.Round(time.Second), a.Name, r.Seed)
		fmt.Fprintf(&b, "  promise       %s\n", a.Promise)
		fmt.Fprintf(&b, "  result        %s\n", a.Result)
		printVerdict(&b, r)
		_, err := io.WriteString(w, b.String())
		return err
	}
	acts := "acts"
	if r.Acts == 1 {
		acts = "act"
	}
	fmt.Fprintf(&b, "%v, %d %s, seed %d, silence %v, IPv%d, MTU %d", r.Elapsed.Round(time.Second), r.Acts, acts, r.Seed, r.Silence, r.IP, r.MTU)
	if r.Agent {
		b.WriteString(", opened by agents")
	}
	b.WriteByte('\n')
	fmt.Fprintf(&b, "  messages      %d checked; %d lost on unreliable VIs\n", r.Messages, r.Missing)
	fmt.Fprintf(&b, "  RDMA          %d writes, %d reads\n", r.Writes, r.Reads)
	fmt.Fprintf(&b, "  connections   %d, of which %d broke", r.Connections, r.Breaks)
	if r.Excused > 0 {
		fmt.Fprintf(&b, "; %d without a reason but that a process got no CPU", r.Excused)
	}
	b.WriteByte('\n')
	if r.Kills > 0 {
		fmt.Fprintf(&b, "  deaths        %d, told to all within %v in the median, %v at most", r.Kills,
			r.MedianTold.Round(time.Millisecond), r.SlowestTold.Round(time.Millisecond))
		if r.ToldLate > 0 {
			fmt.Fprintf(&b, "; %d later than promised, as a process got no CPU", r.ToldLate)
		}
		b.WriteByte('\n')
	}
	if r.Bytes > 0 {
		fmt.Fprintf(&b, "  bytes         %.3f GB checked\n", float64(r.Bytes)/1e9)
	}
	n := r.Way
	fmt.Fprintf(&b, "  frames        %d taken, %d passed, %d sent again by their sender\n", n.Taken, n.Passed, r.Resent)
	fmt.Fprintf(&b, "  faults        %d lost, %d lost in bursts, %d doubled, %d damaged, %d reordered, %d delayed, %d over the rate\n",
		n.Lost, n.LostInBurst, n.Duplicated, n.Corrupted, n.Reordered, n.Delayed, n.Limited)
	fmt.Fprintf(&b, "  at rest       %d times all chunks were in their places, of %d frames sent none was lost without a name\n", r.Audits, r.Accounted)
	if f := r.Flood; f != nil {
		fmt.Fprintf(&b, "  hostile       %d forged frames, %.0f/s\n", f.Forged, f.Rate)
		fmt.Fprintf(&b, "  rate          %.0f messages/s beside %.0f forged frames/s, %.0f beside forgers that spare us (%.0f %% kept), %.0f without any\n",
			f.Flooded.Rate, f.BesideRate, f.Spared.Rate, 100*f.Kept, f.Calm.Rate)
	}
	var events []string
	for _, name := range slices.Sorted(maps.Keys(r.Events)) {
		events = append(events, fmt.Sprintf("%d %s", r.Events[name], name))
	}
	fmt.Fprintf(&b, "  events        %s\n", strings.Join(events, ", "))
	printVerdict(&b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

// printVerdict says which promises were broken.
func printVerdict(b *strings.Builder, r torture.SoakReport) {
	if len(r.Violations) == 0 {
		b.WriteString("  every promise was kept\n")
	}
	for _, v := range r.Violations {
		fmt.Fprintf(b, "  BROKEN: %s\n", v)
	}
}

// soakStep is how far a soak is.
func soakStep(r torture.SoakReport) string {
	if r.Attack != nil {
		return fmt.Sprintf("%v: attack %s (%s)", r.Elapsed.Round(time.Second), r.Attack.Name, r.Event)
	}
	events := 0
	for _, n := range r.Events {
		events += n
	}
	return fmt.Sprintf("%v: act %d, event %d (%s); %.2f GB, %d kills; %d frames, %d lost, %d connections", r.Elapsed.Round(time.Second),
		r.Acts+1, events+1, r.Event, float64(r.Bytes)/1e9, r.Kills, r.Way.Taken, r.Way.Lost+r.Way.LostInBurst, r.Connections)
}
