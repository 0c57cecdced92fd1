package torture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/lag"
)

// order is what the parent asks of a party, one JSON object a line.
type order struct {
	Op    string
	NIC   *NICConfig  `json:",omitempty"`
	Flows *FlowConfig `json:",omitempty"`
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
)

// answer is what the party says to an order.
type answer struct {
	Error  string  `json:",omitempty"`
	Report *Report `json:",omitempty"`
}

// Main is the process of a party: it obeys orders from in until it ends, and
// answers on out.
func Main(in io.Reader, out io.Writer) error {
	p := &party{lag: lag.Start()}
	defer p.lag.Close()
	enc := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o order
		var a answer
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			a.Report, err = p.obey(o)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), p.abandon())
}

// party is one end of the torture.
type party struct {
	nic   *nic
	flows []*flow
	stop  atomic.Bool
	run   sync.WaitGroup
	past  Report // of flows that were freed
	lag   *lag.Meter
	least int // goroutines when an interface was closed last; 0: none was
}

func (p *party) obey(o order) (*Report, error) {
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

func (p *party) start(cfg FlowConfig) error {
	if p.stop.Load() {
		p.run.Wait()
		p.stop.Store(false)
	}
	for i := range cfg.Flows {
		f, err := newFlow(p.nic.Nic, cfg, i, &p.stop)
		if err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
		p.flows = append(p.flows, f)
		p.run.Go(f.run)
	}
	return nil
}

// report tells what happened since the interface was opened.
func (p *party) report() (*Report, error) {
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
func (p *party) fullReport() (*Report, error) {
	r, err := p.report()
	if err == nil {
		r.Resources, err = resources()
	}
	return r, err
}

// count looks for chunks that nobody has given back, when all flows were freed.
func (p *party) count() (*Report, error) {
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
func (p *party) free() (*Report, error) {
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
func (p *party) close() (*Report, error) {
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
func (p *party) abandon() error {
	if p.nic == nil {
		return nil
	}
	_, err := p.close()
	return err
}
