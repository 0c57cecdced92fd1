package torture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
)

// Interface is the name of each worker's interface, in its own namespace.
const Interface = "via0"

// BedConfig of a bed.
type BedConfig struct {
	MTU    int       // 0: 1500
	IPv6   bool      // the workers connect over IPv6
	Direct bool      // one veth pair joins the workers, without a middle: there are no faults, and GSO packets arrive whole
	Agents bool      // a Kernel Agent on each side opens the interface; else the workers do by themselves
	Args   []string  // with which this program becomes a worker: Main
	Stderr io.Writer // the workers' standard error; nil: discarded
}

// Bed is two workers on a site. Its methods are for one goroutine.
type Bed struct {
	Site    *testbed.Site
	Workers [2]*Worker // nil while it is not started

	cfg    BedConfig
	lag    *schedlat.Meter // of this process, and so of the link between the workers
	agents [2]*Worker      // nil: there is none
	dir    string          // of the agents' sockets
}

// Needs is what a bed needs of the machine; see testbed.Require.
var Needs = []testbed.Need{testbed.Namespaces, testbed.Sockets, testbed.Programs}

// NewBed makes a site and starts both workers, which open nothing yet.
func NewBed(cfg BedConfig) (_ *Bed, err error) {
	if err := testbed.Require(Needs...); err != nil {
		return nil, err
	}
	site, err := testbed.NewSite(testbed.Pair{
		Names: [2]string{Interface, Interface}, Net4: testbed.XDPNet4, Net6: testbed.XDPNet6, MTU: cfg.MTU,
	}, !cfg.Direct)
	if err != nil {
		return nil, err
	}
	b := &Bed{Site: site, cfg: cfg, lag: schedlat.Start()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	defer fail.Catch(&err)
	if cfg.Agents {
		b.dir = fail.Must(os.MkdirTemp("", "via-xdp-torture"))
	}
	for side := range b.Workers {
		if cfg.IPv6 {
			fail.If(site.Do(side, keepAddresses))
		}
		fail.If(b.StartWorker(side))
		if cfg.Agents {
			b.agents[side] = fail.Must(newWorker(site.Spawn(side, cfg.Args, cfg.Stderr)))
			b.agents[side].begin(command{Do: "agent", Socket: b.socket(side)})()
		}
	}
	return b, nil
}

// socket is that of a side's agent; empty without one.
func (b *Bed) socket(side int) string {
	if !b.cfg.Agents {
		return ""
	}
	return filepath.Join(b.dir, fmt.Sprint("agent", side))
}

// keepAddresses makes the kernel keep IPv6 addresses while an interface is down, as it does
// for IPv4. Otherwise a link that blinks would lose the connections' address for good.
func keepAddresses() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/"+Interface+"/keep_addr_on_down", []byte("1"), 0)
}

// StartWorker starts the process of a side that has none.
func (b *Bed) StartWorker(side int) (err error) {
	b.Workers[side], err = newWorker(b.Site.Spawn(side, b.cfg.Args, b.cfg.Stderr))
	return err
}

// Kill ends a worker by SIGKILL at any point of its work.
func (b *Bed) Kill(side int) error {
	p := b.Workers[side]
	b.Workers[side] = nil
	err := p.Signal(unix.SIGKILL)
	p.Close() // it was killed, as it will say
	return err
}

// Close ends the workers, then the agents, and takes down the site. Call it once.
func (b *Bed) Close() error {
	var errs []error
	for _, p := range slices.Concat(b.Workers[:], b.agents[:]) {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	b.lag.Close()
	return errors.Join(append(errs, b.Site.Close())...)
}

// Open opens the interface on both sides.
func (b *Bed) Open(cfg NICConfig) error {
	return fail.Try(func() { onBoth(func(side int) { fail.If(b.OpenSide(side, cfg)) }) })
}

// onBoth does something on one side, and then on the other.
func onBoth(f func(side int)) {
	for side := range 2 {
		fail.During(fmt.Sprint("side ", side), func() { f(side) })
	}
}

// OpenSide opens the interface on one side.
func (b *Bed) OpenSide(side int, cfg NICConfig) error {
	cfg.Agent = b.socket(side)
	_, err := b.Workers[side].call(command{Do: doOpen, NIC: &cfg})
	return err
}

// Start starts flows on both sides. Side 1 asks for the connections.
func (b *Bed) Start(cfg FlowConfig) error {
	return fail.Try(func() { onBoth(func(side int) { fail.If(b.StartSide(side, cfg)) }) })
}

// StartSide starts the flows of one side.
func (b *Bed) StartSide(side int, cfg FlowConfig) error {
	cfg.Asks = side == 1
	cfg.Peer = b.Site.Ends[1-side].IPv4.Addr()
	if b.cfg.IPv6 {
		cfg.Peer = b.Site.Ends[1-side].IPv6.Addr()
	}
	cfg.Seed += uint64(side) << 32
	_, err := b.Workers[side].call(command{Do: doStart, Flows: &cfg})
	return err
}

// Reports asks both workers.
func (b *Bed) Reports() ([2]*Report, error) { return b.both(doReport) }

// both has both workers execute a command whose answer is a report.
func (b *Bed) both(do string) (r [2]*Report, err error) {
	defer fail.Catch(&err)
	// Both at the same time, as an orderly end needs.
	var reports [2]func() *answer
	onBoth(func(side int) { reports[side] = b.Workers[side].begin(command{Do: do}) })
	onBoth(func(side int) { r[side] = reports[side]().Report })
	return r, nil
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

// setFaults sets the faults of both directions; a direct bed has none.
func (b *Bed) setFaults(f testbed.Faults) {
	if b.Site.Middle != nil {
		b.Site.Middle.SetBoth(f)
	}
}

// crossed is the sum of the counters of both directions so far; none of a direct bed.
func (b *Bed) crossed() testbed.EmulatorCounters {
	if b.Site.Middle == nil {
		return testbed.EmulatorCounters{}
	}
	return b.Site.Middle.Counters(0).Plus(b.Site.Middle.Counters(1))
}

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

// Detach takes the XDP program off a side's interface, that of the worker or of the agent.
func (b *Bed) Detach(side int) error {
	if p := b.agents[side]; p != nil {
		return detach(p.Pid)
	}
	return detach(b.Workers[side].Pid)
}

// Unwanted counts frames at the kernel of a side's namespace that no socket there takes.
type Unwanted struct {
	Frames  uint64 // UDP datagrams that met no socket
	Answers uint64 // ICMP and ICMPv6 messages that reported a destination as unreachable
}

// Unwanted of a side, since the bed was made.
func (b *Bed) Unwanted(side int) (u Unwanted, err error) {
	err = b.Site.Do(side, func() (err error) {
		defer fail.Catch(&err)
		p := fail.Must(procfs.NewProc(unix.Gettid())) // of the side's namespace
		v4 := fail.Must(p.Snmp())
		if v4.Udp.NoPorts == nil || v4.Icmp.OutDestUnreachs == nil {
			fail.With("/proc/net/snmp does not count datagrams without a socket")
		}
		v6, err := p.Snmp6() // empty with a kernel without IPv6
		count := func(n *float64) uint64 {
			if n == nil {
				return 0
			}
			return uint64(*n)
		}
		u.Frames = count(v4.Udp.NoPorts) + count(v6.Udp6.NoPorts)
		u.Answers = count(v4.Icmp.OutDestUnreachs) + count(v6.Icmp6.OutDestUnreachs)
		return err
	})
	return u, err
}

// detach takes a process's XDP program off its interface, as another privileged program
// could.
func detach(pid int) (err error) {
	defer fail.Catch(&err)
	l := fail.Must(link.NewFromID(fail.Must(linkID(pid))))
	return errors.Join(l.Detach(), l.Close())
}

// linkID finds a process's link to its interface among its files. Interface
// numbers would not do: namespaces have the same ones.
func linkID(pid int) (link.ID, error) {
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)) // the pattern is a good one
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
