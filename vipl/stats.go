package vipl

import (
	"errors"

	"viaxdp/wire"
)

// Counters of a NIC handle's engine. Frames counts every frame that the rings
// gave; the drops name why one went no further.
type Counters struct {
	Frames   uint64 // frames received
	Chained  uint64 // of them, in several chunks
	Messages uint64 // messages delivered
	Writes   uint64 // RDMA writes of peers placed
	Reads    uint64 // RDMA reads of peers served

	Malformed   uint64 // drop: not a frame of ours, or lengths that disagree
	UnknownVI   uint64 // drop: no such VI, or an earlier generation of it
	WrongKey    uint64 // drop: key of another connection
	WrongSource uint64 // drop: from another host than the peer
	Corrupt     uint64 // drop: CRC32C mismatch
	Unsealed    uint64 // drop: plain, of a connection with a pre-shared key, or sealed, of one without
	Forged      uint64 // drop: not sealed by the peer, or changed on the way
	Replayed    uint64 // drop: a packet that came before, or too long after its like
	Duplicate   uint64 // came before, ignored
	Outside     uint64 // drop: beyond the window
	BadAcks     uint64 // acknowledgements of frames never sent, ignored

	Early        uint64 // frames held until earlier ones came
	EarlyDropped uint64 // drop: came early when such frames had the chunks that they may have
	Lost         uint64 // unreliable: frames found missing
	Dropped      uint64 // unreliable: messages given up as frames of them are missing

	RecvQueueEmpty uint64 // messages that met an empty receive queue
	TooLong        uint64 // messages longer than their descriptor
	RDMARefused    uint64 // RDMA of peers on what is not open for it

	ErrorsDropped uint64 // asynchronous errors that the program's handler was too slow for

	Packed      uint64 // messages sent in a frame with others
	Lent        uint64 // frames sent whose data the kernel read where the program has it
	Resent      uint64 // frames sent again
	Acks        uint64 // acknowledgements sent alone
	Probes      uint64 // keepalives sent
	PeersLost   uint64 // connections that ended by silence
	PathsLost   uint64 // connections that ended because frames did not get through to a peer that is heard, or are longer than the interface's MTU
	SourcesLost uint64 // connections that ended because the interface does not have their source address any more
	Rekeyed     uint64 // changes of the key for frames that are sent
	FlushErrors uint64 // doorbells that the kernel refused (interface down)
}

func (s *Counters) count(err error) {
	if errors.Is(err, wire.ErrChecksum) {
		s.Corrupt++
		return
	}
	s.Malformed++
}

// Counters returns the counters as they are now. It may be called concurrently.
func (n *Nic) Counters() Counters {
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	return n.port.stats
}
