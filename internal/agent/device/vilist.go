package device

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"viaxdp/internal/agent/kagent"
)

// viList is the VIs of a lease, of all handles that share it: what Status tells
// and Local.Close takes away. The zero value is empty. All methods may be called
// concurrently.
type viList struct {
	mu   sync.Mutex
	peer map[uint32]netip.Addr // by number; the zero Addr: not connected
}

func (v *viList) set(num uint32, peer netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.peer == nil {
		v.peer = make(map[uint32]netip.Addr)
	}
	v.peer[num] = peer
}

func (v *viList) remove(num uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.peer, num)
}

func (v *viList) has(num uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.peer[num]
	return ok
}

func (v *viList) list() []kagent.VIStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]kagent.VIStatus, 0, len(v.peer))
	for num, peer := range v.peer {
		s := kagent.VIStatus{Num: num, State: kagent.VICreated, Peer: peer}
		if peer.IsValid() {
			s.State = kagent.VIConnected
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b kagent.VIStatus) int { return cmp.Compare(a.Num, b.Num) })
	return all
}
