package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/base/thread"
	"viaxdp/internal/ops/doctor"
)

// defaultAgentConfig is read if it exists; another file must.
const defaultAgentConfig = "/etc/via-xdp/agent.toml"

// fdstoredCommand is the hidden command of the agent's descriptor store.
const fdstoredCommand = "internal-fdstored"

func newAgent(env environment) *cobra.Command {
	var path, socket, metrics, logFile string
	var interfaces []string
	var check, noFDStored, verbose, inBackground bool
	var untilIdle time.Duration
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Serve NICs to programs without privilege",
		Long: "The Kernel Agent opens interfaces for programs without privilege and passes them their queue\n" +
			"and memory as file descriptors. It needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root). It\n" +
			"serves root and members of the group " + agentd.DefaultGroup + "; users other than root get only the interfaces that\n" +
			"-i or the settings name. Programs find it at its socket, or at the one in VIA_AGENT; with\n" +
			"VIA_AGENT=auto programs of root start it.\n" +
			"SIGTERM ends it. Programs that have a queue continue, and the next agent takes them over.\n" +
			"Settings: " + defaultAgentConfig + ", see docs/agent.md.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, found, err := readAgentSettings(path, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			if err := settings.override(socket, metrics, interfaces); err != nil {
				return err
			}
			// systemd names several with colons between them.
			settings.daemon.StateDir, _, _ = strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
			if !noFDStored {
				settings.daemon.FDStored = []string{"/proc/self/exe", fdstoredCommand}
			}
			if inBackground && !check {
				return background(cmd.Context(), env.args, settings.daemon.Socket)
			}
			if settings.daemon.UntilIdle = untilIdle; untilIdle < 0 {
				return fmt.Errorf("--until-idle: %v is negative", untilIdle)
			}
			settings.daemon.LogFile = logFile
			if check {
				if err := errors.Join(settings.daemon.Check(), settings.checkMetrics()); err != nil {
					return err
				}
				if !found {
					_, err = fmt.Fprintf(env.stdout, "there is no %s: the defaults apply\n", path)
				} else {
					_, err = fmt.Fprintf(env.stdout, "%s is good\n", path)
				}
				return err
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			settings.daemon.Log = slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: level}))
			return runAgent(cmd.Context(), settings)
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "config", defaultAgentConfig, "settings, a TOML `file`")
	f.StringSliceVarP(&interfaces, "interface", "i", nil, "serve this `interface`, in addition to those in the settings; several with commas")
	f.StringVar(&socket, "socket", "", "`path` of the socket; overrides the settings")
	f.StringVar(&metrics, "metrics", "", "serve metrics for Prometheus on this `address`, such as 127.0.0.1:9793")
	f.BoolVar(&check, "check", false, "check the settings, and exit")
	f.BoolVar(&noFDStored, "no-fdstored", false, "do not start the process that keeps programs alive when the agent dies")
	f.BoolVar(&inBackground, "background", false, "return when the agent serves; the log goes to a file beside the socket, with .log at the end")
	f.StringVar(&logFile, "log", "", "")
	_ = f.MarkHidden("log")
	f.DurationVar(&untilIdle, "until-idle", 0, "end when no program has used the agent for this `time` (default: serve on)")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more")
	return cmd
}

// runAgent serves until ctx ends.
func runAgent(ctx context.Context, settings agentSettings) error {
	status, _ := os.ReadFile("/proc/self/status")
	if err := missingCapabilities(string(status)); err != nil {
		return err
	}
	d := settings.daemon
	var err error
	if d.Listener, err = activated(); err != nil {
		return err
	}
	var web net.Listener
	if settings.metrics != "" {
		if web, err = net.Listen("tcp", settings.metrics); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		defer web.Close()
	}
	d.Ready = func(s *agentd.Server) {
		d.Log.Info("the agent serves", "socket", d.Socket, "pid", os.Getpid())
		if web != nil {
			go serveMetrics(web, s.Status)
		}
		// Without systemd this does nothing.
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}
	defer daemon.SdNotify(false, daemon.SdNotifyStopping)
	return d.Run(ctx)
}

// backgroundFlag has the agent run in another process, which gets the other arguments.
const backgroundFlag = "--background"

// background starts an agent in a process of its own, and returns when it serves. args are this process's.
func background(ctx context.Context, args []string, socket string) error {
	// The agent gives it its final name when it serves: until then, another agent's log may have that name.
	log, err := createLog(socket + "." + rand.Text() + ".log")
	if err != nil {
		return err
	}
	defer func() {
		_, _ = os.Remove(log.Name()), log.Close()
		rundir.Unmake(filepath.Dir(socket))
	}()
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, backgroundFlag) })
	cmd := exec.Command("/proc/self/exe", append(args, "--log", log.Name())...)
	cmd.Args[0], cmd.Stderr = "via-xdp", log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A launcher of ranks waits until all copies of its connection to them are closed, which the program that starts the agent
	// may have inherited.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	if err := startUnblocked(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ended:
			told, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the agent has ended: %s", strings.TrimPrefix(strings.TrimSpace(string(told)), "via-xdp: "))
		case <-ctx.Done():
			_ = cmd.Process.Signal(unix.SIGTERM)
			return cmp.Or(<-ended, ctx.Err())
		case <-look.C:
			if pid, err := agentclient.Probe(socket); err == nil && pid == cmd.Process.Pid {
				return nil
			}
		}
	}
}

// createLog makes an agent's log, in a directory that need not exist.
func createLog(path string) (f *os.File, err error) {
	for range 3 { // a program that ends may remove the directory
		if err = rundir.Make(filepath.Dir(path)); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return f, err
}

// startUnblocked starts a command with no signal blocked: threads of libvipl, which may have started this
// process, block all.
func startUnblocked(cmd *exec.Cmd) (err error) {
	thread.Run(func() {
		if err = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil); err == nil {
			err = cmd.Start()
		}
	})
	return err
}

// capabilityError names the capabilities that the agent lacks. It cannot run here then.
type capabilityError struct{ missing []string }

func (e *capabilityError) Error() string {
	return fmt.Sprintf("the agent lacks %s: start it as root, by the systemd unit, or in a container with these capabilities",
		strings.Join(e.missing, ", "))
}

// missingCapabilities looks in the text of /proc/PID/status for what every open needs. If the text does not
// list capabilities, a later system call reports what is missing.
func missingCapabilities(status string) error {
	have, ok := doctor.EffectiveCapabilities(status)
	if missing := doctor.MissingCapabilities(have); ok && len(missing) > 0 {
		return &capabilityError{missing}
	}
	return nil
}

// activated is the socket that systemd listens on for the agent, if it does.
func activated() (*net.UnixListener, error) {
	all, err := activation.Listeners()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	l, ok := all[0].(*net.UnixListener)
	if len(all) != 1 || !ok {
		return nil, errors.New("socket activation: want one Unix stream socket (ListenStream=/run/...)")
	}
	l.SetUnlinkOnClose(false) // it is systemd's
	return l, nil
}

// maxMetricsConns limits the connections for metrics that are open at once. Any process on the network may connect, and must
// leave the agent the descriptors that it needs for programs.
const maxMetricsConns = 16

func serveMetrics(l net.Listener, status func() kagent.Status) {
	r := prometheus.NewRegistry()
	r.MustRegister(&agentMetrics{status})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
	server.SetKeepAlivesEnabled(false)
	_ = server.Serve(netutil.LimitListener(l, maxMetricsConns)) // until l is closed
}

// fdstored is the descriptor store's process.
func fdstored(ctx context.Context) error {
	l, err := fdstore.Listener()
	if err != nil {
		return err
	}
	return fdstore.Main(ctx, l)
}
