package vipl

import (
	"slices"
	"testing"
	"viaxdp/internal/lab/nstest"
)

// chunks is a NIC that records what is given back.
type chunks struct {
	Port
	freed []uint64
}

func (n *chunks) Release(addr uint64)  { n.freed = append(n.freed, addr) }
func (n *chunks) InFlight(uint64) bool { return false }

// A retransmitted frame between two VIs of a port keeps its chunk until it has arrived, although the peer
// acknowledges the first transmission before, as on a NIC. A frame that is still under way is not retransmitted.
func TestResentOnLoop(t *testing.T) {
	nic := &chunks{}
	p := &port{nic: nic, mem: make([]byte, 8192)}
	c := &conn{loop: true, resentLoop: true, chunks: 2}
	p.loop.queued = []loopFrame{{c, 2048, 1, true}, {c, 4096, 1, true}}
	nstest.Equal(t, "sent again on its way", p.resendShort(c, 4096, 1, 0), notYet)
	p.release(c, 4096<<tagShift|1)
	nstest.ErrorIf(t, len(nic.freed) != 0 || c.chunks != 1, "given back on its way: %d, the connection has %d", nic.freed, c.chunks)
	p.deliverLooped(0)
	nstest.ErrorIf(t, !slices.Equal(nic.freed, []uint64{4096}), "given back on arrival: %d", nic.freed)
	p.release(c, 2048<<tagShift|1)
	nstest.ErrorIf(t, !slices.Equal(nic.freed, []uint64{4096, 2048}), "given back by the acknowledgement: %d", nic.freed)
}
