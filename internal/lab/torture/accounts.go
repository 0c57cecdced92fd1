package torture

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/bpf"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// account is what became of the frames of VIs that one side has sent, counted at each station:
//
//	socket --> way (faults) --> program --> socket --> engine
//	  sent       way              seen       got
type account struct {
	sent      uint64 // frames that the sender's kernel has taken, and did not name as lost
	cancelled uint64 // of them, those that were cancelled: see xdpnic.Queue.Cancel
	out       uint64 // those that the link to the way had no room for, other frames among them
	way       testbed.WayCounters
	all       testbed.WayCounters // with other frames on the way
	in        uint64              // those that the link from there had no room for, likewise

	seen       uint64 // by the program, whatever it did with them
	redirected uint64 // of them, those for the socket
	named      uint64 // by the receiver's socket: received, or dropped by name
	received   uint64
	engine     uint64 // by the engine, of received
}

func (a account) since(b account) account {
	for _, p := range [][2]*uint64{
		{&a.sent, &b.sent}, {&a.cancelled, &b.cancelled}, {&a.out, &b.out}, {&a.in, &b.in}, {&a.seen, &b.seen}, {&a.redirected, &b.redirected},
		{&a.named, &b.named}, {&a.received, &b.received}, {&a.engine, &b.engine},
	} {
		*p[0] -= *p[1]
	}
	a.way, a.all = a.way.Since(b.way), a.all.Since(b.all)
	return a
}

// onTheWay says which frames were lost without a name, or came from nowhere, between the two sockets. A damaged
// frame may be taken for any other.
func (a account) onTheWay() error {
	n, taken, room := a.way, a.way.Taken+a.cancelled, a.all.Overrun+a.out
	if taken > a.sent || taken+room < a.sent {
		return fmt.Errorf("%d frames were sent, %d came to the way; there was no room for %d", a.sent, taken, room)
	}
	if n.Taken+n.Duplicated != n.Passed+n.Lost+n.LostInBurst+n.Limited+n.Refused {
		return fmt.Errorf("the way has lost count of frames: %+v", n)
	}
	if a.seen+n.Corrupted+a.in < n.Passed || a.seen > n.Passed+a.all.Corrupted-n.Corrupted {
		return fmt.Errorf("%d frames passed, %d came to the program; %d were damaged, and there was no room for %d", n.Passed, a.seen, a.all.Corrupted, a.in)
	}
	return nil
}

// atReceiver says which frames were lost without a name between the program and the engine.
func (a account) atReceiver() error {
	if a.redirected != a.named {
		return fmt.Errorf("%d frames were redirected, %d arrived or were dropped by name", a.redirected, a.named)
	}
	if a.received != a.engine {
		return fmt.Errorf("the queue has given %d frames, the engine has seen %d", a.received, a.engine)
	}
	return nil
}

// ledger counts what the accounts of a bed need and nobody else counts.
type ledger struct {
	bed       *Bed
	cancelled [2]atomic.Uint64
}

// watch has the way count the frames of VIs by themselves.
func watch(b *Bed) *ledger {
	l := &ledger{bed: b}
	b.Site.Middle.Watch(func(side int, frame []byte) bool {
		if len(frame) >= udpIPv4 && [14]byte(frame) == [14]byte{} {
			l.cancelled[side].Add(1)
		}
		return ofVI(frame)
	})
	return l
}

// ofVI says whether a frame is one of a VI, plain or sealed, as our programs look at it.
func ofVI(frame []byte) bool {
	_, udp := dissect(frame)
	return udp != nil && udp[udpHead+1]&wire.KindConnect == 0
}

// onTheWay is the part of a side's account that is counted between the two sockets.
func (l *ledger) onTheWay(side int) (a account, err error) {
	m := l.bed.Site.Middle
	a.cancelled, a.way, a.all = l.cancelled[side].Load(), m.Watched(side), m.Counters(side)
	a.in, err = m.Dropped(1 - side)
	return a, errors.Join(err, l.bed.Link(side, func(link netlink.Link) error {
		a.out = link.Attrs().Statistics.TxDropped
		return nil
	}))
}

// accounts are those of both sides, as of a count.
func (l *ledger) accounts(r [2]*Report) (a [2]account, err error) {
	for side := range a {
		if a[side], err = l.onTheWay(side); err != nil {
			return a, err
		}
		q, to := &r[side].Queue, r[1-side]
		a[side].sent = q.TxFrames - q.TxLostBusy - q.KernelStats.Tx_invalid_descs
		a[side].redirected = to.Program.Redirected
		to.Program.Each(func(_ string, n uint64) { a[side].seen += n })
		a[side].seen -= to.Program.Control
		q = &to.Queue
		a[side].received, a[side].engine = q.RxFrames, to.Engine.Frames
		a[side].named = q.RxFrames + q.RxTooManySegs + q.RxBadEntries + q.KernelStats.Rx_dropped + q.KernelStats.Rx_ring_full
	}
	return a, nil
}

// begin begins the accounts of interfaces that are about to be opened.
func (s *soak) begin() (err error) {
	for side := range s.books {
		if s.books[side], err = s.ledger.onTheWay(side); err != nil {
			return err
		}
	}
	s.cut = false
	return nil
}

// audit looks for chunks and frames that are not accounted for. No flow runs.
func (s *soak) audit() error {
	for end := time.Now().Add(settleWait); ; time.Sleep(5 * time.Millisecond) {
		r, err := s.bed.Count()
		if err != nil {
			return err
		}
		for side := range r {
			s.complain(side, r[side])
		}
		a, err := s.ledger.accounts(r)
		if err != nil {
			return err
		}
		switch err := s.unaccounted(a); {
		case len(s.report.Violations) > 0:
			return nil
		case err != nil && time.Now().Before(end):
			continue // the last frames are on the way still
		case err != nil:
			s.violated("%v", err)
			return nil
		}
		for side := range a {
			if s.whole() {
				s.report.Accounted += a[side].sent - s.books[side].sent
			}
		}
		s.report.Audits++
		s.books, s.cut = a, false
		return nil
	}
}

// whole says whether accounts go on from the last audit. Who was killed, cut off or opened anew has taken frames,
// or counters, with him; and nobody knows what the program took forged frames for.
func (s *soak) whole() bool { return !s.cut && !s.cfg.Hostile }

// unaccounted says what the accounts lack. Beside a flood nothing is at rest.
func (s *soak) unaccounted(a [2]account) (err error) {
	if s.hostile != nil {
		return nil
	}
	for side := range a {
		if e := a[side].atReceiver(); e != nil {
			err = errors.Join(err, fmt.Errorf("side %d: %w", 1-side, e))
		}
		if !s.whole() {
			continue
		}
		if e := a[side].since(s.books[side]).onTheWay(); e != nil {
			err = errors.Join(err, fmt.Errorf("from side %d: %w", side, e))
		}
	}
	return err
}

// quiet brings all flows to an orderly end, looks at what is left, and starts them again.
func (s *soak) quiet() error {
	if err := s.rest(); err != nil {
		return err
	}
	for side := range 2 {
		if err := s.startFlows(side); err != nil {
			return err
		}
	}
	return nil
}

// rest ends all flows, and looks at what is left.
func (s *soak) rest() error {
	for _, end := range []func() ([2]*Report, error){s.bed.Stop, s.bed.Free} {
		r, err := end()
		if err != nil {
			return err
		}
		s.take(r)
	}
	return s.audit()
}

// mostViolations is how many are kept in words; all are counted.
const mostViolations = 20

// Break is a connection that ended otherwise than in order.
type Break struct {
	At    time.Time // when the flow saw it
	Flow  string
	Cause string // as the VI tells; empty: the VI was not in Error
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

	Taken     uint64 // numbered messages that came, each checked
	Missing   uint64 // unreliable: numbers left out
	Behind    uint64 // messages that were there when the flow had paused after another one
	Bytes     uint64 // of messages that came, each checked; those that were written by RDMA not
	LastTaken time.Time

	Sends, Writes, Reads uint64 // operations that completed

	Violated   int // broken promises
	Violations []string
}

func (t *Tally) add(o *Tally) {
	t.Connections += o.Connections
	t.Open += o.Open
	t.Orderly += o.Orderly
	t.Breaks = append(t.Breaks, o.Breaks...)
	t.Refused += o.Refused
	if o.LastRefusal != "" {
		t.LastRefusal = o.LastRefusal
	}
	t.Kept += o.Kept
	t.Taken += o.Taken
	t.Missing += o.Missing
	t.Behind += o.Behind
	t.Bytes += o.Bytes
	if o.LastTaken.After(t.LastTaken) {
		t.LastTaken = o.LastTaken
	}
	t.Sends += o.Sends
	t.Writes += o.Writes
	t.Reads += o.Reads
	t.Violated += o.Violated
	t.Violations = append(t.Violations, o.Violations...)
	t.Violations = t.Violations[:min(len(t.Violations), mostViolations)]
}

// Report is what a party tells of itself.
type Report struct {
	Tally
	Flows []Tally // one by one, in order

	Engine    vipl.Counters
	Program   bpf.Counters
	Socket    map[string]uint64 // the queue's counters by name, while the NIC is open
	LeastTx   int               // fewest free TX chunks that the engine has met
	Queue     xdpnic.Stats      // only of a count, and after the NIC was closed
	Late      time.Duration     // by how much the process has run late since it was started, a sum: see lag
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

// resources looks at this process, after what garbage there is was collected.
func resources() (r Resources, err error) {
	debug.FreeOSMemory()
	r.Goroutines = runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return r, err
	}
	r.Files = len(fds) - 1 // reading the directory needs one
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return r, fmt.Errorf("/proc/self/status: %w", err)
			}
			r.Resident = kb << 10
		}
	}
	return r, nil
}
