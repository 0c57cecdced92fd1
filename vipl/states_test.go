package vipl_test

import (
	"slices"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

func newVI(t testing.TB, n *vipl.NIC, level vipl.ReliabilityLevel) *vipl.VI {
	t.Helper()
	return createVI(t, n, vipl.VIAttributes{Level: level}, nil, nil)
}

// createVI makes a VI with those attributes, on those completion queues.
func createVI(t testing.TB, n *vipl.NIC, a vipl.VIAttributes, send, recv *vipl.CQ) *vipl.VI {
	t.Helper()
	v, err := n.CreateVI(a, send, recv)
	must(t, err)
	return v
}

func createCQ(t testing.TB, n *vipl.NIC, entries int) *vipl.CQ {
	t.Helper()
	c, err := n.CreateCQ(entries)
	must(t, err)
	return c
}

// What completed sends of a reliable VI handed over arrives before the disconnect does,
// though that takes its time on a long way that loses: as long as the peer answers.
func TestDisconnectDeliversOverALongWay(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const count, size = 8, 1000
		n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, level)
		way := xdpnictest.Faults{Delay: 50 * time.Millisecond}
		n.wire.SetFaults(way)
		xa, xb := newBox(t, n.a.NIC, count, size), newBox(t, n.b.NIC, count, size)
		for range 20 { // until the time of a round trip is known
			postRecv(t, vb, xb, 0, size)
			postSend(t, va, xa, 0, size)
			received(t, vb, 0)
			sent(t, va, 0)
		}
		time.Sleep(time.Second)
		var sent []uint32 // the frames' numbers
		lost := 0
		lossy := way
		lossy.Drop = faultsDropping(func(p *wire.Packet) bool {
			if p.Kind != wire.KindData {
				return false
			}
			if !slices.Contains(sent, p.Seq) {
				sent = append(sent, p.Seq)
			}
			if len(sent) < 4 || p.Seq != sent[3] || lost == 2 {
				return false
			}
			lost++
			return true
		}).Drop
		n.a.queue.SetFaults(lossy)
		postRecvs(t, vb, xb, count, size)
		for i := range count {
			postMessage(t, va, xa, i, size, i)
		}
		must(t, va.Disconnect())
		n.a.queue.SetFaults(way)
		fatalIf(t, len(sent) != count || lost != 2, "%d frames, one was lost %d times", len(sent), lost)
		for i := range count {
			receivedMessage(t, vb, xb.buf[i][:size], i)
		}
		stateIs(t, vb, vipl.Error)
	})
}
