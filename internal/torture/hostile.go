package torture

import (
	"encoding/binary"
	"math/rand/v2"

	"viaxdp/internal/testbed"
	"viaxdp/wire"
)

// What an attacker on the way makes of the frames that it sees. Connection
// management is left alone: it is not authenticated, and who can answer in the
// peer's name can keep a connection from being made.

const (
	udpIPv4 = 14 + 20
	udpIPv6 = 14 + 40
	udpHead = 8
)

// dissect finds the parts of a frame of a VI; via is nil for others.
func dissect(frame []byte) (source, udp, via []byte) {
	if len(frame) < udpIPv6+udpHead+wire.HeaderLen {
		return nil, nil, nil
	}
	source, udp = frame[14+12:14+16], frame[udpIPv4:]
	if binary.BigEndian.Uint16(frame[12:]) == 0x86dd {
		source, udp = frame[14+8:14+24], frame[udpIPv6:]
	}
	via = udp[udpHead:]
	if binary.BigEndian.Uint16(udp[2:]) != wire.Port || via[0] != wire.Version || via[1]&wire.KindConnect != 0 {
		return nil, nil, nil
	}
	return source, udp, via
}

// forgePlain changes a frame of a VI as somebody can who has not seen it: what an attacker on the way makes of plain
// frames is taken for the peer's. nil: it is none.
func forgePlain(rng *rand.Rand, frame []byte) []byte {
	source, _, via := dissect(frame)
	if via == nil {
		return nil
	}
	switch rng.IntN(5) {
	case 0: // a VI guessed
		binary.BigEndian.PutUint32(via[4:], rng.Uint32())
	case 1: // a key guessed
		binary.BigEndian.PutUint64(via[8:], rng.Uint64())
	case 2: // from somebody else
		source[rng.IntN(len(source))] ^= byte(1 + rng.IntN(255))
	case 3: // another version of the format
		via[0] ^= byte(1 + rng.IntN(255))
	case 4: // cut off
		frame = frame[:14+rng.IntN(len(frame)-14)]
	}
	return frame
}

// forge changes a frame of a VI; nil: it is none. All offsets are those of
// wire.PutSealed, of which a plain frame has the first 16 bytes alike.
func forge(rng *rand.Rand, frame []byte) []byte {
	_, udp, via := dissect(frame)
	if via == nil {
		return nil
	}
	switch rng.IntN(10) {
	case 0: // as it was: a replay
	case 1, 2: // bits anywhere
		for range 1 + rng.IntN(8) {
			frame[14+rng.IntN(len(frame)-14)] ^= 1 << rng.IntN(8)
		}
	case 3: // a VI guessed
		binary.BigEndian.PutUint32(via[4:], rng.Uint32())
	case 4: // a key guessed
		binary.BigEndian.PutUint64(via[8:], rng.Uint64())
	case 5: // a number that has not come yet
		n := binary.BigEndian.Uint64(via[16:])
		binary.BigEndian.PutUint64(via[16:], n+1+rng.Uint64N(1<<rng.IntN(63)))
	case 6: // another epoch
		binary.BigEndian.PutUint16(via[2:], uint16(rng.Uint32()))
	case 7: // a plain frame of some kind, its checksum right
		via[1] = byte(wire.KindData) + byte(rng.IntN(int(wire.KindPack)))
		binary.BigEndian.PutUint16(via[2:], uint16(rng.IntN(32)))
		n := len(via) - wire.HeaderLen
		binary.BigEndian.PutUint16(via[26:], uint16(n))
		wire.PutChecksum(via)
	case 8: // lengths that lie
		binary.BigEndian.PutUint16(udp[4:], uint16(rng.Uint32()))
	case 9: // cut off
		frame = frame[:14+rng.IntN(len(frame)-14)]
	}
	return frame
}

// Hostile sends forged frames to both sides until it is closed.
type Hostile struct{ forgers [2]*testbed.Forger }

// Hostile begins to forge, of what passes on the bed, where connections are sealed or plain.
func (b *Bed) Hostile(seed uint64, plain bool) (*Hostile, error) {
	change := forge
	if plain {
		change = forgePlain
	}
	h := &Hostile{}
	for side := range h.forgers {
		f, err := b.Site.Middle.Forge(side, seed, change)
		if err != nil {
			h.Close()
			return nil, err
		}
		h.forgers[side] = f
	}
	return h, nil
}

// Compete is Forger.Compete's, of all.
func (h *Hostile) Compete(on bool) {
	for _, f := range h.forgers {
		f.Compete(on)
	}
}

// Spare is Forger.Spare's, of all.
func (h *Hostile) Spare(on bool) {
	for _, f := range h.forgers {
		f.Spare(on)
	}
}

// Sent is how many forged frames went.
func (h *Hostile) Sent() (n uint64) {
	for _, f := range h.forgers {
		if f != nil {
			n += f.Sent()
		}
	}
	return n
}

// Close ends it, once.
func (h *Hostile) Close() {
	for _, f := range h.forgers {
		if f != nil {
			f.Close()
		}
	}
}
