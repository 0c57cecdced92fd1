package torture

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
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
	Workers [2]*Worker // nil while it is not started

	cfg    BedConfig
	lag    *schedlat.Meter
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
	b := &Bed{Site: site, cfg: cfg, lag: schedlat.Start()}
	for i := range b.Workers {
		if cfg.IPv6 {
			if err := site.Do(i, keepAddresses); err != nil {
				return nil, errors.Join(err, b.Close())
			}
		}
		if err := b.StartWorker(i); err != nil {
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
func (b *Bed) StartWorker(side int) error {
	p, err := b.Site.Spawn(side, b.cfg.Args, b.cfg.Stderr)
	if err != nil {
		return err
	}
	b.Workers[side] = &Worker{Process: p, answers: bufio.NewReader(p.Out)}
	return nil
}

// Kill ends a party by SIGKILL, in whatever it is doing.
func (b *Bed) Kill(side int) error {
	p := b.Workers[side]
	b.Workers[side] = nil
	err := p.Signal(unix.SIGKILL)
	p.Process.Close() // it was killed, as it will say
	return err
}

// Close ends the parties and takes down the site. The second time it does
// nothing.
func (b *Bed) Close() error {
	var errs []error
	for i, p := range b.Workers {
		if p != nil {
			errs = append(errs, p.Process.Close())
			b.Workers[i] = nil
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
	for i := range b.Workers {
		if err := b.OpenSide(i, cfg); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// OpenSide opens the interface on one side.
func (b *Bed) OpenSide(side int, cfg NICConfig) error {
	cfg.Interface, cfg.Agent = Interface, b.agents.socket(side)
	_, err := b.Workers[side].call(order{Op: opOpen, NIC: &cfg})
	return err
}

// Start starts flows on both sides. Side 1 asks for the connections.
func (b *Bed) Start(cfg FlowConfig) error {
	for i := range b.Workers {
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
	_, err := b.Workers[side].call(order{Op: opStart, Flows: &cfg})
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
	for i, p := range b.Workers {
		if p == nil {
			return r, fmt.Errorf("side %d has no process", i)
		}
	}
	errs := make([]error, 2)
	for i, p := range b.Workers {
		errs[i] = p.say(order{Op: op})
	}
	for i, p := range b.Workers {
		var a *answer
		if errs[i] == nil {
			a, errs[i] = p.hear()
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("side %d: %s: %w", i, op, errs[i])
			continue
		}
		r[i] = a.Report
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
func (b *Bed) Mark() schedlat.Mark { return b.lag.Mark() }

// Spells are the seconds in which this process, and so the way between the parties, ran late.
func (b *Bed) Spells() []schedlat.Spell { return b.lag.Spells() }

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
type Worker struct {
	*testbed.Process
	answers *bufio.Reader
}

// ask gives an order and waits for the answer.
func (p *Worker) ask(o order) (*answer, error) {
	if err := p.say(o); err != nil {
		return nil, err
	}
	return p.hear()
}

// call is ask for a report.
func (p *Worker) call(o order) (*Report, error) {
	a, err := p.ask(o)
	if err != nil {
		return nil, err
	}
	return a.Report, nil
}

func (p *Worker) say(o order) error { return json.NewEncoder(p.In).Encode(o) }

// hearTime is how long a party may take to answer: more than its flows may take to
// finish.
const hearTime = time.Minute

func (p *Worker) hear() (*answer, error) {
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
	return &a, nil
}

// Report asks one party.
func (p *Worker) Report() (*Report, error) { return p.call(order{Op: opReport}) }

// Stop brings a party's flows to an end.
func (p *Worker) Stop() (*Report, error) { return p.call(order{Op: opStop}) }

// CloseNIC closes a party's interface.
func (p *Worker) CloseNIC() (*Report, error) { return p.call(order{Op: opClose}) }

// agents are a Kernel Agent in each party's namespace; none of them: parties open interfaces by themselves.
type agents struct {
	dir  string // of their sockets
	each [2]*testbed.Process
	said [2]bytes.Buffer // read only after the process has ended
}

// serveWithin is how long an agent may take to serve.
const serveWithin = time.Minute

// startAgents starts both, and waits until they serve.
func (b *Bed) startAgents() (err error) {
	if b.agents.dir, err = os.MkdirTemp("", "via-xdp-torture"); err != nil {
		return err
	}
	for side := range b.agents.each {
		args := append(append([]string(nil), b.cfg.AgentArgs...), "--socket", b.agents.path(side))
		p, err := b.Site.Spawn(side, args, &b.agents.said[side])
		if err != nil {
			return err
		}
		b.agents.each[side] = p
		for end := time.Now().Add(serveWithin); ; time.Sleep(5 * time.Millisecond) {
			_, err := agentclient.Probe(b.agents.path(side))
			if err == nil {
				break
			}
			select {
			case <-p.Exited():
				err = fmt.Errorf("it has ended: %s", bytes.TrimSpace(b.agents.said[side].Bytes()))
			default:
				if time.Now().Before(end) {
					continue
				}
			}
			return fmt.Errorf("agent of side %d: %w", side, err)
		}
	}
	return nil
}

func (a *agents) path(side int) string { return filepath.Join(a.dir, fmt.Sprint("agent", side)) }

// socket is that of a side's agent; empty where there is none.
func (a *agents) socket(side int) string {
	if a.each[side] == nil {
		return ""
	}
	return a.path(side)
}

// close ends them. The second time it does nothing.
func (a *agents) close() error {
	var errs []error
	for side, p := range a.each {
		if p != nil {
			if err := errors.Join(p.Signal(unix.SIGTERM), p.Close()); err != nil {
				errs = append(errs, fmt.Errorf("agent of side %d: %w: %s", side, err, bytes.TrimSpace(a.said[side].Bytes())))
			}
			a.each[side] = nil
		}
	}
	if a.dir != "" {
		errs = append(errs, os.RemoveAll(a.dir))
		a.dir = ""
	}
	return errors.Join(errs...)
}

// Detach takes the XDP program off a side's interface, whoever has attached it.
func (b *Bed) Detach(side int) error {
	if p := b.agents.each[side]; p != nil {
		return detach(p.Pid)
	}
	return detach(b.Workers[side].Pid)
}

// Unwanted is what the kernel of a side's namespace has had to do with frames that
// nobody there wants.
type Unwanted struct {
	Frames  uint64 // UDP datagrams that met no socket
	Answers uint64 // of ICMP and ICMPv6, by which senders were told that a destination is unreachable
}

// Unwanted of a side, since the bed was made.
func (b *Bed) Unwanted(side int) (u Unwanted, err error) {
	err = b.Site.Do(side, func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		v6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return err
		}
		u, err = unwanted(string(v4), string(v6))
		return err
	})
	return u, err
}

// unwanted finds it in /proc/net/snmp, which has lines of names and of numbers, and in snmp6,
// which has a line for each.
func unwanted(v4, v6 string) (u Unwanted, err error) {
	found := 0
	add := func(name, number string) {
		sum := &u.Frames
		switch name {
		case "Icmp:OutDestUnreachs", "Icmp6OutDestUnreachs":
			sum = &u.Answers
		case "Udp:NoPorts", "Udp6NoPorts":
		default:
			return
		}
		n, bad := strconv.ParseUint(number, 10, 64)
		*sum += n
		err = errors.Join(err, bad)
		found++
	}
	var names []string
	for line := range strings.Lines(v4) {
		f := strings.Fields(line)
		if len(names) != len(f) || names[0] != f[0] {
			names = f
			continue
		}
		for i, name := range names {
			add(f[0]+name, f[i])
		}
	}
	if found != 2 {
		return u, errors.New("/proc/net/snmp does not count what nobody wants")
	}
	for line := range strings.Lines(v6) {
		if f := strings.Fields(line); len(f) == 2 {
			add(f[0], f[1])
		}
	}
	return u, err
}

// detach takes a process's XDP program off its interface, as a stranger with privilege may.
func detach(pid int) error {
	id, err := linkID(pid)
	if err != nil {
		return err
	}
	l, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// linkID finds a process's link to its interface among its files. Interface
// numbers would not do: namespaces have the same ones.
func linkID(pid int) (link.ID, error) {
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0, err
	}
	for _, name := range infos {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), "link_type:\txdp") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "link_id:"); ok {
				id, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 32)
				return link.ID(id), err
			}
		}
	}
	return 0, errors.New("the process has no XDP program attached")
}
