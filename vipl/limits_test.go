package vipl_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"viaxdp/vipl"
)

// A NIC, a VI and a descriptor are polled, posted and completed without an
// allocation.
func TestNoAllocation(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		noAllocation(t, memoryConfig{}, level, 64, 3000)
		noAllocation(t, longFrames, level, 64, 9000, 200_000)
	})
}

func noAllocation(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, sizes ...int) {
	// AllocsPerRun counts all allocations of the process, on one processor. The measurement begins when other
	// goroutines are done: connection management has its last answer, and the runtime has allocated what the
	// background goroutines block on (timers, sudogs of that processor).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	n, va, vb := connected(t, c, level)
	most := slices.Max(sizes)
	xa, xb := newBox(t, n.a.NIC, 2, most), newBox(t, n.b.NIC, 2, most)
	mallocs := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.Mallocs
	}
	fatalIf(t, !comes(func() bool {
		before := mallocs()
		time.Sleep(5 * time.Millisecond)
		return mallocs() == before
	}), "other goroutines go on allocating")
	// Both ends are polled: one that is not acknowledges late.
	wait := func(done, other func() (*vipl.Descriptor, error)) {
		for {
			if _, err := done(); err == nil {
				return
			} else if err != vipl.ErrNotDone {
				t.Fatal(err)
			}
			other()
		}
	}
	for _, size := range sizes {
		if allocs := testing.AllocsPerRun(min(200, 1+1_000_000/size), func() {
			postRecv(t, va, xa, 0, size)
			postRecv(t, vb, xb, 0, size)
			postSend(t, va, xa, 1, size)
			wait(vb.RecvDone, va.RecvDone)
			postSend(t, vb, xb, 1, size)
			wait(va.RecvDone, vb.RecvDone)
			wait(va.SendDone, vb.RecvDone)
			wait(vb.SendDone, va.RecvDone)
		}); allocs != 0 {
			t.Errorf("%d bytes: %v allocations", size, allocs)
		}
	}
}

// A descriptor takes as many bytes of its region as it has segments: 32 and 16 for
// each, and it may end with the region.
func TestDescriptorAtTheEndOfItsRegion(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	tag := mustTag(t, n.a.NIC)
	whole, err := n.a.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	must(t, err)
	xb := newBox(t, n.b.NIC, 1, 64)
	for _, c := range []struct {
		bytes, segments int
		good            bool
	}{
		{31, 0, false}, {32, 0, true}, {32, 1, false}, {47, 1, false}, {48, 1, true}, {48, 2, false}, {63, 2, false},
		{64, 2, true}, {64, 3, false}, {79, 3, false}, {80, 3, true}, {48, 65535, false},
	} {
		home, err := n.a.RegisterMem(whole.Bytes()[:c.bytes], vipl.MemAttributes{Ptag: tag})
		must(t, err)
		d, err := whole.Descriptor(0, 3)
		must(t, err)
		d.SetSegments(whole.Segment(1024, 3), whole.Segment(1027, 4), whole.Segment(1031, 5))
		d.SegCount = uint16(c.segments)
		if d.Length = 0; c.segments <= 3 {
			d.Length = []uint32{0, 3, 7, 12}[c.segments]
		}
		if c.good {
			postRecv(t, vb, xb, 0, 64)
		}
		switch err := va.PostSend(d, home.Handle()); {
		case !c.good && !errors.Is(err, vipl.ErrInvalidParameter), c.good && err != nil:
			t.Errorf("%d segments in %d bytes: %v", c.segments, c.bytes, err)
		case c.good:
			sent(t, va, 0)
			equal(t, "length", received(t, vb, 0).Length, d.Length)
		}
		noError(t, home.Deregister())
	}
}

// A handle has no more VIs than the VI table of its interface, which the agent may have made small.
func TestMaxVIOfSmallTable(t *testing.T) {
	for table, want := range map[int]int{5: 4, 16384: 16383, 32768: 16384} {
		n := newMemoryNet(t, memoryConfig{maxVIs: table})
		equal(t, "MaxVI", n.a.Query().MaxVI, want)
	}
}
