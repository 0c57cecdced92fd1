package mvich

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

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

	// longFrames: the NIC sends arena memory without a copy if a VI writes it. It copies what a VI reads.
	longFrames bool

	peers   []*peer // by rank
	tokens  map[string]*peer
	callers *vipl.Listener
	life    context.Context // ends when Finalize has begun
	end     context.CancelFunc
	tasks   sync.WaitGroup

	mu       sync.Mutex // guards what follows, and the peers
	changed  *sync.Cond // something is complete, or no call waits in the completion queue
	asleep   bool       // a call waits in the completion queue
	others   int        // calls that wait for changed
	assisted bool       // a goroutine makes progress for control packets that wait
	spin     int        // polls in vain before a sleep, as far as they have paid lately
	sleeps   uint       // that learn has counted

	checking bool    // checkLiveness runs, or will
	probing  []*Comm // of Probe calls for AnySource
	iprobed  *Comm   // of the last Iprobe for AnySource since the last check

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
	finalized   bool            // this rank has sent bye
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

// Init makes this process a rank of the job that l has started, over nic, which stays the caller's and is not closed
// by Finalize. It returns when all ranks have called it. Several worlds may use one NIC.
//
// If Init fails, l is not closed, and the process should end: its launcher then ends the ranks that wait for this one. Ranks
// of [Local] that wait fail at once.
func Init(nic *vipl.NIC, l Launcher, opts ...Option) (*World, error) {
	w, err := begin(nic, l, opts)
	switch local, ok := l.(localRank); {
	case !ok:
	case err == nil:
		local.began(w)
	default:
		local.End(fmt.Errorf("mvich: rank %d has not joined the job: %w", local.rank, err))
	}
	return w, err
}

func begin(nic *vipl.NIC, l Launcher, opts []Option) (*World, error) {
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
	group := make([]int, l.Size())
	for rank := range group {
		group[rank] = rank
	}
	w.world = w.newComm(worldContext, group, w.rank)
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

func (w *World) stopping() bool { return w.life.Err() != nil }

// pause waits for d, or the end of the world.
func (w *World) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.life.Done():
	}
}

// Comm is the communicator of all ranks.
func (w *World) Comm() *Comm { return w.world }

// Rank is this rank's number in the world.
func (w *World) Rank() int { return w.rank }

// Size is the number of ranks of the world.
func (w *World) Size() int { return len(w.peers) }

// Abort ends the whole job through its launcher. Print the cause before: a launcher may kill all ranks at once.
func (w *World) Abort(code int) error { return w.launcher.Abort(code) }

const (
	// farewell bounds how long the last packets may take after a death: ranks that live may not come to Finalize.
	farewell = 2 * time.Second
	// parting bounds how long the others may take to come to Finalize.
	parting = 10 * time.Second
)

// Finalize ends this rank's part of the job: it waits until all sends are done and all other ranks have called it,
// sends bye, waits for the others' for at most ten seconds, and releases what Init took of the NIC. Requests should
// be complete before; others end with an error. The NIC stays open. The error is ErrFinalized if Finalize was called
// before, even if that call has not returned.
//
// A RankError means that another rank has died before; everything was released all the same.
func (w *World) Finalize() error {
	w.mu.Lock()
	if w.leaving || w.finalized {
		w.mu.Unlock()
		return ErrFinalized
	}
	w.leaving = true
	w.await(w.quiet)
	w.mu.Unlock()
	err := w.world.Barrier()
	w.mu.Lock()
	w.finalized = true
	for _, p := range w.peers {
		w.queueControl(p, packet{header: header{kind: kindBye}})
	}
	w.pushDirty()
	over, end := w.alone, time.Now().Add(parting)
	if err != nil {
		over, end = w.quiet, time.Now().Add(farewell)
	}
	w.await(func() bool { return over() || time.Now().After(end) })
	w.mu.Unlock()
	return errors.Join(err, w.shut(), w.launcher.Close()) // which may wait for the others
}

// quiet reports whether nothing waits to be sent.
func (w *World) quiet() bool {
	for _, p := range w.peers {
		if !p.gone() && !p.idle() {
			return false
		}
	}
	return true
}

// alone reports whether all others have left. What this rank sent before its bye may be lost, and can be
// retransmitted only while the connection exists. A rank that has sent its own bye has received everything; one whose
// connection has ended otherwise never will.
func (w *World) alone() bool {
	for _, p := range w.peers {
		if p.state == joined {
			return false
		}
	}
	return w.quiet()
}

// shut ends connections and goroutines, and gives everything back but the launcher.
func (w *World) shut() error {
	w.mu.Lock()
	w.finalized = true
	w.end()
	w.endWaiting(ErrFinalized)
	for _, p := range w.peers {
		if p.rank != w.rank {
			w.leave(p)
		}
	}
	w.mu.Unlock()
	w.tasks.Wait() // links that have retired, and the listener
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.release()
}
