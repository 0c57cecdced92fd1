package testbed

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// A Middle is a third namespace through which two others are joined, and a
// forwarder in it that does to the frames what [Faults] say.
//
//	  side 0                     middle                      side 1
//	+--------+     +--------------------------------+     +--------+
//	|  via0  |=====| side0 --> way 0 (faults) -->   |=====|  via0  |
//	|        |     |       <-- way 1 (faults) <--   |     |        |
//	+--------+     +--------------------------------+     +--------+
//
// The forwarder is two goroutines of this process on packet sockets, not the
// kernel's netem: many kernels are built without netem, and its choices cannot
// be repeated. What it costs is time: two more system calls for each frame.
//
// Frames that travel are those of a wire: the sides' offloads that leave
// checksums or segmentation to the hardware are turned off, so that kernel TCP
// meets the same faults, frame by frame, as we do.
//
// Methods may be called concurrently.
type Middle struct {
	ways [2]*way
	ns   netns.NsHandle
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenModeNone = 1

// middleNames are its interfaces, inside its namespace.
var middleNames = [2]string{"side0", "side1"}

// newMiddle joins two namespaces through a new one.
func newMiddle(sides [2]netns.NsHandle, p Pair) (_ *Middle, ends [2]End, err error) {
	if err := p.check(); err != nil {
		return nil, ends, err
	}
	ns, err := newNamespace()
	if err != nil {
		return nil, ends, explain(err, "network namespace")
	}
	m := &Middle{ns: ns}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	var indices [2]int
	for i := range sides {
		if ends[i], indices[i], err = m.link(sides[i], p, i, nil); err != nil {
			return nil, ends, fmt.Errorf("interface %s of side %d: %w", p.Names[i], i, err)
		}
	}
	if err = m.settle(sides, p.Names); err != nil {
		return nil, ends, err
	}
	err = thread.In(int(ns), func() error {
		for i := range m.ways {
			w, err := openWay(indices[i], indices[1-i])
			if err != nil {
				return err
			}
			m.ways[i] = w
			thread.Go(w.run)
		}
		return nil
	})
	if err != nil {
		return nil, ends, err
	}
	return m, ends, nil
}

// replug makes the pair between one side and the middle anew, where it was removed.
func (m *Middle) replug(sides [2]netns.NsHandle, p Pair, i int, mac net.HardwareAddr) (End, error) {
	if err := p.check(); err != nil {
		return End{}, err
	}
	end, index, err := m.link(sides[i], p, i, mac)
	if err == nil {
		err = m.settle(sides, p.Names)
	}
	if err == nil {
		err = thread.In(int(m.ns), func() error { return errors.Join(m.ways[i].readFrom(index), m.ways[1-i].writeTo(index)) })
	}
	return end, err
}

// link makes the pair between one side and the middle; mac is the side's hardware address, if any.
func (m *Middle) link(side netns.NsHandle, p Pair, i int, mac net.HardwareAddr) (end End, index int, err error) {
	outer, err := netlink.NewHandleAt(side, unix.NETLINK_ROUTE)
	if err != nil {
		return end, 0, fmt.Errorf("netlink: %w", err)
	}
	defer outer.Close()
	inner, err := netlink.NewHandleAt(m.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return end, 0, fmt.Errorf("netlink in the middle: %w", err)
	}
	defer inner.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.Names[i], p.MTU, mac
	attrs.NumTxQueues, attrs.NumRxQueues = p.Queues, p.Queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = middleNames[i], netlink.NsFd(m.ns), uint32(p.MTU)
	if err := outer.LinkAdd(veth); err != nil {
		return end, 0, explain(err, "veth pair")
	}
	l, err := inner.LinkByName(middleNames[i])
	if err != nil {
		return end, 0, err
	}
	// The middle's kernel says nothing of its own, and adds no address.
	err = inner.LinkSetIP6AddrGenMode(l, addrGenModeNone)
	if errors.Is(err, unix.EAFNOSUPPORT) { // no IPv6: the MTU is too small, or the kernel has none
		err = nil
	}
	if err = errors.Join(err, inner.LinkSetUp(l)); err != nil {
		return end, 0, fmt.Errorf("middle: %w", err)
	}
	if err := thread.In(int(side), func() error { return plainFrames(p.Names[i]) }); err != nil {
		return end, 0, err
	}
	end, err = bringUp(outer, p.Names[i], nth(p.Net4, i+1), nth(p.Net6, i+1))
	return end, l.Attrs().Index, err
}

// settleWithin is how long the kernel may take to have all interfaces ready.
const settleWithin = 20 * time.Second

// settle waits until all interfaces are operational: the kernel brings queues
// into being some time after the other end came up, and until then it drops
// frames without a word.
func (m *Middle) settle(sides [2]netns.NsHandle, names [2]string) error {
	var last error
	for end := time.Now().Add(settleWithin); time.Now().Before(end); time.Sleep(time.Millisecond) {
		last = m.eachLink(operational)
		for i := range sides {
			last = errors.Join(last, onLink(sides[i], names[i], operational))
		}
		if last == nil {
			return nil
		}
	}
	return last
}

func operational(_ *netlink.Handle, l netlink.Link) error {
	if state := l.Attrs().OperState; state != netlink.OperUp {
		return fmt.Errorf("interface %s is %v still", l.Attrs().Name, state)
	}
	return nil
}

// plainFrames makes the kernel finish frames before they reach the interface,
// which lies in the calling thread's namespace.
func plainFrames(name string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("ethtool: %w", err)
	}
	defer e.Close()
	err = e.Change(name, map[string]bool{
		"tx-checksum-ip-generic": false, "tx-checksum-sctp": false,
		"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false, "tx-udp-segmentation": false,
	})
	if err != nil {
		return fmt.Errorf("turn offloads off: %w", err)
	}
	return nil
}

// SetFaults sets what happens to the frames that a side sends, from the next
// one on, and begins their choices anew.
func (m *Middle) SetFaults(side int, f Faults) { m.ways[side].setFaults(f) }

// SetBoth sets the faults of both ways; those of side 1 have a seed of their
// own that follows from f's.
func (m *Middle) SetBoth(f Faults) {
	m.SetFaults(0, f)
	f.Seed ^= 0x9e3779b97f4a7c15
	m.SetFaults(1, f)
}

// Prefer puts the forwarder of what each side sends on a CPU, as a rule the side's,
// and makes it run there before any other program, as a wire does. Without it
// programs that never sleep keep it waiting for its turn, wherever the scheduler has
// placed it, and what is measured is the scheduler. It needs CAP_SYS_NICE. Call it at
// most once.
func (m *Middle) Prefer(cpus [2]int) error {
	for i, w := range m.ways {
		var set unix.CPUSet
		set.Set(cpus[i])
		thread := <-w.thread
		err := unix.SchedSetaffinity(thread, &set)
		if err == nil {
			err = unix.SchedSetAttr(thread, &unix.SchedAttr{
				Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1,
			}, 0)
		}
		if err != nil {
			return explain(err, "CPU and real-time priority of the forwarder")
		}
	}
	return nil
}

// Dropped is how many of the frames handed to a side its link had no room for, since it was made.
func (m *Middle) Dropped(side int) (n uint64, err error) {
	err = onLink(m.ns, middleNames[side], func(_ *netlink.Handle, l netlink.Link) error {
		n = l.Attrs().Statistics.TxDropped
		return nil
	})
	return n, err
}

// Counters are those of the frames that a side has sent.
func (m *Middle) Counters(side int) WayCounters { return m.ways[side].counters() }

// Watch has frames for which is says so counted apart from now on, by the side that has sent them. is looks at each
// frame before anything is done to it, for both sides at the same time, and does not keep it.
func (m *Middle) Watch(is func(side int, frame []byte) bool) {
	for side, w := range m.ways {
		w.mu.Lock()
		w.watch = func(frame []byte) bool { return is(side, frame) }
		w.mu.Unlock()
	}
}

// Watched are the counters of the frames of a side for which Watch's is said so, but for Overrun, of which nobody
// has seen any, and Waiting.
func (m *Middle) Watched(side int) WayCounters { return m.ways[side].watched() }

// SetMTU changes the largest frame that the middle takes and gives; the sides'
// interfaces are not touched.
func (m *Middle) SetMTU(mtu int) error {
	return m.eachLink(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetMTU(l, mtu) })
}

func (m *Middle) eachLink(f func(*netlink.Handle, netlink.Link) error) error {
	return errors.Join(onLink(m.ns, middleNames[0], f), onLink(m.ns, middleNames[1], f))
}

// onLink calls f for an interface of a namespace.
func onLink(ns netns.NsHandle, name string, f func(*netlink.Handle, netlink.Link) error) error {
	nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer nl.Close()
	l, err := nl.LinkByName(name)
	if err != nil {
		return err
	}
	return f(nl, l)
}

// Close ends the forwarder and removes the pairs. Counters stay readable.
func (m *Middle) Close() error {
	for _, w := range m.ways {
		if w != nil {
			w.close()
		}
	}
	// Not left to the end of the namespace, which comes some time after the
	// last descriptor of it is closed.
	m.eachLink(func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
	return m.ns.Close()
}

// newNamespace makes a namespace without a name. It lives as long as the handle
// is open, or a process or interface needs it.
func newNamespace() (h netns.NsHandle, err error) {
	thread.Run(func() { h, err = netns.New() })
	return h, err
}
