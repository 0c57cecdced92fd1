package xdpnic

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// socketOptions sets what bounds a kick and what a busy-polling NIC wants.
func (q *Queue) socketOptions() error {
	c := &q.cfg
	set := func(op string, option, value int) error {
		if err := unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, option, value); err != nil {
			return q.fail(op, err)
		}
		return nil
	}
	if c.SendBuffer > 0 {
		// The kernel doubles the value (sock_setsockopt).
		if err := set("SO_SNDBUF", unix.SO_SNDBUF, c.SendBuffer/2); err != nil {
			return err
		}
	}
	q.info.TxBudget = 32 // TX_BATCH_SIZE
	if c.TxBudget > 32 {
		// Kernels before 6.17 do not know the option; no harm.
		if unix.SetsockoptInt(q.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, c.TxBudget) == nil {
			q.info.TxBudget = c.TxBudget
		}
	}
	if c.BusyPoll.Prefer {
		if err := set("SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1); err != nil {
			return err
		}
	}
	if c.BusyPoll.Usec > 0 {
		if err := set("SO_BUSY_POLL", unix.SO_BUSY_POLL, c.BusyPoll.Usec); err != nil {
			return err
		}
	}
	if c.BusyPoll.Budget > 0 {
		if err := set("SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, c.BusyPoll.Budget); err != nil {
			return err
		}
	}
	return nil
}

// bind goes down the ladder as far as bind(2) decides it.
func (q *Queue) bind() error {
	c := &q.cfg
	if c.Share != nil {
		// No other flag may stand beside XDP_SHARED_UMEM: the mode is that of
		// the socket whose UMEM it is.
		if err := q.bindOnce(unix.XDP_SHARED_UMEM, uint32(c.Share.fd)); err != nil {
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
			err = q.refuseZeroCopy()
		}
		if err == nil {
			err = q.bindOnce(bindFlags(m, c.MultiBuffer), 0)
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

// refuseZeroCopy says why zero-copy would not work although the bind succeeds.
// The kernel asks whether the driver has zero-copy queues, not how the program
// is attached; and with preferred busy polling it leaves it to the polling to
// send, which polls the NAPI instance of the RX queue alone: drivers that send
// from one of the TX queue, as igb and virtio-net do, then never send.
func (q *Queue) refuseZeroCopy() error {
	refuse := func(reason string) error {
		return &OpError{Op: "bind", Ifindex: q.cfg.Ifindex, Queue: q.cfg.QueueID, Err: unix.EOPNOTSUPP, Detail: reason}
	}
	if q.cfg.BusyPoll.Prefer && !q.cfg.BusyPoll.Trust {
		return refuse("preferred busy polling stalls sending where the driver has a NAPI instance of its own for it: " +
			"leave BusyPoll.Prefer out, or set BusyPoll.Trust for a driver that has one for both")
	}
	if q.cfg.Unaligned && pageSize%q.cfg.ChunkSize != 0 {
		return refuse("the kernel passes over chunks that cross pages which do not lie side by side for the NIC: " +
			"take chunks of 2048 or 4096 bytes")
	}
	if q.cfg.MultiBuffer && q.cfg.Rings.RX < q.cfg.RxChunks {
		// xsk_rcv_zc, net/xdp/xsk.c, which looks for room entry by entry.
		return refuse("where the RX ring is full in the middle of a frame, the kernel leaves the frame's beginning there and uses " +
			"its chunks again: take an RX ring that holds all RX chunks")
	}
	link, err := netlink.LinkByIndex(q.cfg.Ifindex)
	if err != nil {
		return nil // the bind knows better
	}
	if x := link.Attrs().Xdp; x != nil && x.AttachMode == nl.XDP_ATTACHED_SKB {
		return refuse("the interface's XDP program is attached in generic mode: attach it in native mode")
	}
	return nil
}

// claimed explains a driver that says that it has zero-copy and then refuses.
func (q *Queue) claimed() string {
	if f, err := QueryFeatures(q.cfg.Ifindex); err != nil || !f.XDP.Has(FeatureZeroCopy) {
		return ""
	}
	return "the driver says that it has zero-copy and refuses it for this device; " +
		"virtio-net wants iommu_platform=on (VIRTIO_F_ACCESS_PLATFORM) and queue_reset=on of its device"
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
		return "" // as without them
	}
	f, ferr := QueryFeatures(q.cfg.Ifindex)
	if ferr == nil && flags&unix.XDP_ZEROCOPY != 0 && f.XDP.Has(FeatureZeroCopy) && f.ZCMaxSegs < 2 {
		return "the driver has no frames of several chunks in zero-copy mode"
	}
	return ""
}

// beforeSG tells whether a kernel, by its release, is older than XDP_USE_SG.
func beforeSG(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major < 6 || major == 6 && minor < 6)
}

// bindOnce binds in one way, and again while the queue is busy.
func (q *Queue) bindOnce(flags uint16, umemFD uint32) error {
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
				e.Detail = "a second socket on the same queue is made by Queue.Share"
			case flags&unix.XDP_USE_SG != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
				e.Detail = q.chained(flags, err)
			case flags&unix.XDP_ZEROCOPY != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)):
				e.Detail = q.claimed()
			case errors.Is(err, unix.EBUSY):
				e.Detail = describeHolders(q.cfg.Ifindex, q.cfg.QueueID, os.Getpid())
			}
			return e
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// copiedSegs is the largest number of TX ring entries of a frame in copy mode. The
// kernel makes virtio-net's frames of pages alone (IFF_TX_SKB_NO_LINEAR;
// xsk_build_skb_zerocopy, net/xdp/xsk.c): one less. A longer frame is dropped, and its
// chunks never come back.
func copiedSegs(ifindex int) int {
	if l, err := netlink.LinkByIndex(ifindex); err == nil && l.Attrs().ParentDevBus == "virtio" {
		return MaxSegs - 1
	}
	return MaxSegs
}

// describe asks the kernel what was got.
func (q *Queue) describe() (err error) {
	c, i := &q.cfg, &q.info
	if q.zc, err = zeroCopy(q.fd); err != nil {
		return q.fail("XDP_OPTIONS", err)
	}
	if i.SendBuffer, err = unix.GetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil {
		return q.fail("SO_SNDBUF", err)
	}
	i.Features, i.FeaturesErr = QueryFeatures(c.Ifindex)
	i.Ifindex, i.QueueID = c.Ifindex, c.QueueID
	i.ZeroCopy, i.NeedWakeup = q.zc, true
	i.MultiBuffer, i.Unaligned, i.Headroom = c.MultiBuffer, c.Unaligned, c.Headroom
	i.PoolOffset, i.PoolBytes = c.PoolOffset, c.PoolBytes()
	i.Rings, i.Chunks, i.ChunkSize = c.Rings, c.RxChunks+c.TxChunks, c.ChunkSize
	q.sg = c.MultiBuffer
	q.maxSegs = 1
	if q.sg {
		q.maxSegs = copiedSegs(c.Ifindex)
		if q.zc {
			// A kernel that cannot say has no drivers that can.
			q.maxSegs = max(int(i.Features.ZCMaxSegs), 1)
		}
		if c.MaxSegs > 0 {
			q.maxSegs = min(q.maxSegs, c.MaxSegs)
		}
	}
	i.MaxSegs = q.maxSegs
	return nil
}
