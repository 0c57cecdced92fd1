package peers

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
			// Of a key that nobody has set it would get nothing.
			prepare: []func(*offer) command{func(s *offer) command { return run(s.ask(s.beside), "set", 1, 1) }},
			client: func(s *offer, d time.Duration) command {
				return run(s.ask(s.at), l.test, requests(d), l.connections)
			},
			parse: func(out string, d time.Duration) (Served, error) {
				return parseRedis(out, strings.ToUpper(l.test), requests(d))
			},
		})
	}
	return list
}

// parseRedis reads the table of one test, whose times are in milliseconds. How many
// requests there were it does not say: as many as it was asked for.
func parseRedis(out, test string, requests int) (Served, error) {
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != 2 || len(rows[1]) != len(rows[0]) || rows[1][0] != test {
		return Served{}, unreadable(out, "line of "+test)
	}
	s := Served{N: int64(requests)}
	for name, to := range map[string]*float64{"rps": &s.PerSecond, "avg_latency_ms": &s.Mean, "p50_latency_ms": &s.P50, "p99_latency_ms": &s.P99} {
		i := slices.Index(rows[0], name)
		if i < 0 {
			return Served{}, fmt.Errorf("its table has no %s: a redis-benchmark before 6.2", name)
		}
		if *to, err = strconv.ParseFloat(rows[1][i], 64); err != nil {
			return Served{}, err
		}
		if name != "rps" {
			*to *= 1000
		}
	}
	return s.checked()
}
