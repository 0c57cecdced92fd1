package torture

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// order is what the parent asks of a party, one JSON object a line.
type order struct {
	Op    string
	NIC   *NICConfig  `json:",omitempty"`
	Flows *FlowConfig `json:",omitempty"`
	Work  *command    `json:",omitempty"`
}

// The orders.
const (
	opOpen   = "open"   // the interface
	opStart  = "start"  // flows, beside those that run
	opReport = "report" // what there is to tell
	opStop   = "stop"   // all flows, in order, and report
	opFree   = "free"   // what the stopped flows held, and report
	opCount  = "count"  // chunks and frames, when nothing runs, and report
	opClose  = "close"  // the interface, and report
	opWork   = "work"   // as the worker of an attack
)

// answer is what the party says to an order.
type answer struct {
	Error  string  `json:",omitempty"`
	Report *Report `json:",omitempty"`
	Result *result `json:",omitempty"` // of a worker
}

// Main is the process of a party: it obeys orders from in until it ends, and
// answers on out.
func Main(in io.Reader, out io.Writer) error {
	p := &workerState{lag: schedlat.Start()}
	defer p.lag.Close()
	w := newWorker(p.lag)
	enc := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o order
		var a answer
		err := json.Unmarshal(lines.Bytes(), &o)
		switch {
		case err != nil:
		case o.Op == opWork && o.Work != nil:
			a.Result, err = w.execute(o.Work)
		default:
			a.Report, err = p.execute(o)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), w.stop(), p.abandon())
}

// party is one end of the torture.
type workerState struct {
	nic   *nic
	flows []*flow
	stop  atomic.Bool
	run   sync.WaitGroup
	past  Report // of flows that were freed
	lag   *schedlat.Meter
	least int // goroutines when an interface was closed last; 0: none was
}

func (p *workerState) execute(o order) (*Report, error) {
	if p.nic == nil && o.Op != opOpen {
		return nil, errors.New("no interface is open")
	}
	switch {
	case o.Op == opOpen && o.NIC != nil:
		if p.nic != nil {
			return nil, errors.New("an interface is open")
		}
		n, err := openNIC(*o.NIC)
		if err != nil {
			return nil, err
		}
		p.nic, p.past = n, Report{}
	case o.Op == opStart && o.Flows != nil:
		return nil, p.start(*o.Flows)
	case o.Op == opReport:
		return p.report()
	case o.Op == opStop:
		p.stop.Store(true)
		p.run.Wait()
	case o.Op == opFree:
		return p.free()
	case o.Op == opCount:
		return p.count()
	case o.Op == opClose:
		return p.close()
	default:
		return nil, fmt.Errorf("unknown order %q", o.Op)
	}
	return p.fullReport()
}

func (p *workerState) start(cfg FlowConfig) error {
	if p.stop.Load() {
		p.run.Wait()
		p.stop.Store(false)
	}
	for i := range cfg.Flows {
		f, err := newFlow(p.nic.NIC, cfg, i, &p.stop)
		if err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
		p.flows = append(p.flows, f)
		p.run.Go(f.run)
	}
	return nil
}

// report tells what happened since the interface was opened.
func (p *workerState) report() (*Report, error) {
	r := p.past
	r.Breaks, r.Violations = append([]Break(nil), r.Breaks...), append([]string(nil), r.Violations...)
	for _, f := range p.flows {
		f.mu.Lock()
		t := f.n
		t.Breaks, t.Violations = append([]Break(nil), t.Breaks...), append([]string(nil), t.Violations...)
		f.mu.Unlock()
		r.add(&t)
		r.Flows = append(r.Flows, t)
	}
	r.Late, r.Spells = p.lag.Late(), p.lag.Spells()
	var err error
	if p.nic != nil {
		s := p.nic.Status()
		r.Engine, r.Socket, r.LeastTx = s.Counters, s.Socket, int(p.nic.meter.leastTx.Load())
		if r.Program, err = p.nic.opened.Counters(); err != nil {
			return nil, err
		}
	}
	return &r, err
}

// fullReport is a report with the resources, which take some time to look at.
func (p *workerState) fullReport() (*Report, error) {
	r, err := p.report()
	if err == nil {
		r.Resources, err = resources()
	}
	return r, err
}

// count looks for chunks that nobody has given back, when all flows were freed.
func (p *workerState) count() (*Report, error) {
	if len(p.flows) > 0 {
		return nil, errors.New("flows are there still")
	}
	p.nic.countRunning()
	r, err := p.report()
	if err == nil {
		r.Queue, r.Lacking = p.nic.stats, p.nic.lacking
	}
	return r, err
}

// free gives back what the stopped flows held. The memory of flows with receives on an idle VI
// goes with the NIC.
func (p *workerState) free() (*Report, error) {
	p.run.Wait()
	var errs []error
	for _, f := range p.flows {
		if f.recvs.outstanding() == 0 {
			errs = append(errs, f.free())
		}
		p.past.add(&f.n)
	}
	p.flows = nil
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p.fullReport()
}

// close ends what runs and closes the interface.
func (p *workerState) close() (*Report, error) {
	p.stop.Store(true)
	p.run.Wait()
	r, err := p.report()
	if err != nil {
		return nil, err
	}
	n := p.nic
	p.nic, p.flows = nil, nil
	if err := n.Close(); err != nil {
		return nil, err
	}
	r.Queue, r.Lacking = n.stats, n.lacking
	// What Close has ended may still be about to return.
	for end := time.Now().Add(settleWithin); p.least > 0 && runtime.NumGoroutine() > p.least && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r.Resources, err = resources()
	p.least = r.Resources.Goroutines
	return r, err
}

// abandon ends everything when the parent has gone.
func (p *workerState) abandon() error {
	if p.nic == nil {
		return nil
	}
	_, err := p.close()
	return err
}

// NICConfig says how a party opens its interface.
type NICConfig struct {
	Interface string
	RxChunks  int           // 0: vipl.DefaultRxChunks
	TxChunks  int           // 0: xdpnic.DefaultChunks
	Arena     int           // bytes of memory; 0: kagent.DefaultArena
	Silence   time.Duration // 0: vipl.DefaultSilence
	Sealed    bool          // connections have a pre-shared key, of all parties the same
	Agent     string        // socket of the agent that opens it; empty: the party does by itself
}

// nic is a NIC handle of which every chunk is accounted for.
type nic struct {
	*vipl.NIC
	opened opened
	meter  *meter
	txFree int // chunks free when it was opened

	// At the last count.
	stats   xdpnic.Stats
	lacking []string
}

// meter is the queue as the engine drives it, with a count of the leases.
type meter struct {
	*xdpnic.Queue
	leased  int // frames received and not recycled
	orders  chan func()
	leastTx atomic.Int64 // fewest free TX chunks that the engine has met
}

func (m *meter) TxFree() int {
	n := m.Queue.TxFree()
	if int64(n) < m.leastTx.Load() {
		m.leastTx.Store(int64(n))
	}
	return n
}

// Receive is what the engine calls at every look at the queue, of which it is the owner then.
func (m *meter) Receive(frames []xdpnic.Frame) int {
	select {
	case f := <-m.orders:
		f()
	default:
	}
	n := m.Queue.Receive(frames)
	m.leased += n
	return n
}

func (m *meter) Recycle(addr uint64) {
	m.leased--
	m.Queue.Recycle(addr)
}

// opened is what a Kernel Agent has opened.
type opened interface {
	kagent.Agent
	Queue() *xdpnic.Queue
	Arena() *hugepages.Arena
	Info() kagent.Info
	Counters() (bpf.Counters, error)
}

// openAgent opens a queue by the agent at a socket; without a socket this process does.
func openAgent(socket string, cfg kagent.Config) (opened, error) {
	if socket == "" {
		a, err := device.Open(cfg)
		if err != nil {
			return nil, err
		}
		return a, nil
	}
	a, err := agentclient.Open(socket, true, cfg)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// counted is an agent whose Close comes when the engine has stopped and before the queue is gone: the
// moment to count.
type counted struct {
	opened
	last func()
}

func (a counted) Close() error {
	a.last()
	return a.opened.Close()
}

// openNIC does what vipl.OpenNIC does, with the accounting in between.
func openNIC(cfg NICConfig) (*nic, error) {
	rx := cmp.Or(cfg.RxChunks, vipl.DefaultRxChunks)
	n, err := &nic{}, error(nil)
	// A party that was killed has its queue until the agent knows.
	for end := time.Now().Add(countWithin); ; time.Sleep(10 * time.Millisecond) {
		n.opened, err = openAgent(cfg.Agent, kagent.Config{
			Interface: cfg.Interface, Queue: kagent.AnyQueue, RxChunks: rx, TxChunks: cfg.TxChunks,
			ArenaBytes: cfg.Arena, Hugepages: hugepages.Avoid,
		})
		if err == nil {
			break
		}
		if cfg.Agent == "" || !errors.Is(err, kagent.ErrQueueInUse) || time.Now().After(end) {
			return nil, err
		}
	}
	queue := n.opened.Queue()
	n.meter, n.txFree = &meter{Queue: queue, orders: make(chan func())}, queue.TxFree()
	n.meter.leastTx.Store(int64(n.txFree))
	var psk *vipl.PSK
	if cfg.Sealed {
		psk, err = vipl.NewPSK([]byte("the parties' key, 32 bytes of it."))
	}
	if err == nil {
		n.NIC, err = provider.OpenNIC[*vipl.NIC](provider.Provider{
			Port: n.meter, Agent: counted{n.opened, n.count}, Arena: n.opened.Arena(), Info: n.opened.Info(),
		}, vipl.WithSilence(cfg.Silence), vipl.WithPSK(psk))
	}
	if err != nil {
		return nil, errors.Join(err, n.opened.Close())
	}
	n.ErrorCallback(func(vipl.ErrorDescriptor) {}) // the flows look at their VIs
	return n, nil
}

// settleWithin is how long the kernel may take to complete what it was sent.
const settleWithin = 5 * time.Second

// count looks for chunks that nobody gave back, and keeps the queue's counters. The engine has stopped.
func (n *nic) count() {
	q := n.meter.Queue
	for end := time.Now().Add(settleWithin); q.TxFree() < n.txFree && time.Now().Before(end); time.Sleep(time.Millisecond) {
		q.Flush()
		q.Reap()
		// One that is gone completes nothing, nor does one that is down; that is said below.
		if _, err := net.InterfaceByIndex(n.opened.Info().Index); err != nil {
			break
		}
	}
	n.lacking = n.look()
}

// countWithin is how long a machine that is busy may take to have the engine look at its queue: less than hearTime.
const countWithin = hearTime / 2

// countRunning is count while the engine runs. No VI is connected, so that it has nothing to do.
func (n *nic) countRunning() {
	n.lacking = []string{"the engine does not look at its queue"}
	for end := time.Now().Add(countWithin); ; time.Sleep(time.Millisecond) {
		looked := make(chan []string, 1)
		n.meter.Wake()
		select {
		case n.meter.orders <- func() { n.meter.Reap(); looked <- n.look() }:
			n.lacking = <-looked
		case <-time.After(10 * time.Millisecond):
		}
		if n.lacking == nil || time.Now().After(end) {
			return
		}
	}
}

// look says what is not where it belongs when nothing is under way. The caller owns the queue.
func (n *nic) look() (lacking []string) {
	q := n.meter.Queue
	if free := q.TxFree(); free != n.txFree {
		lacking = append(lacking, fmt.Sprintf("%d of %d TX chunks are not free", n.txFree-free, n.txFree))
	}
	if n.meter.leased != 0 {
		lacking = append(lacking, fmt.Sprintf("%d RX chunks are leased still", n.meter.leased))
	}
	if err := q.Audit(); err != nil {
		lacking = append(lacking, err.Error())
	}
	var err error
	if n.stats, err = q.Stats(); err != nil {
		lacking = append(lacking, err.Error())
	}
	return lacking
}
