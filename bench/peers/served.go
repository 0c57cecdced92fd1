package peers

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// A Load is what a load generator asks of its server, which knows nothing of VIs.
type Load struct {
	Name     string // as it appears in a report
	Service  Service
	Programs []Program // that it takes

	prepare []func(s *offer) command // run beside the server, before the clients
	client  func(s *offer, d time.Duration) command
	parse   func(out string, d time.Duration) (Served, error)
}

// Loads lists all of them, in the order of a report.
func Loads() []Load { return slices.Concat(redisLoads(), postgresLoads()) }

// Installed says whether all programs of the load are there.
func (l Load) Installed() bool { return len(l.Missing()) == 0 }

// Missing lists those that are not.
func (l Load) Missing() []Program {
	return slices.DeleteFunc(slices.Clone(l.Programs), Program.Installed)
}

// Served is what a load generator has found. Times are in microseconds, of a whole
// request; those that it does not tell are 0.
type Served struct {
	N              int64 // requests
	PerSecond      float64
	Mean, P50, P99 float64
}

// checked is s, or why it cannot be.
func (s Served) checked() (Served, error) {
	for _, v := range []float64{s.PerSecond, s.Mean, s.P50, s.P99} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return Served{}, fmt.Errorf("a figure of %v", v)
		}
	}
	if s.PerSecond == 0 || s.N < 1 {
		return Served{}, errors.New("nothing was served")
	}
	return s, nil
}

// Service is a server.
type Service string

// The services.
const (
	Redis      Service = "redis"
	PostgreSQL Service = "PostgreSQL"
)

// port is a server's, and that of the proxies for it.
func (s Service) port() uint16 {
	if s == Redis {
		return 6379
	}
	return 5432
}

// offer is a server that runs, and where a client finds it.
type offer struct {
	dir    string         // of its data
	at     netip.AddrPort // for clients of the other host
	beside netip.AddrPort // for clients of its own
}

// ask gives a client's arguments for host and port.
func (s *offer) ask(at netip.AddrPort) []string {
	return []string{"-h", at.Addr().String(), "-p", strconv.Itoa(int(at.Port()))}
}

// asPostgres runs a program as the user of that name, since PostgreSQL refuses root.
func asPostgres(program string, args ...string) command {
	return argv(append([]string{
		"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "QUIT", program,
	}, args...)...)
}

// path is where a program is, or its name.
func (p Program) path() string {
	if found := p.elsewhere(); found != "" {
		return found
	}
	if path, err := exec.LookPath(p.Name); err == nil {
		return path
	}
	return p.Name
}
