package vipl

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"viaxdp/hugepages"
	"viaxdp/kagent"
	"viaxdp/memreg"
	"viaxdp/secure"
	"viaxdp/xdpnic"
)

// DefaultSilence is the time without a word after which a peer is taken for
// dead. Idle connections exchange a probe four times in it.
const DefaultSilence = 1600 * time.Millisecond

// MinSilence is the least that such a time may be.
const MinSilence = 10 * time.Millisecond

// DefaultRxChunks is the number of chunks for frames that arrive: a message of
// MaxTransferSize at MTU 1500 is 737 frames, which an unreliable VI sends with
// nothing to hold them back, perhaps to a program that is asleep.
const DefaultRxChunks = 1024

// Option changes how OpenNic opens.
type Option func(*options)

type options struct {
	socket    string
	agent     kagent.Config
	silence   time.Duration
	noPacking bool
	bareData  bool
	noRest    bool
	psk       *PSK
}

// WithAgent names the socket of the daemon that is to be the Kernel Agent, or says
// "none". Without it the environment's VIA_AGENT does, or else what is there.
func WithAgent(socket string) Option { return func(o *options) { o.socket = socket } }

// WithQueue takes a certain queue of the interface; without it the first free.
func WithQueue(queue int) Option { return func(o *options) { o.agent.Queue = queue } }

// WithMode asks for a data path, the fastest known for the driver without it.
// With require, OpenNic fails rather than take a lesser one.
func WithMode(mode xdpnic.Mode, require bool) Option {
	return func(o *options) { o.agent.Mode, o.agent.RequireMode = mode, require }
}

// WithSteering says by which means a NIC with several queues is made to put our
// frames on the one that is opened; see kagent.Config.Steer. Without it: by rules,
// where the NIC has them.
func WithSteering(how kagent.Steering) Option {
	return func(o *options) { o.agent.Steer = how }
}

// WithArena sets the size in bytes of the arena, which AllocMem allocates from and
// which also holds the chunks of frames; kagent.DefaultArena without it.
func WithArena(bytes int) Option { return func(o *options) { o.agent.ArenaBytes = bytes } }

// WithHugepages sets how much hugepages matter; the best that there is without
// it.
func WithHugepages(p hugepages.Policy) Option { return func(o *options) { o.agent.Hugepages = p } }

// WithChunks sets the number of chunks for frames to receive and to send;
// DefaultRxChunks and xdpnic.DefaultChunks without it, or where one is 0.
func WithChunks(rx, tx int) Option {
	return func(o *options) { o.agent.RxChunks, o.agent.TxChunks = cmp.Or(rx, DefaultRxChunks), tx }
}

// WithSilence sets the time after which a silent peer is taken for dead, at
// least MinSilence; DefaultSilence without it. Both sides should agree. Time in
// which this side got no CPU to look does not count.
func WithSilence(d time.Duration) Option { return func(o *options) { o.silence = d } }

// WithMultiBuffer says whether frames may be longer than a chunk, where the MTU
// is. Without it they may, if kernel and driver can do it. Data of long frames that
// lies in memory of AllocMem is sent from where it is. The setting holds for all
// handles that share a queue.
func WithMultiBuffer(on bool) Option { return func(o *options) { o.agent.SingleBuffer = !on } }

// WithPacking says whether small messages of a stream may share a frame, and
// its frames a doorbell. Without it they may. WithPacking(false) is for a program
// that wants each message in a frame of its own.
func WithPacking(on bool) Option { return func(o *options) { o.noPacking = !on } }

// WithChecksum says whether this side wants the checksum of a frame to cover
// its data. Without it, it does. A connection of which neither side wants that has
// checksums of headers alone: data that is damaged on the way is then found by the
// link's own checksum or not at all.
func WithChecksum(on bool) Option { return func(o *options) { o.bareData = !on } }

// WithRest says whether polls may leave the RX ring alone for some microseconds
// while a stream comes in, which makes sending it cheaper. Without it they may. For
// handles that share a queue, the one that opens it decides.
func WithRest(on bool) Option { return func(o *options) { o.noRest = !on } }

// Provider is what a NIC handle stands on. OpenNic makes one over AF_XDP; tests
// make one in memory.
type Provider struct {
	Port    Port
	Agent   kagent.Agent
	Arena   *hugepages.Arena
	Info    kagent.Info   // for people; may be zero
	Silence time.Duration // 0: DefaultSilence

	NoPacking bool // see WithPacking
	BareData  bool // see WithChecksum
	NoRest    bool // see WithRest
	PSK       *PSK // see WithPSK

	// Rekey says after how many frames or bytes a connection with a pre-shared key
	// changes the key by which it seals; zero: the defaults.
	Rekey secure.Limits

	steady bool // time by the processor's counter, and the CPUs'; not in a testing/synctest bubble
}

// OpenNic is VipOpenNic: opens an interface, by its name in the calling
// thread's network namespace, as a VI NIC.
//
// An interface may be opened several times in one program: each handle has a
// queue of its own as long as there are free ones, and shares one, with its
// chunks and its silence, when there are none. VIs of handles that share a queue
// can be connected with each other, as those of one handle can.
//
// The Kernel Agent is the daemon (via-xdp agent) if one serves: at the socket that
// WithAgent or the environment's VIA_AGENT names, else at the default one, if it is
// in the same network namespace and serves the interface. The program then needs no
// privilege. Without one, or with the name "none", it is in the program's own
// process, which needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root). Info says
// which it is. Errors say what is missing and what helps; kagent.Unavailable picks
// out those which mean that this machine cannot run it.
func OpenNic(device string, opts ...Option) (*Nic, error) {
	o := options{agent: kagent.Config{Interface: device, Queue: kagent.AnyQueue, RxChunks: DefaultRxChunks}}
	for _, f := range opts {
		f(&o)
	}
	o.agent.ShareQueue = true // handles of this process, when no other queue is free
	agent, err := openAgent(&o)
	if err != nil {
		return nil, opError("OpenNic", nil, ErrResource, err)
	}
	n, err := Open(Provider{
		Port: agent.Queue(), Agent: agent, Arena: agent.Arena(), Info: agent.Info(), Silence: o.silence,
		NoPacking: o.noPacking, BareData: o.bareData, NoRest: o.noRest, PSK: o.psk, steady: true,
	})
	if err != nil {
		return nil, errors.Join(err, agent.Close())
	}
	publish(n)
	return n, nil
}

// Open makes a NIC handle over p, which then belongs to the handle. A Port that
// another open handle has is shared with that one. ErrInvalidParameter for a
// Silence that is less than MinSilence.
func Open(p Provider) (*Nic, error) {
	if p.Silence == 0 {
		p.Silence = DefaultSilence
	}
	if p.Silence < MinSilence {
		return nil, opError("OpenNic", nil, ErrInvalidParameter, fmt.Errorf("silence of %v: at least %v", p.Silence, MinSilence))
	}
	mem, err := memreg.NewTable(memreg.Limits{})
	if err != nil {
		return nil, opError("OpenNic", nil, ErrResource, err)
	}
	n := &Nic{
		port: sharePort(p), agent: p.Agent, arena: p.Arena, mem: mem, info: p.Info,
		noPacking: p.NoPacking, bareData: p.BareData, psk: p.PSK, rekey: p.Rekey,
		closed: make(chan struct{}),
		vis:    make(map[*VI]struct{}), cqs: make(map[*CQ]struct{}), blocks: make(map[*Region]struct{}),
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

// ports are the engines of this process by the queue that they drive, each with
// the number of handles that share it. The mutex is also held while an engine
// stops, so that no second one starts on its queue meanwhile.
var ports = struct {
	sync.Mutex
	open  map[Port]*sharedPort
	began uint32 // how many there were
}{open: make(map[Port]*sharedPort)}

type sharedPort struct {
	*port
	handles int
}

// clocks are the engine's time, and what the process has used of its CPUs. In a
// testing/synctest bubble, where time passes only while everybody waits, that is
// nothing.
func (p Provider) clocks() (now func() int64, used func() time.Duration) {
	if p.steady {
		return steadyClock(), cpuTime
	}
	return clock, func() time.Duration { return 0 }
}

// sharePort finds or starts the engine on p's queue.
func sharePort(p Provider) *port {
	ports.Lock()
	defer ports.Unlock()
	s := ports.open[p.Port]
	if s == nil {
		now, used := p.clocks()
		s = &sharedPort{port: newPort(p.Port, p.Arena.Bytes(), p.Info.NIC.ZeroCopy, p.Silence, now, used)}
		s.mu.Lock()
		s.noRest = p.NoRest
		s.mu.Unlock()
		ports.began++
		s.id = ports.began
		ports.open[p.Port] = s
	}
	s.handles++
	return s.port
}

// leave gives up one handle's part of the engine, and stops it after the last.
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
