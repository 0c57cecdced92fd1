package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/internal/ops/proxy"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

func newProxy(env environment) *cobra.Command {
	var listen, to, device, fallback, psk string
	var silence time.Duration
	cmd := &cobra.Command{
		Use:   "proxy --listen tcp:HOST:PORT --to via:HOST:PORT",
		Short: "Forward TCP to VIA and back, for programs that know nothing of it",
		Long: "Forwards each connection to one address to another address. On the side of the program the\n" +
			"address is tcp:, the kernel's TCP. Toward the other host it is via:, package vianet's; there\n" +
			"another proxy does the reverse.\n\n" +
			"With --psk the connection between the proxies is authenticated and encrypted. Both need the\n" +
			"same key file; (umask 077; openssl rand -out key 32) makes one. If the keys differ, connections\n" +
			"are reset and both proxies report it.",
		Example: "  via-xdp proxy -i eth1 --listen via::5432 --to tcp:127.0.0.1:5432          # on the server\n" +
			"  via-xdp proxy -i eth1 --listen tcp:127.0.0.1:5432 --to via:10.0.0.2:5432  # on the client",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			p := &proxy.Proxy{Fallback: fallback, Failed: func(err error) {
				fmt.Fprintf(env.stderr, "via-xdp: proxy: %s%s\n", oneLine(err), aboutKey(err, psk))
			}}
			if listen == "" || to == "" {
				return usageError(cmd, errors.New("--listen and --to are both needed"))
			}
			if p.Listen, err = proxy.ParseAddress(listen); err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			if p.To, err = proxy.ParseAddress(to); err != nil {
				return fmt.Errorf("--to: %w", err)
			}
			if fallback != "" && p.To.Network != "via" {
				return usageError(cmd, errors.New("--fallback is for a --to by VIA, where no program may answer"))
			}
			if port, err := net.LookupPort("tcp", fallback); err != nil || fallback != "" && port == 0 {
				return fmt.Errorf("--fallback %s: want a TCP port", fallback)
			}
			if err := checkSilence(silence); err != nil {
				return err
			}
			via := p.Listen.Network == "via" || p.To.Network == "via"
			var key *vipl.PSK
			if cmd.Flags().Changed("psk") { // also an empty one: a variable that is not set, perhaps
				switch {
				case !via:
					return usageError(cmd, errors.New("--psk is for an address by VIA"))
				case fallback != "":
					return usageError(cmd, errors.New("--psk and --fallback: by TCP nothing is encrypted"))
				}
				if key, err = vipl.ReadPSK(psk); err != nil {
					return fmt.Errorf("--psk: %w", err)
				}
			}
			if via {
				if device == "" {
					return errors.New("no interface: give one by -i")
				}
				runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), leastProcs))
				nic, err := vipl.OpenNIC(device, vipl.WithPSK(key), vipl.WithSilence(cmp.Or(silence, vipl.DefaultSilence)))
				if err != nil {
					return err
				}
				defer nic.Close()
				if p.Stack, err = vianet.New(nic, vianet.Options{Failed: p.Refused}); err != nil {
					return err
				}
				defer p.Stack.Close()
			}
			if err := p.Open(); err != nil {
				return err
			}
			fmt.Fprintf(env.stderr, "via-xdp: forwarding %s:%v to %v\n", p.Listen.Network, p.Addr(), p.To)
			if env.actions.listening != nil {
				env.actions.listening(p.Addr())
			}
			if err := p.Serve(cmd.Context()); err != nil {
				return err
			}
			return cmd.Context().Err()
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "", "address to listen at, tcp:HOST:PORT or via:HOST:PORT")
	f.StringVar(&to, "to", "", "address to connect to, in the same form")
	f.StringVarP(&device, "interface", "i", "", "interface for via")
	f.StringVar(&psk, "psk", "", "`file` of a pre-shared key, at least 32 random bytes, the same at the other proxy")
	f.StringVar(&fallback, "fallback", "", "TCP `port` of the same host, used if no program answers there by VIA")
	f.DurationVar(&silence, "silence", 0, "time after which a silent host of VIA is considered dead; set the same on both sides (default 1.6s)")
	return cmd
}

// leastProcs is how many of the Go runtime's processors a proxy has at least, also on one CPU:
// the goroutine that sleeps for frames keeps one, and others would wait until the runtime notices.
const leastProcs = 2

// aboutKey adds this side's key setting to an error about keys that do not match, because the
// error's text is the same on both sides.
func aboutKey(err error, psk string) string {
	switch {
	case !errors.Is(err, vipl.ErrSecurity):
		return ""
	case psk == "":
		return " (this side has no --psk)"
	}
	return " (this side has --psk " + psk + ")"
}
