package torture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lag"
	"viaxdp/internal/testbed"
)

// Interface is the name of each party's interface, in its own namespace.
const Interface = "via0"

// BedConfig of a bed.
type BedConfig struct {
	MTU    int       // 0: 1500
	IPv6   bool      // the parties connect over IPv6
	Args   []string  // with which this program becomes a party: Main
	Stderr io.Writer // the parties' standard error; nil: discarded

	// AgentArgs are those with which this program becomes a Kernel Agent, before --socket PATH, through which a
	// party opens its interface; none: it does so by itself.
	AgentArgs []string
}

// Bed is two parties on a site. Its methods are for one goroutine.
type Bed struct {
	Site    *testbed.Site
	Parties [2]*Party // nil while it is not started

	cfg    BedConfig
	lag    *lag.Meter
	agents agents
}

// Needs is what a bed needs of the machine; see testbed.Require.
var Needs = []testbed.Need{testbed.Namespaces, testbed.Sockets, testbed.Programs}

// NewBed makes a site and starts both parties, which open nothing yet.
func NewBed(cfg BedConfig) (_ *Bed, err error) {
	if err := testbed.Require(Needs...); err != nil {
		return nil, err
	}
	site, err := testbed.NewSite(testbed.Pair{
		Names: [2]string{Interface, Interface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, MTU: cfg.MTU,
	})
	if err != nil {
		return nil, err
	}
	b := &Bed{Site: site, cfg: cfg, lag: lag.Start()}
	for i := range b.Parties {
		if cfg.IPv6 {
			if err := site.Do(i, keepAddresses); err != nil {
				return nil, errors.Join(err, b.Close())
			}
		}
		if err := b.StartParty(i); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	if len(cfg.AgentArgs) > 0 {
		if err := b.startAgents(); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// keepAddresses has the kernel leave an interface its IPv6 addresses while it is down, as it does IPv4's: else a
// link that blinks takes the address of connections away for good.
func keepAddresses() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/"+Interface+"/keep_addr_on_down", []byte("1"), 0)
}

// StartParty starts the process of a side that has none.
func (b *Bed) StartParty(side int) error {
	p, err := b.Site.Spawn(side, b.cfg.Args, b.cfg.Stderr)
	if err != nil {
		return err
	}
	b.Parties[side] = &Party{Process: p, answers: bufio.NewReader(p.Out)}
	return nil
}

// Kill ends a party by SIGKILL, in whatever it is doing.
func (b *Bed) Kill(side int) error {
	p := b.Parties[side]
	b.Parties[side] = nil
	err := p.Signal(unix.SIGKILL)
	p.Process.Close() // it was killed, as it will say
	return err
}

// Close ends the parties and takes down the site. The second time it does
// nothing.
func (b *Bed) Close() error {
	var errs []error
	for i, p := range b.Parties {
		if p != nil {
			errs = append(errs, p.Process.Close())
			b.Parties[i] = nil
		}
	}
	errs = append(errs, b.agents.close())
	if b.lag != nil {
		b.lag.Close()
		b.lag = nil
	}
	return errors.Join(append(errs, b.Site.Close())...)
}

// Open opens the interface on both sides.
func (b *Bed) Open(cfg NICConfig) error {
	for i := range b.Parties {
		if err := b.OpenSide(i, cfg); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// OpenSide opens the interface on one side.
func (b *Bed) OpenSide(side int, cfg NICConfig) error {
	cfg.Interface, cfg.Agent = Interface, b.agents.socket(side)
	_, err := b.Parties[side].call(order{Op: opOpen, NIC: &cfg})
	return err
}

// Start starts flows on both sides. Side 1 asks for the connections.
func (b *Bed) Start(cfg FlowConfig) error {
	for i := range b.Parties {
		if err := b.StartSide(i, cfg); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// StartSide starts the flows of one side.
func (b *Bed) StartSide(side int, cfg FlowConfig) error {
	cfg.Asks = side == 1
	cfg.Peer = b.Site.Ends[1-side].IPv4.Addr()
	if b.cfg.IPv6 {
		cfg.Peer = b.Site.Ends[1-side].IPv6.Addr()
	}
	cfg.Seed += uint64(side) << 32
	_, err := b.Parties[side].call(order{Op: opStart, Flows: &cfg})
	return err
}

// Reports asks both parties.
func (b *Bed) Reports() (r [2]*Report, err error) { return b.both(opReport) }

// Stop brings all flows to an orderly end.
func (b *Bed) Stop() (r [2]*Report, err error) { return b.both(opStop) }

// Free gives back what stopped flows held.
func (b *Bed) Free() (r [2]*Report, err error) { return b.both(opFree) }

// Count looks for chunks that were not given back, when all flows were freed.
func (b *Bed) Count() (r [2]*Report, err error) { return b.both(opCount) }

// CloseNICs closes the interfaces.
func (b *Bed) CloseNICs() (r [2]*Report, err error) { return b.both(opClose) }

// both gives an order to both parties at the same time, as an orderly end needs
// both.
func (b *Bed) both(op string) (r [2]*Report, err error) {
	for i, p := range b.Parties {
		if p == nil {
			return r, fmt.Errorf("side %d has no process", i)
		}
	}
	errs := make([]error, 2)
	for i, p := range b.Parties {
		errs[i] = p.say(order{Op: op})
	}
	for i, p := range b.Parties {
		if errs[i] == nil {
			r[i], errs[i] = p.hear()
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("side %d: %s: %w", i, op, errs[i])
		}
	}
	return r, errors.Join(errs...)
}

// Until asks for reports until they are as wanted, for a time.
func (b *Bed) Until(within time.Duration, ok func(r [2]*Report) bool) (r [2]*Report, err error) {
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		if r, err = b.Reports(); err != nil || ok(r) {
			return r, err
		}
		if time.Now().After(end) {
			return r, errTooLate
		}
	}
}

var errTooLate = errors.New("it did not come to that in time")

// Mark begins a time that is bounded as far as the machine gives its programs time.
func (b *Bed) Mark() lag.Mark { return b.lag.Mark() }

// Spells are the seconds in which this process, and so the way between the parties, ran late.
func (b *Bed) Spells() []lag.Spell { return b.lag.Spells() }

// Link changes a side's interface.
func (b *Bed) Link(side int, change func(netlink.Link) error) error {
	return b.Site.Do(side, func() error {
		l, err := netlink.LinkByName(Interface)
		if err != nil {
			return err
		}
		return change(l)
	})
}

// A Party is the parent's view of one.
type Party struct {
	*testbed.Process
	answers *bufio.Reader
}

func (p *Party) call(o order) (*Report, error) {
	if err := p.say(o); err != nil {
		return nil, err
	}
	return p.hear()
}

func (p *Party) say(o order) error { return json.NewEncoder(p.In).Encode(o) }

// hearTime is how long a party may take to answer: more than its flows may take to
// finish.
const hearTime = time.Minute

func (p *Party) hear() (*Report, error) {
	// One that hangs says on which line, and ends.
	hangs := time.AfterFunc(hearTime, func() { p.Signal(unix.SIGQUIT) })
	defer hangs.Stop()
	line, err := p.answers.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the party is gone: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	return a.Report, nil
}

// Report asks one party.
func (p *Party) Report() (*Report, error) { return p.call(order{Op: opReport}) }

// Stop brings a party's flows to an end.
func (p *Party) Stop() (*Report, error) { return p.call(order{Op: opStop}) }

// CloseNIC closes a party's interface.
func (p *Party) CloseNIC() (*Report, error) { return p.call(order{Op: opClose}) }
