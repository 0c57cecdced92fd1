package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// iperf3Rows are a stream over one TCP connection.
func iperf3Rows() []Row {
	return []Row{{
		Name: "iperf3-tcp", Program: find("iperf3"), Summary: "iperf3, one TCP stream, asleep",
		Bandwidth: true, minBytes: 1, await: tcp,
		server: func(j job) command {
			return argv("iperf3", "--server", "--one-off", "--bind", j.addr.String(), "--port", j.portArg())
		},
		client: func(j job) command {
			return argv("iperf3", "--client", j.addr.String(), "--port", j.portArg(),
				"--time", j.seconds(0), "--length", strconv.Itoa(j.bytes), "--json")
		},
		parse: parseIperf3,
	}}
}

// parseIperf3 reads iperf3's JSON: what the server has received.
func parseIperf3(out string, bytes int) (Figures, error) {
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
		return Figures{}, fmt.Errorf("%w (%w)", unreadable(out, "JSON"), err)
	}
	if report.Error != "" {
		return Figures{}, errors.New(report.Error)
	}
	got := report.End.Received
	switch {
	case got.Bytes <= 0 || !(got.Seconds > 0):
		return Figures{}, errors.New("its server has received nothing")
	case report.Start.Test.Block != bytes:
		return Figures{}, fmt.Errorf("its blocks had %d bytes, not %d", report.Start.Test.Block, bytes)
	}
	rate := float64(got.Bytes) / got.Seconds
	f := Figures{N: got.Bytes / int64(bytes), MBps: rate / 1e6, Messages: rate / float64(bytes)}
	return f.checked()
}
