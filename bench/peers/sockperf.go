package peers

import (
	"regexp"
	"slices"
	"strconv"
	"time"
)

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
	row := func(name, summary string, maxBytes int, await network, flags ...string) Row {
		return Row{
			Name: name, Program: find("sockperf"), Summary: summary,
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
			parse: parseSockperf,
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
func parseSockperf(out string, _ int) (Figures, error) {
	var f Figures
	n := sockperfCount.FindStringSubmatch(out)
	mean, least := sockperfMean.FindStringSubmatch(out), sockperfMinimum.FindStringSubmatch(out)
	if n == nil || mean == nil || least == nil {
		return Figures{}, unreadable(out, "latencies")
	}
	var err error
	if f.N, err = strconv.ParseInt(n[1], 10, 64); err != nil {
		return Figures{}, err
	}
	read := func(text string, to *float64) {
		if err == nil {
			*to, err = strconv.ParseFloat(text, 64)
		}
	}
	read(mean[1], &f.Mean)
	read(least[1], &f.Min)
	for _, q := range sockperfQuantile.FindAllStringSubmatch(out, -1) {
		switch q[1] {
		case "50.000":
			read(q[2], &f.P50)
		case "99.000":
			read(q[2], &f.P99)
		case "99.900":
			read(q[2], &f.P999)
		}
	}
	if err != nil {
		return Figures{}, err
	}
	if f.P50 == 0 {
		return Figures{}, unreadable(out, "median")
	}
	return f.checked()
}
