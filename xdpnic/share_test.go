package xdpnic

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// Two sockets on one queue: each gets its own frames, completions come mixed,
// and one chunk pool serves both, also after the first is closed.
func TestSharedQueue(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true, cfg: Config{TxChunks: 8, RxChunks: 8}})
	second := nstest.In(t, a.ns, a.q.Share)
	defer second.Close()
	nstest.FatalIf(t, !second.Info().Shared || second.FD() == a.q.FD(), "info: %+v", second.Info())
	both := &end{ns: a.ns, redirect: a.redirect, q: second}
	for i := range 4 {
		a.pass(t, b, 64, byte(i))
		both.pass(t, b, 65, byte(i))
	}
	eventually(t, "completions", func() bool { second.Reap(); return a.q.TxFree() == 8 && second.TxFree() == 8 })
	audit(t, a.q, second)

	// Frames go to the socket in the map.
	b.pass(t, a, 64, 1)
	nstest.Must(t, a.register(second, 0))
	b.pass(t, both, 64, 2)

	// The first socket is closed with frames in its rings; its chunks come back.
	nstest.Must(t, a.register(a.q, 0))
	for i := range 8 {
		b.mustSend(t, a, 64, byte(i))
	}
	eventually(t, "frames", func() bool { return a.q.rx.peek(8) == 8 })
	addr, _, _ := a.q.Alloc()
	a.q.Send(addr, 64, false) // never flushed
	nstest.Must(t, a.q.Close())
	audit(t, second)
	nstest.FatalIf(t, second.TxFree() != 8, "%d of 8 chunks free", second.TxFree())
	nstest.Must(t, a.register(second, 0))
	for i := range 8 {
		b.pass(t, both, 64, byte(i))
	}
	both.pass(t, b, 64, 9)
	audit(t, second)
}

// Four queues of one interface in native mode, half of them on one UMEM; each
// works by itself.
func TestSeveralQueues(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 4})
	b := []*end{openEnd(t, nb, pairOptions{})}
	a := openSenders(t, na, 4)
	base, err := Config{Ifindex: 1, ChunkSize: 2048, RxChunks: 16, TxChunks: 16}.WithDefaults()
	nstest.Must(t, err)
	mem := mapped(t, 4*base.PoolBytes())
	for i := 1; i < 4; i++ {
		cfg := Config{QueueID: i, Memory: mem, ChunkSize: 2048, RxChunks: 16, TxChunks: 16}
		if i > 1 {
			cfg = Config{QueueID: i, Share: b[1].q, PoolOffset: (i - 1) * base.PoolBytes(), RxChunks: 16, TxChunks: 16}
		}
		b = append(b, b[0].beside(t, cfg))
	}
	// veth keeps the queue: what is sent on queue i comes in on queue i.
	for round := range 20 {
		for i := range 4 {
			a[i].pass(t, b[i], 100, byte(round*4+i))
		}
	}
	for i := range 4 {
		audit(t, a[i].q, b[i].q)
		nstest.Equal(t, fmt.Sprintf("frames that queue %d received", i), stats(t, b[i].q).RxFrames, 20)
	}
	// A second socket on the same queue takes Queue.Share, as the error explains.
	_, err = openIn(nb, Config{QueueID: 1, Share: b[1].q, PoolOffset: 3 * base.PoolBytes(), RxChunks: 16, TxChunks: 16})
	nstest.ErrorIf(t, !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "Queue.Share"),
		"second socket on the queue: %v", err)
	_, err = openIn(nb, Config{QueueID: 4})
	nstest.ErrorIf(t, !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "queue number"),
		"queue 4 of 4: %v", err)
}

// Another queue's pool must not lie in the table of a queue that processes share either.
func TestSharedMemoryBehindTable(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg, err := Config{
		Ifindex: ns.Index, Mode: ModeGeneric, ChunkSize: 2048, RxChunks: 16, TxChunks: 16,
		Sharing: Sharing{Guests: 1, RxChunks: 16, TxChunks: 16},
	}.WithDefaults()
	nstest.Must(t, err)
	pool := cfg.PoolBytes()
	cfg.Memory = mapped(t, 2*pool)
	first, err := openIn(ns, cfg)
	nstest.Must(t, err)
	defer first.Close()
	for offset, overlaps := range map[int]bool{pool - 4096: true, pool: false} {
		q, err := openIn(ns, Config{QueueID: 1, Share: first, PoolOffset: offset, RxChunks: 16, TxChunks: 16})
		if err == nil {
			nstest.Check(t, q.Close())
		}
		if (err != nil) != overlaps || overlaps && !strings.Contains(err.Error(), "overlaps that of another queue") {
			t.Errorf("a pool at %d behind one of %d bytes, whose chunks end at %d: %v", offset, pool, first.pool.limit(), err)
		}
	}
}

// Pools in one memory must not overlap: the second is refused until the first is closed. A queue is not handed
// out if its memory has another one.
func TestSharedMemory(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg, err := Config{Ifindex: ns.Index, Mode: ModeGeneric, ChunkSize: 2048, RxChunks: 16, TxChunks: 16}.WithDefaults()
	nstest.Must(t, err)
	pool := cfg.PoolBytes()
	mem := mapped(t, 4*pool)
	cfg.Memory, cfg.PoolOffset = mem, pool
	first, err := openIn(ns, cfg)
	nstest.Must(t, err)
	defer first.Close()
	nstest.WantErr(t, "alone", nstest.Err(first.Handout()), nil)
	at := func(offset int) (*Queue, error) {
		return openIn(ns, Config{QueueID: 1, Share: first, PoolOffset: offset, RxChunks: 16, TxChunks: 16})
	}
	for _, offset := range []int{pool, pool + 4096, pool - 4096, 2*pool - 4096} {
		if q, err := at(offset); err == nil {
			t.Errorf("a pool at %d beside one of %d bytes at %[2]d was taken", offset, pool)
			q.Close()
		} else if !strings.Contains(err.Error(), "overlaps that of another queue") {
			t.Errorf("a pool at %d: %v", offset, err)
		}
	}
	for range 2 { // closing gives the place back
		for _, offset := range []int{0, 2 * pool} {
			second, err := at(offset)
			nstest.FatalIf(t, err != nil, "a pool at %d: %v", offset, err)
			for _, q := range []*Queue{first, second} {
				nstest.ErrorIf(t, nstest.Err(q.Handout()) == nil, "a queue that shares its memory was handed out")
			}
			nstest.Check(t, second.Close())
		}
	}
	nstest.WantErr(t, "alone again", nstest.Err(first.Handout()), nil)
}
