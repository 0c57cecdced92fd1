package xdpnic

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
)

// sharedQueue is a queue that processes share, as an agent sees it.
type sharedQueue struct {
	ns    *nstest.NS
	prog  *redirect
	arena *hugepages.Arena
	of    Handout
	fds   map[int][]int // duplicates of the processes' sockets, by partition
}

// openShared opens a queue for 1+guests processes, none of them joined.
func openShared(t testing.TB, ns *nstest.NS, cfg Config) *sharedQueue {
	t.Helper()
	if cfg.Ifindex, cfg.Require = ns.Index, true; cfg.Mode == ModeAuto {
		cfg.Mode = ModeGeneric
	}
	cfg, err := cfg.WithDefaults()
	nstest.Must(t, err)
	s := &sharedQueue{ns: ns, fds: make(map[int][]int)}
	pool := cfg.PoolBytes()
	s.arena, err = hugepages.New(hugepages.Config{Size: pool + 1<<20, Reserve: pool, Shared: true, Policy: hugepages.Avoid})
	nstest.Must(t, err)
	cfg.Memory = s.arena.Bytes()
	nstest.Must(t, ns.Do(func() (err error) {
		if s.prog, err = attachBySlot(ns.Index, cfg.Mode.Generic()); err != nil {
			return err
		}
		q, err := Open(cfg)
		if err != nil {
			return err
		}
		if s.of, err = q.Handout(); err != nil {
			return err
		}
		return s.handOut(q)
	}))
	t.Cleanup(func() {
		for _, all := range s.fds {
			fds.Close(all...)
		}
		s.prog.close()
		nstest.Check(t, s.arena.Close())
	})
	return s
}

// handOut keeps a duplicate of a queue's socket, and closes the queue.
func (s *sharedQueue) handOut(q *Queue) (err error) {
	part := q.cfg.Sharing.Partition
	if s.fds[part], err = dupAll(q.FDs()); err != nil {
		return err
	}
	for i, fd := range q.FDs() {
		if err := s.prog.xsks.Put(uint32(s.slot(part)+i), uint32(fd)); err != nil {
			return err
		}
	}
	return q.Close()
}

// slot is the first slot of a process.
func (s *sharedQueue) slot(part int) int { return part * (1 + len(s.of.Config.ExtraQueues)) }

func dupAll(of []int) (all []int, err error) {
	for _, fd := range of {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, dup)
	}
	return all, nil
}

// join lets one more process join.
func (s *sharedQueue) join(t testing.TB, part int) {
	t.Helper()
	nstest.Must(t, s.ns.Do(func() error {
		for _, all := range s.fds {
			q, err := Join(all[0], s.of, s.arena.Bytes(), part, all[1:]...)
			if err != nil {
				return err
			}
			return s.handOut(q)
		}
		return fmt.Errorf("no process is left")
	}))
}

// handout describes the queue of a partition.
func (s *sharedQueue) handout(part int) Handout {
	h := s.of
	h.Config.Sharing.Partition = part
	h.Config.Rings.RX, h.Config.Rings.TX = h.Config.rxRing(), powerOfTwo(h.Config.txChunks())
	h.Config.TxBudget = min(h.Config.TxBudget, h.Config.Rings.TX)
	return h
}

// adopt is what the process does.
func (s *sharedQueue) adopt(t testing.TB, part int) *end {
	t.Helper()
	all, err := dupAll(s.fds[part])
	nstest.Must(t, err)
	mem, err := unix.Mmap(s.arena.FD(), 0, len(s.arena.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	nstest.Must(t, err)
	q, err := Adopt(all[0], s.handout(part), mem, all[1:]...)
	nstest.Must(t, err)
	t.Cleanup(func() {
		q.Close()
		unix.Munmap(mem)
	})
	return &end{ns: s.ns, redirect: s.prog, q: q}
}

// reclaim is what the agent does after a process has ended.
func (s *sharedQueue) reclaim(t testing.TB, part int) (chunks int) {
	t.Helper()
	all := s.fds[part]
	for i := range all {
		nstest.Must(t, s.prog.xsks.Delete(uint32(s.slot(part)+i)))
	}
	chunks, err := Reclaim(all[0], s.handout(part), s.arena.Bytes(), all[1:]...)
	nstest.Must(t, err)
	fds.Close(all...)
	delete(s.fds, part)
	return chunks
}

// inPlace checks, with q idle and all processes but q's gone, that every chunk is where it belongs.
func inPlace(t testing.TB, q *Queue) {
	t.Helper()
	p, c := q.pool, q.pool.shared
	q.Reap()
	seen := make(map[uint64]bool)
	cons, prod := p.fill.cons.Load(), atomic.LoadUint32(c.fillProd)
	for at := cons; at != prod; at++ {
		e := c.fill[at&c.fillMask]
		i := p.chunk(e &^ (p.size - 1))
		if i >= p.rx || seen[i] || e&(p.size-1) != p.round(at) {
			t.Errorf("fill ring entry %d: %#x is chunk %d (seen: %v)", at, e, i, seen[i])
		}
		seen[i] = true
	}
	// The kernel keeps the chunks of frames that it has dropped, and uses them first.
	for i := range p.rx {
		if w := atomic.LoadUint64(&c.rx[i]); w&kindMask == rxLeased {
			t.Errorf("RX chunk %d is leased by process %d", i, w>>8&0xff)
		}
	}
	for i, w := range c.tx {
		if w&kindMask == txFlight {
			t.Errorf("TX chunk %d of process %d is in flight", i, c.layout.partitionOf(uint64(i)+p.rx))
		}
	}
	nstest.ErrorIf(t, prod-cons < uint32(p.rx)-8, "%d of %d chunks are on the fill ring", prod-cons, p.rx)
}

// toSlot sends one frame of n bytes to the socket in a slot of a shared queue.
func (e *end) toSlot(t testing.TB, to *end, slot, n int, seed byte) {
	t.Helper()
	addr, buf := e.mustAlloc(t)
	header(buf, to.ns, e.ns)
	fillPattern(buf[14:n], seed)
	buf[14] = byte(slot)
	nstest.FatalIf(t, !e.q.Send(addr, n, false), "Send refused")
	nstest.Must(t, e.q.Flush())
}

var sharing = Config{ChunkSize: 2048, RxChunks: 32, TxChunks: 16, Sharing: Sharing{Guests: 3, RxChunks: 16, RxRing: 32, TxChunks: 8}}

// Four processes on one queue send and receive, in any order, more frames than there are chunks. Completions come back
// whichever process takes them off the ring.
func TestSharing(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	s := openShared(t, na, sharing)
	b := openEnd(t, nb, pairOptions{generic: true})
	var ends []*end
	for part := range 4 {
		if part > 0 {
			s.join(t, part)
		}
		ends = append(ends, s.adopt(t, part))
		audit(t, ends[part].q)
	}
	for round := range 200 {
		for part, e := range ends {
			seed := byte(round*4 + part)
			e.pass(t, b, 64+part, seed)
			b.toSlot(t, e, part, 100+part, seed)
			data, _ := receive(t, e.q)
			data[14] = seed // the slot was there
			wantPattern(t, data, 100+part, seed)
			ends[round%4].q.Reap()
		}
	}
	for part, e := range ends {
		eventually(t, "completions", func() bool { e.q.Reap(); return e.q.TxFree() == int(e.q.pool.tx) })
		if s := stats(t, e.q); s.TxFrames != 200 || s.RxFrames != 200 || s.Filled != 200 || s.ChunkErrors != 0 {
			t.Errorf("process %d: %+v", part, s)
		}
		audit(t, e.q)
	}
	inPlace(t, ends[0].q)
}

// A process that ends with frames in its hands, on its rings and in flight leaves nothing behind. The others lose no
// frame meanwhile, the first process can be the one that ends, and another takes its place.
func TestSharingDeath(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	s := openShared(t, na, sharing)
	b := openEnd(t, nb, pairOptions{generic: true})
	for part := 1; part < 4; part++ {
		s.join(t, part)
	}
	stay := s.adopt(t, 3)
	for round := range 6 {
		for _, part := range []int{0, 1, 2} {
			e := s.adopt(t, part)
			for i := range 10 {
				b.toSlot(t, e, part, 64, byte(i))
				b.toSlot(t, stay, 3, 64, byte(i))
			}
			frames := make([]Frame, 64)
			eventually(t, "frames", func() bool { return e.q.rx.peek(10) == 10 })
			e.q.Receive(frames[:4])
			e.q.Recycle(frames[0].Addr) // not given back
			for range 3 {
				addr, buf, _ := e.q.Alloc()
				header(buf, nb, na)
				e.q.Send(addr, 64, false)
			}
			switch part {
			case 1:
				e.q.publish() // and not kicked
			case 2:
				nstest.Must(t, e.q.Flush())
			}
			e.q.Alloc()
			for i := range 10 {
				data, _ := receive(t, stay.q)
				data[14] = byte(i)
				wantPattern(t, data, 64, byte(i))
			}
			e.q.Close()
			if n := s.reclaim(t, part); n < 10 {
				t.Errorf("round %d: %d chunks of process %d came back", round, n, part)
			}
			eventually(t, "completions", func() bool {
				stay.q.Reap()
				return !slices.ContainsFunc(stay.q.pool.shared.tx, func(w uint64) bool { return w&kindMask == txFlight })
			})
			inPlace(t, stay.q)
			s.join(t, part)
		}
	}
}

// The kernel may still send a frame of a process that has ended when the next process of the partition ends, too. The chunk is
// not free before the frame has left.
func TestSharingOutlivingFrame(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	s := openShared(t, na, sharing)
	b := openEnd(t, nb, pairOptions{generic: true})
	s.join(t, 1)
	for round := range 3 {
		e := s.adopt(t, 0)
		e.q.Reap()
		if round == 0 {
			for i := range 5 {
				e.pass(t, b, 64, byte(i))
			}
			addr, _ := e.mustAlloc(t)
			e.q.pool.setInFlight(e.q.pool.chunk(addr), 4) // as if the last frame had not completed
		} else if free, want := e.q.TxFree(), sharing.TxChunks-1; free != want {
			t.Errorf("process %d has %d free TX chunks, want %d", round, free, want)
		}
		e.q.Close()
		s.reclaim(t, 0)
		s.join(t, 0)
	}
}

// A process may end between any two steps of giving a chunk back, taking one, or passing a completion on. What it has
// begun is completed once, or comes back.
func TestSharingSteps(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	s := openShared(t, na, sharing)
	b := openEnd(t, nb, pairOptions{generic: true})
	s.join(t, 1)
	s.join(t, 2)
	stay := s.adopt(t, 1)
	other := s.adopt(t, 2)
	// lease has the first process take one frame.
	lease := func(e *end) (p *pool, i uint64) {
		b.toSlot(t, e, 0, 64, 1)
		var frames [1]Frame
		eventually(t, "a frame", func() bool { return e.q.Receive(frames[:]) == 1 })
		return e.q.pool, e.q.pool.chunk(frames[0].Addr)
	}
	// sent has a process send n frames, whose completions are on the ring afterwards.
	sent := func(e *end, n uint32) {
		for range n {
			addr, buf := e.mustAlloc(t)
			header(buf, nb, na)
			e.q.Send(addr, 64, false)
		}
		e.q.publish()
		kick(e.q.fd)
		for range n {
			receive(t, b.q)
		}
		c := e.q.pool.shared
		eventually(t, "completions", func() bool { return atomic.LoadUint32(c.compProd)-atomic.LoadUint32(c.compCons) >= n })
	}
	// returning has the first process die while it returns a chunk, before or after the entry is on the ring. another has a live
	// process return one.
	returning := func(e *end, toRing bool) {
		p, i := lease(e)
		h := atomic.LoadUint32(p.shared.fillProd)
		atomic.StoreUint64(&p.shared.rx[i], rxWord(rxReturning, 0, h))
		if toRing {
			atomic.StoreUint64(&p.shared.fill[h&p.shared.fillMask], p.entry(i, h))
		}
	}
	another := func() {
		b.toSlot(t, stay, 1, 64, 1)
		receive(t, stay.q)
	}
	for name, die := range map[string]func(e *end){
		"marked, not taken": func(e *end) {
			b.toSlot(t, e, 0, 64, 1)
			eventually(t, "a frame", func() bool { return e.q.rx.peek(1) == 1 })
			e.q.pool.lease(e.q.pool.chunk(plainAddr(e.q.rx.desc[e.q.rx.tail&e.q.rx.mask].Addr)))
		},
		"returning, not on the ring": func(e *end) { returning(e, false) },
		"returning, another had the place": func(e *end) {
			returning(e, false)
			another()
		},
		"on the ring, index not advanced": func(e *end) { returning(e, true) },
		"on the ring, another advances the index": func(e *end) {
			returning(e, true)
			another()
		},
		"returned, a round ago": func(e *end) {
			p, i := lease(e)
			e.q.Recycle(p.addr(i))
			e.q.Refill()
			for range 2 * len(p.shared.fill) {
				another()
			}
		},
		"completion marked, not taken": func(e *end) {
			stay.mustSend(t, b, 64, 1)
			receive(t, b.q)
			c := e.q.pool.shared
			stay.q.Reap()
			sent(stay, 1)
			at := atomic.LoadUint32(c.compCons)
			w := &c.tx[e.q.pool.chunk(c.comp[at&c.compMask])-e.q.pool.rx]
			atomic.StoreUint64(w, uint64(at)<<8|txCompleted)
		},
		"own completions taken, chunks not free": func(e *end) {
			e.q.Reap()
			sent(e, 3)
			defer func() { _ = recover() }()
			e.q.pool.own = nil // Reap dies when it looks at the first chunk's owner
			e.q.Reap()
			t.Error("Reap went on")
		},
		"own completions marked, not taken": func(e *end) {
			e.q.Reap()
			sent(e, 3)
			c := e.q.pool.shared
			at := atomic.LoadUint32(c.compCons)
			for k := range uint32(3) {
				e.q.pool.setCompleted(c.comp[(at+k)&c.compMask], at+k)
			}
		},
		"completion taken, owner not told": func(e *end) {
			c := e.q.pool.shared
			sent(stay, 1)
			e.q.pool.passCompletion(atomic.LoadUint32(c.compCons))
			atomic.AddUint64(&c.parts[1].foreign, ^uint64(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := s.adopt(t, 0)
			die(e)
			e.q.Close()
			s.reclaim(t, 0)
			for i := range 100 { // the others go on
				stay.pass(t, b, 64, byte(i))
				b.toSlot(t, other, 2, 64, byte(i))
				receive(t, other.q)
			}
			for _, e := range []*end{stay, other} {
				eventually(t, "completions", func() bool {
					for range 300 {
						e.q.Reap()
					}
					return e.q.TxFree() == int(e.q.pool.tx)
				})
				audit(t, e.q)
			}
			inPlace(t, stay.q)
			s.join(t, 0)
			e = s.adopt(t, 0)
			e.q.Reap()
			nstest.ErrorIf(t, e.q.TxFree() != int(e.q.pool.tx), "the next process has %d of %d TX chunks", e.q.TxFree(), e.q.pool.tx)
			e.q.Close()
		})
	}
}

// A process can remove pages from the memory that its user's processes share. If they were huge pages, and there are no free
// ones, an access raises SIGBUS. The agent, which has the queues of all users, gets an error.
func TestSharingLostMemory(t *testing.T) {
	na, _ := nstest.Pair(t, nstest.Options{})
	s := openShared(t, na, sharing)
	s.join(t, 1)
	fd, err := unix.MemfdCreate("lost", unix.MFD_CLOEXEC)
	nstest.Must(t, err)
	defer unix.Close(fd)
	n := len(s.arena.Bytes())
	nstest.Must(t, unix.Ftruncate(fd, int64(n)))
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	nstest.Must(t, err)
	defer unix.Munmap(mem)
	nstest.Must(t, unix.Ftruncate(fd, 0)) // a file that is not sealed loses any page like this
	nstest.Must(t, na.Do(func() error {
		_, err := Join(s.fds[1][0], s.of, mem, 2)
		nstest.WantErr(t, "Join", err, errMemoryLost)
		return nil
	}))
	_, err = Reclaim(s.fds[1][0], s.handout(1), mem)
	nstest.WantErr(t, "Reclaim", err, errMemoryLost)
	s.join(t, 2)
	s.reclaim(t, 1)
}

// A chunk that its process has returned is not taken from it when it dies, although the ring has overwritten the entry: the
// kernel has kept the chunk, as that of a frame that it has dropped.
func TestSharingOverwrittenEntry(t *testing.T) {
	p := newPool(newGeometry(make([]byte, 16<<10), 0, 2048, 4, 4))
	c := &sharedPool{rx: make([]uint64, 4), fill: make([]uint64, 4), fillMask: 3, fillProd: new(uint32), lap: 2}
	p.shared = c
	steps := c.fillSteps()
	p.pushFill(3, &steps)
	c.me = 1
	for i := range uint64(3) {
		p.pushFill(i, &steps)
	}
	p.pushFill(0, &steps) // where 3 was
	c.me = reclaimer
	nstest.ErrorIf(t, c.fill[0] != p.entry(0, 4) || p.reclaimRX(3, 0, &steps),
		"fill ring %#x, words %#x: chunk 3 was returned", c.fill, c.rx)
	nstest.ErrorIf(t, p.reclaimRX(2, 1, &steps), "chunk 2 is on the ring")
}

// A process that overwrites the fill ring, so that there is never a place for a chunk, blocks neither the others nor the
// agent. Chunks that could not be returned are returned by the next call for which there is a place.
func TestSharingOverwrittenRing(t *testing.T) {
	const chunks = 8
	k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: chunks, TxChunks: chunks}, 0)
	q, p := k.q, k.q.pool
	c := &sharedPool{
		parts: make([]partitionWords, 1),
		rx:    make([]uint64, chunks), tx: make([]uint64, chunks), fill: make([]uint64, chunks), fillMask: chunks - 1, fillProd: new(uint32),
		lap: 32, // all indices are of one round, as if the producer index were set back all the time
	}
	p.shared = c
	const nowhere = 1 << 40
	setRing := func(entry uint64) {
		for i := range c.fill {
			atomic.StoreUint64(&c.fill[i], entry)
		}
	}
	onRing := func() (n int) {
		for _, e := range c.fill {
			if e&(p.size-1) == p.round(0) && e < nowhere {
				n++
			}
		}
		return n
	}
	// overwritten calls f, which finds no place.
	overwritten := func(what string, f func()) {
		t.Helper()
		setRing(nowhere | p.round(0))
		done := make(chan struct{})
		go func() { f(); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("%s does not end", what)
		}
		setRing(0)
		<-done
	}
	for i := range uint64(3) {
		p.lease(i)
		q.Recycle(p.addr(i))
	}
	overwritten("Refill", q.Refill)
	nstest.Equal(t, "chunks that wait for the next Refill", p.recycled, 3)
	q.Refill()
	nstest.Equal(t, "after it", p.recycled, 0)
	nstest.Equal(t, "chunks that it gave back", onRing(), 3)

	p.lease(3)
	p.lease(4)
	p.setInFlight(chunks, 0) // not taken by the kernel
	var n int
	var err error
	overwritten("Reclaim", func() { n, err = q.reclaimShared() })
	nstest.WantErr(t, "Reclaim", err, errOverwritten)
	nstest.Equal(t, "chunks for sending", n, 1)
	c.me = 0
	n, err = q.reclaimShared()
	nstest.WantErr(t, "the next Reclaim", err, nil)
	nstest.Equal(t, "its chunks", n, 5) // with those that Refill gave back, which are no longer on the ring
	nstest.Equal(t, "chunks that it gave back", onRing(), 5)
}

// A process sends no chunk of another one. A frame that is refused leaves no chunk in flight: the agent would wait for its
// completion if the process died. More completions than the ring has entries were not written by the kernel.
func TestSharingRefused(t *testing.T) {
	const chunks, mine = 8, 4
	k := newFakeKernel(t, Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: chunks, TxChunks: chunks}, 0)
	q, p := k.q, k.q.pool
	p.tx, p.nfree = mine, mine // the others are another process's
	c := &sharedPool{
		tx: make([]uint64, chunks), parts: make([]partitionWords, 1),
		comp: make([]uint64, chunks), compMask: chunks - 1, compProd: new(uint32), compCons: new(uint32),
	}
	p.shared = c
	for i := range p.free {
		p.free[i] = p.addr(p.txAt + uint64(i))
	}
	addr, _, _ := q.Alloc()
	behind := p.addr(p.total)
	for name, second := range map[string]Desc{
		"no bytes": {Addr: behind}, "another's chunk": {Addr: p.addr(p.txAt + mine), Len: 64}, "an RX chunk": {Addr: p.addr(0), Len: 64},
	} {
		if q.SendSegs([]Desc{{Addr: addr, Len: 64}, second}, false) || q.SendSegs([]Desc{{Addr: addr, Len: 13}}, false) {
			t.Errorf("%s: sent", name)
		}
		if q.InFlight(addr) || c.tx[p.chunk(addr)-p.rx] != txFree {
			t.Errorf("%s: in flight %v, word %#x", name, q.InFlight(addr), c.tx[p.chunk(addr)-p.rx])
		}
	}
	nstest.FatalIf(t, !q.SendSegs([]Desc{{Addr: addr, Len: 64}, {Addr: behind, Len: 64}}, false), "refused")
	c.comp[0] = addr
	*c.compProd = chunks + 1
	if n := q.Reap(); n != 0 || *c.compCons != 0 || !q.InFlight(addr) {
		t.Errorf("%d completions, the consumer is at %d", n, *c.compCons)
	}
	*c.compProd = 1
	if n := q.Reap(); n != 1 || *c.compCons != 1 || q.InFlight(addr) {
		t.Errorf("%d completions, the consumer is at %d", n, *c.compCons)
	}
}
