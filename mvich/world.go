package mvich

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"viaxdp/vipl"
)

// World is a rank's part of a job. All methods may be called concurrently.
type World struct {
	nic      *vipl.NIC
	launcher Launcher
	rank     int
	set      settings
	tag      *vipl.Ptag
	cq       *vipl.CQ

	// longFrames: the NIC sends memory of its arena without a copy, if a VI
	// writes it; what a VI reads from there it copies.
	longFrames bool

	peers   []*peer // by rank
	tokens  map[string]*peer
	callers *vipl.Listener
	life    context.Context // ends when Finalize has begun
	end     context.CancelFunc
	tasks   sync.WaitGroup

	mu       sync.Mutex // guards what follows, and the peers
	changed  *sync.Cond // something is complete, or nobody waits in the completion queue
	asleep   bool       // somebody does
	others   int        // who wait for changed
	assisted bool       // a goroutine makes progress for control packets that wait
	spin     int        // polls in vain before a sleep, as far as they have paid lately
	sleeps   uint       // of which learn knows

	looking bool    // for those of whom nobody knows, now or soon
	probing []*Comm // in which somebody probes for a message of anybody
	iprobed *Comm   // in which somebody has done so without waiting, since the last look

	dead []*peer    // in the order in which this rank has learned of it
	read []readVbuf // to be posted again

	pool      pool
	regs      registrations
	scratches scratches
	dirty     []*peer // may have something to send

	completions [turn]vipl.Completion // of progress

	posted     []*Request // receives without a message, in order
	unexpected []*message // messages without a receive, in order
	numbered   map[uint32]*Request
	lastNumber uint32
	spare      []*Request
	messages   []*message // spare ones

	world       *Comm
	contexts    map[uint32]bool // of communicators other than the world's
	nextContext uint32          // every Size()th pair is this rank's to give; worldContext: none is left
	leaving     bool            // Finalize was called
	finalized   bool            // this rank has said good-bye
	gone        error           // why the NIC is of no use any more
	stats       Stats
}

// Stats counts what a world has done.
type Stats struct {
	Eager, R3, RGET, RPUT uint64 // messages sent, by protocol
	Fallbacks             uint64 // messages that had to change to R3
	Local                 uint64 // messages to itself
	Unexpected            uint64 // messages that came before their receive
	Noops                 uint64 // packets sent for nothing but credits
	Connections           uint64 // made
	Deaths                uint64 // ranks lost
	Registered, Reused    uint64 // buffers registered; found in the cache

	Vbufs, FreeVbufs int // in all, and unused; now
	Waiting          int // messages without a receive, now
	Posted           int // receives without a message, now
	Rendezvous       int // messages whose data is on the way, now
	RegisteredBytes  int // now
}

// Stats takes a snapshot.
func (w *World) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Registered, s.Reused = w.regs.misses, w.regs.hits
	s.Vbufs, s.FreeVbufs = w.pool.total, len(w.pool.free)
	s.Waiting, s.Posted, s.Rendezvous = len(w.unexpected), len(w.posted), len(w.numbered)
	s.RegisteredBytes = w.regs.bytes
	return s
}

// Init makes this process a rank of the job that l has started, over nic, which
// stays the caller's and is not closed by Finalize. It returns when all ranks
// have called it. Several worlds may use one NIC.
func Init(nic *vipl.NIC, l Launcher, opts ...Option) (*World, error) {
	set, err := makeSettings(opts)
	if err != nil {
		return nil, err
	}
	if l.Size() < 1 || l.Rank() < 0 || l.Rank() >= l.Size() {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrSettings, l.Rank(), l.Size())
	}
	w := &World{
		nic: nic, launcher: l, rank: l.Rank(), set: set,
		tokens: make(map[string]*peer), numbered: make(map[uint32]*Request), contexts: make(map[uint32]bool),
	}
	w.life, w.end = context.WithCancel(context.Background())
	w.changed = sync.NewCond(&w.mu)
	if err := w.open(); err != nil {
		return nil, errors.Join(err, w.release())
	}
	w.tasks.Go(w.listen)
	if err := w.meet(); err != nil {
		return nil, errors.Join(err, w.shut())
	}
	w.world = w.newComm(worldContext, identity(l.Size()), w.rank)
	w.nextContext = worldContext + contextStep*uint32(1+l.Rank())
	return w, nil
}

// open takes what the world needs of the NIC.
func (w *World) open() (err error) {
	if w.tag, err = w.nic.CreatePtag(); err != nil {
		return err
	}
	info := w.nic.Info()
	w.longFrames = info.NIC.MultiBuffer && info.MTU > info.NIC.ChunkSize
	w.pool = pool{nic: w.nic, tag: w.tag, size: w.set.vbufSize()}
	w.regs = registrations{nic: w.nic, tag: w.tag, limit: w.set.registered}
	if w.cq, err = w.nic.CreateCQ(1024); err != nil {
		return err
	}
	for rank := range w.launcher.Size() {
		w.peers = append(w.peers, &peer{rank: rank})
	}
	// Before anybody can call, so that the listener knows what to listen to.
	w.self().host = netAddress{addr: w.nic.Query().Address, token: rand.Text()}
	w.callers, err = w.nic.Listen(vipl.NetAddress{Discriminator: []byte(w.self().host.token)})
	return err
}

// release gives back what open took.
func (w *World) release() error {
	w.end()
	var errs []error
	if w.cq != nil {
		errs = append(errs, w.cq.Destroy())
	}
	errs = append(errs, w.regs.close(), w.pool.close())
	if w.tag != nil {
		errs = append(errs, w.tag.Destroy())
	}
	return errors.Join(errs...)
}

// self is this rank.
func (w *World) self() *peer { return w.peers[w.rank] }

// meet tells the others where this rank is, and learns where they are.
func (w *World) meet() error {
	own := w.self().host
	if !own.addr.IsValid() {
		return fmt.Errorf("%w: the interface has no address: give it one", ErrSettings)
	}
	where := here()
	if err := w.launcher.Put(recordKey(w.rank), w.record(own, where)); err != nil {
		return fmt.Errorf("mvich: publishing the address: %w", err)
	}
	if err := w.launcher.Fence(); err != nil {
		return fmt.Errorf("mvich: waiting for the other ranks: %w", err)
	}
	var others []place
	for rank, p := range w.peers {
		if rank == w.rank {
			continue
		}
		text, err := w.launcher.Get(recordKey(rank))
		if err != nil {
			return fmt.Errorf("mvich: the address of rank %d: %w", rank, err)
		}
		var at place
		if p.host, at, err = w.parseRecord(text); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		if err := w.checkToken(p); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		others = append(others, at)
	}
	w.set.settle(oversubscribed(where, others))
	w.spin = w.set.spin
	// The listener looks callers up in it; until then it rejects them, and they
	// call again.
	tokens := make(map[string]*peer)
	for rank, p := range w.peers {
		if rank != w.rank {
			tokens[p.host.token] = p
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens = tokens
	return nil
}

// checkToken says whether the token of p is its alone: by it p is known when it calls. Those
// of higher ranks are not known yet.
func (w *World) checkToken(p *peer) error {
	taken := p.host.token == "" || p.host.token == lookToken
	for _, q := range w.peers {
		taken = taken || q != p && q.host.token == p.host.token
	}
	if taken {
		return fmt.Errorf("%w: it published the token %q, which is not its alone", ErrSettings, p.host.token)
	}
	return nil
}

func recordKey(rank int) string { return fmt.Sprintf("mvich-%d", rank) }

// record is what a rank publishes: its address, its token, where it runs, and what
// must be the same on all.
func (w *World) record(a netAddress, at place) string {
	return strings.Join([]string{a.addr.String(), a.token, at.String(), w.terms()}, ",")
}

// terms are the settings on which ranks must agree.
func (w *World) terms() string {
	order := "little"
	if bigEndian() {
		order = "big"
	}
	return fmt.Sprintf("%s-endian/int%d/vbuf=%d/credits=%d", order, 8*wordSize, w.set.vbufSize(), w.set.credits)
}

func (w *World) parseRecord(s string) (a netAddress, at place, err error) {
	fields := strings.Split(s, ",")
	if len(fields) != 4 {
		return a, at, fmt.Errorf("%w: it published %q", ErrSettings, s)
	}
	addr, err := netip.ParseAddr(fields[0])
	if err == nil {
		at, err = parsePlace(fields[2])
	}
	if err != nil {
		return a, at, fmt.Errorf("%w: it published %q: %w", ErrSettings, s, err)
	}
	if fields[3] != w.terms() {
		return a, at, fmt.Errorf("%w: it has %q, this rank %q: use one kind of machine, and the same options",
			ErrSettings, fields[3], w.terms())
	}
	return netAddress{addr: addr, token: fields[1]}, at, nil
}

// Comm is the communicator of all ranks.
func (w *World) Comm() *Comm { return w.world }

// Rank is this rank's number in the world.
func (w *World) Rank() int { return w.rank }

// Size is the number of ranks of the world.
func (w *World) Size() int { return len(w.peers) }

// Abort ends the whole job through its launcher.
func (w *World) Abort(code int) error { return w.launcher.Abort(code) }
