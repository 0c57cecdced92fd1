package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/bench"
	"viaxdp/internal/census"
	"viaxdp/internal/inspect"
	"viaxdp/internal/rundir"
	"viaxdp/internal/support"
)

func newReport(env environment) *cobra.Command {
	var to string
	var results []string
	cmd := &cobra.Command{
		Use:   "report [flags] [INTERFACE...]",
		Short: "Write an archive for those who shall explain a result: versions, settings, counters",
		Long: "Writes a tar.gz archive with the versions of program, kernel and drivers, the settings of\n" +
			"host and interfaces, their counters and those of the programs that have NICs open (what res\n" +
			"shows), and results (--result, as --json of other commands writes them). Addresses and the\n" +
			"host's name are replaced by names that say nothing. Nothing is changed, and nothing is sent\n" +
			"anywhere.",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				if args, err = inspect.Names(); err != nil {
					return err
				}
			}
			if to == "" {
				to = "via-xdp-report-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if to == "-" {
				if isTerminal(env.stdout) {
					return errors.New("-o -: an archive is not for a terminal: pipe it, as in | tar -tzf -")
				}
				return writeReport(env.stdout, env, args, results)
			}
			// Not over a file that is there.
			f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%w: name another one by -o", err)
			}
			if err != nil {
				return err
			}
			if err := errors.Join(writeReport(f, env, args, results), f.Close()); err != nil {
				return errors.Join(err, os.Remove(to))
			}
			fmt.Fprintln(env.stderr, "wrote", to)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&to, "output", "o", "", "the archive's `file`; - for standard output (default: via-xdp-report-TIME.tar.gz)")
	f.StringArrayVar(&results, "result", nil, "add this `file`, with its addresses replaced; may be repeated")
	return cmd
}

func writeReport(w io.Writer, env environment, interfaces, results []string) error {
	mask := &support.Mask{}
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		mask.Names = []string{name, short}
	}
	a := support.New(w, mask, time.Now())
	a.Add("version", fmt.Sprintf("via-xdp %s, %s %s/%s\n", bench.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH))
	root := os.DirFS("/")
	a.Host(root)
	for _, name := range interfaces {
		if _, err := net.InterfaceByName(name); err != nil {
			var op *net.OpError
			if errors.As(err, &op) {
				err = op.Err
			}
			return fmt.Errorf("interface %s: %w: ip link shows those of this network namespace", name, err)
		}
		a.NIC(root, name, support.Ethtool{Name: name})
		info, err := env.actions.inspect(name, false)
		if err != nil {
			return err
		}
		b, err := json.MarshalIndent(info, "", "  ")
		if err != nil {
			return err
		}
		a.Add("nic/"+name+"/info.json", string(b))
	}
	// What reached no VI is counted by the programs, not by the driver.
	b, err := json.MarshalIndent(census.Take(rundir.AllPrograms()), "", "  ")
	if err != nil {
		return err
	}
	a.Add("programs.json", string(b))
	for i, file := range results {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name := filepath.Base(file)
		if slices.ContainsFunc(results[:i], func(other string) bool { return filepath.Base(other) == name }) {
			name = fmt.Sprintf("%d-%s", i+1, name)
		}
		a.Add("results/"+name, string(b))
	}
	return a.Close()
}
