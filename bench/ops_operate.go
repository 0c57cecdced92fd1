package bench

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/internal/testbed"
	"viaxdp/kagent"
	"viaxdp/vipl"
)

// timings gathers the times of operations, each in its histogram.
type timings struct {
	stop  *atomic.Bool
	clock stopwatch
	list  []*timing
}

type timing struct {
	name  string
	bytes int
	times *hdrhistogram.Histogram
}

func newTimings(stop *atomic.Bool) *timings { return &timings{stop: stop, clock: startStopwatch()} }

// of is where the times of an operation go.
func (t *timings) of(name string, bytes int) *timing {
	one := &timing{name, bytes, newHistogram()}
	t.list = append(t.list, one)
	return one
}

// add notes an operation that began at start and has just returned.
func (t *timing) add(start time.Time) error {
	return t.times.RecordValue(min(max(int64(time.Since(start)), 1), histogramMax))
}

// pairs does and undoes something so many times.
func (t *timings) pairs(count, bytes int, do, undo string, one func() (func() error, error)) error {
	doing, undoing := t.of(do, bytes), t.of(undo, bytes)
	for range count {
		if t.stop.Load() {
			return ErrStopped
		}
		start := time.Now()
		back, err := one()
		if err == nil {
			err = doing.add(start)
		}
		if err != nil {
			return err
		}
		start = time.Now()
		if err = back(); err == nil {
			err = undoing.add(start)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *timings) output() (out operated, err error) {
	out.Span = t.clock.span()
	for _, one := range t.list {
		b, err := encodeHistogram(one.times)
		if err != nil {
			return out, err
		}
		out.Operations = append(out.Operations, operation{one.name, one.bytes, b})
	}
	return out, nil
}

// operationCQ is the number of entries of a completion queue that is created.
const operationCQ = 256

// operate is a task: operations that need no peer, on a NIC of its own.
func operate(j *job, o Operations) (out operated, err error) {
	if err := o.validate(); err != nil {
		return out, err
	}
	nic, err := openForOperations(j.params, o)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	t := newTimings(j.stop)
	if len(o.Sizes) == 0 {
		if err := t.objects(nic, o.Count); err != nil {
			return out, err
		}
	}
	for _, bytes := range o.Sizes {
		if err := t.memory(nic, bytes, o.of(bytes)); err != nil {
			return out, err
		}
	}
	if out, err = t.output(); err != nil {
		return out, err
	}
	out.Facts = (&vi{nic: nic, params: j.params}).Hello().Facts
	out.Facts.CPUs, err = testbed.AllowedCPUs()
	return out, err
}

// openForOperations opens a NIC with an arena for the largest memory.
func openForOperations(p Params, o Operations) (*vipl.Nic, error) {
	if err := testbed.Require(testbed.Sockets, testbed.Programs); err != nil {
		return nil, err
	}
	largest := slices.Max(append(o.Sizes, 1))
	// A block is a power of two long and lies at a multiple of it, behind the
	// chunks.
	nic, err := openNic(p, vipl.WithArena(max(kagent.DefaultArena, 2*largest)))
	if kagent.Unavailable(err) {
		return nil, testbed.CannotRun(err)
	}
	return nic, err
}

// objects times tags, completion queues and VIs.
func (t *timings) objects(nic *vipl.Nic, count int) error {
	err := t.pairs(count, 0, OpCreatePtag, OpDestroyPtag, func() (func() error, error) {
		tag, err := nic.CreatePtag()
		if err != nil {
			return nil, err
		}
		return tag.Destroy, nil
	})
	if err != nil {
		return err
	}
	err = t.pairs(count, 0, OpCreateCQ, OpDestroyCQ, func() (func() error, error) {
		cq, err := nic.CreateCQ(operationCQ)
		if err != nil {
			return nil, err
		}
		return cq.Destroy, nil
	})
	if err != nil {
		return err
	}
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	attributes := vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag}
	return t.pairs(count, 0, OpCreateVI, OpDestroyVI, func() (func() error, error) {
		v, err := nic.CreateVi(attributes, nil, nil)
		if err != nil {
			return nil, err
		}
		return v.Destroy, nil
	})
}

// memory times memory of one size: the arena's, and the program's, whose pages
// have been touched before.
func (t *timings) memory(nic *vipl.Nic, bytes, count int) error {
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	attributes := vipl.MemAttributes{Ptag: tag}
	err = t.pairs(count, bytes, OpAllocMem, OpFreeMem, func() (func() error, error) {
		r, err := nic.AllocMem(bytes, attributes)
		if err != nil {
			return nil, err
		}
		return r.Deregister, nil
	})
	if err != nil {
		return err
	}
	own := make([]byte, bytes)
	for i := range own {
		own[i] = 1
	}
	return t.pairs(count, bytes, OpRegisterMem, OpDeregisterMem, func() (func() error, error) {
		r, err := nic.RegisterMem(own, attributes)
		if err != nil {
			return nil, err
		}
		return r.Deregister, nil
	})
}
