package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/ops/inspect"
	"viaxdp/internal/ops/status"
	"viaxdp/internal/ops/support"
	"viaxdp/internal/ops/undo"
)

func newReport(env environment) *cobra.Command {
	var to string
	var results []string
	cmd := &cobra.Command{
		Use:   "report [flags] [INTERFACE...]",
		Short: "Write an archive that helps others explain a result: versions, settings, counters",
		Long: "Writes a tar.gz archive with the versions of program, kernel and drivers, the settings of\n" +
			"host and interfaces, their counters and those of the programs that have NICs open (what res\n" +
			"shows), and results (--result, as --json of other commands writes them). Addresses and the\n" +
			"host's name are replaced by neutral names. Values of the kernel's command line\n" +
			"that may be secret are left out. Nothing is changed, and nothing is sent anywhere.",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) (err error) {
			asked := len(args) > 0
			if !asked {
				if args, err = inspect.Names(0); err != nil {
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
				return writeReport(env.stdout, env, args, asked, results)
			}
			// Not over a file that is there.
			f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("%w: name another file by -o", err)
			}
			if err := errors.Join(writeReport(f, env, args, asked, results), f.Close()); err != nil {
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

// writeReport writes an archive about interfaces. Unless the user has asked for them, it leaves out those that have been removed.
func writeReport(w io.Writer, env environment, interfaces []string, asked bool, results []string) error {
	mask := &support.Mask{}
	if name, err := os.Hostname(); err == nil {
		short, domain, _ := strings.Cut(name, ".")
		mask.Names = []string{name, short, domain}
	}
	a := support.New(w, mask, time.Now())
	a.Add("version", fmt.Sprintf("via-xdp %s, %s %s/%s\n", bench.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH))
	root := os.DirFS("/")
	a.Host(root)
	for _, name := range interfaces {
		if _, err := netlink.LinkByName(name); err != nil {
			if !asked && inspect.Gone(err) {
				continue
			}
			return fmt.Errorf("interface %s: %w: ip link shows those of this network namespace", name, err)
		}
		_, unseen := undo.NetPath(name, ".")
		a.NIC(root, name, unseen, support.Ethtool(name))
		info, err := env.actions.inspect(name, false)
		if err != nil {
			a.Add("nic/"+name+"/info.json", fmt.Sprintf("(%v)\n", err)) // it may be gone by now
			continue
		}
		b, err := json.MarshalIndent(info, "", "  ")
		if err != nil {
			return err
		}
		a.Add("nic/"+name+"/info.json", string(b))
	}
	// What reached no VI is counted by the programs, not by the driver.
	b, err := json.MarshalIndent(status.Take(rundir.AllPrograms()), "", "  ")
	if err != nil {
		return err
	}
	a.Add("programs.json", string(b))
	for _, file := range results {
		text, err := readResult(file)
		if err != nil {
			return err
		}
		a.Add("results/"+filepath.Base(file), text)
	}
	return a.Close()
}

// readResult reads as much of a file as an archive takes. It follows no link: another user
// could make one that names a file of this user, and the archive goes to others.
func readResult(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return "", fmt.Errorf("--result %s: it is a link: name the file itself", name)
	}
	if err != nil {
		return "", fmt.Errorf("--result: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("--result %s: it is no regular file", name))
	}
	b, err := io.ReadAll(io.LimitReader(f, support.MaxFile+1))
	return string(b), err
}
