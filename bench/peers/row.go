package peers

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// A Row is one way to use a program, as it appears in a report.
type Row struct {
	Name    string
	Program Program
	Summary string // one line

	// Latency says whether the row has latencies, Bandwidth whether it has the
	// rate of a stream. A row has one of the two.
	Latency, Bandwidth bool

	// Quantiles says whether the latency is told with its median; else there
	// is its mean only.
	Quantiles bool

	minBytes, maxBytes int  // of a message; maxBytes 0: any
	polls              bool // client and server never sleep

	await  network // what the server listens on before the client starts
	server func(job) command
	client func(job) command
	parse  func(out string, bytes int) (Figures, error)
}

// job is one measurement of a row.
type job struct {
	bytes    int
	duration time.Duration
	device   string     // the interface, of the same name at both sides
	addr     netip.Addr // the server's
	port     int        // the server's; each job has another one
}

// command is how a process is started: argv, and the environment beside what
// every process gets.
type command struct {
	argv, env []string
}

func argv(words ...string) command { return command{argv: words} }

// seconds is the duration for programs that count whole seconds, of which
// they leave out a part at both ends.
func (j job) seconds(leftOut time.Duration) string {
	return strconv.Itoa(int(math.Ceil(max(j.duration+leftOut, time.Second).Seconds())))
}

func (j job) portArg() string { return strconv.Itoa(j.port) }

// count is for programs that are told a number of messages: about as many as
// fit into the duration, on a machine like those of these years.
func (j job) count() int {
	one := 4*time.Microsecond + time.Duration(j.bytes)*time.Nanosecond/2
	return max(int(j.duration/one), minCount)
}

// minCount is the least number of messages to measure, whatever the duration:
// more than ucx_perftest takes its median of.
const minCount = 3000

// Rows lists all rows, in the order of a report.
func Rows() []Row {
	return slices.Concat(sockperfRows(), iperf3Rows(), pingpongRows(), ucxRows())
}

// check refuses a message that the program cannot send.
func (r Row) check(bytes int) error {
	switch {
	case bytes < r.minBytes:
		return fmt.Errorf("messages have at least %d bytes", r.minBytes)
	case r.maxBytes > 0 && bytes > r.maxBytes:
		return fmt.Errorf("messages have at most %d bytes", r.maxBytes)
	}
	return nil
}
