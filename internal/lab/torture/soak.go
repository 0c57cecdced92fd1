package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// SoakConfig of a soak.
type SoakConfig struct {
	For   time.Duration // how long; 0: one act
	Act   time.Duration // of an act, after which everything is closed and counted; 0: 20 s
	Flows int           // VIs at each reliability level; 0: 4
	Seed  uint64        // of events and faults

	Silence time.Duration // of both sides' NICs; 0: vipl.DefaultSilence

	// What the workers connect over. 0: the seed chooses, for a soak of random events that is not hostile,
	// IP version 4 or 6 and an MTU of 1500 or 9000; for others 4 and 1500.
	IP, MTU int

	// Instead of random events, one of: the number of workers killed, one after the other; the number of
	// bytes moved through faults, by reliable VIs alone. For still ends it, unless it is 0.
	Kills int
	Bytes uint64

	// Direct moves Bytes over one veth pair, on which GSO packets stay whole, instead of through faults. The queues lose
	// this share of the frames and packets that arrive: Loss.
	Direct bool
	Loss   float64

	// Hostile seals the connections, and floods both sides with forged frames.
	Hostile bool
	// Plain leaves a hostile soak's connections unsealed. Frames are forged then as by an attacker off the path.
	Plain bool

	// Attack, unless empty, is one of Attacks, instead of random events: see Attack. Rate is
	// how many requests/s that of requests sends; 0: 10,000.
	Attack string
	Rate   int

	Agents bool // as in BedConfig

	Args   []string  // with which this program becomes a worker: Main
	Stderr io.Writer // the workers' standard error; nil: discarded

	Progress func(SoakReport) // called now and then with what there is; may be nil
}

// SoakReport is what a soak has done and found.
type SoakReport struct {
	Seed    uint64
	Silence time.Duration // of the NICs
	IP, MTU int           // as in SoakConfig
	Agent   bool          `json:",omitempty"` // interfaces were opened by agents
	Elapsed time.Duration
	Acts    int
	Event   string         // under way, in a progress report
	Events  map[string]int // by name, those that took place

	Connections, Breaks int
	Excused             int    // of Breaks, those of connections that should have stood while a process waited for a CPU too long
	Messages            uint64 // numbered ones, each checked; of killed workers, up to some time before
	Missing             uint64 // of unreliable flows
	Writes, Reads       uint64 // RDMA operations completed
	Resent              uint64 // frames
	InPackets           uint64 // frames that left in GSO packets
	Bytes               uint64 `json:",omitempty"` // of SoakConfig.Bytes, each checked
	Direct              bool   `json:",omitempty"` // as in SoakConfig
	Packets             uint64 // GSO packets that arrived whole
	Discarded           uint64 // frames and packets that the queues lost for SoakConfig.Loss

	Kills int `json:",omitempty"` // of SoakConfig.Kills
	// of Kills, those reported later than promised while a process waited for a CPU
	ToldLate                int           `json:",omitempty"`
	MedianTold, SlowestTold time.Duration `json:",omitempty"` // after a death, until every flow of the survivor knew
	Flood                   *Flood        `json:",omitempty"` // of a hostile soak
	Attack                  *AttackReport `json:",omitempty"` // of SoakConfig.Attack

	Audits    int    // times at which all was at rest, and every chunk in its place
	Accounted uint64 // frames sent that were received or dropped by name, while no worker was killed or cut off

	Emulator testbed.EmulatorCounters `json:"Way"`

	Violations []string // promises that were broken; a soak ends with the first act that has any
}

// ErrBroken: a promise was broken; the report says which.
var ErrBroken = errors.New("a promise was broken")

// growth is how much a worker's own memory may exceed that after its first act: the Go runtime keeps some
// memory, but never this much.
const growth = 64 << 20

// Soak runs flows of all levels between two workers through acts of random events: faults on the way,
// deaths and returns of workers, links that go down, addresses and MTUs that change, programs taken off.
// After each act everything is closed and counted. It ends without an error when the time is over or ctx
// ends, or with ErrBroken.
func Soak(ctx context.Context, cfg SoakConfig) (SoakReport, error) {
	if cfg.Attack != "" {
		return Attack(ctx, cfg)
	}
	if cfg.Act == 0 {
		cfg.Act = 20 * time.Second
	}
	if cfg.Flows == 0 {
		cfg.Flows = 4
	}
	if cfg.Silence == 0 {
		cfg.Silence = vipl.DefaultSilence
	}
	cfg.choose()
	report := SoakReport{Seed: cfg.Seed, Silence: cfg.Silence, IP: cfg.IP, MTU: cfg.MTU, Agent: cfg.Agents, Direct: cfg.Direct}
	bed, err := NewBed(BedConfig{MTU: cfg.MTU, IPv6: cfg.IP == 6, Direct: cfg.Direct, Agents: cfg.Agents, Args: cfg.Args, Stderr: cfg.Stderr})
	if err != nil {
		return report, err
	}
	report.Events = make(map[string]int)
	s := &soak{
		cfg: cfg, ctx: ctx, bed: bed, ledger: watch(bed), start: time.Now(), rng: rand.New(rand.NewPCG(cfg.Seed, 0)), report: report,
	}
	run := s.acts
	switch {
	case cfg.Kills > 0:
		run = s.kills
	case cfg.Bytes > 0:
		run = s.bytes
	}
	err = fail.Try(run)
	s.judgeFlood()
	s.note("")
	if len(s.report.Violations) > 0 {
		err = errors.Join(fmt.Errorf("%w (seed %d)", ErrBroken, cfg.Seed), err)
	}
	return s.report, errors.Join(err, bed.Close())
}

// choose sets what the workers connect over, where it is not set.
func (c *SoakConfig) choose() {
	ip, mtu := 4, 1500
	if c.Kills == 0 && c.Bytes == 0 && !c.Hostile {
		rng := rand.New(rand.NewPCG(c.Seed, 1)) // events have another one: they are the same on any bed
		ip, mtu = 4+2*rng.IntN(2), []int{1500, 9000}[rng.IntN(2)]
	}
	c.IP, c.MTU = cmp.Or(c.IP, ip), cmp.Or(c.MTU, mtu)
}

// soak is one in progress.
type soak struct {
	cfg    SoakConfig
	ctx    context.Context
	bed    *Bed
	start  time.Time
	rng    *rand.Rand
	report SoakReport

	hostile *testbed.Forger // while it floods,
	floods  time.Time       // since then, but for the time in which it spared us

	native [2]bool       // the mode in which a side opens its interface
	base   [2]*Resources // of the worker's process after its first whole act; nil: not known

	// Of the act.
	flows int        // that each side has
	known [2]*Report // the newest

	away time.Duration // for how long an event has taken something away that frames need, or seemed to

	ledger  *ledger
	audited [2]frameCounts // of the last audit
	cut     bool           // accounts do not go on from there
}

// mtu is the bed's.
func (s *soak) mtu() int { return cmp.Or(s.bed.cfg.MTU, 1500) }

func (s *soak) over() bool {
	endless := s.cfg.For == 0 && (s.cfg.Kills > 0 || s.cfg.Bytes > 0)
	return s.ctx.Err() != nil || !endless && time.Since(s.start) >= s.cfg.For
}

// acts goes through random events.
func (s *soak) acts() {
	for s.act(); len(s.report.Violations) == 0 && !s.over(); s.act() {
	}
}

// act is one life of the NICs.
func (s *soak) act() {
	s.open()
	if s.cfg.Hostile {
		s.flood()
		defer s.ebb()
	}
	// The random events mostly kill a worker or cut it off: these two take place in every act.
	for _, e := range []event{storm, quiet} {
		s.undergo(e)
	}
	for end := time.Now().Add(s.cfg.Act); time.Now().Before(end) && s.ctx.Err() == nil && len(s.report.Violations) == 0; {
		s.happen()
	}
	s.close()
}

// open opens both interfaces and starts all flows.
func (s *soak) open() {
	s.known = [2]*Report{}
	s.begin()
	onBoth(s.reopen)
	s.cut = false
	s.awaitTalk("start")
}

// reopen opens a side's interface and starts its flows.
func (s *soak) reopen(side int) {
	s.cut = true
	fail.If(s.bed.OpenSide(side, NICConfig{Silence: s.cfg.Silence, Sealed: s.cfg.Hostile && !s.cfg.Plain, Native: s.native[side], Loss: s.cfg.Loss}))
	s.startFlows(side)
}

// levels are those of a bed's flows. The flows of the first one may lose messages.
var levels = []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception}

// startFlows starts what one side runs.
func (s *soak) startFlows(side int) {
	s.flows = 0
	for i, level := range levels {
		cfg := FlowConfig{
			Flows: s.cfg.Flows, Name: level.String(), Level: level, MaxBytes: 20_000, Depth: 16,
			RDMA: i > 0, Again: true, Seed: s.rng.Uint64() >> 32,
		}
		switch {
		case s.cfg.Bytes > 0 && i == 0:
			continue
		case s.cfg.Bytes > 0:
			cfg.Flows, cfg.MaxBytes, cfg.Depth, cfg.Full, cfg.Again = max(1, s.cfg.Flows/2), bytesMessage, 8, true, false
		case i == 0:
			// Nothing else limits their rate: together some 70 Mbit/s.
			cfg.Gap = time.Duration(s.cfg.Flows) * 5 * time.Millisecond
		}
		fail.If(s.bed.StartSide(side, cfg))
		s.flows += cfg.Flows
	}
}

// talkWithin is how long all flows may take to be connected and to talk, unless the silence is very long.
const talkWithin = time.Minute

// awaitTalk waits until every flow talks, as it must after each event.
func (s *soak) awaitTalk(event string) {
	s.bed.setFaults(testbed.Faults{})
	from := fail.Must(s.bed.Reports())
	r, err := s.bed.Until(max(talkWithin, 20*s.cfg.Silence), func(r [2]*Report) bool {
		for side := range r {
			if r[side].Open < s.flows {
				return false
			}
			for i := range r[side].Flows {
				if r[side].Flows[i].Taken <= from[side].Flows[i].Taken {
					return false
				}
			}
		}
		return true
	})
	if errors.Is(err, errTooLate) {
		for side := range r {
			s.violated("after %s: side %d: %d of %d flows are connected, the last refusal: %s", event, side,
				r[side].Open, s.flows, r[side].LastRefusal)
		}
		err = nil
	}
	fail.If(err)
	s.record(r)
}

// record keeps the newest reports, and what they complain of.
func (s *soak) record(r [2]*Report) {
	for side := range r {
		s.known[side] = r[side]
		s.complain(side, r[side])
	}
}

// complain keeps what a report complains of.
func (s *soak) complain(side int, r *Report) {
	for _, v := range r.Violations {
		s.violated("side %d: %s", side, v)
	}
	for _, l := range r.Lacking {
		s.violated("side %d: %s", side, l)
	}
}

func (s *soak) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...) // reports repeat what they have said
	if v := s.report.Violations; len(v) < mostViolations && !slices.Contains(v, text) {
		s.report.Violations = append(v, text)
	}
}

// close ends an act in order, and looks for what was not given back.
func (s *soak) close() {
	s.ebb()
	s.note("close")
	s.rest()
	r := fail.Must(s.bed.both(doClose))
	s.record(r)
	for side, r := range s.known {
		s.add(side, r)
		now := r.Resources
		base := s.base[side]
		if base == nil {
			s.base[side] = &now
			continue
		}
		if now.Goroutines > base.Goroutines || now.Files > base.Files || now.Resident > base.Resident+growth {
			s.violated("side %d: after %d acts: %+v, after the first: %+v", side, s.report.Acts+1, now, *base)
		}
	}
	s.report.Acts++
}

// add takes a worker's report into the sum, when no later one will come.
func (s *soak) add(side int, r *Report) {
	s.complain(side, r)
	s.report.Connections += r.Connections
	s.report.Breaks += len(r.Breaks)
	s.report.Messages += r.Taken
	s.report.Missing += r.Missing
	s.report.Writes += r.Writes
	s.report.Reads += r.Reads
	s.report.Resent += r.Engine.Resent
	s.report.InPackets += r.Engine.GSOSentFrames
	s.report.Packets += r.Engine.GSOReceived
	s.report.Discarded += r.Discarded
}

// note reports progress.
func (s *soak) note(event string) {
	s.report.Event, s.report.Elapsed = event, time.Since(s.start)
	if s.bed != nil { // an attack has none
		s.report.Emulator = s.bed.crossed()
	}
	if s.cfg.Progress != nil {
		s.cfg.Progress(s.report)
	}
}

const (
	// toldAtMost is how soon after a death every survivor must learn of it, if the silence is at most
	// vipl.DefaultSilence.
	toldAtMost = 2 * time.Second
	// killsAtOnce is how many there are between two looks at what is left.
	killsAtOnce = 10
	// cleanWithin is how long the kernel may take to clean up after a process: there is no
	// bound for that, and its threads wait for a CPU as all do.
	cleanWithin = talkWithin
)

// toldWithin is how soon after a death every survivor must learn of it, on a machine without scheduling
// latency, which is added.
func (s *soak) toldWithin() time.Duration { return max(toldAtMost, s.cfg.Silence*5/4) }

// kills kills one worker or the other at random points of its work, again and again,
// and starts another in its place when every connection of the survivor has ended.
func (s *soak) kills() {
	s.open()
	var told []time.Duration
	for s.report.Kills < s.cfg.Kills && !s.over() && len(s.report.Violations) == 0 {
		d := s.killAndWait(s.rng.IntN(2))
		s.awaitTalk("kill")
		s.report.Kills++
		if s.report.Kills%killsAtOnce == 0 {
			s.undergo(quiet)
		}
		s.report.Events["kill"]++
		told = append(told, d)
		s.report.MedianTold, s.report.SlowestTold = percentile(told, 50), percentile(told, 100)
	}
	s.close()
}

// killAndWait is one death and return. It returns how long the last flow of the survivor
// took to know.
func (s *soak) killAndWait(side int) (told time.Duration) {
	s.note("kill")
	s.addLast(side)
	time.Sleep(s.below(20 * time.Millisecond)) // to any step of what flows do
	before := fail.Must(s.bed.Workers[1-side].Report())
	death := s.bed.lag.Mark()
	fail.If(s.bed.Kill(side))
	late := time.Duration(0) // of the survivor
	for all := false; !all && !death.Over(2*s.toldWithin()+late); time.Sleep(5 * time.Millisecond) {
		now := fail.Must(s.bed.Workers[1-side].Report())
		late = now.Late - before.Late
		told, all = ended(before, now, death.At)
	}
	switch {
	case told <= s.toldWithin():
	case told <= death.Allow(s.toldWithin())+late:
		s.report.ToldLate++
	default:
		s.violated("kill %d: side %d was told after %v, at a silence of %v", s.report.Kills+1, 1-side, told, s.cfg.Silence)
	}
	if err := s.clean(side, death, late); err != nil {
		s.violated("kill %d: side %d: %v", s.report.Kills+1, side, err)
	}
	s.revive(side)
	return told
}

// clean reports what a dead worker has left on its interface. late is the survivor's scheduling latency.
func (s *soak) clean(side int, death schedlat.Mark, late time.Duration) error {
	for ; ; time.Sleep(time.Millisecond) {
		err := s.bed.Link(side, func(l netlink.Link) error {
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				return fmt.Errorf("the XDP program %d is still attached", x.ProgId)
			}
			return nil
		})
		if err == nil || death.Over(cleanWithin+late) {
			return err
		}
	}
}

// bytesFaults are on the way all the time while bytes are moved.
var bytesFaults = testbed.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, ReorderBy: 100 * time.Microsecond}

// bytesMessage is the length of a message, and bytesBatch the number of bytes after
// which everything is closed and counted.
const (
	bytesMessage = 60_000
	bytesBatch   = 20 << 30
)

// bytes moves long messages in both directions through loss, duplication and reordering, or on a direct bed, until
// SoakConfig.Bytes have come and been checked.
func (s *soak) bytes() {
	before := s.bed.crossed()
	for s.report.Bytes < s.cfg.Bytes && !s.over() && len(s.report.Violations) == 0 {
		s.moveBytes(s.report.Bytes)
	}
	n := s.bed.crossed().Since(before)
	switch r := &s.report; {
	case s.cfg.Direct && (r.Packets == 0 || (r.Discarded == 0) != (s.cfg.Loss == 0)):
		fail.With("%d packets arrived whole, %d frames and packets were lost", r.Packets, r.Discarded)
	case s.cfg.Direct:
	case n.Lost == 0 || n.Duplicated == 0 || n.Reordered == 0:
		fail.With("the faults did not take place: %+v", n)
	}
	s.report.Events["bytes"]++
}

// moveBytes is one life of the NICs; before is how many bytes have come until then.
func (s *soak) moveBytes(before uint64) {
	s.open()
	f := bytesFaults
	f.Seed = s.rng.Uint64()
	s.bed.setFaults(f)
	for last := time.Now(); !s.over() && s.report.Bytes < min(s.cfg.Bytes, before+bytesBatch) && len(s.report.Violations) == 0; {
		s.pass(bytesLook)
		r := fail.Must(s.bed.Reports())
		s.record(r)
		now := before + r[0].Bytes + r[1].Bytes
		if now > s.report.Bytes {
			last = time.Now()
		}
		s.report.Bytes = now
		s.note("bytes")
		for side := range r {
			for _, b := range r[side].Breaks {
				s.violated("side %d: flow %s broke: %s", side, b.Flow, b.Cause)
			}
		}
		if time.Since(last) > talkWithin {
			s.violated("nothing has come for %v", talkWithin)
		}
	}
	s.bed.setFaults(testbed.Faults{})
	s.close()
	s.report.Bytes = before + s.known[0].Bytes + s.known[1].Bytes
}

// bytesLook is how often the workers are asked.
const bytesLook = 200 * time.Millisecond
