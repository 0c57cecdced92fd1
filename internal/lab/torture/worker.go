package torture

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
)

// command is what a worker is to do, one JSON object a line.
type command struct {
	Do    string      // a key of commands
	NIC   *NICConfig  `json:",omitempty"` // open
	Flows *FlowConfig `json:",omitempty"` // start

	// Of an attack.
	User   int           // become: the worker's user from then on
	Socket string        // of the agent; empty: none, the worker has the privilege
	Peer   netip.Addr    // the host to connect with
	Host   netip.Addr    // this one
	Users  []uint32      // of an agent: those that may open the interface; none: root
	For    time.Duration // how long
	Kind   string        // of an attack
}

// Commands of a bed's workers.
const (
	doOpen   = "open"   // the interface
	doStart  = "start"  // flows, beside those that run
	doReport = "report" // the report so far
	doStop   = "stop"   // all flows, in order, and report
	doFree   = "free"   // what the stopped flows held, and report
	doCount  = "count"  // chunks and frames, when nothing runs, and report
	doClose  = "close"  // the interface, and report
)

// commands are what workers can do.
var commands = map[string]func(*worker, *command) *Report{
	doOpen:   (*worker).open,
	doStart:  func(w *worker, c *command) *Report { w.start(*c.Flows); return nil },
	doReport: func(w *worker, _ *command) *Report { return w.report() },
	doStop:   func(w *worker, _ *command) *Report { return w.stopFlows() },
	doFree:   func(w *worker, _ *command) *Report { return w.free() },
	doCount:  func(w *worker, _ *command) *Report { return w.traffic.count() },
	doClose:  func(w *worker, _ *command) *Report { return w.close() },

	"become": silently((*actor).become),
	"result": silently(func(*actor, *command) {}),
	"agent":  silently((*actor).serveAgent),
	"serve":  silently((*actor).serve),
	"dial":   silently((*actor).dial),
	"listen": silently((*actor).listen),
	"use":    silently((*actor).use),
	"attack": silently((*actor).attack),
}

// silently is a command whose answer has no Report.
func silently(f func(*actor, *command)) func(*worker, *command) *Report {
	return func(w *worker, c *command) *Report { f(&w.actor, c); return nil }
}

// answer is what a worker says to a command.
type answer struct {
	Error  string  `json:",omitempty"`
	Report *Report `json:",omitempty"` // of a bed's worker
	Result result  // of an attack's, since the last command
}

// worker is the process: the traffic of a bed, or an actor of an attack.
type worker struct {
	traffic
	actor
}

// Main is the process of a worker: it executes commands from its control connection until
// that ends.
func Main() error {
	control, err := testbed.Control()
	if err != nil {
		return err
	}
	defer control.Close()
	meter := schedlat.Start()
	defer meter.Close()
	w := &worker{traffic: traffic{lag: meter}, actor: newActor(meter)}
	enc, dec := json.NewEncoder(control), json.NewDecoder(control)
	for {
		var c command
		if err := dec.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, w.leave(), w.abandon())
		}
		var a answer
		if a.Report, err = w.execute(&c); err != nil {
			a.Error = err.Error()
		}
		a.Result = w.result()
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
}

func (w *worker) execute(c *command) (r *Report, err error) {
	defer fail.Catch(&err)
	fail.During(c.Do, func() { r = commands[c.Do](w, c) })
	return r, nil
}

// traffic is one end of a bed's connections.
type traffic struct {
	nic   *nic
	flows []*flow
	stop  atomic.Bool
	run   sync.WaitGroup
	past  Report // of flows that were freed
	lag   *schedlat.Meter
	least int // goroutines when an interface was closed last; 0: none was
}

func (w *worker) open(c *command) *Report {
	w.traffic.nic, w.past = fail.Must(openNIC(*c.NIC)), Report{}
	return w.fullReport()
}

func (p *traffic) start(cfg FlowConfig) {
	if p.stop.Load() {
		p.run.Wait()
		p.stop.Store(false)
	}
	for i := range cfg.Flows {
		f, err := newFlow(p.nic.NIC, cfg, i, &p.stop)
		fail.Wrap(err, "flow %d", i)
		p.flows = append(p.flows, f)
		p.run.Go(f.run)
	}
}

func (p *traffic) stopFlows() *Report {
	p.stop.Store(true)
	p.run.Wait()
	return p.fullReport()
}

// report returns what happened since the interface was opened.
func (p *traffic) report() *Report {
	r := p.past
	r.Breaks, r.Violations = slices.Clone(r.Breaks), slices.Clone(r.Violations)
	for _, f := range p.flows {
		f.mu.Lock()
		t := f.n
		t.Breaks, t.Violations = slices.Clone(t.Breaks), slices.Clone(t.Violations)
		f.mu.Unlock()
		r.add(&t)
		r.Flows = append(r.Flows, t)
	}
	r.Late, r.Spells = p.lag.Late(), p.lag.Spells()
	s := p.nic.Status()
	r.Engine, r.Socket, r.LeastTx = s.Counters, s.Socket, int(p.nic.meter.leastTx.Load())
	r.Discarded = p.nic.meter.discarded.Load()
	r.Program = fail.Must(p.nic.opened.Counters())
	return &r
}

// fullReport is a report with the resources, which take some time to count.
func (p *traffic) fullReport() *Report {
	r := p.report()
	r.Resources = resources()
	return r
}

// count looks for chunks that were not given back, when all flows were freed.
func (p *traffic) count() *Report {
	p.nic.countRunning()
	r := p.report()
	r.Queue, r.Lacking = p.nic.stats, p.nic.lacking
	return r
}

// free gives back what the stopped flows held. The memory of flows with receives on an idle VI
// goes with the NIC.
func (p *traffic) free() *Report {
	p.run.Wait()
	var errs []error
	for _, f := range p.flows {
		if f.recvs.outstanding() == 0 {
			errs = append(errs, f.free())
		}
		p.past.add(&f.n)
	}
	p.flows = nil
	fail.If(errors.Join(errs...))
	return p.fullReport()
}

// close ends what runs and closes the interface.
func (p *traffic) close() *Report {
	p.stop.Store(true)
	p.run.Wait()
	r := p.report()
	n := p.nic
	p.nic, p.flows = nil, nil
	fail.If(n.Close())
	r.Queue, r.Lacking = n.stats, n.lacking
	// Goroutines that Close has ended may not have returned yet.
	for end := time.Now().Add(drainWithin); p.least > 0 && runtime.NumGoroutine() > p.least && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r.Resources = resources()
	p.least = r.Resources.Goroutines
	return r
}

// abandon ends everything when the parent has gone.
func (p *traffic) abandon() error {
	if p.nic == nil {
		return nil
	}
	return fail.Try(func() { p.close() })
}

// A Worker is the parent's view of a worker's process.
type Worker struct {
	*testbed.Side
	answers *json.Decoder
}

func newWorker(s *testbed.Side, err error) (*Worker, error) {
	if err != nil {
		return nil, err
	}
	return &Worker{s, json.NewDecoder(s.Control)}, nil
}

// hearTime is how long a worker may take to answer: more than its flows may take to
// finish.
const hearTime = time.Minute

// begin gives a command; what it returns waits for the answer. Both fail by package fail.
func (p *Worker) begin(c command) func() *answer {
	fail.If(json.NewEncoder(p.Control).Encode(c))
	return func() *answer {
		// A worker that hangs prints its stacks and ends.
		hangs := time.AfterFunc(hearTime, func() { p.Signal(unix.SIGQUIT) })
		defer hangs.Stop()
		var a answer
		fail.Wrap(p.answers.Decode(&a), "the worker is gone")
		if a.Error != "" {
			fail.With("%s", a.Error)
		}
		return &a
	}
}

// call gives a command and waits for the report.
func (p *Worker) call(c command) (_ *Report, err error) {
	defer fail.Catch(&err)
	return p.begin(c)().Report, nil
}

// Report asks one worker.
func (p *Worker) Report() (*Report, error) { return p.call(command{Do: doReport}) }

// CloseNIC closes a worker's interface.
func (p *Worker) CloseNIC() (*Report, error) { return p.call(command{Do: doClose}) }
