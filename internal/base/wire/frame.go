package wire

import (
	"encoding/binary"
	"errors"

	"viaxdp/internal/base/crc32c"
)

const (
	// Version is the first byte of every message. The high nibble 0xA identifies the protocol, the low nibble is the
	// version of the format, VersionNumber.
	Version       = 0xA3
	VersionNumber = Version & 0xf
	// Port is the default UDP port, source and destination.
	Port = 4793
	// Ports is how many destination ports an interface has from Port on. Frames of a queue to which the NIC
	// steers a port of its own have one of those after Port; its owner tells peers when they connect.
	Ports = 64
	// HeaderLen is the length of the VIA header in bytes.
	HeaderLen = 48

	checksumAt = 44 // the last field of the header
	// MaxAckRanges is the most selective ranges that one acknowledgement carries.
	MaxAckRanges = 32
	// RangeLen is the length of one selective range in bytes.
	RangeLen = 8
	// WindowUnit is how many bytes of a frame, from the Ethernet header on, take one unit of a window: a chunk of
	// 4096 bytes holds as many bytes of a received frame.
	WindowUnit = 3840
)

// Units returns how many units of a window a frame of the given bytes takes.
func Units(frame int) int { return (frame + WindowUnit - 1) / WindowUnit }

// Kind is the type of a frame.
type Kind uint8

const (
	KindData  Kind = 1 // a piece of a message
	KindAck   Kind = 2 // acknowledgement; the payload is a list of selective ranges; see AckEchoesMarks; RemoteAddr is of GSO packets
	KindProbe Kind = 3 // keepalive: asks for an acknowledgement of a peer that is silent
	KindError Kind = 4 // the sender broke the connection; Immediate is the Reason
	KindClose Kind = 5 // orderly disconnect; has a number in the sequence of a reliable VI
	KindWrite Kind = 6 // a piece of an RDMA write, for RemoteAddr in the region RemoteHandle
	KindRead  Kind = 7 // asks for an RDMA read of Immediate bytes from RemoteAddr, RemoteHandle
	// KindReadData is a piece of the answer to the KindRead whose number is in Immediate, for offset RemoteAddr of
	// the requested bytes.
	KindReadData Kind = 8
	KindPack     Kind = 9 // several whole messages, see Record; RemoteAddr of a KindError is the index of the failed one
)

// Flags of a frame of a message: KindData, KindWrite, KindReadData.
type Flags uint16

const (
	FlagFirst     Flags = 1 << iota // first frame of a message
	FlagLast                        // last frame of a message
	FlagImmediate                   // the message carries immediate data
	FlagAckNow                      // acknowledge at once
	FlagAckSoon                     // acknowledge soon, if no data is sent back at once
	FlagAgain                       // the frame is a retransmission

	flagsKnown = FlagFirst | FlagLast | FlagImmediate | FlagAckNow | FlagAckSoon | FlagAgain
)

// AckEchoesMarks is the RemoteHandle of a KindAck whose Immediate is the number of frames of the sequence that have
// arrived with an ECN mark. Frames to a peer that does not send it may not be marked.
//
// An unreliable VI sends a KindAck only to answer KindProbe and FlagAckNow. Its Ack is the number of the next frame that
// is not late; RemoteHandle and Immediate are 0.
const AckEchoesMarks = 1

// Reason of a KindError frame, in its Immediate field.
type Reason uint32

const (
	ReasonRecvQueueEmpty Reason = 1 // a message found the receive queue empty
	ReasonLength         Reason = 2 // a message was longer than its receive descriptor
	ReasonProtocol       Reason = 3 // the receiver found the stream invalid
	ReasonClosed         Reason = 4 // the VI is no longer connected
	ReasonRDMAWrite      Reason = 5 // an RDMA write to memory that is not open to it
	ReasonRDMARead       Reason = 6 // an RDMA read of memory that is not open to it
	ReasonUnheard        Reason = 7 // the sender of this frame has received nothing from its receiver for its silence time
	ReasonDescriptor     Reason = 8 // a message needed memory that its receive descriptor names but may not access
)

// Header is the VIA header of a data frame.
type Header struct {
	Kind         Kind
	Flags        Flags
	VI           uint32 // destination VI: index in the low 16 bits, generation above
	Key          uint64 // the receiver's key of the connection
	Seq          uint32 // number of the frame in its connection
	Ack          uint32 // next sequence number that the frame's sender expects
	Window       uint16 // units past Ack that the frame's sender accepts; a frame of up to WindowUnit bytes is one
	Length       uint16 // payload bytes
	Immediate    uint32
	RemoteAddr   uint64
	RemoteHandle uint32
}

// The reasons why a frame is not a valid frame of this format. They are fixed values, because the data path only
// counts them.
var (
	ErrShort    = errors.New("wire: frame too short")
	ErrVersion  = errors.New("wire: not this version of the format")
	ErrKind     = errors.New("wire: unknown kind or flag")
	ErrLength   = errors.New("wire: length field disagrees with the frame")
	ErrChecksum = errors.New("wire: CRC32C mismatch")
	ErrProtocol = errors.New("wire: not UDP over IPv4 or IPv6")
)

// Put writes the header into the first HeaderLen bytes of b, except for the checksum. PutChecksum fills that in
// when the payload is in place.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	b[0] = Version
	b[1] = byte(h.Kind)
	binary.BigEndian.PutUint16(b[2:], uint16(h.Flags))
	binary.BigEndian.PutUint32(b[4:], h.VI)
	binary.BigEndian.PutUint64(b[8:], h.Key)
	binary.BigEndian.PutUint32(b[16:], h.Seq)
	binary.BigEndian.PutUint32(b[20:], h.Ack)
	binary.BigEndian.PutUint16(b[24:], h.Window)
	binary.BigEndian.PutUint16(b[26:], h.Length)
	binary.BigEndian.PutUint32(b[28:], h.Immediate)
	binary.BigEndian.PutUint64(b[32:], h.RemoteAddr)
	binary.BigEndian.PutUint32(b[40:], h.RemoteHandle)
}

// PutChecksum computes the checksum over b, which is header and payload, and the remaining payload in rest, and
// stores it in the header.
func PutChecksum(b []byte, rest ...[]byte) {
	binary.BigEndian.PutUint32(b[checksumAt:], checksum(b, rest))
}

// CopyPayload copies b to dst, a place in the payload of a frame that is at least as long. sum is the checksum of the payload
// before that place, 0 at the beginning. CopyPayload returns the checksum including b; PutChecksumAfter takes that of the
// whole payload.
func CopyPayload(sum uint32, dst, b []byte) uint32 { return crc32c.Copy(sum, dst, b) }

// PutChecksumAfter is PutChecksum for a payload whose checksum CopyPayload has returned.
func PutChecksumAfter(sum uint32, b []byte) {
	binary.BigEndian.PutUint32(b[checksumAt:], crc32c.Update(sum, b[:checksumAt]))
}

// PutHeaderChecksum is PutChecksum over the header only.
func PutHeaderChecksum(b []byte) { PutChecksum(b[:HeaderLen]) }

// checksum returns the CRC32C of the payload, which begins in b and continues in rest, followed by the header
// without its last field, the checksum. In this order the checksum field of a received frame need not be set to 0.
// Such a store would be expensive, since the frame's bytes are in the cache of another CPU.
func checksum(b []byte, rest [][]byte) uint32 {
	sum := crc32c.Update(0, b[HeaderLen:])
	for _, r := range rest {
		sum = crc32c.Update(sum, r)
	}
	return crc32c.Update(sum, b[:checksumAt])
}

// KindOf returns the kind of the frame whose header b begins with.
func KindOf(b []byte) Kind { return Kind(b[1]) }

// Restamp updates the header fields that are the sender's state at the time of sending: a retransmission carries
// the current acknowledgement. The checksum must be computed again afterwards.
func Restamp(b []byte, ack uint32, window uint16, more Flags) {
	flags := binary.BigEndian.Uint16(b[2:]) | uint16(more)
	binary.BigEndian.PutUint16(b[2:], flags)
	binary.BigEndian.PutUint32(b[20:], ack)
	binary.BigEndian.PutUint16(b[24:], window)
}

// parse reads the header at the start of b, where a UDP payload of n bytes begins. It does not check the checksum.
func (h *Header) parse(b []byte, n int) error {
	if len(b) < HeaderLen {
		return ErrShort
	}
	if b[0] != Version {
		return ErrVersion
	}
	h.Kind = Kind(b[1])
	if h.Kind == KindSealed {
		return h.parseSealed(b, n)
	}
	h.Flags = Flags(binary.BigEndian.Uint16(b[2:]))
	h.VI = binary.BigEndian.Uint32(b[4:])
	h.Key = binary.BigEndian.Uint64(b[8:])
	h.Seq = binary.BigEndian.Uint32(b[16:])
	h.Ack = binary.BigEndian.Uint32(b[20:])
	h.Window = binary.BigEndian.Uint16(b[24:])
	h.Length = binary.BigEndian.Uint16(b[26:])
	h.Immediate = binary.BigEndian.Uint32(b[28:])
	h.RemoteAddr = binary.BigEndian.Uint64(b[32:])
	h.RemoteHandle = binary.BigEndian.Uint32(b[40:])
	if h.Kind < KindData || h.Kind > KindPack || h.Flags&^flagsKnown != 0 {
		return ErrKind
	}
	if int(h.Length) != n-HeaderLen {
		return ErrLength
	}
	return nil
}

// verify compares the checksum field of b with the checksum of b and rest.
func verify(b []byte, rest ...[]byte) error {
	if binary.BigEndian.Uint32(b[checksumAt:]) != checksum(b, rest) {
		return ErrChecksum
	}
	return nil
}

// AckRange is a run of frames [Start, End) that arrived past the cumulative
// acknowledgement.
type AckRange struct{ Start, End uint32 }

// PutRange writes r at b, RangeLen bytes.
func PutRange(b []byte, r AckRange) {
	binary.BigEndian.PutUint32(b, r.Start)
	binary.BigEndian.PutUint32(b[4:], r.End)
}

// GetRange reads the i-th range of the payload of a KindAck frame. There are len(b)/RangeLen ranges; a reader uses
// at most MaxAckRanges.
func GetRange(b []byte, i int) AckRange {
	b = b[i*RangeLen:]
	return AckRange{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}
