package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/ops/ping"
)

// pinged is what ping --json prints.
type pinged struct {
	Host    string       `json:"host"`
	Address netip.Addr   `json:"address"`
	Version uint8        `json:"version"`       // of the peer's frame format; 0: no answer
	Own     uint8        `json:"own_version"`   // ours
	Replies []ping.Reply `json:"replies"`       // that came
	Asked   int          `json:"asked"`         // how many were asked for
	Why     string       `json:"why,omitempty"` // nothing came
	Min     float64      `json:"min_us"`
	Median  float64      `json:"median_us"`
	Max     float64      `json:"max_us"`
}

func newPing(env environment) *cobra.Command {
	var asJSON bool
	var device string
	var port uint16
	count, seconds, wait := 4, 0.2, time.Second
	cmd := &cobra.Command{
		Use:   "ping HOST",
		Short: "Test whether a host's agent answers, its version and the round-trip time",
		Long: "Asks the agent of a host, whatever program it is in, on UDP port 4793. Needs neither privilege\n" +
			"nor a NIC. The round trip goes through both kernels; that of VIs is shorter (via-xdp\n" +
			"pingpong). Exit status 1 if there is no answer.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			interval, err := timeOf("-i", seconds, 0)
			switch {
			case err != nil:
				return err
			case count < 1:
				return errors.New("-c: want 1 or more")
			case wait <= 0:
				return errors.New("-W: want a time above 0, such as 500ms")
			case port == 0:
				return errors.New("-p: want 1 to 65535")
			}
			host, err := lookUp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			p, err := ping.Open(netip.AddrPortFrom(host, port), device)
			if err != nil {
				return err
			}
			defer p.Close()
			r := pinged{Host: args[0], Address: host, Own: wire.VersionNumber, Replies: []ping.Reply{}}
			for ; r.Asked < count; r.Asked++ {
				if r.Asked > 0 && !sleep(cmd.Context(), interval) {
					break
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), wait)
				reply, err := p.Ask(ctx)
				cancel()
				if errors.Is(err, context.Canceled) {
					break
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					err = fmt.Errorf("no answer within %v: is the host up, and UDP port %d let through", wait, port)
				}
				if err != nil {
					r.Why = err.Error()
				} else {
					r.Replies, r.Version = append(r.Replies, reply), reply.Version
				}
				if !asJSON {
					if err != nil {
						fmt.Fprintln(env.stderr, err)
					} else {
						fmt.Fprintf(env.stdout, "answer from %v: version %d, %.0f us\n", reply.From, reply.Version, us(reply.RoundTrip))
					}
				}
			}
			r.sum()
			if asJSON {
				if err := printJSON(env.stdout, r); err != nil {
					return err
				}
			} else if len(r.Replies) > 0 {
				fmt.Fprintf(env.stdout, "%d of %d answered; min %.0f, median %.0f, max %.0f us\n", len(r.Replies), r.Asked, r.Min, r.Median, r.Max)
			}
			switch {
			case len(r.Replies) == 0 && cmd.Context().Err() != nil:
				return cmd.Context().Err()
			case len(r.Replies) == 0:
				return fmt.Errorf("%s: none of %d answered", args[0], r.Asked)
			case r.Version != r.Own:
				return fmt.Errorf("%s speaks version %d and this program %d: they cannot connect; run the same via-xdp on both", args[0], r.Version, r.Own)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVarP(&count, "count", "c", count, "number of requests")
	f.Float64VarP(&seconds, "interval", "i", seconds, "`seconds` between two requests")
	f.DurationVarP(&wait, "wait", "W", wait, "how long to wait for an answer")
	f.StringVarP(&device, "interface", "I", "", "send from this interface")
	f.Uint16VarP(&port, "port", "p", wire.Port, "UDP port of the agent")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lookUp returns the first address of a host.
func lookUp(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil { // the resolver would drop the interface of a link-local address
		return a.Unmap(), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (p *pinged) sum() {
	var all []float64
	for _, r := range p.Replies {
		all = append(all, us(r.RoundTrip))
	}
	if len(all) > 0 {
		p.Why = "" // of a single request
		slices.Sort(all)
		n := len(all)
		p.Min, p.Median, p.Max = all[0], (all[(n-1)/2]+all[n/2])/2, all[n-1]
	}
}
