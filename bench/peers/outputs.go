package peers

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"viaxdp/internal/lab/fail"
)

// Figures are the results of a program. Those that a program does not report are 0.
type Figures struct {
	N int64 // messages that were timed: round trips, or messages of a stream

	// In microseconds: of messages one way, of requests to a server until the reply is there.
	Min, Mean, P50, P99, P999 float64

	MBps     float64 // content in 10^6 bytes a second
	Messages float64 // a second

	Disturbed []string // why the figures are doubtful; nil: they are not
}

// parse reads what the program has printed, and refuses what no measurement can have.
func (r Row) parse(out string, bytes int) (_ Figures, err error) {
	defer fail.Catch(&err)
	f := r.read(out, bytes)
	f.possible()
	return f, nil
}

// possible refuses what no measurement can have.
func (f Figures) possible() {
	figures := []float64{f.Min, f.Mean, f.P50, f.P99, f.P999, f.MBps, f.Messages}
	for _, v := range figures {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			fail.With("a figure of %v", v)
		}
	}
	switch {
	case slices.Max(figures) == 0:
		fail.With("all figures are 0")
	case f.N < 1:
		fail.With("%d messages were measured", f.N)
	}
}

// find reads the first numbers that patterns have in a text; it does not change those behind one that is missing.
func find(out, what string, numbers map[*float64]*regexp.Regexp) {
	for to, pattern := range numbers {
		found := pattern.FindStringSubmatch(out)
		if found == nil {
			fail.If(unreadable(out, what))
		}
		*to = number(found[1])
	}
}

// number reads a figure.
func number(text string) float64 { return fail.Must(strconv.ParseFloat(text, 64)) }

// unreadable is the error of a parser that does not find what it looks for in
// what a program has printed: a complaint of the program if there is one.
func unreadable(out, what string) error {
	if line := complaintIn(out); line != "" {
		return errors.New(line)
	}
	if last := lastLine(out); last != "" {
		return fmt.Errorf("its output has no %s, and ends: %s", what, last)
	}
	return fmt.Errorf("its output has no %s: it is empty", what)
}

// complaintIn returns the first line of a program's output that reports a failure;
// empty: there is none.
func complaintIn(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "error") || saysNothingFound(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// saysNothingFound knows sockperf's "No valid observations found. Try tune
// parameters".
func saysNothingFound(out string) bool {
	return strings.Contains(strings.ToLower(out), "no valid observations")
}

// lastLine is the last line of a text that is not blank.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// A datagram of UDP over IPv4 has at most 65507 bytes of content; sockperf
// needs 14 for its own header.
const (
	sockperfMin    = 14
	sockperfMaxUDP = 65507
)

// sockperfLeftOut is the part of a run that sockperf does not count: 400 ms of
// warm-up and 50 ms at the end.
const sockperfLeftOut = 450 * time.Millisecond

// nonblocked makes sockperf poll.
const nonblocked = "--nonblocked"

// sockperfRows are ping-pongs over UDP and TCP, asleep and polling.
func sockperfRows() []Row {
	row := func(name, summary string, maxBytes int, await string, flags ...string) Row {
		return Row{
			Name: name, Program: programOf("sockperf"), Summary: summary,
			Latency: true, Quantiles: true, minBytes: sockperfMin, maxBytes: maxBytes,
			polls: slices.Contains(flags, nonblocked), await: await,
			server: func(j job) command {
				return argv(append([]string{
					"sockperf", "server", "-i", j.addr.String(), "-p", j.portArg(), "-m", strconv.Itoa(j.bytes),
				}, flags...)...)
			},
			client: func(j job) command {
				return argv(append([]string{
					"sockperf", "ping-pong", "-i", j.addr.String(), "-p", j.portArg(),
					"-m", strconv.Itoa(j.bytes), "-t", j.seconds(sockperfLeftOut),
				}, flags...)...)
			},
			read: parseSockperf,
		}
	}
	return []Row{
		row("sockperf-udp", "sockperf, UDP, asleep in recvfrom", sockperfMaxUDP, udp),
		row("sockperf-udp-spin", "sockperf, UDP, polling", sockperfMaxUDP, udp, nonblocked),
		row("sockperf-tcp", "sockperf, TCP with NODELAY, asleep in recvfrom", 0, tcp, "--tcp"),
		row("sockperf-tcp-spin", "sockperf, TCP with NODELAY, polling", 0, tcp, "--tcp", nonblocked),
	}
}

// What is looked for in sockperf's output, which may have colours.
var (
	sockperfCount    = regexp.MustCompile(`Total (\d+) observations`)
	sockperfMean     = regexp.MustCompile(`avg-latency=([\d.]+)`)
	sockperfMinimum  = regexp.MustCompile(`<MIN> observation = +([\d.]+)`)
	sockperfQuantile = regexp.MustCompile(`percentile +([\d.]+) = +([\d.]+)`)
)

// parseSockperf reads the summary of a ping-pong, whose latencies are halves
// of round trips.
func parseSockperf(out string, _ int) (f Figures) {
	var n float64
	find(out, "latencies", map[*float64]*regexp.Regexp{&n: sockperfCount, &f.Mean: sockperfMean, &f.Min: sockperfMinimum})
	f.N = int64(n)
	quantiles := map[string]*float64{"50.000": &f.P50, "99.000": &f.P99, "99.900": &f.P999}
	for _, q := range sockperfQuantile.FindAllStringSubmatch(out, -1) {
		if to := quantiles[q[1]]; to != nil {
			*to = number(q[2])
		}
	}
	if f.P50 == 0 {
		fail.If(unreadable(out, "median"))
	}
	return f
}

// iperf3Rows are a stream over one TCP connection.
func iperf3Rows() []Row {
	return []Row{{
		Name: "iperf3-tcp", Program: programOf("iperf3"), Summary: "iperf3, one TCP stream, asleep",
		Bandwidth: true, minBytes: 1, await: tcp,
		server: func(j job) command {
			return argv("iperf3", "--server", "--one-off", "--bind", j.addr.String(), "--port", j.portArg())
		},
		client: func(j job) command {
			return argv("iperf3", "--client", j.addr.String(), "--port", j.portArg(),
				"--time", j.seconds(0), "--length", strconv.Itoa(j.bytes), "--json")
		},
		read: parseIperf3,
	}}
}

// parseIperf3 reads iperf3's JSON: what the server has received.
func parseIperf3(out string, bytes int) Figures {
	var report struct {
		Error string
		Start struct {
			Test struct {
				Block int `json:"blksize"`
			} `json:"test_start"`
		}
		End struct {
			Received struct {
				Seconds float64
				Bytes   int64
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		fail.With("%w (%w)", unreadable(out, "JSON"), err)
	}
	got := report.End.Received
	switch {
	case report.Error != "":
		fail.With("%s", report.Error)
	case got.Bytes <= 0 || !(got.Seconds > 0):
		fail.With("its server has received nothing")
	case report.Start.Test.Block != bytes:
		fail.With("its blocks had %d bytes, not %d", report.Start.Test.Block, bytes)
	}
	rate := float64(got.Bytes) / got.Seconds
	return Figures{N: got.Bytes / int64(bytes), MBps: rate / 1e6, Messages: rate / float64(bytes)}
}

// pingpongRows are libfabric's provider tcp: its connected endpoints, and the
// reliable datagrams that its utility provider ofi_rxm makes of them.
func pingpongRows() []Row {
	return []Row{
		pingpongRow("msg", "tcp", "fi_pingpong, provider tcp, connected endpoints, polling"),
		pingpongRow("rdm", "tcp", "fi_pingpong, provider tcp with ofi_rxm, reliable datagrams, polling"),
	}
}

// pingpongRow is fi_pingpong with a type of endpoints of a provider.
func pingpongRow(endpoint, provider, summary string) Row {
	flags := func(j job) []string {
		return []string{
			"-p", provider, "-e", endpoint, "-d", j.device,
			"-I", strconv.Itoa(j.iterations()), "-S", strconv.Itoa(j.bytes),
		}
	}
	// The domain alone does not keep the provider from other interfaces.
	env := func(j job) []string { return []string{"FI_TCP_IFACE=" + j.device, "FI_VIAXDP_IFACE=" + j.device} }
	name := "fi_pingpong-" + endpoint
	if provider != "tcp" {
		name += "-" + provider
		// viaxdp has both types of endpoints. Otherwise fi_pingpong takes ofi_rxm over it, which is listed first.
		env = func(j job) []string { return []string{"FI_VIAXDP_IFACE=" + j.device, "FI_PROVIDER=^ofi_rxm"} }
	}
	return Row{
		Name: name, Program: programOf("fi_pingpong"), Summary: summary,
		Latency: true, minBytes: 1, polls: true, await: tcp,
		server: func(j job) command {
			return command{append([]string{"fi_pingpong", "-B", j.portArg()}, flags(j)...), env(j)}
		},
		client: func(j job) command {
			return command{append(append([]string{"fi_pingpong", "-P", j.portArg()}, flags(j)...), j.addr.String()), env(j)}
		},
		read: parsePingpong,
	}
}

// iterations of a ping-pong; each is two messages.
func (j job) iterations() int { return max(j.count()/2, minCount) }

// pingpongLine is the one line below the head: size, number sent, number that
// the other side has acknowledged, bytes in all, time, MB/s, us per transfer
// and 10^6 transfers a second. Numbers are cut to three digits or so: 64k, 12m.
var pingpongLine = regexp.MustCompile(
	`(?m)^\s*\d+[kmgt]?\s+(\d+)([kmb]?)\s+([=+-])\S+\s+\S+\s+[\d.]+s\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$`)

// thousands of the letters behind a count.
var thousands = map[string]int64{"": 1, "k": 1e3, "m": 1e6, "b": 1e9}

// parsePingpong reads the mean time of a transfer, which is one way.
func parsePingpong(out string, _ int) Figures {
	if !strings.Contains(out, "usec/xfer") {
		fail.If(unreadable(out, "usec/xfer"))
	}
	lines := pingpongLine.FindAllStringSubmatch(out, -1)
	if len(lines) != 1 {
		fail.If(unreadable(out, "line of one size"))
	}
	l := lines[0]
	if l[3] != "=" {
		fail.With("messages were lost: %s", strings.TrimSpace(l[0]))
	}
	n := fail.Must(strconv.ParseInt(l[1], 10, 32))
	return Figures{N: n * thousands[l[2]], Mean: number(l[4])}
}

// ucxRows are UCX's tag matching over its transport tcp.
func ucxRows() []Row {
	row := func(name, test, summary string, count func(job) int) Row {
		env := func(j job) []string { return []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=" + j.device} }
		return Row{
			Name: name, Program: programOf("ucx_perftest"), Summary: summary,
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
	latency.Latency, latency.Quantiles, latency.read = true, true, parseUCXLatency
	stream := row("ucx_perftest-tag-bw", "tag_bw", "ucx_perftest tag_bw, UCX_TLS=tcp, polling", job.count)
	stream.Bandwidth, stream.read = true, parseUCXBandwidth
	return []Row{latency, stream}
}

// ucxWarmPart is how many messages are measured for one of the warm-up.
const ucxWarmPart = 10

// parseUCXLatency reads the median and the mean, which are one way.
func parseUCXLatency(out string, _ int) Figures {
	get := ucxTable(out)
	return Figures{N: int64(get("iterations")), P50: get("50.0_percentile_lat"), Mean: get("overall_lat")}
}

// parseUCXBandwidth reads the messages per second, because the printed bandwidth has
// only two decimal places.
func parseUCXBandwidth(out string, bytes int) Figures {
	get := ucxTable(out)
	messages := get("overall_mr")
	return Figures{N: int64(get("iterations")), Messages: messages, MBps: messages * float64(bytes) / 1e6}
}

func ucxTable(out string) func(name string) float64 {
	return table(out, "iterations,", "", "table of figures")
}

// table finds a table in CSV among other output, by the beginning of its head and of its rows; empty: a digit. It
// returns the figures of the last row by the names of the head.
func table(out, head, row, what string) (get func(name string) float64) {
	var lines []string
	for line := range strings.Lines(out) {
		begins := row != "" && strings.HasPrefix(line, row) || row == "" && line[0] >= '0' && line[0] <= '9'
		if strings.HasPrefix(line, head) || len(lines) > 0 && begins {
			lines = append(lines, line)
		}
	}
	if len(lines) < 2 {
		fail.If(unreadable(out, what))
	}
	records, err := csv.NewReader(strings.NewReader(lines[0] + lines[len(lines)-1])).ReadAll()
	if err != nil || len(records) != 2 {
		fail.If(unreadable(out, what))
	}
	return func(name string) float64 {
		i := slices.Index(records[0], name)
		if i < 0 {
			fail.With("its table has no column %s", name)
		}
		return number(records[1][i])
	}
}
