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

// soakWorkerCommand is the hidden command that runs one of the processes of a soak.
const soakWorkerCommand = "internal-soak-worker"

// newSoak is the command around soak, which is torture.Soak.
func newSoak(env environment, soak func(context.Context, torture.SoakConfig) (torture.SoakReport, error)) *cobra.Command {
	cfg := torture.SoakConfig{For: time.Minute, Silence: vipl.DefaultSilence, Args: []string{soakWorkerCommand}, Stderr: env.stderr}
	asJSON, gigabytes := jsonFile(""), 0.
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Run checked traffic under faults, crashes and restarts",
		Long: "Makes two network namespaces that are connected through a third one, which loses,\n" +
			"duplicates, reorders, delays and corrupts frames. Two processes exchange traffic at all\n" +
			"reliability levels. They are killed, suspended and cut off, and come back; their interfaces\n" +
			"get other addresses and another MTU. soak ends with a report. The exit status is 1 if a\n" +
			"promise was broken: a wrong byte; a message lost, duplicated or out of order; a connection\n" +
			"that broke without a reason; a resource that was not returned; or a frame that was neither\n" +
			"received nor counted as dropped although no process was killed or cut off. soak removes\n" +
			"everything that it made. Needs root.\n\n" +
			"--kills kills one process or the other at that many random points. Every connection of the\n" +
			"survivor has to end within 2 s, or within 1.25 times the silence if that is longer.\n" +
			"--gigabytes moves that much data through 1 % loss, 1 % duplication and 1 % reordering.\n" +
			"With --direct it moves it over one veth pair, on which packets of several frames stay whole,\n" +
			"and the receiving queues lose --loss of the frames and packets.\n" +
			"Both end when they are done, or with --for.\n\n" +
			"--hostile seals the connections and adds attackers that forge frames from those that they\n" +
			"see. The message rate must stay at least half of the rate beside attackers that send the\n" +
			"same number of frames to no receiver. With --plain, too, the connections are not sealed and\n" +
			"the attackers guess VIs, keys, sources, versions and lengths. Each forged frame has to be\n" +
			"dropped under the right counter, and none may be answered.\n\n" +
			"--attack runs one attack instead and prints its outcome. An attack that did not take place\n" +
			"is a broken promise, too. Time in which the machine ran late does not count.\n\n" +
			"  peer      A peer acknowledges frames and ends connections before the NIC, one in memory,\n" +
			"            has read what the program sends by reference. No byte that the program writes\n" +
			"            after a completion may reach the peer.\n" +
			"  users     A user of an agent occupies queues, listens where another user does, makes the\n" +
			"            agent search for silent hosts, and floods it. Open, close and dial of the other\n" +
			"            user may take 100 ms longer than alone, its requests have to arrive, and the\n" +
			"            gateway keeps its neighbor entry.\n" +
			"  requests  A server gets 10,000 requests/s with forged sources. No dial may be refused,\n" +
			"            99 % have to take at most 50 ms, and no source may be sent more than three times\n" +
			"            the bytes that came from it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			foreign := ""
			if i := slices.IndexFunc(notForAttacks, cmd.Flags().Changed); i >= 0 {
				foreign = notForAttacks[i]
			}
			for _, c := range []struct {
				wrong bool
				why   string
			}{
				{cfg.For <= 0 || cfg.Act <= 0 || cfg.Flows <= 0, "--for, --act and --flows must be positive"},
				{cfg.Silence < vipl.MinSilence, fmt.Sprintf("--silence %v: at least %v", cfg.Silence, vipl.MinSilence)},
				{cfg.Kills < 0 || gigabytes < 0 || cfg.Kills > 0 && gigabytes > 0,
					"--kills and --gigabytes must not be negative, and there is one or the other"},
				{cfg.Hostile && (cfg.Kills > 0 || gigabytes > 0),
					"--hostile is for random events: there is no flood beside --kills and --gigabytes"},
				{cfg.Attack != "" && !slices.Contains(torture.Attacks, cfg.Attack),
					fmt.Sprintf("--attack %q: want one of %s", cfg.Attack, strings.Join(torture.Attacks, ", "))},
				{cfg.Attack != "" && foreign != "",
					"--attack is not for --" + foreign + ": an attack has programs and faults of its own"},
				{(cfg.Direct || cfg.Loss != 0) && gigabytes == 0 || cfg.Loss != 0 && !cfg.Direct,
					"--direct is for --gigabytes, and --loss for --direct"},
				{!(cfg.Loss >= 0 && cfg.Loss <= mostLoss), fmt.Sprintf("--loss %v: want 0 to %v", cfg.Loss, mostLoss)},
				{cfg.Plain && !cfg.Hostile, "--plain is for --hostile: without it nothing is sealed"},
				{!(gigabytes <= 1e9), fmt.Sprintf("--gigabytes %v: want a number of at most 10^9", gigabytes)},
				{cfg.IP != 0 && cfg.IP != 4 && cfg.IP != 6, fmt.Sprintf("--ip %d: want 4 or 6", cfg.IP)},
			} {
				if c.wrong {
					return errors.New(c.why)
				}
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
	f.DurationVar(&cfg.For, "for", cfg.For, "duration")
	f.IntVar(&cfg.Kills, "kills", 0, "kill a process this `number` of times, instead of random events")
	f.Float64Var(&gigabytes, "gigabytes", 0, "move this many `GB` (10^9 bytes) through faults, instead of random events")
	f.BoolVar(&cfg.Direct, "direct", false, "with --gigabytes: over one veth pair, without faults")
	f.Float64Var(&cfg.Loss, "loss", 0, "with --direct: `share` of the arriving frames and packets that is lost, 0 to 0.2")
	f.DurationVar(&cfg.Act, "act", 20*time.Second, "time between two points at which everything is closed and counted; an act that has begun is finished, even after --for")
	f.IntVar(&cfg.Flows, "flows", 4, "VIs at each of the three reliability levels")
	f.BoolVar(&cfg.Hostile, "hostile", false, "seal the connections by a pre-shared key, and flood both sides with forged frames")
	f.BoolVar(&cfg.Plain, "plain", false, "with --hostile: do not seal the connections; the attackers do not see their frames")
	f.StringVar(&cfg.Attack, "attack", "", "run this `attack` instead of random events: peer, users or requests")
	f.DurationVar(&cfg.Silence, "silence", cfg.Silence, "time after which a silent peer of a VI is considered dead, on both sides")
	f.BoolVar(&cfg.Agents, "agent", false, "let an agent on each side open the interfaces")
	f.IntVar(&cfg.IP, "ip", 0, "IP `version` of the connections, 4 or 6 (default: chosen by the seed; 4 with --kills, --gigabytes and --hostile)")
	f.IntVar(&cfg.MTU, "mtu", 0, fmt.Sprintf("`MTU` of the interfaces, %d to %d (default: 1500 or 9000, chosen by the seed; 1500 with --kills, --gigabytes and --hostile)", leastSoakMTU, testbed.MaxMTU))
	f.Uint64Var(&cfg.Seed, "seed", 0, "of the events and faults (default: a random one, which the report shows)")
	asJSON.flag(f, "write the report as JSON to this `file`; - for standard output, the text then goes to standard error")
	return cmd
}

// notForAttacks are the flags of soaks without an attack.
var notForAttacks = []string{"kills", "gigabytes", "direct", "loss", "act", "flows", "hostile", "plain", "silence", "agent", "ip", "mtu"}

// mostLoss is more than what any connection is expected to survive for long.
const mostLoss = 0.2

// leastSoakMTU leaves room for a smaller MTU, which must still suffice for IPv6.
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
	fmt.Fprintf(&b, "%v, %s, seed %d, silence %v, IPv%d, MTU %d", r.Elapsed.Round(time.Second), counted(r.Acts, "act"), r.Seed, r.Silence, r.IP, r.MTU)
	if r.Agent {
		b.WriteString(", opened by agents")
	}
	b.WriteByte('\n')
	fmt.Fprintf(&b, "  messages      %d checked; %d lost on unreliable VIs\n", r.Messages, r.Missing)
	fmt.Fprintf(&b, "  RDMA          %d writes, %d reads\n", r.Writes, r.Reads)
	fmt.Fprintf(&b, "  connections   %d, %d broke", r.Connections, r.Breaks)
	if r.Excused > 0 {
		fmt.Fprintf(&b, "; %d because a process got no CPU", r.Excused)
	}
	b.WriteByte('\n')
	if r.Kills > 0 {
		fmt.Fprintf(&b, "  deaths        %d, noticed by all within %v in the median, %v at most", r.Kills,
			r.MedianTold.Round(time.Millisecond), r.SlowestTold.Round(time.Millisecond))
		if r.ToldLate > 0 {
			fmt.Fprintf(&b, "; %d later than promised because a process got no CPU", r.ToldLate)
		}
		b.WriteByte('\n')
	}
	if r.Bytes > 0 {
		fmt.Fprintf(&b, "  bytes         %.3f GB checked\n", float64(r.Bytes)/1e9)
	}
	if n := r.Emulator; r.Direct {
		fmt.Fprintf(&b, "  frames        %d retransmitted by their senders, %d sent in GSO packets; %d packets arrived whole\n", r.Resent, r.InPackets, r.Packets)
		fmt.Fprintf(&b, "  faults        %d frames and packets lost by the receiving queues\n", r.Discarded)
	} else {
		fmt.Fprintf(&b, "  frames        %d received by the middle, %d forwarded, %d retransmitted by their senders, %d sent in GSO packets\n", n.Taken, n.Passed, r.Resent, r.InPackets)
		fmt.Fprintf(&b, "  faults        %d lost, %d lost in bursts, %d duplicated, %d corrupted, %d reordered, %d delayed, %d over the rate\n",
			n.Lost, n.LostInBurst, n.Duplicated, n.Corrupted, n.Reordered, n.Delayed, n.Limited)
	}
	fmt.Fprintf(&b, "  at rest       %d times all chunks were accounted for; none of %d frames sent was lost without a counter\n", r.Audits, r.Accounted)
	if f := r.Flood; f != nil {
		fmt.Fprintf(&b, "  hostile       %d forged frames, %.0f/s\n", f.Forged, f.Rate)
		fmt.Fprintf(&b, "  rate          %.0f messages/s beside %.0f forged frames/s, %.0f beside attackers with no target (%.0f %% kept), %.0f without any\n",
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

// printVerdict lists the broken promises.
func printVerdict(b *strings.Builder, r torture.SoakReport) {
	if len(r.Violations) == 0 {
		b.WriteString("  every promise was kept\n")
	}
	for _, v := range r.Violations {
		fmt.Fprintf(b, "  BROKEN: %s\n", v)
	}
}

// soakStep is the progress of a soak.
func soakStep(r torture.SoakReport) string {
	if r.Attack != nil {
		return fmt.Sprintf("%v: attack %s (%s)", r.Elapsed.Round(time.Second), r.Attack.Name, r.Event)
	}
	events := 0
	for _, n := range r.Events {
		events += n
	}
	return fmt.Sprintf("%v: act %d, event %d (%s); %.2f GB, %d kills; %d frames, %d lost, %d connections", r.Elapsed.Round(time.Second),
		r.Acts+1, events+1, r.Event, float64(r.Bytes)/1e9, r.Kills, r.Emulator.Taken, r.Emulator.Lost+r.Emulator.LostInBurst+r.Discarded, r.Connections)
}
