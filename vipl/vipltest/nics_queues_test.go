package vipltest_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// TestQueuesOfNICs tests NICs with VIA_NICS_QUEUES queues, whose hash selects the queue of an incoming frame. A
// lease steers the frames to its queue, by a rule or the indirection table, and undoes that. Frames on a queue
// other than the VI's are counted. VIs on two queues work at the same time. A handle on all queues receives wherever the
// hash puts the frames.
func TestQueuesOfNICs(t *testing.T) {
	na, nb, mode := realNICs(t)
	if n, _ := strconv.Atoi(os.Getenv("VIA_NICS_QUEUES")); n < 2 {
		t.Skip("VIA_NICS_QUEUES says of no NIC with several queues; go run ./internal/lab/vm --queues 2 has some")
	}
	open := func(t *testing.T, ns *nstest.NS, queue int, how vipl.Steering) *pairtest.End {
		return pairtest.Open(t, ns, vipl.WithMode(mode, true), vipl.WithHugepages(hugepages.Avoid),
			vipl.WithArena(arenaBytes), vipl.WithQueue(queue), vipl.WithSteering(how), vipl.WithSilence(20*time.Second))
	}
	tables := map[*nstest.NS]*table{na: openTable(t, na), nb: openTable(t, nb)}
	nstest.Must(t, fewerQueues(na))

	for _, how := range []vipl.Steering{vipl.SteerByRules, vipl.SteerByRSS} {
		t.Run("steering by "+how.String(), func(t *testing.T) {
			tableBefore, rulesBefore := tables[na].get(t), tables[na].rules(t)
			t.Run("leased", func(t *testing.T) {
				a, b := open(t, na, 1, how), open(t, nb, 1, how)
				info, table, rules := a.NIC.Info(), tables[na].get(t), tables[na].rules(t)
				switch info.Steered {
				case vipl.SteerByRules.String(): // which moves nothing else
					ours := func(r steer.Rule) bool { return r.Port == info.Port && r.Queue == 1 }
					if !slices.ContainsFunc(slices.Collect(maps.Values(rules)), ours) || !slices.Equal(table, tableBefore) {
						t.Errorf("the lease's rules: %v; table %v, %v before", rules, table, tableBefore)
					}
				case vipl.SteerByRSS.String():
					nstest.ErrorIf(t, how != vipl.SteerByRSS || slices.Contains(table, 0), "%v was allowed; the lease's table: %v", how, table)
				default: // no emulated NIC accepts rules, as a note reports
					if how != vipl.SteerByRules || len(info.Notes) == 0 || !slices.Equal(table, tableBefore) || !maps.Equal(rules, rulesBefore) {
						t.Errorf("%v was allowed, and it is not steered: notes %q, table %v, rules %v", how, info.Notes, table, rules)
					}
					t.Logf("not steered: %q", info.Notes)
					return
				}
				nstest.ErrorIf(t, info.Queue != 1, "on queue %d", info.Queue)
				a, b = pairtest.Join(t, a, b, nb.IPv4, vipl.ReliableDelivery)
				before := wrongQueue(t, a, b)
				exchange(t, a, b, 10)
				nstest.Equal(t, "frames that have come in on another queue", wrongQueue(t, a, b), before)
			})
			nstest.Same(t, "table after the lease", tables[na].get(t), tableBefore)
			if now := tables[na].rules(t); !maps.Equal(now, rulesBefore) {
				t.Errorf("rules %v after the lease, %v before", now, rulesBefore)
			}
			nstest.WantErr(t, "the table is not the kernel's own any more", fewerQueues(na), nil)
		})
	}

	// From here on the table is the test's.
	t.Run("all queues", func(t *testing.T) {
		a, b := open(t, na, 1, vipl.SteerAll), open(t, nb, kagent.AnyQueue, vipl.SteerByRules) // which no emulated NIC has
		if mode == xdpnic.ModeZeroCopy {
			if info := a.NIC.Info(); info.Steered != "" || !slices.ContainsFunc(info.Notes, func(n string) bool { return strings.Contains(n, "zero-copy queue") }) {
				t.Errorf("steered %q, notes %q", info.Steered, info.Notes)
			}
			return
		}
		if info := b.NIC.Info(); info.Steered != "all" && info.Steered != "rules" {
			t.Errorf("by default: steered %q, notes %q", info.Steered, info.Notes)
		}
		a, b = pairtest.Join(t, a, b, nb.IPv4, vipl.ReliableDelivery)
		before := wrongQueue(t, a, b)
		for i := range 8 {
			for side, ns := range []*nstest.NS{na, nb} {
				tables[ns].set(t, func(int) bool { return i>>side&1 == 1 })
			}
			exchange(t, a, b, 10)
		}
		nstest.Equal(t, "frames that have come in on another queue", wrongQueue(t, a, b), before)
	})
	var ends [2][2]*pairtest.End // by queue, side
	for queue := range ends {
		for side, ns := range []*nstest.NS{na, nb} {
			ends[queue][side] = open(t, ns, queue, vipl.SteerOff)
		}
	}
	families := []struct {
		name string
		host [2]netip.Addr
	}{{"IPv4", [2]netip.Addr{na.IPv4, nb.IPv4}}, {"IPv6", [2]netip.Addr{na.IPv6, nb.IPv6}}}
	var slots [2][2]int // in the receiving side's table, by side, family
	for f, family := range families {
		a, b := pairtest.Join(t, ends[0][0], ends[0][1], family.host[1], vipl.UnreliableDelivery)
		slots[0][f] = tables[na].slot(t, b, a)
		slots[1][f] = tables[nb].slot(t, a, b)
		t.Logf("%s: slots %d and %d of the tables", family.name, slots[0][f], slots[1][f])
		// Its probes would be counted below, as they came in on another queue than its VIs'.
		for _, x := range tables {
			x.set(t, func(int) bool { return false })
		}
		for _, e := range []*pairtest.End{a, b} {
			nstest.Must(t, e.VI.Disconnect())
		}
	}
	for side, ns := range []*nstest.NS{na, nb} {
		if slots[side][0] == slots[side][1] { // one of 128 keys of the hash
			t.Logf("%s puts both addresses in one slot: no two queues this time", ns.Name)
			return
		}
		tables[ns].set(t, func(i int) bool { return i == slots[side][1] })
	}
	var pairs [2][2]*pairtest.End
	for queue, family := range families {
		pairs[queue][0], pairs[queue][1] = pairtest.Join(t, ends[queue][0], ends[queue][1], family.host[1], vipl.ReliableDelivery)
	}
	before := wrongQueue(t, ends[0][0], ends[0][1])
	t.Run("two queues", func(t *testing.T) {
		for _, p := range pairs {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				exchange(t, p[0], p[1], 40)
			})
		}
	})
	nstest.Equal(t, "frames that have come in on the other queue", wrongQueue(t, ends[0][0], ends[0][1]), before)
}

// fewerQueues takes a NIC's queues but one away and gives them back, which the kernel
// refuses while a table was set explicitly, and for a moment after a socket of the queue was
// closed.
func fewerQueues(ns *nstest.NS) error {
	return ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		before, err := e.GetChannels(ns.Name)
		if err != nil {
			return err
		}
		for _, n := range []uint32{1, before.CombinedCount} {
			c := before
			c.CombinedCount = n
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if _, err = e.SetChannels(ns.Name, c); err == nil {
					break
				}
				if time.Now().After(end) {
					return fmt.Errorf("%d queues: %w", n, err)
				}
			}
		}
		return nil
	})
}

// exchange sends n messages of all sizes there and back, and looks at their bytes.
func exchange(t *testing.T, a, b *pairtest.End, n int) {
	t.Helper()
	for i := range n {
		message := bytes.Repeat([]byte{byte(i)}, 1+i*pairtest.Size/n)
		for _, way := range [][2]*pairtest.End{{a, b}, {b, a}} {
			if got := way[0].Send(t, way[1], message); !bytes.Equal(got, message) {
				t.Fatalf("message %d: %d bytes arrived, %d sent, or not the same", i, len(got), len(message))
			}
		}
	}
}

// wrongQueue is how many frames the demux programs of the sides have counted that
// came in on a queue that is not the socket's.
func wrongQueue(t *testing.T, sides ...*pairtest.End) (sum uint64) {
	t.Helper()
	for _, e := range sides {
		n, ok := e.NIC.Status().Demux["queue"]
		nstest.FatalIf(t, !ok, "the demux program does not tell what came in on another queue")
		sum += n
	}
	return sum
}

// table is the indirection table of a NIC; the test's end makes it the kernel's again.
type table struct {
	nic  *steer.Interface
	size int
}

func openTable(t *testing.T, ns *nstest.NS) *table {
	t.Helper()
	x := &table{}
	x.nic = nstest.In(t, ns, func() (*steer.Interface, error) { return steer.Open(ns.Name) })
	x.size = len(x.get(t))
	t.Cleanup(func() {
		nstest.Check(t, x.nic.SetTable(nil)) // the default, as it was: with a table that was set, the kernel refuses fewer queues
		nstest.Check(t, x.nic.Close())
	})
	return x
}

func (x *table) get(t *testing.T) []uint32 {
	t.Helper()
	now, err := x.nic.Table()
	nstest.Must(t, err)
	return now
}

// rules are the classifier's for UDP ports; none where there is no classifier.
func (x *table) rules(t *testing.T) map[uint32]steer.Rule {
	t.Helper()
	now, err := x.nic.Rules()
	nstest.FatalIf(t, err != nil && !errors.Is(err, unix.EOPNOTSUPP), "%v", err)
	return now
}

// set puts the slots for which it is true on queue 1, all others on queue 0.
func (x *table) set(t *testing.T, one func(slot int) bool) {
	t.Helper()
	to := make([]uint32, x.size)
	for i := range to {
		if one(i) {
			to[i] = 1
		}
	}
	nstest.Must(t, x.nic.SetTable(to))
}

// slot finds, bit by bit, the slot in to's table for frames of a connection whose VI is on queue 0: either a
// message arrives, or the demux program counts it.
func (x *table) slot(t *testing.T, from, to *pairtest.End) (slot int) {
	t.Helper()
	posted := false
	for bit := range bits.Len(uint(x.size - 1)) {
		x.set(t, func(i int) bool { return i>>bit&1 == 1 })
		before := wrongQueue(t, to)
		message := []byte{byte(bit), 1, 2, 3}
		if posted { // the receive of a message that did not arrive
			from.PostSend(t, message)
		} else {
			from.Post(t, to, message)
		}
		for end := time.Now().Add(20 * time.Second); ; {
			_, err := to.VI.RecvDone()
			if err == nil {
				posted = false
				break
			}
			nstest.FatalIf(t, err != vipl.ErrNotDone, "%v", err)
			if wrongQueue(t, to) > before {
				slot |= 1 << bit
				posted = true
				break
			}
			nstest.FatalIf(t, time.Now().After(end), "bit %d: the message neither arrived nor was it counted on another queue", bit)
		}
		if got := from.Sent(t, to); !posted && !bytes.Equal(got, message) {
			t.Fatalf("bit %d: % x arrived", bit, got)
		}
	}
	return slot
}
