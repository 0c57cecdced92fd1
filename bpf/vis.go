package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// VIEntry describes a VI to the demux program.
type VIEntry struct {
	Slot  uint32 // slot of the socket that gets the VI's frames
	Queue uint32 // receive queue of that socket
	// Queues, unless 0, means that the VI has a socket on each of the queues 0 to Queues-1: Slot+n has that of queue n, and
	// Queue is not used.
	Queues uint32
	Key    uint64     // key that the VI's frames carry
	Peer   netip.Addr // source address of the VI's frames; IPv4, also as ::ffff:a.b.c.d, or IPv6; a zone is ignored
}

// ErrNoVI is returned if the VI table has no entry for a VI number.
var ErrNoVI = errors.New("bpf: no such VI in the table")

// viTable is the VI table, mapped into the process. The XDP program reads entries
// without a lock while they are written, so the order of writes matters:
//
//	enter:   id = 0    key, peer, queues   id = number and slot
//	remove:  id = 0
//
// The program loads id, then key, peer, queues and queue, each as one word. If a frame of
// the previous VI matched id just before id changed, the program compares the
// frame with the new, random key and drops it. If a CPU with weak ordering sees
// the new id and the old key, it drops the new VI's first frame, which the peer
// sends again. Number and slot are one word, so no frame goes to the slot of
// another VI. The owner of the socket checks number and key again.
type viTable struct {
	m       *ebpf.Map
	mem     []byte         // the mapping
	entries []demuxViEntry // the mapping, as entries
}

// index returns the place of a VI number in the table.
func (t *viTable) index(num uint32) (uint32, error) {
	index := num & indexMask
	if num == 0 || int(index) >= len(t.entries) {
		return 0, fmt.Errorf("bpf: VI number %#x: want a number other than 0 with an index (low %d bits) below %d",
			num, indexBits, len(t.entries))
	}
	return index, nil
}

func (t *viTable) enter(num uint32, v VIEntry) error {
	index, err := t.index(num)
	if err != nil {
		return err
	}
	if !v.Peer.IsValid() {
		return fmt.Errorf("bpf: VI %#x: no peer address", num)
	}
	peer := v.Peer.As16()
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], v.Key)

	e := &t.entries[index]
	atomic.StoreUint64(&e.Id, 0)
	atomic.StoreUint64(&e.Key, binary.NativeEndian.Uint64(key[:]))
	atomic.StoreUint64(&e.Peer.Hi, binary.NativeEndian.Uint64(peer[:8]))
	atomic.StoreUint64(&e.Peer.Lo, binary.NativeEndian.Uint64(peer[8:]))
	atomic.StoreUint32(&e.Queue, v.Queue)
	atomic.StoreUint32(&e.Queues, v.Queues)
	atomic.StoreUint64(&e.Id, uint64(v.Slot)<<32|uint64(num))
	return nil
}

func (t *viTable) remove(num uint32) error {
	index, err := t.index(num)
	if err != nil {
		return fmt.Errorf("%w (%w)", ErrNoVI, err)
	}
	e := &t.entries[index]
	if now := uint32(atomic.LoadUint64(&e.Id)); now != num {
		return fmt.Errorf("%w: %#x; the entry at its index is %#x", ErrNoVI, num, now)
	}
	atomic.StoreUint64(&e.Id, 0)
	return nil
}

func (t *viTable) clear() {
	for i := range t.entries {
		atomic.StoreUint64(&t.entries[i].Id, 0)
	}
}

func (t *viTable) each(f func(num uint32, v VIEntry)) {
	for i := range t.entries {
		e := &t.entries[i]
		id := atomic.LoadUint64(&e.Id)
		if uint32(id) == 0 {
			continue
		}
		var peer [16]byte
		var key [8]byte
		binary.NativeEndian.PutUint64(peer[:8], atomic.LoadUint64(&e.Peer.Hi))
		binary.NativeEndian.PutUint64(peer[8:], atomic.LoadUint64(&e.Peer.Lo))
		binary.NativeEndian.PutUint64(key[:], atomic.LoadUint64(&e.Key))
		f(uint32(id), VIEntry{
			Slot: uint32(id >> 32), Queue: atomic.LoadUint32(&e.Queue), Queues: atomic.LoadUint32(&e.Queues),
			Key: binary.BigEndian.Uint64(key[:]), Peer: netip.AddrFrom16(peer).Unmap(),
		})
	}
}
