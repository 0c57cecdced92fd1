package doctor

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/undo"
)

// Facts are the input of the checks.
type Facts struct {
	Host Host  `json:"host"`
	NICs []NIC `json:"interfaces"`
}

// Host has the facts about the host. A text that is a reason why something is impossible is empty
// if it is possible.
type Host struct {
	Release      string            `json:"release"` // of the kernel
	Major        int               `json:"major"`
	Minor        int               `json:"minor"`
	Config       map[string]string `json:"config,omitempty"` // kernel options: y, m or n; nil: not to be read
	Capabilities uint64            `json:"capabilities"`     // effective, bit by number
	Socket       string            `json:"socket,omitempty"` // why no AF_XDP socket can be made
	Memlock      uint64            `json:"memlock"`          // bytes; all ones: no limit
	CPUs         int               `json:"cpus"`
	Virtual      bool              `json:"virtual"` // a virtual machine: CPUs are shared

	HugeNodes    []HugeNode `json:"hugepages"`          // 2 MB pages; none: no pool
	HugeReserved int        `json:"hugepages_reserved"` // of the free ones, for programs that have mapped them and not yet used them
	HugeSurplus  int        `json:"hugepages_surplus"`  // made on demand, and in use
	Overcommit   int        `json:"hugepages_overcommit"`
	THP          string     `json:"transparent_hugepages"`

	Idle       []IdleState `json:"idle_states"` // of CPU 0; none: no cpuidle
	Governor   string      `json:"governor"`    // cpufreq of CPU 0; empty: none
	BusyPoll   string      `json:"busy_poll"`   // net.core.busy_poll, microseconds
	Trial      Trial       `json:"trial"`
	SeesOthers bool        `json:"sees_others"` // may look at other users' processes
	Agent      Agent       `json:"agent"`
}

// Agent is the daemon that programs started from here use.
type Agent struct {
	Socket string `json:"socket,omitempty"`
	PID    int    `json:"pid,omitempty"`    // 0: none is used
	Here   bool   `json:"here"`             // it is in this network namespace: its interfaces are those of here
	Named  bool   `json:"named"`            // the environment says which, or that there is none
	Starts bool   `json:"starts,omitempty"` // none is there, and the first program starts it
	Reason string `json:"reason,omitempty"` // why none is used
	Unused Unused `json:"unused,omitempty"` // what is at the socket, where none is used

	Served []string `json:"served"` // interfaces that it opens for this user; nil: all
}

// Unused says why programs do not use an agent that exists.
type Unused string

const (
	Denied    Unused = "denied"    // this user may not talk to it
	Elsewhere Unused = "elsewhere" // it is in another network namespace, and not named
	Broken    Unused = "broken"    // it does not answer as an agent does: programs open no NIC
)

// HugeNode is a NUMA node's part of the pool of 2 MB pages.
type HugeNode struct {
	Node  int `json:"node"`
	Total int `json:"total"`
	Free  int `json:"free"`
}

// HugePages counts the 2 MB pages of all nodes, and those that a program can still map.
func (h *Host) HugePages() (total, available int) {
	for _, n := range h.HugeNodes {
		total, available = total+n.Total, available+n.Free
	}
	return total, max(0, available-h.HugeReserved)
}

// onDemand counts the 2 MB pages that the kernel may still make on demand. The limit may be the largest number there is, to which
// no page can be added.
func (h *Host) onDemand() int { return min(max(0, h.Overcommit-h.HugeSurplus), boundless) }

// boundless is more pages than any machine has.
const boundless = 1 << 40

// IdleState is a C-state of a CPU.
type IdleState struct {
	Index    int    `json:"index"`
	Name     string `json:"name"`
	Latency  int    `json:"latency_us"` // to leave it
	Disabled bool   `json:"disabled"`
}

// Trial is the result of running the demux program in the kernel on sample frames.
type Trial struct {
	Ran    bool     `json:"ran"`
	Reason string   `json:"reason,omitempty"` // why it did not
	Frames int      `json:"frames"`
	Wrong  []string `json:"wrong,omitempty"` // frames with another verdict than they should have
}

// NIC is an interface.
type NIC struct {
	Name     string       `json:"name"`
	Index    int          `json:"index"`
	Driver   string       `json:"driver"`
	Kind     string       `json:"kind"`
	MTU      int          `json:"mtu"`
	Up       bool         `json:"up"`
	Carrier  bool         `json:"carrier"`
	Addrs    []netip.Addr `json:"addresses"`
	VLANs    int          `json:"vlans"`     // VLAN interfaces on top
	NUMANode int          `json:"numa_node"` // -1: none, or not to be seen

	RxQueues  int    `json:"rx_queues"`
	TxQueues  int    `json:"tx_queues"`
	MaxQueues int    `json:"max_queues"`
	RSSQueues []int  `json:"rss_queues,omitempty"` // that the indirection table names; nil: it cannot be read
	Ring      [2]int `json:"rings"`                // entries RX, TX; 0: not known
	RingMax   [2]int `json:"rings_max"`

	Features map[string]bool   `json:"features,omitempty"` // offloads by the kernel's names
	Fixed    map[string]bool   `json:"fixed,omitempty"`    // of them, those that cannot be changed
	Coalesce map[string]string `json:"coalesce,omitempty"` // interrupt moderation, as package undo names it
	Sysfs    map[string]string `json:"sysfs,omitempty"`    // gro_flush_timeout, napi_defer_hard_irqs, threaded; nil: not to be seen

	XDPKnown   bool     `json:"xdp_known"` // the kernel reports the driver's XDP features
	XDP        []string `json:"xdp,omitempty"`
	ZCSegments int      `json:"zero_copy_segments"`
	Program    *Program `json:"program,omitempty"` // XDP program attached
	Peer       *Peer    `json:"peer,omitempty"`    // of a veth

	Agent *kagent.NICStatus `json:"agent,omitempty"` // what the daemon has of it; a user sees queues of theirs; nil: nothing

	Holders     []Holder `json:"holders"`                // of AF_XDP sockets
	HoldersBy   string   `json:"holders_by"`             // "queue": known for each queue; "process": suspects only
	ControlPort string   `json:"control_port,omitempty"` // why the UDP port of connection management is not free
}

// Program is an XDP program.
type Program struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"` // empty: not to be seen
	Mode string `json:"mode"` // native or generic
	Ours bool   `json:"ours"`
}

// Peer is the other end of a veth pair.
type Peer struct {
	Index   int  `json:"index"`
	Seen    bool `json:"seen"`    // the kernel reported the rest
	Program bool `json:"program"` // it has an XDP program
	GRO     bool `json:"gro"`     // only when it is in the same namespace
}

// Holder is a process with AF_XDP sockets.
type Holder struct {
	PID   int    `json:"pid"`
	Name  string `json:"name"`
	Queue int    `json:"queue"` // -1: not known
}

// Has reports whether the driver has an XDP feature, by the names of package
// xdpnic.
func (n *NIC) Has(feature string) bool { return slices.Contains(n.XDP, feature) }

// Hardware reports whether there is a device behind the interface.
func (n *NIC) Hardware() bool { return n.Kind == "device" }

// Level is the severity of a finding.
type Level string

// The levels, best first.
const (
	OK      Level = "ok"
	Info    Level = "info"    // worth knowing
	Unknown Level = "unknown" // could not be determined
	Warning Level = "warning" // it works, slower or less safely than it could
	Error   Level = "error"   // VIs do not work here
)

var levels = []Level{OK, Info, Unknown, Warning, Error}

// Worse reports whether l matters more than other.
func (l Level) Worse(other Level) bool { return slices.Index(levels, l) > slices.Index(levels, other) }

// Finding is the result of a check.
type Finding struct {
	Check       string      `json:"check"`
	Interface   string      `json:"interface,omitempty"` // empty: the host
	Level       Level       `json:"level"`
	Cause       string      `json:"cause"`                 // the fact
	Consequence string      `json:"consequence,omitempty"` // its effect on VIs
	Command     string      `json:"command,omitempty"`     // what helps, for a shell
	Steps       []undo.Step `json:"steps,omitempty"`       // the same, for --fix; none: a person has to decide
}

// A Check is a row of the table. Exactly one of Host and NIC is set.
type Check struct {
	ID    string                          `json:"check"`
	About string                          `json:"about"` // one line for the list of checks
	Host  func(h *Host) []Finding         `json:"-"`
	NIC   func(h *Host, n *NIC) []Finding `json:"-"`
}

// Report is the result of all checks.
type Report struct {
	Facts    *Facts    `json:"facts"`
	Findings []Finding `json:"findings"`
}

// Examine runs all checks of the table.
func Examine(f *Facts) *Report {
	r := &Report{Facts: f}
	for _, c := range Checks {
		if c.Host != nil {
			r.add(c.ID, "", c.Host(&f.Host))
		}
	}
	for i := range f.NICs {
		n := &f.NICs[i]
		for _, c := range Checks {
			if c.NIC != nil {
				r.add(c.ID, n.Name, c.NIC(&f.Host, n))
			}
		}
	}
	return r
}

func (r *Report) add(id, nic string, found []Finding) {
	for _, f := range found {
		f.Check, f.Interface = id, nic
		// They quote names of programs and interfaces, which other users choose.
		f.Cause, f.Consequence, f.Command = printable(f.Cause), printable(f.Consequence), printable(f.Command)
		r.Findings = append(r.Findings, f)
	}
}

// printable is s as one line that is safe for a terminal.
func printable(s string) string { return termsafe.Printable(strings.ReplaceAll(s, "\n", "; ")) }

// Where is the finding's interface, safe for a terminal; empty for the host.
func (f *Finding) Where() string { return termsafe.Printable(f.Interface) }

// plain matches names that need no quotes in a shell.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=.][A-Za-z0-9_@%+=.-]*$`)

// word is the interface's name as a word of a shell command. The kernel allows almost any byte
// in a name.
func (n *NIC) word() string {
	if plain.MatchString(n.Name) {
		return n.Name
	}
	return "'" + strings.ReplaceAll(n.Name, "'", `'\''`) + "'"
}

// Impossible returns why VIs cannot run here: an error of the host, or, if every interface has
// an error, that of the first one. nil: they can.
func (r *Report) Impossible() *Finding {
	bad := map[string]*Finding{}
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Level == Error && bad[f.Interface] == nil {
			bad[f.Interface] = f
		}
	}
	if f := bad[""]; f != nil {
		return f
	}
	for i := range r.Facts.NICs {
		if bad[r.Facts.NICs[i].Name] == nil {
			return nil
		}
	}
	if len(r.Facts.NICs) > 0 {
		return bad[r.Facts.NICs[0].Name]
	}
	return nil
}

// Steps are the changes that --fix would make: those of warnings and errors.
func (r *Report) Steps() []undo.Step {
	var all []undo.Step
	for _, f := range r.Findings {
		if f.Level.Worse(Unknown) {
			all = append(all, f.Steps...)
		}
	}
	return all
}

func ok(cause string) []Finding { return []Finding{{Level: OK, Cause: cause}} }

func one(l Level, cause, consequence, command string, steps ...undo.Step) []Finding {
	return []Finding{{Level: l, Cause: cause, Consequence: consequence, Command: command, Steps: steps}}
}
