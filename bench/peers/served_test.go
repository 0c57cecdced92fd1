package peers

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	testwait "viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

const redisTable = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"GET","29069.77","0.031","0.016","0.023","0.031","0.055","6.967"
`

const pgbenchSummary = `pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: select only>
scaling factor: 1
query mode: prepared
number of clients: 16
number of threads: 1
maximum number of tries: 1
number of transactions per client: 20
number of transactions actually processed: 320/320
number of failed transactions: 0 (0.000%)
latency average = 2.887 ms
initial connection time = 50.193 ms
tps = 5542.123456 (without initial connection time)
`

func redisOf(out string, requests int) (Figures, error) {
	return Load{read: func(out string, _ time.Duration) Figures { return parseRedis(out, "GET", requests) }}.parse(out, 0)
}

func pgbenchOf(out string) (Figures, error) {
	return Load{read: func(out string, _ time.Duration) Figures { return parsePgbench(out) }}.parse(out, 0)
}

// Outputs of the load generators of Redis 7.0 and PostgreSQL 15 are parsed correctly, in
// microseconds.
func TestParseServed(t *testing.T) {
	got, err := redisOf(redisTable, 5000)
	if want := (Figures{N: 5000, Messages: 29069.77, Mean: 31, P50: 23, P99: 55}); !cmp.Equal(got, want) || err != nil {
		t.Errorf("redis-benchmark: %+v, %v", got, err)
	}
	got, err = pgbenchOf(pgbenchSummary)
	if want := (Figures{N: 320, Messages: 5542.123456, Mean: 2887}); !cmp.Equal(got, want) || err != nil {
		t.Errorf("pgbench: %+v, %v", got, err)
	}
}

// Incomplete output gives no figures, and the error quotes the output.
func TestParseServedWrong(t *testing.T) {
	for name, c := range map[string]struct{ out, want string }{
		"nothing":         {"", "empty"},
		"another test":    {strings.ReplaceAll(redisTable, "GET", "SET"), "no line of GET"},
		"before 6.2":      {"\"test\",\"rps\"\n\"GET\",\"100.00\"\n", "no column avg_latency_ms"},
		"at once":         {strings.ReplaceAll(redisTable, "29069.77", "inf"), "figure of"},
		"none":            {strings.ReplaceAll(redisTable, "29069.77", "0.00"), "nothing was served"},
		"a word":          {strings.ReplaceAll(redisTable, "29069.77", "many"), "many"},
		"half of a table": {redisTable[:150], "no line of GET"},
		"a complaint":     {"Error from server: NOAUTH\n", "NOAUTH"},
	} {
		if got, err := redisOf(c.out, 1); err == nil || !strings.Contains(err.Error(), c.want) || !cmp.Equal(got, Figures{}) {
			t.Errorf("redis-benchmark, %s: %+v, %v", name, got, err)
		}
	}
	for name, c := range map[string]struct{ out, want string }{
		"nothing":       {"", "empty"},
		"without a sum": {pgbenchSummary[:300], "no summary"},
		"none":          {strings.ReplaceAll(pgbenchSummary, "320/320", "0/320"), "nothing was served"},
		"a complaint":   {"pgbench: error: no table\n", "no table"},
	} {
		nstest.ErrSays(t, "pgbench, "+name, nstest.Err(pgbenchOf(c.out)), c.want)
	}
}

// A longer time means more requests, and each load has a unique name.
func TestLoads(t *testing.T) {
	names := map[string]bool{}
	o := &offer{}
	for _, l := range Loads() {
		if names[l.Name] || len(l.Programs) < 2 {
			t.Errorf("%+v", l)
		}
		names[l.Name] = true
		short, long := strings.Join(l.client(o, time.Millisecond).argv, " "), strings.Join(l.client(o, 2*time.Second).argv, " ")
		if short == long {
			t.Errorf("%s: %s for any time", l.Name, short)
		}
	}
}

// Installed servers serve, and leave nothing behind, not even what a killed server would
// leave, such as shared memory. The suite tests them behind proxies.
func TestChain(t *testing.T) {
	nstest.Require(t)
	services := map[Service][]Load{}
	for _, l := range Loads() {
		if l.Installed() {
			services[l.Service] = append(services[l.Service], l)
		}
	}
	if len(services) == 0 { // the suite requires Redis
		t.Skip("neither Redis nor PostgreSQL is installed (Debian's packages redis-server, redis-tools, postgresql)")
	}
	for service, loads := range services {
		t.Run(string(service), func(t *testing.T) {
			c, err := StartChain(t.Context(), ChainConfig{MTU: 1500}, Direct, service)
			nstest.Must(t, err)
			for _, l := range loads {
				if got, err := c.Measure(t.Context(), l, time.Millisecond); err != nil || got.N < 20 || !(got.Messages > 0 && got.Mean > 0) {
					t.Errorf("%s: %+v, %v", l.Name, got, err)
				}
			}
			nstest.Check(t, c.Close())
			for _, p := range c.processes {
				if o, err := p.output(); err != nil || strings.HasPrefix(o.Ended, "signal") {
					t.Errorf("%s has not ended by itself: %+v, %v", p.cmd.Path, o, err)
				}
			}
			nstest.WantErr(t, "its directory", nstest.Err(os.Stat(c.offer.dir)), fs.ErrNotExist)
		})
	}
	nstest.ErrorIf(t, nstest.Err(StartChain(t.Context(), ChainConfig{MTU: 1500}, ThroughVIA, Redis)) == nil, "proxies without their arguments")
}

// A lossy chain loses what client and server send each other, and counts it.
func TestLossyChain(t *testing.T) {
	nstest.Require(t)
	loads := redisLoads()
	if !loads[0].Installed() { // the suite requires it
		t.Skip("Redis is not installed (Debian's packages redis-server, redis-tools)")
	}
	c, err := StartChain(t.Context(), ChainConfig{MTU: 1500, Lossy: true, Loss: 1}, Direct, Redis)
	nstest.Must(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Measure(ctx, loads[0], time.Millisecond)
		ended <- err
	}()
	var taken, lost uint64
	testwait.Until(t, "all frames are lost, the client's request among them", func() bool {
		if taken, lost, err = c.Counts(); err != nil { // one after the other: a frame may come between
			t.Fatal(err)
		}
		return lost > 0 && taken == lost
	})
	cancel()
	nstest.ErrorIf(t, <-ended == nil, "it was served")
}
