package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
)

// KindConnect is the bit of the kind byte that marks connection management. Such messages go to the kernel's UDP
// socket, never to a VI.
const KindConnect = 0x80

// Sizes of a connection management message, in bytes.
const (
	CMHeaderLen = 48                                                      // fixed part
	CMMaxDisc   = 64                                                      // longest discriminator
	CMShareLen  = 48                                                      // Handshake of a Request and an Accept
	CMProofLen  = 16                                                      // Handshake of a Confirm
	cmCookieLen = 8                                                       // Cookie of a Request
	CMMaxLen    = CMHeaderLen + 2*CMMaxDisc + CMShareLen + cmCookieLen    // longest message
	cmReserved  = ^uint16(CMRDMAWrite | CMRDMARead | CMPeer | CMBareData) // flag bits that must be 0
	cmSecure    = uint16(1 << 4)                                          // on the wire: the message has a Handshake
	cmCookie    = uint16(1 << 5)                                          // on the wire: a Request has a Cookie
)

// Flags of CM.Flags.
const (
	CMRDMAWrite uint16 = 1 << iota // the sender's VI accepts RDMA writes
	CMRDMARead                     // the sender's VI serves RDMA reads
	CMPeer                         // Request only: it matches only the Request of the other side
	CMBareData                     // the sender does not require checksums of data; they are left out if both sides set it
)

// CMType is the kind of a connection management message. On the wire it is combined with the bit KindConnect.
type CMType uint8

// The messages of one exchange, which has one connection id. The requester sends Request, Confirm and Cancel, the
// acceptor the others. Hello and Here belong to no connection: a Hello is sent to every host of a link, and each
// host that has an agent answers the sender with a Here that has the same id.
//
// A receiver drops messages of a type that it does not know.
const (
	CMRequest   CMType = 1  // asks for a connection: parameters and discriminators
	CMPending   CMType = 2  // the request waits for the acceptor's program
	CMAccept    CMType = 3  // the acceptor's parameters and discriminators
	CMConfirm   CMType = 4  // the requester has the Accept and accepts frames
	CMReject    CMType = 5  // the acceptor's program or agent refuses: Reason
	CMNoMatch   CMType = 6  // no program waits for that discriminator
	CMCancel    CMType = 7  // the requester withdraws the Request: Reason
	CMHello     CMType = 8  // asks which hosts are on the link
	CMHere      CMType = 9  // the answer to a Hello
	CMRetry     CMType = 10 // asks for the same Request with this Cookie
	CMConfirmed CMType = 11 // the acceptor has the Confirm

	cmLast = CMConfirmed
)

var cmNames = [...]string{
	CMRequest: "request", CMPending: "pending", CMAccept: "accept", CMConfirm: "confirm",
	CMReject: "reject", CMNoMatch: "no-match", CMCancel: "cancel", CMHello: "hello", CMHere: "here",
	CMRetry: "retry", CMConfirmed: "confirmed",
}

// String names the type for logs and errors.
func (t CMType) String() string {
	if t.known() {
		return cmNames[t]
	}
	return fmt.Sprintf("cm-type-%d", uint8(t))
}

func (t CMType) known() bool { return t >= CMRequest && t <= cmLast }

// offers reports whether messages of this type carry the sender's parameters.
func (t CMType) offers() bool { return t == CMRequest || t == CMAccept }

// reasons reports whether messages of this type carry a reason.
func (t CMType) reasons() bool { return t == CMReject || t == CMCancel }

// CMReason is the reason why a connection was not made. 0 means that no reason was given.
type CMReason uint8

const (
	CMReasonNone      CMReason = 0  // no reason given
	CMReasonProgram   CMReason = 1  // the program refused (VipConnectReject)
	CMReasonResources CMReason = 2  // the side that ends the exchange is out of a resource
	CMReasonTimeout   CMReason = 3  // the side that ends the exchange has waited long enough
	CMReasonClosed    CMReason = 4  // the side that ends the exchange closes its NIC
	CMReasonUnknown   CMReason = 5  // the side that ends the exchange does not know it
	CMReasonMismatch  CMReason = 6  // attributes of the two VIs do not match
	CMReasonLevel     CMReason = 7  // the reliability levels of the two VIs differ
	CMReasonTransfer  CMReason = 8  // their maximum transfer sizes differ
	CMReasonQoS       CMReason = 9  // their qualities of service differ
	CMReasonNoKey     CMReason = 10 // the side that ends the exchange has a pre-shared key, and the other side offers none
	CMReasonPlain     CMReason = 11 // the side that ends the exchange has no pre-shared key, and the other side offers one
	CMReasonKey       CMReason = 12 // the pre-shared keys of the two sides differ
	CMReasonVersion   CMReason = 13 // the Request is of another version of the format
	cmReasonEnd       CMReason = 14
)

var cmReasons = [...]string{
	"no reason given", "refused by the program", "out of resources", "timed out", "NIC closed",
	"unknown exchange", "attributes do not match", "reliability levels differ",
	"maximum transfer sizes differ", "qualities of service differ",
	"a pre-shared key is required", "no pre-shared key there", "pre-shared keys differ", "protocol versions differ",
}

// String returns the reason as text.
func (r CMReason) String() string {
	if r < cmReasonEnd {
		return cmReasons[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// CM is a message of connection management or of discovery, the payload of a
// UDP datagram:
//
//	 0 version  1 0x80|type  2 flags            4 sender's VI number
//	 8 key that frames to the sender carry; Retry and Confirm: the cookie
//	16 connection id
//	24 first sequence       28 window           30 max payload
//	32 max transfer size                        36 QoS
//	40 level    41 reason, or port offset       42 From length, To length
//	44 CRC32C of what follows, then what comes before
//	48 From discriminator, To discriminator, Handshake, cookie of a Request
//
// Fields that a type does not use are 0 on the wire. A message in which they are not is refused, so that a later
// version may give them a meaning.
type CM struct {
	Type   CMType
	Reason CMReason // Reject and Cancel only
	ID     uint64   // chosen by the sender of the Request or Hello: random, not 0

	// The sender's parameters: Request and Accept only.
	VI          uint32 // VI number, not 0
	Key         uint64 // key that frames to the sender must carry
	Seq         uint32 // first sequence number that the sender will use
	Window      uint16 // units that the sender accepts at first, see Header
	MaxPayload  uint16 // UDP payload bytes of the largest frame that the sender accepts
	Level       uint8  // reliability level: 1, 2 or 4 as VIPL numbers them
	Flags       uint16 // CMRDMAWrite, CMRDMARead, CMPeer, CMBareData
	MaxTransfer uint32 // bytes of the longest message
	QoS         uint32
	From, To    []byte // discriminators of the sender and of the receiver
	PortOffset  uint8  // of the UDP port of frames to the sender, from the interface's; less than Ports

	// Handshake is made by package secure: CMShareLen bytes in a Request or an Accept, CMProofLen bytes in a
	// Confirm, or none.
	Handshake []byte

	// Cookie proves that the requester receives what is sent to its address. A Retry carries one for the next
	// Request. A Confirm without a Handshake carries the Key of the Accept.
	Cookie uint64
}

// ErrCM is the base of the errors for messages whose fields contradict the format. Short messages, wrong versions
// and wrong checksums have errors of their own.
var ErrCM = errors.New("wire: malformed connection message")

func cmError(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrCM, fmt.Sprintf(format, a...))
}

// cookies reports whether messages of this type may have a cookie.
func (t CMType) cookies() bool { return t == CMRequest || t.cookieAsKey() }

// cookieAsKey reports whether the cookie takes the place of the key.
func (t CMType) cookieAsKey() bool { return t == CMRetry || t == CMConfirm }

// handshakeLen returns the length of the Handshake in messages of this type; 0: they have none.
func (t CMType) handshakeLen() int {
	switch t {
	case CMRequest, CMAccept:
		return CMShareLen
	case CMConfirm:
		return CMProofLen
	}
	return 0
}

// check checks the rules that sender and receiver share.
func (m *CM) check() error {
	switch {
	case !m.Type.known():
		return cmError("unknown type %d", uint8(m.Type))
	case m.ID == 0:
		return cmError("connection id 0")
	case m.Flags&cmReserved != 0:
		return cmError("reserved flags %#x", m.Flags&cmReserved)
	case m.Reason >= cmReasonEnd, m.Reason != 0 && !m.Type.reasons():
		return cmError("%v with %v", m.Type, m.Reason)
	case m.PortOffset >= Ports, m.PortOffset != 0 && !m.Type.offers():
		return cmError("%v with port offset %d", m.Type, m.PortOffset)
	case len(m.From) > CMMaxDisc || len(m.To) > CMMaxDisc:
		return cmError("discriminators of %d and %d bytes, at most %d", len(m.From), len(m.To), CMMaxDisc)
	case len(m.Handshake) != 0 && len(m.Handshake) != m.Type.handshakeLen():
		return cmError("%v with a handshake of %d bytes", m.Type, len(m.Handshake))
	case m.Cookie == 0 && m.Type.cookieAsKey() && len(m.Handshake) == 0:
		return cmError("%v without a cookie", m.Type)
	case m.Cookie != 0 && (!m.Type.cookies() || m.Type == CMConfirm && len(m.Handshake) > 0):
		return cmError("%v with a cookie", m.Type)
	}
	if m.Type.offers() {
		switch {
		case m.VI == 0:
			return cmError("%v without a VI", m.Type)
		case m.Level != 1 && m.Level != 2 && m.Level != 4:
			return cmError("reliability level %d", m.Level)
		case m.Flags&CMPeer != 0 && m.Type != CMRequest:
			return cmError("%v between peers", m.Type)
		}
		return nil
	}
	if m.VI != 0 || m.Key != 0 || m.Seq != 0 || m.Window != 0 || m.MaxPayload != 0 || m.Level != 0 ||
		m.Flags != 0 || m.MaxTransfer != 0 || m.QoS != 0 || len(m.From) != 0 || len(m.To) != 0 {
		return cmError("%v carries connection parameters", m.Type)
	}
	return nil
}

// Append appends the message to b. It fails if ParseCM would, with an error that wraps ErrCM.
func (m *CM) Append(b []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return b, err
	}
	start := len(b)
	b = append(b, make([]byte, CMHeaderLen)...)
	b = append(append(append(b, m.From...), m.To...), m.Handshake...)
	flags := m.Flags
	if len(m.Handshake) > 0 {
		flags |= cmSecure
	}
	key := m.Key
	switch {
	case m.Type.cookieAsKey():
		key = m.Cookie
	case m.Cookie != 0:
		flags |= cmCookie
		b = binary.BigEndian.AppendUint64(b, m.Cookie)
	}
	h := b[start:]
	h[0] = Version
	h[1] = KindConnect | byte(m.Type)
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint32(h[4:], m.VI)
	binary.BigEndian.PutUint64(h[8:], key)
	binary.BigEndian.PutUint64(h[16:], m.ID)
	binary.BigEndian.PutUint32(h[24:], m.Seq)
	binary.BigEndian.PutUint16(h[28:], m.Window)
	binary.BigEndian.PutUint16(h[30:], m.MaxPayload)
	binary.BigEndian.PutUint32(h[32:], m.MaxTransfer)
	binary.BigEndian.PutUint32(h[36:], m.QoS)
	h[40], h[41] = m.Level, byte(m.Reason)|m.PortOffset // no type has both
	h[42], h[43] = byte(len(m.From)), byte(len(m.To))
	PutChecksum(h)
	return b, nil
}

// ParseCM parses a message that fills b exactly. From, To and Handshake alias b. The errors wrap ErrShort,
// ErrVersion, ErrKind, ErrLength, ErrChecksum or ErrCM. ErrVersion is of a message that is not damaged.
func ParseCM(b []byte) (CM, error) {
	if len(b) < CMHeaderLen {
		return CM{}, ErrShort
	}
	if b[0] != Version {
		return CM{}, cmp.Or(verify(b), ErrVersion)
	}
	if b[1]&KindConnect == 0 {
		return CM{}, ErrKind
	}
	t, flags := CMType(b[1]&^KindConnect), binary.BigEndian.Uint16(b[2:])
	from, to, shake, cookie := int(b[42]), int(b[43]), 0, 0
	if flags&cmSecure != 0 {
		if shake = t.handshakeLen(); shake == 0 {
			return CM{}, cmError("%v with a handshake", t)
		}
	}
	if flags&cmCookie != 0 {
		if cookie = cmCookieLen; t != CMRequest {
			return CM{}, cmError("%v with a cookie", t)
		}
	}
	if len(b) != CMHeaderLen+from+to+shake+cookie {
		return CM{}, ErrLength
	}
	if err := verify(b); err != nil {
		return CM{}, err
	}
	m := CM{
		Type:        t,
		Flags:       flags &^ (cmSecure | cmCookie),
		VI:          binary.BigEndian.Uint32(b[4:]),
		Key:         binary.BigEndian.Uint64(b[8:]),
		ID:          binary.BigEndian.Uint64(b[16:]),
		Seq:         binary.BigEndian.Uint32(b[24:]),
		Window:      binary.BigEndian.Uint16(b[28:]),
		MaxPayload:  binary.BigEndian.Uint16(b[30:]),
		MaxTransfer: binary.BigEndian.Uint32(b[32:]),
		QoS:         binary.BigEndian.Uint32(b[36:]),
		Level:       b[40],
	}
	if t.offers() {
		m.PortOffset = b[41]
	} else {
		m.Reason = CMReason(b[41])
	}
	if from > 0 {
		m.From = b[CMHeaderLen : CMHeaderLen+from : CMHeaderLen+from]
	}
	if to > 0 {
		m.To = b[CMHeaderLen+from : CMHeaderLen+from+to : CMHeaderLen+from+to]
	}
	if shake > 0 {
		at := CMHeaderLen + from + to
		m.Handshake = b[at : at+shake : at+shake]
	}
	switch {
	case t.cookieAsKey():
		m.Key, m.Cookie = 0, m.Key
	case cookie > 0:
		if m.Cookie = binary.BigEndian.Uint64(b[len(b)-cookie:]); m.Cookie == 0 {
			return CM{}, cmError("%v with cookie 0", t)
		}
	}
	if err := m.check(); err != nil {
		return CM{}, err
	}
	return m, nil
}

// PeekCM reads the front of a message, whose rest may be missing, as in the quotation of an ICMP error, or of another
// version. Version, type, connection id and checksum are at the same place in every version, and Request and Reject have
// the same types. ok is false if b is not such a message. Nothing is verified.
func PeekCM(b []byte) (version uint8, t CMType, id uint64, ok bool) {
	if len(b) < 24 || b[0]>>4 != Version>>4 || b[1]&KindConnect == 0 {
		return 0, 0, 0, false
	}
	t = CMType(b[1] &^ KindConnect)
	return b[0] & 0xf, t, binary.BigEndian.Uint64(b[16:]), t.known()
}
