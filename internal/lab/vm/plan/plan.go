// Package plan is what the host sends to the guest, and what the guest answers.
package plan

import (
	"fmt"
	"time"
)

// Where things are in the guest.
const (
	Path    = "/plan.json"      // the Plan
	Peer    = "/run/netns/peer" // namespace of the second NIC
	Results = "/dev/ttyS1"      // one Event a line, as JSON
	IPv4    = "10.77.0.%d"      // address of NIC 1 and 2, of a /24
	IPv6    = "fd77::%d"        // the same, of a /64
)

// NICs is how many a guest has.
const NICs = 2

// NIC is the name of NIC i, from 0.
func NIC(i int) string { return fmt.Sprintf("eth%d", i) }

// Plan is all that a guest does, in order.
type Plan struct {
	Modules []string // kernel modules to load: paths in the guest
	Queues  int      // queue pairs to turn on; 0: as they are
	Steps   []Step
}

// Step is one program.
type Step struct {
	Name string
	Argv []string
	Env  []string
	Peer bool // runs in the second NIC's namespace
	// Serve is a program that runs beside the steps after it and is stopped after
	// the last one. The next step starts when it has written something.
	Serve bool
	Limit time.Duration // after which it is killed
}

// Event is what became of a step, or, without a step, of the guest.
type Event struct {
	Step      string  `json:",omitempty"`
	Status    int     // exit status; -1: no such thing, Error says why
	Seconds   float64 // that it took
	Stdout    string  `json:",omitempty"`
	Stderr    string  `json:",omitempty"`
	Error     string  `json:",omitempty"`
	Diagnosis string  `json:",omitempty"` // of a step that has failed: what NICs and programs have counted
	Done      bool    `json:",omitempty"` // the last event
}
