package vipl_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A replay is a run of two engines on a faulty wire that follows entirely from the seed: in a bubble, one
// goroutine posts, polls and dequeues for both sides; the engines have no background goroutine, and frames on
// the wire arrive while that goroutine sleeps.

const (
	replaySlots = 12    // operations of one direction that may be under way, and receives that are posted
	replayMost  = 12000 // bytes of one of them
	replaySteps = 12000 // of the program
)

// replayFaults are all that the wire can do.
func replayFaults(seed uint64) xdpnictest.Faults {
	return xdpnictest.Faults{
		Seed: seed, Loss: 0.02, Burst: 0.01, BurstLen: 8, Dup: 0.04, Corrupt: 0.03,
		Reorder: 0.05, Delay: 5 * time.Microsecond, Jitter: 60 * time.Microsecond,
	}
}

// replayQueue has fewer chunks and shorter rings than the connections would use.
var replayQueue = xdpnictest.Config{RxChunks: 16, RxRing: 8, TxChunks: 48, TxRing: 8}

// replayGSOQueue likewise, with enough for GSO packets.
var replayGSOQueue = xdpnictest.Config{MultiBuffer: true, ChunkSize: 4096, RxChunks: 72, RxRing: 8, TxChunks: 48, TxRing: 8}

// replayed is what came of it.
type replayed struct {
	log    []string // completions, in the order in which they were taken
	engine [2]vipl.Counters
	queue  [2]xdpnictest.Stats
	kinds  map[string]int // of operations that were done
	took   time.Duration  // by the bubble's clock
}

func (r *replayed) digest() uint64 {
	h := fnv.New64a()
	for _, l := range r.log {
		fmt.Fprintln(h, l)
	}
	fmt.Fprintf(h, "%+v %+v %v", r.engine, r.queue, r.took)
	return h.Sum64()
}

// replayOp is an operation under way.
type replayOp struct {
	kind      string
	k, length int // its number, which its bytes identify, and its slot
}

// replaySide is one direction of a pair: what side posts and its peer receives.
type replaySide struct {
	name      string
	vi, peer  *vipl.VI
	src, recv *box
	target    *box // at the peer, written by RDMA: a buffer a slot
	source    *box // at the peer, read by RDMA

	next    int         // number of the next operation
	taken   int         // receives that have completed
	acksDue int         // receives that operations under way will take
	sends   []*replayOp // not completed at the sender, in order
	comes   []*replayOp // not seen at the receiver, in order
}

type replay struct {
	t     *testing.T
	rng   *rand.Rand
	nics  [2]*memoryHost
	sides []*replaySide
	start time.Time
	replayed
}

// turn lets both engines process frames and timers. A port reads the clock after a number of empty polls.
func (r *replay) turn() {
	for range 300 {
		r.nics[0].Poll()
		r.nics[1].Poll()
	}
}

// pass lets time pass; what the wire does meanwhile is over when pass returns.
func (r *replay) pass(d time.Duration) {
	time.Sleep(d) // the bubble's clock: the wire's timers run meanwhile, and nothing else
	synctest.Wait()
}

// post begins an operation, unless there is no room for one.
func (r *replay) post(s *replaySide) {
	if r.t.Failed() {
		return
	}
	kind := []string{"send", "send", "write", "bare write", "read"}[r.rng.IntN(5)]
	length := r.rng.IntN(200)
	if r.rng.IntN(3) == 0 {
		length = r.rng.IntN(replayMost)
	}
	if s.onlyBare() && s.next-s.comes[0].k == replaySlots-1 {
		kind = "send" // else they would occupy all slots: only a receive shows that they have arrived
	}
	r.postThis(s, kind, length)
}

// onlyBare reports whether all that is under way to the receiver takes no receive.
func (s *replaySide) onlyBare() bool {
	return len(s.comes) > 0 && !slices.ContainsFunc(s.comes, func(o *replayOp) bool { return o.kind != "bare write" })
}

func (r *replay) postThis(s *replaySide, kind string, length int) {
	i := s.next % replaySlots
	busy := func(o *replayOp) bool { return o.k <= s.next-replaySlots }
	takes := kind == "send" || kind == "write" // a receive
	if slices.ContainsFunc(s.sends, busy) || slices.ContainsFunc(s.comes, busy) || takes && s.acksDue == replaySlots {
		return
	}
	o := &replayOp{kind: kind, k: s.next, length: length}
	s.next++
	d, seg := s.src.desc[i], segment(s.src, i, length)
	d.Control = 0
	switch kind {
	case "send":
		d.SetSegments(seg)
	case "write", "bare write":
		d.SetRDMAWrite(s.target.remote(i), seg)
	case "read":
		d.SetRDMARead(s.source.remote(0), seg)
		clear(s.src.buf[i][:length])
	}
	if kind != "read" {
		fillPattern(s.src.buf[i][:length], o.k)
		s.comes = append(s.comes, o)
	}
	if takes {
		d.SetImmediate(uint32(o.k))
		s.acksDue++
	}
	s.sends = append(s.sends, o)
	err := s.vi.PostSend(d, s.src.region.Handle())
	fatalIf(r.t, err != nil, "%s: post of %s %d: %v", s.name, kind, o.k, err)
}

// say logs a completion.
func (r *replay) say(s *replaySide, what string, o *replayOp, d *vipl.Descriptor) {
	r.log = append(r.log, fmt.Sprintf("%v %s %s %s %d of %d: %v",
		time.Since(r.start), s.name, what, o.kind, o.k, d.Length, d.Status()))
}

// take takes what has completed of one direction, and looks at it.
func (r *replay) take(s *replaySide) {
	for {
		d, err := s.vi.SendDone()
		if d == nil {
			break // or the queue is empty
		}
		if err != nil || len(s.sends) == 0 || d != s.src.desc[s.sends[0].k%replaySlots] {
			r.t.Fatalf("%s: %v was done, %v, want %+v", s.name, d.Status(), err, s.sends[0])
		}
		o := s.sends[0]
		s.sends = s.sends[1:]
		r.kinds[o.kind]++
		r.say(s, "has sent", o, d)
		fatalIf(r.t, o.kind == "read" && !bytes.Equal(s.src.buf[o.k%replaySlots][:o.length], s.source.buf[0][:o.length]),
			"%s: read %d of %d bytes brought others", s.name, o.k, o.length)
	}
	for {
		d, err := s.peer.RecvDone()
		if d == nil {
			return
		}
		i := s.taken % replaySlots
		fatalIf(r.t, err != nil || d != s.recv.desc[i], "%s: %v was received, %v", s.name, d, err)
		// Bare writes before it have arrived, too, and are looked at now.
		for len(s.comes) > 0 && s.comes[0].kind == "bare write" {
			checkPattern(r.t, s.target.buf[s.comes[0].k%replaySlots][:s.comes[0].length], s.comes[0].k)
			s.comes = s.comes[1:]
		}
		fatalIf(r.t, len(s.comes) == 0, "%s: %v was received, and nothing sent", s.name, d)
		o := s.comes[0]
		s.comes = s.comes[1:]
		if imm, _ := d.Immediate(); imm != uint32(o.k) || int(d.Length) != o.length {
			r.t.Fatalf("%s: number %d of %d bytes was received, want %d of %d", s.name, imm, d.Length, o.k, o.length)
		}
		got := s.recv.buf[i]
		if o.kind == "write" {
			got = s.target.buf[o.k%replaySlots]
		}
		checkPattern(r.t, got[:o.length], o.k)
		r.say(s, "has received", o, d)
		s.taken++
		s.acksDue--
		postRecv(r.t, s.peer, s.recv, i, replayMost)
	}
}

// idle reports whether everything that was posted has completed.
func (r *replay) idle() bool {
	return !slices.ContainsFunc(r.sides, func(s *replaySide) bool { return len(s.sends)+len(s.comes) > 0 })
}

// runReplay runs the program of a seed.
func runReplay(t *testing.T, seed uint64, c memoryConfig) *replayed {
	t.Helper()
	r := &replay{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	r.kinds = make(map[string]int)
	synctest.Test(t, func(t *testing.T) {
		r.t = t
		c.bubble, c.arena, c.silence = true, 16<<20, 10*time.Minute
		n := newMemoryNet(t, c)
		r.nics = [2]*memoryHost{n.a, n.b}
		for _, h := range r.nics {
			t.Cleanup(h.WithoutBackground()) // it must answer while its VIs are closed
		}
		for _, level := range slices.Concat(reliableLevels, reliableLevels) {
			va, vb := openPair(t, n.a.NIC, n.b.NIC, level)
			for i, v := range [2][2]*vipl.VI{{va, vb}, {vb, va}} {
				mine, peers := r.nics[i].NIC, r.nics[1-i].NIC
				s := &replaySide{
					name: fmt.Sprint(len(r.sides)), vi: v[0], peer: v[1],
					src: newBox(t, mine, replaySlots, replayMost), recv: newBox(t, peers, replaySlots, replayMost),
					target: openBoxOf(t, peers, replaySlots, replayMost), source: openBoxOf(t, peers, 1, replayMost),
				}
				for k := range replaySlots {
					postRecv(t, s.peer, s.recv, k, replayMost)
				}
				fillPattern(s.source.buf[0], 1000+i)
				r.sides = append(r.sides, s)
			}
		}
		r.pass(time.Millisecond)
		r.start = time.Now()
		n.wire.SetFaults(replayFaults(seed))
		for range replaySteps {
			s := r.sides[r.rng.IntN(len(r.sides))]
			switch r.rng.IntN(10) {
			case 0, 1, 2, 3, 4:
				r.post(s)
			case 5, 6:
				r.take(s)
			case 7:
				r.turn()
			case 8:
				r.pass(time.Duration(1 + r.rng.IntN(30_000)))
			default:
				r.pass(time.Duration(1 + r.rng.IntN(3_000)))
			}
		}
		last := len(r.sides)
		for end := time.Now().Add(5 * time.Minute); last > 0 || !r.idle(); r.pass(20 * time.Microsecond) {
			fatalIf(t, time.Now().After(end), "not everything has come: %+v, %+v", n.a.Counters(), n.b.Counters())
			for i, s := range r.sides {
				r.take(s)
				if next := s.next; i == last-1 { // a message behind the bare writes
					if r.postThis(s, "send", 1); s.next > next {
						last--
					}
				}
			}
			r.turn()
		}
		for _, s := range r.sides {
			q, err := s.vi.Query()
			errorIf(t, err != nil || q.State != vipl.Connected, "%s: %v, %v", s.name, q.State, err)
		}
		r.took = time.Since(r.start)
		for i, h := range r.nics {
			r.engine[i], r.queue[i] = h.Counters(), h.queue.Stats()
		}
		n.wire.SetFaults(xdpnictest.Faults{})
	})
	return &r.replayed
}

// everythingTookPlace looks whether the faults that were asked for were there, and
// whether there was something for them to harm.
func (r *replayed) everythingTookPlace(t *testing.T) {
	t.Helper()
	a, b := &r.queue[0], &r.queue[1]
	for name, count := range map[string]uint64{
		"loss": a.Lost + b.Lost, "bursts": a.LostBurst + b.LostBurst, "delay": a.Delayed + b.Delayed,
		"reordering": a.Reordered + b.Reordered, "duplication": a.Duplicated + b.Duplicated,
		"corruption": a.Corrupted + b.Corrupted, "full TX rings": a.TxFull + b.TxFull,
		"full RX rings": a.RxRingFull + b.RxRingFull, "messages that shared frames": r.engine[0].Packed + r.engine[1].Packed,
		"frames sent again": r.engine[0].Resent + r.engine[1].Resent,
		"sends":             uint64(r.kinds["send"]), "reads": uint64(r.kinds["read"]),
		"writes": uint64(r.kinds["write"]), "bare writes": uint64(r.kinds["bare write"]),
	} {
		errorIf(t, count == 0, "there were no %s", name)
	}
}

// Reliable VIs keep their promises on a wire with every fault and with rings that are too
// short, whatever the seed; VIA_SEED repeats a run, exactly.
func TestReplay(t *testing.T) {
	for name, c := range map[string]memoryConfig{
		"frames": {queue: replayQueue}, "packets": {queue: replayGSOQueue, gso: "whole"}, "divided": {queue: replayGSOQueue, gso: "divided"},
	} {
		t.Run(name, func(t *testing.T) { testReplay(t, c) })
	}
}

func testReplay(t *testing.T, c memoryConfig) {
	seed := testsize.Seed(t)
	one := runReplay(t, seed, c)
	if t.Failed() {
		return
	}
	t.Logf("digest %x: %d completions, %v, in %v", one.digest(), len(one.log), one.kinds, one.took)
	t.Logf("%+v", one.engine)
	t.Logf("%+v", one.queue)
	one.everythingTookPlace(t)
	errorIf(t, c.gso == "" && one.queue[0].RxNoFill+one.queue[1].RxNoFill == 0, "RX chunks were never missing")
	two := runReplay(t, seed, c)
	for i := range max(len(one.log), len(two.log)) {
		if i >= len(one.log) || i >= len(two.log) || one.log[i] != two.log[i] {
			t.Fatalf("completion %d of %d and %d is another:\n%q\n%q", i, len(one.log), len(two.log),
				one.log[i:min(i+3, len(one.log))], two.log[i:min(i+3, len(two.log))])
		}
	}
	errorIf(t, one.engine != two.engine, "the engines' counters differ:\n%+v\n%+v", one.engine, two.engine)
	errorIf(t, one.queue != two.queue, "the queues' counters differ:\n%+v\n%+v", one.queue, two.queue)
	errorIf(t, one.took != two.took, "the runs took %v and %v", one.took, two.took)
	if t.Failed() {
		return
	}
	three := runReplay(t, seed+1, c)
	errorIf(t, three.digest() == one.digest(), "another seed made the same run")
}
