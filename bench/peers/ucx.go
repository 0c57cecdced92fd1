package peers

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
)

// ucxRows are UCX's tag matching over its transport tcp.
func ucxRows() []Row {
	row := func(name, test, summary string, count func(job) int) Row {
		env := func(j job) []string { return []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=" + j.device} }
		return Row{
			Name: name, Program: find("ucx_perftest"), Summary: summary,
			minBytes: 1, polls: true, await: tcp,
			server: func(j job) command {
				return command{[]string{"ucx_perftest", "-p", j.portArg()}, env(j)}
			},
			client: func(j job) command {
				n := count(j)
				return command{[]string{
					"ucx_perftest", j.addr.String(), "-p", j.portArg(), "-t", test, "-s", strconv.Itoa(j.bytes),
					"-n", strconv.Itoa(n), "-w", strconv.Itoa(n/ucxWarmPart + 1), "-f", "-v",
				}, env(j)}
			},
		}
	}
	latency := row("ucx_perftest-tag-lat", "tag_lat", "ucx_perftest tag_lat, UCX_TLS=tcp, polling", job.iterations)
	latency.Latency, latency.Quantiles, latency.parse = true, true, parseUCXLatency
	stream := row("ucx_perftest-tag-bw", "tag_bw", "ucx_perftest tag_bw, UCX_TLS=tcp, polling", job.count)
	stream.Bandwidth, stream.parse = true, parseUCXBandwidth
	return []Row{latency, stream}
}

// ucxWarmPart is how many messages are measured for one of the warm-up.
const ucxWarmPart = 10

// parseUCXLatency reads the median and the mean, which are one way.
func parseUCXLatency(out string, _ int) (Figures, error) {
	c, err := readUCX(out)
	if err != nil {
		return Figures{}, err
	}
	f := Figures{N: int64(c.get("iterations")), P50: c.get("50.0_percentile_lat"), Mean: c.get("overall_lat")}
	if c.err != nil {
		return Figures{}, c.err
	}
	return f.checked()
}

// parseUCXBandwidth reads the messages per second, of which the printed
// bandwidth has but two digits behind the point.
func parseUCXBandwidth(out string, bytes int) (Figures, error) {
	c, err := readUCX(out)
	if err != nil {
		return Figures{}, err
	}
	f := Figures{N: int64(c.get("iterations")), Messages: c.get("overall_mr")}
	f.MBps = f.Messages * float64(bytes) / 1e6
	if c.err != nil {
		return Figures{}, c.err
	}
	return f.checked()
}

// columns are the last line of a table by the names of its head.
type columns struct {
	values map[string]string
	err    error // of the first get that failed
}

// readUCX finds the table in ucx_perftest's CSV output, among which may be
// messages of its logger.
func readUCX(out string) (*columns, error) {
	var table []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "iterations,") || len(table) > 0 && line[0] >= '0' && line[0] <= '9' {
			table = append(table, line)
		}
	}
	if len(table) < 2 {
		return nil, unreadable(out, "table of figures")
	}
	records, err := csv.NewReader(strings.NewReader(table[0] + table[len(table)-1])).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) != 2 {
		return nil, unreadable(out, "line of figures")
	}
	c := &columns{values: map[string]string{}}
	for i, name := range records[0] {
		c.values[name] = records[1][i]
	}
	return c, nil
}

func (c *columns) get(name string) float64 {
	text, ok := c.values[name]
	if !ok {
		c.err = fmt.Errorf("its table has no column %s", name)
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && c.err == nil {
		c.err = err
	}
	return v
}
