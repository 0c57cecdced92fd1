package capture

import (
	"encoding/binary"

	"viaxdp/internal/base/wire"
)

// DestinationVI reads the number of the VI that a frame is for, also of one that
// was cut behind the headers. ok is false for what is no frame of a VI.
func DestinationVI(frame []byte) (vi uint32, ok bool) {
	b := frame
	skip := func(n int) bool {
		if len(b) < n {
			return false
		}
		b = b[n:]
		return true
	}
	if !skip(12) || len(b) < 2 {
		return 0, false
	}
	proto := binary.BigEndian.Uint16(b)
	if proto == 0x8100 || proto == 0x88a8 {
		if !skip(4) || len(b) < 2 {
			return 0, false
		}
		proto = binary.BigEndian.Uint16(b)
	}
	if !skip(2) {
		return 0, false
	}
	switch {
	case proto == 0x0800 && len(b) > 9 && b[0] == 0x45 && b[9] == 17:
		ok = skip(20)
	case proto == 0x86dd && len(b) > 6 && b[0]>>4 == 6 && b[6] == 17:
		ok = skip(40)
	}
	if !ok || !skip(8) || len(b) < 8 || b[0] != wire.Version || b[1]&wire.KindConnect != 0 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[4:]), true
}
