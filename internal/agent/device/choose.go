package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/xdpnic"
)

// candidates returns the free queues to try for a mode. Caller holds d.mu.
func (d *device) candidates(want int, mode xdpnic.Mode) ([]int, error) {
	n := d.queues
	oneQueue := mode.Generic() && d.driver == "veth"
	if oneQueue {
		n = 1
	}
	if want >= 0 {
		switch l, opening := d.holderOf(want), cmp.Or(d.opening[want], d.wanted[want]); {
		case want >= d.inputs:
			return nil, fmt.Errorf("there is no queue %d: the interface has %d", want, d.inputs)
		case want >= d.queues:
			return nil, fmt.Errorf("queue %d receives and does not send: take one of the first %d, or give the interface more to send (ethtool -L)", want, d.queues)
		case want >= n:
			return nil, fmt.Errorf("in generic mode all frames of a veth come in on queue 0: take that, or native mode")
		case l != nil:
			return nil, fmt.Errorf("%w: queue %d is %v: end that program, or take any queue that is free", kagent.ErrQueueInUse, want, l)
		case opening != nil:
			return nil, fmt.Errorf("%w: %w: queue %d, for %v", kagent.ErrQueueInUse, errOpening, want, opening.who())
		}
		return []int{want}, nil
	}
	var free []int
	var held []string
	var reserved bool
	for q := range n {
		switch l, opening := d.holderOf(q), d.opening[q]; {
		case l != nil:
			held = append(held, fmt.Sprintf("queue %d is %v", q, l))
		case opening != nil:
			reserved = true
			held = append(held, fmt.Sprintf("queue %d is being opened for %v", q, opening.who()))
		default:
			free = append(free, q)
		}
	}
	if len(free) == 0 && reserved {
		return nil, fmt.Errorf("%w: %w: %s", kagent.ErrQueueInUse, errOpening, strings.Join(held, ", "))
	}
	if len(free) == 0 {
		remedy := "end one of them, or give the interface more queues (ethtool -L)"
		switch {
		case slices.ContainsFunc(d.sortedLeases(), func(l *lease) bool { return len(l.extra) > 0 }):
			remedy = "end that program, or have it take one queue (steering off), since it receives from all"
		case oneQueue && d.queues > 1:
			remedy = fmt.Sprintf("in generic mode a veth has this one; open all programs in native mode, which has all %d, or end it", d.queues)
		case n == 1:
			remedy = "end that program, or give the interface more queues"
		}
		return nil, fmt.Errorf("%w: %s: %s", kagent.ErrQueueInUse, strings.Join(held, ", "), remedy)
	}
	return free, nil
}

// allInUse returns the error if no mode has a free queue. Caller holds d.mu.
func (d *device) allInUse(want int, steps []xdpnic.Mode) (err error) {
	for _, m := range steps {
		if _, err = d.candidates(want, m); !errors.Is(err, kagent.ErrQueueInUse) {
			return nil
		}
	}
	return err
}

// opener is xdpnic.Open.
type opener func(xdpnic.Config) (*xdpnic.Queue, error)

// openQueue opens the first available queue. If none is available with frames of several chunks, and any
// refuses those, it tries without them. The error is a queue's objection to the mode, if there is one, rather
// than that another queue is busy.
func (l *lease) openQueue(ctx context.Context, nic xdpnic.Config, queues []int, open opener) error {
	errs := l.tryQueues(ctx, nic, queues, open)
	if nic.MultiBuffer && slices.ContainsFunc(errs, func(err error) bool {
		return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
	}) {
		// A kernel before 6.6 has no frames of several chunks, and a driver may have none in zero-copy mode
		// (xp_assign_dev, net/xdp/xsk_buff_pool.c).
		nic.MultiBuffer = false
		errs = l.tryQueues(ctx, nic, queues, open)
	}
	if len(errs) == 0 {
		return nil
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return !errors.Is(err, unix.EBUSY) }); i >= 0 {
		return errs[i]
	}
	return errs[len(errs)-1]
}

// tryQueues opens the first of queues that is available; otherwise it returns the error of each. If it has a choice it waits for
// each a little, in turns that last longer and longer, until nic.BusyTimeout has passed or ctx ends.
func (l *lease) tryQueues(ctx context.Context, nic xdpnic.Config, queues []int, open opener) (errs []error) {
	end := time.Now().Add(nic.BusyTimeout)
	if len(queues) > 1 {
		nic.BusyTimeout = -1
	}
	for {
		errs = nil
		waits := false // for the kernel, not for an owner that this process knows
		for _, q := range queues {
			var err error
			l.queueID, nic.QueueID = q, q
			if l.queue, err = open(nic); err == nil {
				return nil
			}
			errs = append(errs, err)
			if !errors.Is(err, unix.EBUSY) || errors.Is(err, errOpening) {
				end = time.Time{}
			}
			waits = waits || !errors.Is(err, kagent.ErrQueueInUse)
		}
		if len(queues) == 1 || !waits || ctx.Err() != nil || time.Now().After(end) {
			return errs
		}
		nic.BusyTimeout = min(max(10*time.Millisecond, 2*nic.BusyTimeout), 200*time.Millisecond)
	}
}
