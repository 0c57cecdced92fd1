package peers

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// pingpongRows are libfabric's provider tcp: its connected endpoints, and the
// reliable datagrams that its utility provider ofi_rxm makes of them.
func pingpongRows() []Row {
	row := func(endpoint, summary string) Row {
		flags := func(j job) []string {
			return []string{
				"-p", "tcp", "-e", endpoint, "-d", j.device,
				"-I", strconv.Itoa(j.iterations()), "-S", strconv.Itoa(j.bytes),
			}
		}
		// The domain alone does not keep the provider from other interfaces.
		env := func(j job) []string { return []string{"FI_TCP_IFACE=" + j.device} }
		return Row{
			Name: "fi_pingpong-" + endpoint, Program: find("fi_pingpong"), Summary: summary,
			Latency: true, minBytes: 1, polls: true, await: tcp,
			server: func(j job) command {
				return command{append([]string{"fi_pingpong", "-B", j.portArg()}, flags(j)...), env(j)}
			},
			client: func(j job) command {
				return command{append(append([]string{"fi_pingpong", "-P", j.portArg()}, flags(j)...), j.addr.String()), env(j)}
			},
			parse: parsePingpong,
		}
	}
	return []Row{
		row("msg", "fi_pingpong, provider tcp, connected endpoints, polling"),
		row("rdm", "fi_pingpong, provider tcp with ofi_rxm, reliable datagrams, polling"),
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
func parsePingpong(out string, _ int) (Figures, error) {
	if !strings.Contains(out, "usec/xfer") {
		return Figures{}, unreadable(out, "usec/xfer")
	}
	lines := pingpongLine.FindAllStringSubmatch(out, -1)
	if len(lines) != 1 {
		return Figures{}, unreadable(out, "line of one size")
	}
	l := lines[0]
	if l[3] != "=" {
		return Figures{}, fmt.Errorf("messages were lost: %s", strings.TrimSpace(l[0]))
	}
	n, err := strconv.ParseInt(l[1], 10, 32)
	if err != nil {
		return Figures{}, err
	}
	f := Figures{N: n * thousands[l[2]]}
	if f.Mean, err = strconv.ParseFloat(l[4], 64); err != nil {
		return Figures{}, err
	}
	return f.checked()
}
