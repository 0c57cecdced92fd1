package connmgr

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"math"
	"net/netip"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// What proves an address (see the package comment) is the cookie of a Retry, the key of an Accept (in a Confirm, or in a frame of
// the data path), or the proof of a handshake. Until then nothing goes there by a timer.
//
// On a quiet host a request comes in without a cookie, so that a connect takes one round trip. If
// places are short, or an address has not answered, a cookie is required first, and a request
// without one leaves no state.
const (
	maxUnproven     = 32                     // exchanges of unproven addresses
	maxUnprovenHost = 16                     // of these, exchanges of one address
	manyRetries     = 4 * maxUnproven        // unanswered Retries that indicate a flood
	yieldInFlood    = 200 * time.Millisecond // limit of an Accept for a silent unproven address in a flood
	yieldToProven   = time.Second            // the same while a proven request is queued
	cookieModeTime  = time.Minute            // how long cookies are required after an address has not proven itself
)

// cookieMode decides whether a request needs a cookie. Guarded by Manager.mu.
type cookieMode struct {
	until   time.Time // cookies are required until then
	retries int       // Retries without an answer while cookies are required; some never get one
}

// extend records that an address did not answer.
func (c *cookieMode) extend(now time.Time) { c.until = now.Add(cookieModeTime) }

// cookiesRequired reports whether only proven requesters are served.
func (m *Manager) cookiesRequired(now time.Time) bool {
	c := &m.cookieMode
	if !now.Before(c.until) && c.retries > maxUnproven {
		c.retries = 0
		c.extend(now) // the flood continues, or has ended recently
	}
	return now.Before(c.until) || len(m.unproven) >= maxUnproven
}

// needsCookie reports whether a request of an unproven address is answered by a Retry.
func (m *Manager) needsCookie(now time.Time, host netip.Addr) bool {
	if m.cookiesRequired(now) {
		return true
	}
	n := 0
	for in := range m.unproven {
		if in.key.peer.Addr() == host {
			n++
		}
	}
	return n >= maxUnprovenHost
}

// retry makes the Retry for a Request. Caller holds m.mu.
func (m *Manager) retry(now time.Time, msg *wire.CM, local netip.Addr, from netip.AddrPort) datagram {
	m.counters.Retries++
	if m.cookiesRequired(now) {
		m.cookieMode.retries++
	}
	return encode(wire.CM{Type: wire.CMRetry, ID: msg.ID, Cookie: m.cookies.make(now, msg, local, from)}, local, from)
}

// proven reports whether a Request has a right cookie. Caller holds m.mu.
func (m *Manager) proven(now time.Time, msg *wire.CM, local netip.Addr, from netip.AddrPort) bool {
	if !m.cookies.valid(now, msg, local, from) {
		return false
	}
	m.cookieMode.retries = max(m.cookieMode.retries-1, 0)
	return true
}

// prove records that the requester of an exchange which has not ended receives what is sent to it. Caller
// holds m.mu.
func (in *incoming) prove() {
	in.proven = true
	delete(in.m.unproven, in)
	if in.door != nil {
		in.m.deliverQueued(in.door, time.Now())
	}
}

// allow returns d if it may be sent now: an unproven address gets at most as many bytes as it has sent.
// Caller holds m.mu.
func (in *incoming) allow(d datagram) datagram {
	if in.proven || d.b == nil {
		return d
	}
	if len(d.b) > in.credit {
		return datagram{}
	}
	in.credit -= len(d.b)
	return d
}

// sweepUnproven ends exchanges of addresses that do not answer. Caller holds m.mu.
func (m *Manager) sweepUnproven(now time.Time) {
	yield := time.Duration(math.MaxInt64) // Accept itself decides
	for _, d := range m.doors {
		if d.hasProven() {
			yield = yieldToProven
		}
	}
	if len(m.unproven) >= maxUnproven && m.cookieMode.retries >= manyRetries {
		yield = yieldInFlood
	}
	for in := range m.unproven {
		silent := now.Sub(in.heard)
		switch {
		case in.state == inPending && silent >= silence,
			in.state == inAccepting && (silent >= yield || yield < silence && now.Sub(in.accepted) >= silence):
			in.end(kagent.ErrVanished, wire.CM{Type: wire.CMReject, Reason: wire.CMReasonTimeout})
			m.cookieMode.extend(now)
		}
	}
}

// cookieTime is how long a key makes cookies. The previous key is valid for as long again. So a cookie has
// expired before its exchange is forgotten (linger), and cannot bring the exchange in a second time.
const cookieTime = time.Second

// cookies makes and checks the cookies of requests, which are as SYN cookies and the Retry of QUIC (RFC 9000, 8.1).
// Guarded by Manager.mu. The zero value is ready.
type cookies struct {
	since time.Time    // when the first key was made
	macs  [2]hash.Hash // MACs with the current key and with the previous one; nil: none
	text  [256]byte
	sum   [sha256.Size]byte
}

// turn changes the keys when the current one has expired.
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

// make returns the cookie for a request.
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

// sameCookie compares in constant time.
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
