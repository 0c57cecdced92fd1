package vipl

import (
	"context"
	"net/netip"
)

// Neighbor is a host that this NIC can reach and that runs via-xdp.
type Neighbor struct {
	Address netip.Addr
	Hops    int // 0: this NIC itself; 1: on its link
}

// Discover is VipQuerySystemManagementInfo for VIP_SMI_AUTODISCOVERY: it asks on the link which hosts run via-xdp,
// which takes about 100 ms. The list begins with the NIC's own addresses. A host with several addresses may appear
// several times; a host whose answer was lost is missing. Hosts behind a router do not receive the question.
//
// Errors: ErrInvalidParameter if the NIC is closed, ErrResource if the kernel refuses to send. It may be called
// concurrently.
func (n *NIC) Discover() ([]Neighbor, error) {
	list, err := n.agent.Discover(context.Background())
	if err != nil {
		return nil, agentError("QuerySystemManagementInfo", nil, err)
	}
	out := make([]Neighbor, len(list))
	for i, x := range list {
		out[i] = Neighbor{x.Addr, x.Hops}
	}
	return out, nil
}
