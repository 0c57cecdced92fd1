package vipl

import (
	"errors"

	"viaxdp/internal/base/wire"
)

// Counters are the counters of a NIC handle's engine. Frames counts every received frame; the drops name why a
// frame was not processed further.
type Counters struct {
	Frames   uint64 // frames received
	Chained  uint64 // frames received in several chunks
	Messages uint64 // messages delivered
	Writes   uint64 // RDMA writes of peers that were placed
	Reads    uint64 // RDMA reads of peers that were served

	Malformed     uint64 // drop: not a frame of this format, or lengths that disagree
	UnknownVI     uint64 // drop: no such VI, or an earlier generation of it
	WrongKey      uint64 // drop: key of another connection
	WrongSource   uint64 // drop: from another host than the peer's
	Corrupt       uint64 // drop: CRC32C mismatch
	Unsealed      uint64 // drop: plain on a connection with a pre-shared key, or sealed on one without
	Forged        uint64 // drop: not sealed by the peer, or changed on the path
	Replayed      uint64 // drop: a sealed packet that arrived before, or too late for the replay window
	Duplicate     uint64 // arrived before, ignored
	OutsideWindow uint64 // drop: beyond the window
	BadAcks       uint64 // acknowledgements of frames that were never sent, or with ranges that do not ascend; ignored

	Marked            uint64 // frames that a router marked (ECN) because its queue was long
	OutOfOrder        uint64 // frames kept until earlier ones arrived
	OutOfOrderDropped uint64 // drop: out of order while such frames used all chunks that they may use
	Lost              uint64 // unreliable: frames found missing
	Dropped           uint64 // unreliable: messages dropped because frames of them are missing or invalid

	RecvQueueEmpty uint64 // messages that found the receive queue empty
	TooLong        uint64 // messages longer than their descriptor, or than the registered part of its memory
	RDMARefused    uint64 // RDMA of peers on memory that is not open to it

	ErrorsDropped uint64 // asynchronous errors dropped because the program's handler was too slow

	Packed            uint64 // messages sent in a frame with others
	GSOSent           uint64 // GSO packets: several frames that left by segmentation offload
	GSOSentFrames     uint64 // frames in them
	GSOReceived       uint64 // GSO packets that nothing on the path had divided; Frames counts each once
	GSOReceivedFrames uint64 // frames in them
	GSOErrors         uint64 // GSO packets that the kernel refused; their frames went on the TX ring
	ByReference       uint64 // frames whose data the kernel read in the program's memory
	Resent            uint64 // retransmissions
	Acks              uint64 // bare acknowledgements sent
	Probes            uint64 // keepalives sent
	PeersLost         uint64 // connections that ended because the peer was silent
	PathsLost         uint64 // connections that ended because frames do not reach a peer that is alive, or exceed the interface's MTU
	SourcesLost       uint64 // connections that ended because the interface no longer has their source address
	Rekeyed           uint64 // changes of the sending key
	FlushErrors       uint64 // doorbells that the kernel refused (interface down)
}

func (s *Counters) count(err error) {
	if errors.Is(err, wire.ErrChecksum) {
		s.Corrupt++
		return
	}
	s.Malformed++
}

// Counters returns the current counters. It may be called concurrently.
func (n *NIC) Counters() Counters {
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	return n.port.stats
}
