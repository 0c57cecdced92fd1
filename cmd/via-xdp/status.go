package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/status"
	"viaxdp/vipl"
)

// kinds of resources, as res names them.
var resources = []string{"nic", "vi", "cq", "mem", "ptag"}

func newRes(env environment) *cobra.Command {
	asJSON, nic := false, ""
	cmd := &cobra.Command{
		Use:   "res [" + strings.Join(resources, "|") + "]",
		Short: "List what programs have open: NICs, VIs, completion queues, memory, tags",
		Long: "Lists resources by process: those of your own programs, or of all programs for root. A\n" +
			"program is listed if it opened its NIC with vipl.OpenNIC and could create its socket in the\n" +
			"runtime directory (VIA_RUNTIME_DIR; by default /run/via-xdp/proc for root and\n" +
			"$XDG_RUNTIME_DIR/via-xdp/proc for users). Root looks for users' programs in\n" +
			"/run/user/UID/via-xdp/proc; for others set VIA_RUNTIME_DIR to the same directory as theirs. A program\n" +
			"that cron or a service starts for a user has neither variable and is not listed, but doctor\n" +
			"names it as the holder of its queue.",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: resources,
		RunE: func(_ *cobra.Command, args []string) error {
			c := status.Take(rundir.AllPrograms())
			c.Only(nic)
			if asJSON {
				return printJSON(env.stdout, c)
			}
			tellUnseen(env.stderr, c)
			if len(c.Programs) == 0 {
				fmt.Fprintln(env.stderr, nobody(nic, c))
				return nil
			}
			for i, kind := range resources {
				if len(args) == 0 || args[0] == kind {
					if len(args) == 0 && i > 0 {
						fmt.Fprintln(env.stdout)
					}
					printResources(env.stdout, c, kind)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&nic, "interface", "i", "", "this interface only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// tellUnseen reports which programs could not be asked.
func tellUnseen(w io.Writer, c *status.Report) {
	switch {
	case c.Denied == 1:
		fmt.Fprintln(w, "1 program of another user is not shown: sudo shows it")
	case c.Denied > 1:
		fmt.Fprintf(w, "%d programs of other users are not shown: sudo shows them\n", c.Denied)
	}
	for _, f := range c.Failed {
		fmt.Fprintln(w, "no answer:", f)
	}
}

// notes is the text before a list of queues: which programs it leaves out, and that it is empty.
func notes(nic string, c *status.Report, list []status.Queue) string {
	var b strings.Builder
	tellUnseen(&b, c)
	if len(list) == 0 {
		fmt.Fprintln(&b, nobody(nic, c))
	}
	return b.String()
}

// nobody is the text if no program has the interface, or any interface, open.
func nobody(nic string, c *status.Report) string {
	s := "no program"
	if c.Denied > 0 || len(c.Failed) > 0 {
		s = "no other program"
	}
	if nic != "" {
		return s + " has " + nic + " open"
	}
	return s + " has a NIC open"
}

func printResources(out io.Writer, c *status.Report, kind string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	heads := map[string]string{
		"nic":  "NIC\tPID\tPROGRAM\tUSER\tQUEUE\tPORT\tMODE\tVIS\tCQS\tHANDLES",
		"vi":   "VI\tPID\tPROGRAM\tNIC\tSTATE\tLEVEL\tPEER\tPEER VI\tSENDS\tRECEIVES\tIN FLIGHT",
		"cq":   "CQ\tPID\tPROGRAM\tNIC\tENTRIES\tWAITING\tQUEUES BOUND",
		"mem":  "MEM OF\tPID\tPROGRAM\tREGIONS\tBYTES\tARENA\tPAGES",
		"ptag": "PTAGS OF\tPID\tPROGRAM\tTAGS",
	}
	fmt.Fprintln(w, heads[kind])
	for _, p := range c.Programs {
		for _, n := range p.Nics {
			who := fmt.Sprintf("%d\t%s\t", p.PID, p.Command)
			place := fmt.Sprintf("%s/%d", n.Interface, n.Queue)
			switch kind {
			case "nic":
				queue := strconv.Itoa(n.Queue)
				for _, extra := range n.ExtraQueues {
					queue += "," + strconv.Itoa(extra)
				}
				if n.Processes > 0 {
					queue += fmt.Sprintf(" (process %d of %d)", 1+n.Process, n.Processes)
				}
				fmt.Fprintf(w, "%s\t%s%d\t%s\t%d\t%s\t%d\t%d\t%d\n", n.Interface, who, p.UID, queue, n.Port, n.Mode, len(n.VIs), len(n.CQs), n.Handles)
			case "vi":
				for _, v := range n.VIs {
					number := "-"
					if v.Peer.IsValid() {
						number = fmt.Sprintf("%08x", v.PeerVI)
					}
					fmt.Fprintf(w, "%08x\t%s%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n",
						v.Number, who, place, v.State, v.Level, peerOf(v), number, v.SendPosted, v.RecvPosted, v.InFlight)
				}
			case "cq":
				for i, q := range n.CQs {
					fmt.Fprintf(w, "%d\t%s%s\t%d\t%d\t%d\n", i, who, place, q.Size, q.Waiting, q.Bound)
				}
			case "mem":
				fmt.Fprintf(w, "%s\t%s%d\t%d\t%d\t%s\n", place, who, n.Mem.Regions, n.Mem.Bytes, n.Mem.Arena, n.Mem.Pages)
			case "ptag":
				fmt.Fprintf(w, "%s\t%s%d\n", place, who, n.Ptags)
			}
		}
	}
}

func newStat(env environment) *cobra.Command {
	var asJSON, all, vis bool
	var seconds float64
	count := 0
	cmd := &cobra.Command{
		Use:   "stat [INTERFACE]",
		Short: "Show counters and rates, named drops, by queue and VI",
		Long: "Shows the counters of the programs' queues that are not 0. With -i it shows rates over each\n" +
			"interval, until Ctrl-C. A name with a leading ! counts lost frames or messages.\n" +
			"docs/counters.md explains each counter. --json prints one document, or with -i one per line.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			interval := time.Duration(0)
			if cmd.Flags().Changed("interval") {
				var err error
				if interval, err = timeOf("-i", seconds, 0.01); err != nil {
					return err
				}
			}
			switch {
			case count < 0:
				return errors.New("-c: want a number from 0")
			case count > 1 && interval == 0:
				return errors.New("-c is the number of reports: give the seconds between them with -i")
			}
			take := taker(args)
			before := take()
			nic := strings.Join(args, "")
			if interval == 0 {
				return showStat(env, nic, before.Queues(nil), before, asJSON, all, vis, false)
			}
			for n := 0; count == 0 || n < count; n++ {
				if !sleep(cmd.Context(), interval) {
					return nil // Ctrl-C is how it ends
				}
				now := take()
				if err := showStat(env, nic, now.Queues(before), now, asJSON, all, vis, true); err != nil {
					return err
				}
				if p, ok := env.stdout.(*printed); ok && p.err != nil {
					return nil // run tells it
				}
				before = now
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Float64VarP(&seconds, "interval", "i", 0, "`seconds` between two reports of rates")
	f.IntVarP(&count, "count", "c", 0, "number of reports, with -i (default: until Ctrl-C)")
	f.BoolVarP(&all, "all", "a", false, "show counters that are 0, too")
	f.BoolVar(&vis, "vi", false, "show each VI, too")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// taker takes reports, of one interface if args names it.
func taker(args []string) func() *status.Report {
	return func() *status.Report {
		c := status.Take(rundir.AllPrograms())
		c.Only(strings.Join(args, ""))
		return c
	}
}

// takeUntil is take, or nil if ctx ends first: a program that is stopped answers late.
func takeUntil(ctx context.Context, take func() *status.Report) *status.Report {
	taken := make(chan *status.Report, 1)
	go func() { taken <- take() }()
	select {
	case c := <-taken:
		return c
	case <-ctx.Done():
		return nil
	}
}

// timeOf is a flag's number of seconds, at least least, as a time.
func timeOf(flag string, seconds, least float64) (time.Duration, error) {
	const most = 1e9
	if !(seconds >= least && seconds <= most) { // NaN is neither
		return 0, fmt.Errorf("%s: want seconds, %v or more, and at most %v", flag, least, int(most))
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// sleep waits; false: the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func showStat(env environment, nic string, list []status.Queue, c *status.Report, asJSON, all, vis, rates bool) error {
	if asJSON {
		tellUnseen(env.stderr, c)
		if rates {
			return json.NewEncoder(env.stdout).Encode(list)
		}
		return printJSON(env.stdout, list)
	}
	fmt.Fprint(env.stderr, notes(nic, c, list))
	for i := range list {
		q := &list[i]
		fmt.Fprintf(env.stdout, "%s (%s), process %d (%s)\n", q, q.Mode, q.PID, q.Command)
		for _, x := range q.Counts {
			if !all && (rates && x.Rate == 0 || x.Value == 0) {
				continue
			}
			name := x.Name
			if x.Drop {
				name = "!" + name
			}
			fmt.Fprintf(env.stdout, "  %-6s  %-24s  %14d", x.Group, name, x.Value)
			if rates {
				fmt.Fprintf(env.stdout, "  %12.1f/s", x.Rate)
			}
			fmt.Fprintln(env.stdout)
		}
		if vis {
			printVIs(env.stdout, q, rates)
		}
	}
	if rates {
		fmt.Fprintln(env.stdout)
	}
	return nil
}

func printVIs(out io.Writer, q *status.Queue, rates bool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	for _, v := range q.VIs {
		fmt.Fprintf(w, "  VI %08x\t%s\t%s\tsent %d\treceived %d\tresent %d", v.Number, v.State, peerOf(v.VIStatus), v.SendDone, v.RecvDone, v.Resent)
		if rates {
			fmt.Fprintf(w, "\t%.1f/s out\t%.1f/s in\t%.1f/s again", v.SendRate, v.RecvRate, v.ResentRate)
		}
		fmt.Fprintln(w)
	}
}

// peerOf is the peer's host; - where there is none.
func peerOf(v vipl.VIStatus) string {
	if !v.Peer.IsValid() {
		return "-"
	}
	return v.Peer.String()
}

func newTop(env environment) *cobra.Command {
	seconds := 1.0
	cmd := &cobra.Command{
		Use:   "top [INTERFACE]",
		Short: "Watch queues and VIs live",
		Long:  "Shows a screen of rates, the busiest queue first, until q or Ctrl-C. Needs a terminal.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			interval, err := timeOf("-i", seconds, 0.1)
			if err != nil {
				return err
			}
			out, ok := below(env.stdout).(*os.File)
			if !ok || !isTerminal(out) {
				return testbed.CannotRun(errors.New("standard output is no terminal: use via-xdp stat -i 1"))
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			restore := watchKeys(cancel)
			defer restore()
			fmt.Fprint(out, "\x1b[?1049h\x1b[?25l") // the other screen, without a cursor
			defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
			take, nic := taker(args), strings.Join(args, "")
			var before *status.Report
			for {
				now := takeUntil(ctx, take)
				if now == nil {
					return nil
				}
				list := now.Queues(before)
				rows, columns := screen(out)
				_, err := fmt.Fprint(out, "\x1b[H", topScreen(list, notes(nic, now, list), time.Now(), rows, columns), "\x1b[J")
				if err != nil || !sleep(ctx, interval) {
					return err
				}
				before = now
			}
		},
	}
	cmd.Flags().Float64VarP(&seconds, "interval", "i", 1, "`seconds` between two refreshes")
	return cmd
}

// watchKeys calls quit at q. Keys come one by one until restore is called.
func watchKeys(quit func()) (restore func()) {
	const in = 0
	old, err := unix.IoctlGetTermios(in, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	raw := *old
	raw.Lflag &^= unix.ICANON | unix.ECHO
	unix.IoctlSetTermios(in, unix.TCSETS, &raw)
	go func() {
		b := make([]byte, 1)
		for {
			if n, err := os.Stdin.Read(b); n == 0 || err != nil || b[0] == 'q' {
				if err == nil {
					quit()
				}
				return
			}
		}
	}()
	return func() { unix.IoctlSetTermios(in, unix.TCSETS, old) }
}

// counted returns a count and its noun, which is in the plural unless n is 1.
func counted[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// screen is the size of the terminal.
func screen(f *os.File) (rows, columns int) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Row == 0 || ws.Col == 0 {
		return 24, 80
	}
	return int(ws.Row), int(ws.Col)
}

// topScreen is what top shows, in at most rows lines of at most columns.
func topScreen(list []status.Queue, notes string, now time.Time, rows, columns int) string {
	frames := func(q *status.Queue) float64 {
		return q.Get("socket", "rx_frames").Rate + q.Get("socket", "tx_frames").Rate
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b status.Queue) int {
		return cmp.Compare(frames(&b), frames(&a))
	})
	vis := 0
	for _, q := range list {
		vis += len(q.VIs)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "via-xdp top - %s, %s, %s   (q quits)\n%s\n", now.Format(time.TimeOnly), counted(len(list), "queue"), counted(vis, "VI"), notes)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PID\tPROGRAM\tQUEUE\tRX/S\tTX/S\tMSG/S\tRESENT/S\tDROPS/S\t")
	for i := range list {
		q := &list[i]
		drops, names := 0.0, []string{}
		for _, d := range q.Drops(true) {
			drops += d.Rate
			names = append(names, d.Name)
		}
		fmt.Fprintf(w, "%d\t%s\t%s/%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%s\n", q.PID, q.Command, q.Interface, q.Queue,
			q.Get("socket", "rx_frames").Rate, q.Get("socket", "tx_frames").Rate, q.Get("engine", "Messages").Rate,
			q.Get("engine", "Resent").Rate, drops, strings.Join(names, " "))
	}
	w.Flush()
	b.WriteString("\n")
	w = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "VI\tPID\tSTATE\tPEER\tSEND/S\tRECV/S\tRESENT/S\tIN FLIGHT\t")
	for _, q := range list {
		for _, v := range q.VIs {
			fmt.Fprintf(w, "%08x\t%d\t%s\t%s\t%.0f\t%.0f\t%.0f\t%d\t\n", v.Number, q.PID, v.State, peerOf(v.VIStatus), v.SendRate, v.RecvRate, v.ResentRate, v.InFlight)
		}
	}
	w.Flush()
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) > rows {
		lines = append(lines[:rows-1], fmt.Sprintf("... %d more lines", len(lines)-rows+1))
	}
	for i, l := range lines {
		if r := []rune(l); len(r) > columns {
			l = string(r[:columns])
		}
		lines[i] = l + "\x1b[K"
	}
	return strings.Join(lines, "\r\n")
}
