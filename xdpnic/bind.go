package xdpnic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// socketOptions sets the options that bound a kick and those of busy polling.
func (q *Queue) socketOptions() error {
	c := &q.cfg
	prefer := 0
	if c.BusyPoll.Prefer {
		prefer = 1
	}
	for _, o := range []struct {
		op            string
		option, value int // not set unless above 0
	}{
		{"SO_SNDBUF", unix.SO_SNDBUF, c.SendBuffer / 2}, // the kernel doubles the value (sock_setsockopt)
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, prefer},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, c.BusyPoll.Usec},
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, c.BusyPoll.Budget},
	} {
		if o.value <= 0 {
			continue
		}
		if err := unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, o.option, o.value); err != nil {
			return q.fail(o.op, err)
		}
	}
	q.info.TxBudget = 32 // TX_BATCH_SIZE
	if c.TxBudget > 32 {
		// Kernels before 6.17 refuse the option: the budget then stays 32.
		if unix.SetsockoptInt(q.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, c.TxBudget) == nil {
			q.info.TxBudget = c.TxBudget
		}
	}
	return nil
}

// bind tries the steps of the ladder that bind(2) decides.
func (q *Queue) bind(ctx context.Context) error {
	c := &q.cfg
	if c.Share != nil {
		// XDP_SHARED_UMEM excludes all other flags: the mode is that of the
		// socket that registered the UMEM.
		if err := q.bindOnce(ctx, unix.XDP_SHARED_UMEM, uint32(c.Share.fd)); err != nil {
			return err
		}
		q.info.Mode, q.info.Shared = c.Share.info.Mode, true
		q.info.Attempts = c.Share.info.Attempts
		return nil
	}
	steps := bindSteps(c.Mode, c.Require)
	if len(steps) == 0 {
		return q.fail("bind", errConfig)
	}
	for i, m := range steps {
		var err error
		if m == ModeZeroCopy {
			if err = q.refuseZeroCopy(); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				return err // it is not known whether the mode works
			}
		}
		if err == nil {
			err = q.bindOnce(ctx, bindFlags(m, c.MultiBuffer), 0)
		}
		q.info.Attempts = append(q.info.Attempts, Attempt{m, err})
		if err == nil {
			q.info.Mode = m
			return nil
		}
		// A busy queue is busy in any mode.
		if i == len(steps)-1 || errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}

// refuseZeroCopy returns an error if zero-copy would not work although bind(2)
// succeeds. The kernel checks whether the driver has zero-copy queues, not how
// the program is attached. With preferred busy polling the kernel leaves sending
// to the poll, which runs only the NAPI instance of the RX queue. Drivers that
// send from the TX queue's own instance, such as igb and virtio-net, then never
// send.
func (q *Queue) refuseZeroCopy() error {
	refuse := func(reason string) error {
		return &OpError{Op: "bind", Ifindex: q.cfg.Ifindex, Queue: q.cfg.QueueID, Err: unix.EOPNOTSUPP, Detail: reason}
	}
	if q.cfg.BusyPoll.Prefer && !q.cfg.BusyPoll.Trust {
		return refuse("preferred busy polling stalls sending if the driver has a separate NAPI instance for it: " +
			"unset BusyPoll.Prefer, or set BusyPoll.Trust for a driver that sends and receives from one instance")
	}
	if q.cfg.Unaligned && pageSize%q.cfg.ChunkSize != 0 {
		return refuse("the kernel skips chunks that cross pages which are not contiguous for the NIC: " +
			"use chunks of 2048 or 4096 bytes")
	}
	if len(q.cfg.ExtraQueues) > 0 {
		return refuse("a zero-copy socket does not receive from further queues: have the NIC put the frames on this one")
	}
	if q.cfg.shared() {
		return refuse("processes share queues in copy mode only: take a queue for each process")
	}
	if q.cfg.MultiBuffer && q.cfg.Rings.RX < q.cfg.RxChunks {
		// xsk_rcv_zc, net/xdp/xsk.c, checks for room entry by entry.
		return refuse("if the RX ring fills up in the middle of a frame, the kernel leaves the frame's beginning there and reuses " +
			"its chunks: make the RX ring hold all RX chunks")
	}
	link, err := linkOf(q.cfg.Ifindex)
	if errors.Is(err, unix.ENODEV) {
		return nil // bind(2) reports it
	}
	if err != nil { // for lack of a descriptor, perhaps: bind(2) would succeed
		return q.fail("link", err)
	}
	if x := link.Attrs().Xdp; x != nil && x.AttachMode == nl.XDP_ATTACHED_SKB {
		return refuse("the interface's XDP program is attached in generic mode: attach it in native mode")
	}
	return nil
}

// claimed explains why a driver that announces zero-copy refuses it.
func (q *Queue) claimed() string {
	if f, err := QueryFeatures(q.cfg.Ifindex); err != nil || !f.XDP.Has(FeatureZeroCopy) {
		return ""
	}
	return "the driver announces zero-copy and refuses it for this device; " +
		"virtio-net needs a device with iommu_platform=on (VIRTIO_F_ACCESS_PLATFORM) and queue_reset=on"
}

// chained explains why a socket for frames of several chunks may have been
// refused.
func (q *Queue) chained(flags uint16, err error) string {
	if errors.Is(err, unix.EINVAL) {
		if flags&unix.XDP_ZEROCOPY != 0 {
			if why := q.claimed(); why != "" {
				return why
			}
		}
		var u unix.Utsname
		if unix.Uname(&u) == nil && beforeSG(unix.ByteSliceToString(u.Release[:])) {
			return "kernels before 6.6 have no frames of several chunks (XDP_USE_SG)"
		}
		return "" // the cause is not XDP_USE_SG
	}
	f, ferr := QueryFeatures(q.cfg.Ifindex)
	if ferr == nil && flags&unix.XDP_ZEROCOPY != 0 && f.XDP.Has(FeatureZeroCopy) && f.ZCMaxSegs < 2 {
		return "the driver has no frames of several chunks in zero-copy mode"
	}
	return ""
}

// beforeSG reports whether a kernel release is older than XDP_USE_SG (6.6).
func beforeSG(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < 6 || major == 6 && minor < 6)
}

// bindOnce binds with the given flags. While the queue is busy it tries again,
// until ctx ends.
func (q *Queue) bindOnce(ctx context.Context, flags uint16, umemFD uint32) error {
	addr := &unix.SockaddrXDP{
		Flags: flags, Ifindex: uint32(q.cfg.Ifindex), QueueID: uint32(q.cfg.QueueID), SharedUmemFD: umemFD,
	}
	deadline := time.Now().Add(q.cfg.BusyTimeout)
	for {
		err := unix.Bind(q.fd, addr)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(deadline) {
			e := &OpError{Op: "bind", Ifindex: q.cfg.Ifindex, Queue: q.cfg.QueueID, Err: err}
			switch {
			case errors.Is(err, unix.EINVAL) && flags == unix.XDP_SHARED_UMEM:
				e.Detail = "use Queue.Share for a second socket on the same queue"
			case flags&unix.XDP_USE_SG != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
				e.Detail = q.chained(flags, err)
			case flags&unix.XDP_ZEROCOPY != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)):
				e.Detail = q.claimed()
			case errors.Is(err, unix.EBUSY):
				e.Detail = describeHolders(q.cfg.Ifindex, q.cfg.QueueID, os.Getpid())
			}
			return e
		}
		pause := time.NewTimer(5 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return q.fail("bind", fmt.Errorf("%w, while the queue was busy: %w", context.Cause(ctx), err))
		}
	}
}

// byPages reports whether the kernel builds an interface's frames from the UMEM's pages in
// copy mode instead of copying them, as it does for virtio-net (IFF_TX_SKB_NO_LINEAR;
// xsk_build_skb_zerocopy, net/xdp/xsk.c). It returns true for an interface that was removed.
func byPages(ifindex int) (bool, error) {
	l, err := linkOf(ifindex)
	if errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	return err == nil && l.Attrs().ParentDevBus == "virtio", err
}

// copiedSegs is the largest number of TX ring entries of a frame in copy mode. It is one
// less if frames are built from pages alone. The kernel drops a longer frame and never
// returns its chunks.
func copiedSegs(pages bool) int {
	if pages {
		return MaxSegs - 1
	}
	return MaxSegs
}

// describe fills in Info from the kernel's answers.
func (q *Queue) describe() (err error) {
	c, i := &q.cfg, &q.info
	if q.zc, err = zeroCopy(q.fd); err != nil {
		return q.fail("XDP_OPTIONS", err)
	}
	if i.SendBuffer, err = unix.GetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil {
		return q.fail("SO_SNDBUF", err)
	}
	i.Features, i.FeaturesErr = QueryFeatures(c.Ifindex)
	i.Ifindex, i.QueueID, i.ExtraQueues = c.Ifindex, c.QueueID, c.ExtraQueues
	i.ZeroCopy, i.NeedWakeup = q.zc, true
	i.MultiBuffer, i.Unaligned, i.Headroom = c.MultiBuffer, c.Unaligned, c.Headroom
	i.Sharing = c.Sharing
	i.PoolOffset, i.PoolBytes = c.PoolOffset, c.PoolBytes()
	i.Rings, i.Chunks, i.ChunkSize = c.Rings, c.rxChunks()+c.txChunks(), c.ChunkSize
	pages, err := byPages(c.Ifindex)
	if err != nil { // for lack of a descriptor, perhaps: the queue would keep the slower way for a reason that passes
		return q.fail("link", err)
	}
	i.TxCopied = !q.zc && !pages
	i.MaxSegs = 1
	if c.MultiBuffer {
		i.MaxSegs = copiedSegs(pages)
		if q.zc {
			// A kernel without this attribute has no driver that takes more.
			i.MaxSegs = max(int(i.Features.ZCMaxSegs), 1)
		}
		if c.MaxSegs > 0 {
			i.MaxSegs = min(i.MaxSegs, c.MaxSegs)
		}
	}
	return nil
}
