package torture

import (
	"cmp"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/procfs"

	"viaxdp/bpf"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// mostViolations is how many are kept in words; all are counted.
const mostViolations = 20

// Break is a connection that ended otherwise than in order.
type Break struct {
	At    time.Time // when the flow saw it
	Flow  string
	Cause string // as the VI reports; empty: the VI was not in Error
	Sent  uint64 // numbered messages of this side
	Taken uint64 // of the peer
}

// Tally is what flows have done.
type Tally struct {
	Connections, Open, Orderly int // made, standing now, ended in order
	Breaks                     []Break
	Refused                    int // attempts to connect that failed
	LastRefusal                string
	Kept                       int // receives on VIs that are not connected any more

	Taken   uint64 // numbered messages that came, each checked
	Missing uint64 // unreliable: numbers left out
	Behind  uint64 // messages that were there when the flow had paused after another one
	Bytes   uint64 // of messages that came, each checked; those that were written by RDMA not

	Writes, Reads uint64 // RDMA operations that completed

	Violated   int // broken promises
	Violations []string
}

func (t *Tally) add(o *Tally) {
	t.Connections += o.Connections
	t.Open += o.Open
	t.Orderly += o.Orderly
	t.Breaks = append(t.Breaks, o.Breaks...)
	t.Refused += o.Refused
	t.LastRefusal = cmp.Or(o.LastRefusal, t.LastRefusal)
	t.Kept += o.Kept
	t.Taken += o.Taken
	t.Missing += o.Missing
	t.Behind += o.Behind
	t.Bytes += o.Bytes
	t.Writes += o.Writes
	t.Reads += o.Reads
	t.Violated += o.Violated
	t.Violations = append(t.Violations, o.Violations...)
	t.Violations = t.Violations[:min(len(t.Violations), mostViolations)]
}

// Report is what a worker reports of itself.
type Report struct {
	Tally
	Flows []Tally // one by one, in order

	Engine    vipl.Counters
	Program   bpf.Counters
	Socket    map[string]uint64 // the queue's counters by name, while the NIC is open
	LeastTx   int               // fewest free TX chunks that the engine has met
	Discarded uint64            // frames and packets lost for NICConfig.Loss
	Queue     xdpnic.Stats      // only of a count, and after the NIC was closed
	Late      time.Duration     // by how much the process has run late since it was started: see schedlat
	Spells    []schedlat.Spell  // and in which seconds
	Resources Resources         // not in a report between times
	Lacking   []string          // chunks that were not given back; as Queue
}

// Resources of a process.
type Resources struct {
	Goroutines int
	Files      int   // open file descriptors
	Resident   int64 // bytes of its own memory; mapped files and shared memory are not counted
}

// resources counts this process's resources, after a garbage collection.
func resources() Resources {
	debug.FreeOSMemory()
	return Resources{
		Goroutines: runtime.NumGoroutine(),
		Files:      len(fail.Must(os.ReadDir("/proc/self/fd"))) - 1, // reading the directory needs one
		Resident:   int64(fail.Must(fail.Must(procfs.Self()).NewStatus()).RssAnon),
	}
}
