package memorynic

import (
	"context"
	"net/netip"
	"sync"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Refused is an agent that refuses the first Times connects of its NIC, after the peer has accepted
// and sent something: an RDMA write of no bytes, which a VI that takes writes does not answer at
// once. Set Wire and NIC before the NIC connects.
type Refused struct {
	*kagenttest.Agent
	Wire *xdpnictest.Wire
	NIC  *vipl.NIC

	mu    sync.Mutex
	Times int
	first map[uint32]uint32 // the peer's first sequence number, by the number of the VI
}

// Request implements the agent. It records the peer's answer.
func (r *Refused) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	answer, err := r.Agent.Request(ctx, local, remote, o)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.first == nil {
			r.first = make(map[uint32]uint32)
		}
		r.first[o.VI] = answer.Offer.Seq
	}
	return answer, err
}

// Enter implements the agent. When it returns, the write has been taken.
func (r *Refused) Enter(num uint32, key uint64, peer netip.Addr) error {
	if err := r.Agent.Enter(num, key, peer); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.first[num]; !ok || r.Times == 0 {
		return nil
	}
	r.Times--
	if err := r.send(num, key, peer); err != nil {
		return err
	}
	return &kagent.RejectedError{Reason: wire.CMReasonProgram}
}

// send sends the VI the write as its peer.
func (r *Refused) send(num uint32, key uint64, peer netip.Addr) error {
	from := [6]byte{2, 0xbb}
	q, err := r.Wire.Queue(xdpnictest.Config{MAC: from})
	if err != nil {
		return err
	}
	defer q.Close()
	template, err := wire.NewTemplate(wire.Link{SrcMAC: from, DstMAC: r.Link().MAC, Src: peer, Dst: r.Addr()})
	if err != nil {
		return err
	}
	h := wire.Header{Kind: wire.KindWrite, Flags: wire.FlagFirst | wire.FlagLast, VI: num, Key: key, Seq: r.first[num], Window: 8}
	frames := r.NIC.Counters().Frames
	q.SendFrame(&template, h, nil)
	for r.NIC.Counters().Frames == frames {
		r.NIC.Poll()
	}
	return nil
}
