package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"viaxdp/internal/lab/fail"
)

// A Load is what a load generator asks of its server, which knows nothing of VIs.
type Load struct {
	Name     string // as it appears in a report
	Service  Service
	Programs []Program // that it takes

	prepare func(s *offer) command // run beside the server, before the clients
	client  func(s *offer, d time.Duration) command
	read    func(out string, d time.Duration) Figures // of whole requests; fails by package fail
}

// Loads lists all of them, in the order of a report.
func Loads() []Load { return slices.Concat(redisLoads(), postgresLoads()) }

// Installed reports whether all programs of the load are there.
func (l Load) Installed() bool { return len(l.Missing()) == 0 }

// Missing lists those that are not.
func (l Load) Missing() []Program {
	return slices.DeleteFunc(slices.Clone(l.Programs), Program.Installed)
}

// parse reads what the load generator has printed, and refuses what cannot be.
func (l Load) parse(out string, d time.Duration) (_ Figures, err error) {
	defer fail.Catch(&err)
	f := l.read(out, d)
	if f.N < 1 || f.Messages == 0 {
		fail.With("nothing was served")
	}
	f.possible()
	return f, nil
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

var (
	redisServer = Program{Name: "redis-server", Package: "redis-server", version: []string{"redis-server", "--version"}}
	redisLoad   = Program{Name: "redis-benchmark", Package: "redis-tools", version: []string{"redis-benchmark", "--version"}}
)

// serveRedis keeps everything in memory.
func serveRedis(s *offer) command {
	return argv(redisServer.Name, "--port", strconv.Itoa(int(s.at.Port())), "--bind", s.beside.Addr().String(), s.at.Addr().String(),
		"--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", s.dir)
}

// redisLoads are values that are got, one at a time and on many connections.
func redisLoads() (list []Load) {
	for _, l := range []struct {
		name, test         string
		bytes, connections int
		perSecond          int // about, where it is slowest: it counts requests, not time
	}{
		{"redis GET, 1 KiB, 1 connection", "get", 1024, 1, 4_000},
		{"redis GET, 1 KiB, 16 connections", "get", 1024, 16, 15_000},
		{"redis GET, 64 KiB, 16 connections", "get", 65536, 16, 3_000},
	} {
		run := func(at []string, test string, n, connections int) command {
			return argv(slices.Concat([]string{redisLoad.Name}, at, []string{
				"-t", test, "-n", strconv.Itoa(n), "-c", strconv.Itoa(connections), "-d", strconv.Itoa(l.bytes), "--csv", "--precision", "3",
			})...)
		}
		requests := func(d time.Duration) int { return max(200, int(d.Seconds()*float64(l.perSecond))) }
		list = append(list, Load{
			Name: l.name, Service: Redis, Programs: []Program{redisServer, redisLoad},
			// The server has nothing under a key that was never set.
			prepare: func(s *offer) command { return run(s.ask(s.beside), "set", 1, 1) },
			client: func(s *offer, d time.Duration) command {
				return run(s.ask(s.at), l.test, requests(d), l.connections)
			},
			read: func(out string, d time.Duration) Figures {
				return parseRedis(out, strings.ToUpper(l.test), requests(d))
			},
		})
	}
	return list
}

// parseRedis reads the table of one test of redis-benchmark 6.2 or later, whose times are in milliseconds. How many
// requests there were it does not say: as many as it was asked for.
func parseRedis(out, test string, requests int) Figures {
	get := table(out, `"test",`, `"`+test+`",`, "line of "+test)
	const us = 1000 // in a millisecond
	return Figures{
		N: int64(requests), Messages: get("rps"),
		Mean: us * get("avg_latency_ms"), P50: us * get("p50_latency_ms"), P99: us * get("p99_latency_ms"),
	}
}

// postgresDir has what Debian does not put on PATH, by version.
const postgresDir = "/usr/lib/postgresql/*/bin/"

var (
	initdb     = postgresProgram("initdb", "postgresql")
	postgres   = postgresProgram("postgres", "postgresql")
	pgbench    = postgresProgram("pgbench", "postgresql")
	pgPrograms = []Program{initdb, postgres, pgbench}
)

func postgresProgram(name, pkg string) Program {
	p := Program{Name: name, Package: pkg, places: postgresDir}
	p.version = []string{p.path(), "--version"}
	return p
}

// cluster makes a directory with a cluster of databases, for the user postgres.
func cluster(ctx context.Context, dir string) (err error) {
	defer fail.Catch(&err)
	u := fail.Must(user.Lookup("postgres"))
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	fail.If(os.Chown(dir, uid, gid))
	c := asPostgres(initdb.path(), "-D", filepath.Join(dir, "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		fail.With("initdb: %w: %s", err, lastLine(string(out)))
	}
	// From other hosts, too: they are the chain's.
	hba := fail.Must(os.OpenFile(filepath.Join(dir, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0))
	_, err = fmt.Fprintln(hba, "host all all all trust")
	return errors.Join(err, hba.Close())
}

// servePostgres does not wait for disks.
func servePostgres(s *offer) command {
	return asPostgres(postgres.path(), "-D", filepath.Join(s.dir, "data"), "-h", s.beside.Addr().String()+","+s.at.Addr().String(),
		"-p", strconv.Itoa(int(s.at.Port())), "-k", "", "-F", "-c", "shared_buffers=64MB", "-c", "autovacuum=off")
}

// postgresLoads are queries of a row by its key.
func postgresLoads() (list []Load) {
	run := func(at []string, args ...string) command {
		return argv(slices.Concat([]string{pgbench.path()}, at, []string{"-U", "postgres"}, args, []string{"postgres"})...)
	}
	for _, connections := range []int{1, 16} {
		name := "pgbench -S, 1 connection"
		if connections > 1 {
			name = fmt.Sprintf("pgbench -S, %d connections", connections)
		}
		list = append(list, Load{
			Name: name, Service: PostgreSQL, Programs: pgPrograms,
			prepare: func(s *offer) command { return run(s.ask(s.beside), "-i", "-q") },
			client: func(s *offer, d time.Duration) command {
				amount := []string{"-t", "20"}
				if d >= time.Second {
					amount = []string{"-T", strconv.Itoa(int(d.Seconds()))}
				}
				return run(s.ask(s.at), append(amount, "-n", "-S", "-M", "prepared", "-c", strconv.Itoa(connections))...)
			},
			read: func(out string, _ time.Duration) Figures { return parsePgbench(out) },
		})
	}
	return list
}

// What is looked for in the summary of pgbench.
var (
	pgbenchCount = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)
	pgbenchMean  = regexp.MustCompile(`(?m)^latency average = ([\d.]+) ms`)
	pgbenchRate  = regexp.MustCompile(`(?m)^tps = ([\d.]+) \(without initial connection time\)`)
)

// parsePgbench reads the summary.
func parsePgbench(out string) (f Figures) {
	var n float64
	find(out, "summary", map[*float64]*regexp.Regexp{&n: pgbenchCount, &f.Mean: pgbenchMean, &f.Messages: pgbenchRate})
	f.N = int64(n)
	f.Mean *= 1000
	return f
}
