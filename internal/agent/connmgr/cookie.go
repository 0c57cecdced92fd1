package connmgr

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"net/netip"
	"time"

	"viaxdp/internal/base/wire"
)

// cookieTime is how long a key makes cookies. The key before it is good for as long again:
// so a cookie is too old before the exchange that came by it is forgotten (linger), and
// cannot bring it in a second time.
const cookieTime = time.Second

// cookies makes and checks the cookies of requests. Nothing is remembered of a request that
// is answered by one: a cookie is a MAC over the request's addresses, its id and its
// discriminators, as in SYN cookies and the Retry of QUIC (RFC 9000, 8.1). Guarded by
// Manager.mu. The zero value is ready.
type cookies struct {
	since time.Time    // when the first key was made
	macs  [2]hash.Hash // by the key that makes cookies, and by the one before it; nil: there is none
	text  [256]byte
	sum   [sha256.Size]byte
}

// turn changes the keys when it is time to.
func (c *cookies) turn(now time.Time) {
	age := now.Sub(c.since)
	if c.macs[0] != nil && age < cookieTime {
		return
	}
	c.macs[1] = nil
	if age < 2*cookieTime {
		c.macs[1] = c.macs[0]
	}
	var key [sha256.Size]byte
	rand.Read(key[:]) // never fails
	c.macs[0] = hmac.New(sha256.New, key[:])
	c.since = now
}

// make gives the cookie for a request.
func (c *cookies) make(now time.Time, msg *wire.CM, local netip.Addr, from netip.AddrPort) uint64 {
	c.turn(now)
	return c.of(c.macs[0], msg, local, from)
}

// valid reports whether a request has a cookie that was made for it.
func (c *cookies) valid(now time.Time, msg *wire.CM, local netip.Addr, from netip.AddrPort) bool {
	if msg.Cookie == 0 {
		return false
	}
	c.turn(now)
	for _, mac := range c.macs {
		if mac != nil && sameCookie(msg.Cookie, c.of(mac, msg, local, from)) {
			return true
		}
	}
	return false
}

// sameCookie compares in a time that tells nothing of where they differ.
func sameCookie(x, y uint64) bool {
	var a, b [8]byte
	binary.BigEndian.PutUint64(a[:], x)
	binary.BigEndian.PutUint64(b[:], y)
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func (c *cookies) of(mac hash.Hash, msg *wire.CM, local netip.Addr, from netip.AddrPort) uint64 {
	src, dst := from.Addr().As16(), local.As16()
	b := append(append(c.text[:0], src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint64(b, msg.ID)
	b = binary.BigEndian.AppendUint16(b, msg.Flags)
	b = append(append(b, byte(len(msg.From))), msg.From...)
	b = append(append(b, byte(len(msg.To))), msg.To...)
	mac.Reset()
	mac.Write(b)
	cookie := binary.BigEndian.Uint64(mac.Sum(c.sum[:0]))
	return max(cookie, 1) // 0 is none
}
