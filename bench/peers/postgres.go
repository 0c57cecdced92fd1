package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

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
func cluster(ctx context.Context, dir string) error {
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		return err
	}
	c := asPostgres(initdb.path(), "-D", filepath.Join(dir, "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLine(string(out)))
	}
	// From other hosts, too: they are the chain's.
	hba, err := os.OpenFile(filepath.Join(dir, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
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
			prepare: []func(*offer) command{func(s *offer) command { return run(s.ask(s.beside), "-i", "-q") }},
			client: func(s *offer, d time.Duration) command {
				amount := []string{"-t", "20"}
				if d >= time.Second {
					amount = []string{"-T", strconv.Itoa(int(d.Seconds()))}
				}
				return run(s.ask(s.at), append(amount, "-n", "-S", "-M", "prepared", "-c", strconv.Itoa(connections))...)
			},
			parse: func(out string, _ time.Duration) (Served, error) { return parsePgbench(out) },
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
func parsePgbench(out string) (s Served, err error) {
	n, mean, rate := pgbenchCount.FindStringSubmatch(out), pgbenchMean.FindStringSubmatch(out), pgbenchRate.FindStringSubmatch(out)
	if n == nil || mean == nil || rate == nil {
		return s, unreadable(out, "summary")
	}
	if s.N, err = strconv.ParseInt(n[1], 10, 64); err != nil {
		return s, err
	}
	if s.Mean, err = strconv.ParseFloat(mean[1], 64); err != nil {
		return s, err
	}
	if s.PerSecond, err = strconv.ParseFloat(rate[1], 64); err != nil {
		return s, err
	}
	s.Mean *= 1000
	return s.checked()
}
