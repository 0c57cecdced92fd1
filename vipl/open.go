package vipl

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/memreg"
	"viaxdp/xdpnic"
)

// DefaultSilence is the time without a frame after which a peer is considered dead. Before that it is probed three times, a
// quarter of the time apart.
const DefaultSilence = 1600 * time.Millisecond

// MinSilence is the smallest silence time that may be set.
const MinSilence = 10 * time.Millisecond

// longestSilence, 73 years, replaces longer times: the engine adds twice the silence time to its clock.
const longestSilence = time.Duration(math.MaxInt64 / 4)

// DefaultRxChunks is the number of chunks for received frames. A message of MaxTransferSize at MTU 1500 is 737
// frames. An unreliable VI sends them without flow control, perhaps to a program that is asleep.
const DefaultRxChunks = 1024

// DefaultArena is the number of bytes that a NIC registers for its chunks and AllocMem.
const DefaultArena = kagent.DefaultArena

// Unavailable reports whether err of OpenNIC means that this machine or this user cannot run
// the provider: a privilege or a kernel option is missing. The error's text names it.
func Unavailable(err error) bool { return kagent.Unavailable(err) }

// Option is an option of OpenNIC.
type Option func(*options)

type options struct {
	socket         string
	agent          kagent.Config
	silence        time.Duration
	noPacking      bool
	congestion     CongestionControl
	noSegmentation bool
	noHeadroom     bool
	bareData       bool
	noPollPause    bool
	psk            *PSK
	steady         bool // time by the processor's counter, and the CPUs'; not in a testing/synctest bubble
}

// WithAgent names the socket of the daemon that is to be the Kernel Agent; "none" means no daemon. "auto" is for programs of
// root that share queues: the first one starts a daemon for its network namespace by the command via-xdp, which must be in
// PATH, and it ends with the last. Without this option the environment's VIA_AGENT names the daemon, and without that a
// daemon is used if one serves.
func WithAgent(socket string) Option { return func(o *options) { o.socket = socket } }

// WithQueue opens the given queue of the interface. The default is the first free queue.
func WithQueue(queue int) Option { return func(o *options) { o.agent.Queue = queue } }

// WithMode selects the data path. The default is the fastest known for the driver. With require, OpenNIC fails
// rather than fall back to a slower one.
func WithMode(mode xdpnic.Mode, require bool) Option {
	return func(o *options) { o.agent.Mode, o.agent.RequireMode = mode, require }
}

// Steering is a means to have a NIC with several queues put our frames on the queue that is
// opened.
type Steering uint8

const (
	SteerByRules = Steering(kagent.SteerByRules) // a rule of the flow classifier, for our port alone
	SteerByRSS   = Steering(kagent.SteerByRSS)   // where the NIC has no rules: its RSS indirection table, for all traffic of the host
	SteerOff     = Steering(kagent.SteerOff)     // nothing is changed
	SteerAll     = Steering(kagent.SteerAll)     // nothing is changed; the handle receives from all queues, see Info.NIC.ExtraQueues
)

// String is "rules", "rss", "off" or "all".
func (s Steering) String() string { return kagent.Steering(s).String() }

// ParseSteering is the inverse of String; its error names the choices.
func ParseSteering(s string) (Steering, error) {
	how, err := kagent.ParseSteering(s)
	return Steering(how), err
}

// WithSteering chooses how frames are steered to the queue that is opened; SteerByRules without it. If the NIC has no rules
// and at most four queues, which are free, SteerByRules is SteerAll. What is changed at the NIC is restored when the queue is
// closed. If the program is killed, a daemon restores it; without a daemon it stays (docs/on-your-nic.md has the commands).
func WithSteering(how Steering) Option {
	return func(o *options) { o.agent.Steer = kagent.Steering(how) }
}

// WithArena sets the size of the arena in bytes. AllocMem allocates from the arena, and it also holds the chunks of
// frames. The default is DefaultArena.
func WithArena(bytes int) Option { return func(o *options) { o.agent.ArenaBytes = bytes } }

// WithHugepages sets the policy for hugepages. The default is the best kind of pages that is available.
func WithHugepages(p hugepages.Policy) Option { return func(o *options) { o.agent.Hugepages = p } }

// WithChunks sets the numbers of chunks for received and for sent frames. The defaults, also for a number that is
// 0, are DefaultRxChunks and xdpnic.DefaultChunks.
func WithChunks(rx, tx int) Option {
	return func(o *options) { o.agent.RxChunks, o.agent.TxChunks = cmp.Or(rx, DefaultRxChunks), tx }
}

// WithSilence sets the time after which a silent peer is considered dead, at least MinSilence. The default is
// DefaultSilence. Both sides should use the same time. Time in which this side got no CPU to poll does not count.
func WithSilence(d time.Duration) Option { return func(o *options) { o.silence = d } }

// WithMultiBuffer sets whether frames may be longer than a chunk if the MTU allows it. By default they may, if
// kernel and driver support it. Data of long frames that lies in memory of AllocMem is sent by reference. The
// setting applies to all handles that share a queue.
func WithMultiBuffer(on bool) Option { return func(o *options) { o.agent.SingleBuffer = !on } }

// WithSegmentation sets whether frames of long messages may leave by one system call as a GSO packet, and whether peers
// may send such packets. A NIC divides a packet into its frames (UDP segmentation offload); virtual links pass it on whole.
// By default they may in generic mode. It needs frames of several chunks (WithMultiBuffer). The setting applies to all
// handles that share a queue.
func WithSegmentation(on bool) Option { return func(o *options) { o.noSegmentation = !on } }

// WithHeadroom sets whether GSO packets leave a veth with headroom, which spares a receiver in generic mode a copy of each. By
// default they do where the program has the privilege that OpenNIC without a daemon needs and Linux is 6.6 or newer; a program on
// what leaves the interface makes the headroom. The setting applies to all handles that share a queue.
func WithHeadroom(on bool) Option { return func(o *options) { o.noHeadroom = !on } }

// WithPacking sets whether small messages of a stream may share a frame, and its frames a doorbell. By default they
// may. WithPacking(false) sends each message in a frame of its own.
func WithPacking(on bool) Option { return func(o *options) { o.noPacking = !on } }

// WithChecksum sets whether this side requires that a frame's checksum covers its data. By default it does. If
// neither side requires it, checksums cover headers only: data that is damaged on the path is then detected by the
// link's own checksum or not at all.
func WithChecksum(on bool) Option { return func(o *options) { o.bareData = !on } }

// WithPollPause sets whether polls may leave the RX ring alone for some microseconds while a stream arrives, which
// reduces the sender's cost. By default they may. Among handles that share a queue, the handle that opens the queue
// decides.
func WithPollPause(on bool) Option { return func(o *options) { o.noPollPause = !on } }

// OpenNIC is VipOpenNic: it opens an interface as a VI NIC, by its name in the calling thread's network namespace.
//
// A program may open an interface several times. Each handle gets a queue of its own while there are free ones, and
// otherwise shares a queue, with its chunks and its silence time. VIs of handles that share a queue can be
// connected with each other, as those of one handle can. Through a daemon, programs of one user share a queue, too, each with
// chunks, VIs and progress of its own; memory of AllocMem of one that has joined another is not sent by reference.
//
// The Kernel Agent is the daemon (via-xdp agent), if one serves: at the socket that WithAgent or the
// environment's VIA_AGENT names, else at the default one, if it is in the same network namespace and serves the
// interface. The program then needs no privilege. Without a daemon, or with the name "none", the agent runs in
// the program's own process, which needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root). Info reports which one
// was used.
//
// Errors: ErrInvalidParameter for an option that is out of range, ErrResource for everything else. They name the cause and the
// remedy; Unavailable reports whether one means that this machine cannot run via-xdp. OpenNIC may be called concurrently.
func OpenNIC(device string, opts ...Option) (*NIC, error) {
	o := options{agent: kagent.Config{Interface: device, Queue: kagent.AnyQueue, RxChunks: DefaultRxChunks}}
	for _, f := range opts {
		f(&o)
	}
	o.agent.Sealed = o.psk != nil
	o.agent.ShareQueue = true // handles of this process, when no other queue is free
	agent, err := openAgent(&o)
	if err != nil {
		return nil, opError("OpenNIC", nil, ErrResource, err)
	}
	o.steady = true
	p := provider.Provider{Port: agent.Queue(), Agent: agent, Arena: agent.Arena(), UMEM: agent.UMEM(), Info: agent.Info()}
	if !o.noSegmentation && p.Info.Mode.Generic() {
		if err := p.OpenGSO(agent.Queue().FD(), !o.noHeadroom); err != nil {
			p.Info.Notes = append(p.Info.Notes, fmt.Sprintf("no segmentation offload: %v", err))
		}
	}
	n, err := open(p, o)
	if err != nil {
		if p.GSO != nil {
			err = errors.Join(err, p.GSO.Close())
		}
		return nil, errors.Join(err, agent.Close())
	}
	if err := publish(n); err != nil {
		n.info.Notes = append(slices.Clip(n.info.Notes), fmt.Sprintf("via-xdp res, stat, top and capture do not find this program: %v", err))
	}
	return n, nil
}

func init() {
	provider.Open = func(p provider.Provider, opts ...any) (any, error) {
		var o options
		for _, f := range opts {
			f.(Option)(&o)
		}
		return open(p, o)
	}
}

// open makes a NIC handle over p, which then belongs to the handle. A Port that another
// open handle has is shared with that one.
func open(p provider.Provider, o options) (*NIC, error) {
	if o.silence == 0 {
		o.silence = DefaultSilence
	}
	if o.silence < MinSilence {
		return nil, opError("OpenNIC", nil, ErrInvalidParameter, fmt.Errorf("silence of %v: at least %v", o.silence, MinSilence))
	}
	o.silence = min(o.silence, longestSilence)
	if !o.congestion.valid() {
		return nil, opError("OpenNIC", nil, ErrInvalidParameter, fmt.Errorf("%v", o.congestion))
	}
	mem, err := memreg.NewTable(memreg.Limits{})
	if err != nil {
		return nil, opError("OpenNIC", nil, ErrResource, err)
	}
	n := &NIC{
		port: sharePort(p, o), agent: p.Agent, arena: p.Arena, mem: mem, info: p.Info,
		noPacking: o.noPacking, congested: o.congestion, bareData: o.bareData, psk: o.psk, rekey: p.Rekey,
		closed: make(chan struct{}),
		vis:    make(map[*VI]struct{}), cqs: make(map[*CQ]struct{}), blocks: make(map[*Region]struct{}),
	}
	if v := p.Virtual; v != nil {
		v.Progress, v.Due = n.port.progressNow, n.port.poller.due.Load
	}
	n.errors.over = &n.shut
	n.common = Ptag{n, mem.CommonPtag()}
	n.ErrorCallback(nil)
	n.port.mu.Lock()
	n.port.nics = append(n.port.nics, n)
	n.port.mu.Unlock()
	n.agent.Watch(n.port.linkChanged)
	return n, nil
}

// ports are the engines of this process by the queue that they drive, each with the number of handles that share
// it. The mutex is also held while an engine stops, so that no second engine starts on its queue in the meantime.
var ports = struct {
	sync.Mutex
	open  map[provider.Port]*sharedPort
	began uint32 // number of engines started so far
}{open: make(map[provider.Port]*sharedPort)}

type sharedPort struct {
	*port
	handles int
}

// clocks returns the engine's clock and the process's CPU time. In a testing/synctest bubble, where time passes
// only while all goroutines wait, the CPU time is 0.
func (o *options) clocks() (now func() int64, used func() time.Duration) {
	if o.steady {
		return steadyClock(), cpuTime
	}
	return clock, func() time.Duration { return 0 }
}

// sharePort finds or starts the engine on p's queue.
func sharePort(p provider.Provider, o options) *port {
	ports.Lock()
	defer ports.Unlock()
	s := ports.open[p.Port]
	if s == nil {
		now, used := o.clocks()
		if p.Virtual != nil {
			now = p.Virtual.Now
		}
		umem := p.UMEM
		if umem == nil {
			umem = p.Arena.Bytes()
		}
		s = &sharedPort{port: newPort(p.Port, umem, p.Info.NIC.ZeroCopy, o.silence, now, used)}
		s.poller.shareCPU(o.steady)
		if p.Virtual == nil {
			s.poller.stopped.Go(s.background)
		}
		s.mu.Lock()
		if !o.noSegmentation {
			s.useGSO(p.GSO)
			p.GSO = nil
		}
		s.poller.pause.disable(o.noPollPause)
		s.mu.Unlock()
		ports.began++
		s.id = ports.began
		ports.open[p.Port] = s
	}
	s.handles++
	if p.GSO != nil { // the first handle's is used
		_ = p.GSO.Close()
	}
	return s.port
}

// leave drops one handle's share of the engine, and stops the engine after the last.
func (p *port) leave() {
	ports.Lock()
	defer ports.Unlock()
	s := ports.open[p.nic]
	if s.handles--; s.handles > 0 {
		return
	}
	delete(ports.open, p.nic)
	p.stop()
}
